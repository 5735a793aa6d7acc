//! Servers: their addresses in Kingpost's form, and their groups.

/// Databases with the addresses of their servers.
pub(super) type Servers = Vec<(String, Vec<String>)>;

/// Returns the address of a server in Kingpost's form. `socket_dir`: used without a host.
pub(super) fn address(host: &str, port: &str, socket_dir: &str) -> Result<String, String> {
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(format!("found port {port:?}, expected a port from 1 to 65535"));
    }
    match host {
        "" => Ok(format!("{socket_dir}/.s.PGSQL.{port}")),
        directory if directory.starts_with('/') => Ok(format!("{directory}/.s.PGSQL.{port}")),
        socket if socket.starts_with('@') => Err(format!("found {socket:?}: Kingpost has no abstract sockets")),
        address if address.contains(':') => Ok(format!("[{address}]:{port}")),
        host => Ok(format!("{host}:{port}")),
    }
}

/// Groups databases that share a server, directly or through others, with all of their servers.
pub(super) fn groups(led: &[(String, Vec<String>)]) -> Vec<(Vec<String>, Vec<String>)> {
    let mut groups: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for (name, nodes) in led {
        let (mut names, mut all) = (vec![name.clone()], nodes.clone());
        groups.retain_mut(|(others, theirs)| {
            let shares = theirs.iter().any(|node| nodes.contains(node));
            if shares {
                names.splice(0..0, others.drain(..));
                all.splice(0..0, theirs.drain(..));
            }
            !shares
        });
        all.sort();
        all.dedup();
        groups.push((names, all));
    }
    groups
}
