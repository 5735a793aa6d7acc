//! What is written: Kingpost's settings, table by table, and the text that they make.

use std::fmt::Write;

/// A key, and its value as TOML.
pub(super) type Line = (&'static str, String);

/// The configuration to write.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The file that it is made from.
    pub(super) source: String,
    pub(super) listen: Vec<String>,
    /// Who may connect to the Unix socket among them.
    pub(super) socket: Vec<Line>,
    pub(super) proxy: Vec<Line>,
    /// `(id, address)` of `proxy.peers`.
    pub(super) peers: Vec<(u8, String)>,
    pub(super) auth_query: Vec<Line>,
    pub(super) proxy_tls: Vec<Line>,
    pub(super) pool: Vec<Line>,
    pub(super) databases: Vec<(String, Vec<Line>)>,
    pub(super) users: Vec<(String, Vec<Line>)>,
    pub(super) operators: Vec<(String, Vec<Line>)>,
    pub(super) cluster: Vec<Line>,
    pub(super) cluster_tls: Vec<Line>,
    /// The servers, by cluster; the clusters have all else in common.
    pub(super) clusters: Vec<Cluster>,
    /// What a reader should know of the clusters.
    pub(super) about_clusters: Option<String>,
    /// What was left out, and why.
    pub(super) left_out: Vec<(String, String)>,
}

/// Servers that belong together.
#[derive(Debug)]
pub(super) struct Cluster {
    /// None: there is no other one.
    pub(super) name: Option<String>,
    /// Addresses.
    pub(super) nodes: Vec<String>,
}

impl Plan {
    /// The configuration's text.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn listener(&self, address: &str) -> String {
        if !address.starts_with('/') || self.socket.is_empty() {
            return quoted(address);
        }
        let keys: Vec<String> = self.socket.iter().map(|(key, value)| format!(", {key} = {value}")).collect();
        format!("{{ address = {}{} }}", quoted(address), keys.concat())
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "# Made from {} by `kingpost config from-pgbouncer`.", in_comment(&self.source))?;
        if !self.left_out.is_empty() {
            writeln!(to, "#\n# Not carried over:")?;
            for (what, why) in &self.left_out {
                writeln!(to, "#   {}: {}", in_comment(what), in_comment(why))?;
            }
        }
        writeln!(to, "\n[proxy]")?;
        writeln!(
            to,
            "listen = [{}]",
            self.listen.iter().map(|address| self.listener(address)).collect::<Vec<_>>().join(", ")
        )?;
        lines(to, &self.proxy)?;
        if !self.peers.is_empty() {
            let peers: Vec<String> = self
                .peers
                .iter()
                .map(|(id, address)| format!("{{ id = {id}, address = {} }}", quoted(address)))
                .collect();
            writeln!(to, "peers = [{}]", peers.join(", "))?;
        }
        for (name, table) in
            [("proxy.auth_query", &self.auth_query), ("proxy.tls", &self.proxy_tls), ("proxy.pool", &self.pool)]
        {
            if !table.is_empty() {
                writeln!(to, "\n[{name}]")?;
                lines(to, table)?;
            }
        }
        writeln!(
            to,
            "\n[proxy.routing]\n# As PgBouncer: everything to the primary. \"auto\" lets replicas answer reads."
        )?;
        writeln!(to, "route = \"primary\"")?;
        for (name, entries) in
            [("proxy.databases", &self.databases), ("proxy.users", &self.users), ("proxy.operators", &self.operators)]
        {
            for (entry, settings) in entries {
                writeln!(to, "\n[[{name}]]\nname = {}", quoted(entry))?;
                lines(to, settings)?;
            }
        }
        if let Some(about) = &self.about_clusters {
            writeln!(to, "\n# {}", in_comment(about))?;
        }
        for (at, cluster) in self.clusters.iter().enumerate() {
            let table = if at == 0 { "cluster" } else { "clusters" };
            writeln!(to, "\n{}", if at == 0 { "[cluster]" } else { "[[clusters]]" })?;
            if let Some(name) = &cluster.name {
                writeln!(to, "name = {}", quoted(name))?;
            }
            self.write_cluster(to, table, &cluster.nodes)?;
        }
        Ok(())
    }

    /// What is below the name of a cluster.
    fn write_cluster(&self, to: &mut String, table: &str, nodes: &[String]) -> std::fmt::Result {
        writeln!(to, "# Who watches the nodes: needs CONNECT, and pg_monitor for a prompt view of failovers.")?;
        lines(to, &self.cluster)?;
        if !self.cluster_tls.is_empty() {
            writeln!(to, "\n[{table}.tls]")?;
            lines(to, &self.cluster_tls)?;
        }
        for (index, node) in nodes.iter().enumerate() {
            writeln!(to, "\n[[{table}.nodes]]\nname = \"node{}\"\naddress = {}", index + 1, quoted(node))?;
        }
        Ok(())
    }
}

fn lines(to: &mut String, lines: &[Line]) -> std::fmt::Result {
    lines.iter().try_for_each(|(key, value)| writeln!(to, "{key} = {value}"))
}

/// As a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// As part of a TOML comment, which has no control character but the tab: each as its escape.
fn in_comment(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() && c != '\t' => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}
