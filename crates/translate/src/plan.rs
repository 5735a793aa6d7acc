//! The output of a translation: Kingpost's settings, table by table, and their text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::options::Options;
use super::prober::{Entry, Login, Prober};
use super::server::{Servers, groups};

/// A key, and its value as TOML.
pub(super) type Line = (&'static str, String);

/// The configuration to write.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Path of the translated file.
    source: String,
    /// The command that made the plan, such as `from-pgbouncer`.
    command: &'static str,
    /// The program whose file is translated.
    program: &'static str,
    pub(super) listen: Vec<String>,
    /// Permissions of the Unix socket among them.
    pub(super) socket: Vec<Line>,
    pub(super) proxy: Vec<Line>,
    /// `(id, address)` of `proxy.peers`.
    pub(super) peers: Vec<(u8, String)>,
    pub(super) auth_query: Vec<Line>,
    pub(super) proxy_tls: Vec<Line>,
    pub(super) pool: Vec<Line>,
    pub(super) routing: Vec<Line>,
    pub(super) about_routing: &'static str,
    /// Rules of client authentication, in their order.
    pub(super) rules: Vec<Vec<Line>>,
    pub(super) databases: Vec<(String, Vec<Line>)>,
    pub(super) users: Vec<(String, Vec<Line>)>,
    pub(super) operators: Vec<(String, Vec<Line>)>,
    pub(super) cluster: Vec<Line>,
    pub(super) cluster_tls: Vec<Line>,
    /// The servers, by cluster; all other settings are common to the clusters.
    clusters: Vec<Cluster>,
    /// Further settings of a server, by its address.
    pub(super) nodes: BTreeMap<String, Vec<Line>>,
    /// Remark about the clusters, for the reader.
    pub(super) about_clusters: Option<String>,
    pub(super) metrics: Vec<Line>,
    pub(super) log: Vec<Line>,
    /// Logins at the servers, best for probes first.
    pub(super) logins: Vec<Login>,
    /// Names of the settings that were left out, and the reasons.
    pub(super) left_out: Vec<(String, String)>,
}

/// Servers of one cluster.
#[derive(Debug)]
struct Cluster {
    /// None: the only cluster.
    name: Option<String>,
    /// Addresses of the servers.
    nodes: Vec<String>,
    /// None until chosen.
    prober: Option<Prober>,
}

impl Plan {
    /// Creates an empty plan.
    pub(super) fn new(source: &Path, command: &'static str, program: &'static str) -> Plan {
        Plan { source: source.display().to_string(), command, program, ..Plan::default() }
    }

    /// Chooses the user of each cluster's probes among the logins.
    pub(super) fn watch(&mut self, options: &Options) {
        let led: Vec<Vec<Entry>> =
            self.clusters.iter().enumerate().map(|(at, cluster)| self.databases_of(at, cluster)).collect();
        for (cluster, databases) in self.clusters.iter_mut().zip(led) {
            cluster.prober = Some(Prober::choose(options, &self.logins, &databases));
        }
    }

    /// Returns the entries of `proxy.databases` that lead to a cluster.
    fn databases_of(&self, at: usize, cluster: &Cluster) -> Vec<Entry> {
        let name = cluster.name.as_deref().map(quoted);
        let of = |lines: &[Line], key: &str| lines.iter().find(|(of, _)| *of == key).map(|(_, value)| value.clone());
        let leads = |lines: &[Line]| match of(lines, "cluster") {
            None => at == 0,
            named => named == name,
        };
        let here = self.databases.iter().filter(|(_, lines)| leads(lines));
        here.map(|(name, lines)| {
            let own = (name != "*").then(|| quoted(name));
            Entry { name: name.clone(), database: of(lines, "dbname").or(own) }
        })
        .collect()
    }

    /// Returns notes for the user beside the configuration.
    pub(super) fn notes(&self) -> Vec<String> {
        let about = self.about_clusters.iter().filter_map(|about| about.strip_prefix('D'));
        let mut notes: Vec<String> = about.map(|rest| format!("d{rest}")).collect();
        for cluster in &self.clusters {
            let table = match &cluster.name {
                None => "[cluster]".to_owned(),
                Some(name) => format!("cluster {name:?}"),
            };
            notes.extend(cluster.prober.as_ref().and_then(|prober| prober.missing(self.program, &table)));
        }
        notes
    }

    /// Returns the cluster of a database; None if it is the only one, or the first.
    pub(super) fn cluster_of(&self, database: &str) -> Option<String> {
        let (_, lines) = self.databases.iter().find(|(name, _)| name == database)?;
        lines.iter().find(|(key, _)| *key == "cluster").map(|(_, name)| name.clone())
    }

    /// Returns the name of the first of several clusters, as TOML.
    pub(super) fn first_cluster(&self) -> Option<String> {
        self.clusters.first()?.name.as_deref().map(quoted)
    }

    /// Groups the servers into clusters: databases that share a server lead to one cluster, others each to their own. Returns true for several.
    pub(super) fn lead(&mut self, led: Servers, same_cluster: bool) -> bool {
        let apart = if same_cluster { Vec::new() } else { groups(&led) };
        if apart.len() < 2 {
            let mut nodes: Vec<String> = Vec::new();
            for node in led.into_iter().flat_map(|(_, nodes)| nodes) {
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
            self.clusters.push(Cluster { name: None, nodes, prober: None });
            return false;
        }
        let mut said = Vec::new();
        for (databases, nodes) in apart {
            let first = databases.iter().find(|name| *name != "*").map_or("others", String::as_str).to_owned();
            for (name, lines) in &mut self.databases {
                // The first cluster is the default.
                if databases.contains(name) && !self.clusters.is_empty() {
                    lines.insert(0, ("cluster", quoted(&first)));
                }
            }
            said.push(format!("{} on {}", databases.join(", "), nodes.join(", ")));
            self.clusters.push(Cluster { name: Some(first), nodes, prober: None });
        }
        self.about_clusters = Some(format!(
            "Databases on different servers are in different clusters: {}. If some of the servers are standbys of others, say --same-cluster.",
            said.join("; ")
        ));
        true
    }

    /// Returns the text of the configuration.
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
        writeln!(to, "# Made from {} by `kingpost config {}`.", in_comment(&self.source), self.command)?;
        if !self.left_out.is_empty() {
            writeln!(to, "#\n# Not carried over:")?;
            for (what, why) in &self.left_out {
                writeln!(to, "#   {}: {}", in_comment(what), in_comment(why))?;
            }
        }
        self.write_proxy(to)?;
        if let Some(about) = &self.about_clusters {
            writeln!(to, "\n# {}", in_comment(about))?;
        }
        for (at, cluster) in self.clusters.iter().enumerate() {
            let table = if at == 0 { "cluster" } else { "clusters" };
            writeln!(to, "\n{}", if at == 0 { "[cluster]" } else { "[[clusters]]" })?;
            if let Some(name) = &cluster.name {
                writeln!(to, "name = {}", quoted(name))?;
            }
            self.write_cluster(to, table, cluster)?;
        }
        for (name, lines) in [("metrics", &self.metrics), ("log", &self.log)] {
            write_table(to, name, lines)?;
        }
        Ok(())
    }

    fn write_proxy(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "\n[proxy]")?;
        let listen: Vec<String> = self.listen.iter().map(|address| self.listener(address)).collect();
        writeln!(to, "listen = [{}]", listen.join(", "))?;
        write_lines(to, &self.proxy)?;
        if !self.peers.is_empty() {
            let peer = |(id, address): &(u8, String)| format!("{{ id = {id}, address = {} }}", quoted(address));
            writeln!(to, "peers = [{}]", self.peers.iter().map(peer).collect::<Vec<_>>().join(", "))?;
        }
        write_table(to, "proxy.auth_query", &self.auth_query)?;
        write_table(to, "proxy.tls", &self.proxy_tls)?;
        write_table(to, "proxy.pool", &self.pool)?;
        if !self.routing.is_empty() {
            writeln!(to, "\n[proxy.routing]\n# {}", self.about_routing)?;
            write_lines(to, &self.routing)?;
        }
        if !self.rules.is_empty() {
            writeln!(
                to,
                "\n# Who may log in to what, as in {}'s file. The first rule that fits decides.",
                self.program
            )?;
        }
        for rule in &self.rules {
            writeln!(to, "[[proxy.hba]]")?;
            write_lines(to, rule)?;
        }
        for (name, entries) in
            [("proxy.databases", &self.databases), ("proxy.users", &self.users), ("proxy.operators", &self.operators)]
        {
            for (entry, settings) in entries {
                writeln!(to, "\n[[{name}]]\nname = {}", quoted(entry))?;
                write_lines(to, settings)?;
            }
        }
        Ok(())
    }

    /// Writes a cluster without its name.
    fn write_cluster(&self, to: &mut String, table: &str, cluster: &Cluster) -> std::fmt::Result {
        if let Some(prober) = &cluster.prober {
            writeln!(to, "# {}", prober.comment())?;
            write_lines(to, &prober.lines())?;
        }
        write_lines(to, &self.cluster)?;
        write_table(to, &format!("{table}.tls"), &self.cluster_tls)?;
        for (index, node) in cluster.nodes.iter().enumerate() {
            writeln!(to, "\n[[{table}.nodes]]\nname = \"node{}\"\naddress = {}", index + 1, quoted(node))?;
            write_lines(to, self.nodes.get(node).map_or(&[], Vec::as_slice))?;
        }
        Ok(())
    }
}

/// Writes a table, unless it is empty.
fn write_table(to: &mut String, name: &str, lines: &[Line]) -> std::fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(to, "\n[{name}]")?;
    write_lines(to, lines)
}

fn write_lines(to: &mut String, lines: &[Line]) -> std::fmt::Result {
    lines.iter().try_for_each(|(key, value)| writeln!(to, "{key} = {value}"))
}

/// Quotes a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Quotes a TOML array of strings.
pub(super) fn quoted_list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

/// Escapes control characters but the tab, which a TOML comment cannot have.
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
