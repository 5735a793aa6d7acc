//! What is written: Kingpost's settings, table by table, and the text that they make.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::Options;
use super::server::{Servers, groups};

/// A key, and its value as TOML.
pub(super) type Line = (&'static str, String);

/// The configuration to write.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The file that it is made from.
    source: String,
    /// The command that made it, `from-pgbouncer`.
    command: &'static str,
    /// The program whose file it is made from.
    program: &'static str,
    pub(super) listen: Vec<String>,
    /// Who may connect to the Unix socket among them.
    pub(super) socket: Vec<Line>,
    pub(super) proxy: Vec<Line>,
    /// `(id, address)` of `proxy.peers`.
    pub(super) peers: Vec<(u8, String)>,
    pub(super) auth_query: Vec<Line>,
    pub(super) proxy_tls: Vec<Line>,
    pub(super) pool: Vec<Line>,
    pub(super) routing: Vec<Line>,
    pub(super) about_routing: &'static str,
    /// Rules of who may come from where, in their order.
    pub(super) rules: Vec<Vec<Line>>,
    pub(super) databases: Vec<(String, Vec<Line>)>,
    pub(super) users: Vec<(String, Vec<Line>)>,
    pub(super) operators: Vec<(String, Vec<Line>)>,
    pub(super) cluster: Vec<Line>,
    pub(super) cluster_tls: Vec<Line>,
    /// The servers, by cluster; the clusters have all else in common.
    clusters: Vec<Cluster>,
    /// What else is said of a server, by its address.
    pub(super) nodes: BTreeMap<String, Vec<Line>>,
    /// What a reader should know of the clusters.
    pub(super) about_clusters: Option<String>,
    pub(super) metrics: Vec<Line>,
    pub(super) log: Vec<Line>,
    /// What was left out, and why.
    pub(super) left_out: Vec<(String, String)>,
}

/// Servers that belong together.
#[derive(Debug)]
struct Cluster {
    /// None: there is no other one.
    name: Option<String>,
    /// Addresses.
    nodes: Vec<String>,
}

impl Plan {
    /// An empty one.
    pub(super) fn new(source: &Path, command: &'static str, program: &'static str) -> Plan {
        Plan { source: source.display().to_string(), command, program, ..Plan::default() }
    }

    /// Says who watches the nodes: whom the command names, or who looks up users, or `other` with its password, or postgres.
    pub(super) fn watch(&mut self, options: &Options, other: Option<(String, Option<String>)>) {
        let looks_up =
            |key: &str| self.auth_query.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
        let (user, password) = match (&options.probe_user, other) {
            (Some(user), _) => (quoted(user), None),
            (None, Some((user, password))) => (quoted(&user), password.as_deref().map(quoted)),
            (None, None) => (looks_up("user").unwrap_or_else(|| quoted("postgres")), looks_up("password")),
        };
        self.cluster.push(("user", user));
        self.cluster.extend(password.map(|password| ("password", password)));
    }

    /// The cluster that a database leads to; None: there is only one, or it is the first.
    pub(super) fn cluster_of(&self, database: &str) -> Option<String> {
        let (_, lines) = self.databases.iter().find(|(name, _)| name == database)?;
        lines.iter().find(|(key, _)| *key == "cluster").map(|(_, name)| name.clone())
    }

    /// The name of the first of several clusters, as TOML.
    pub(super) fn first_cluster(&self) -> Option<String> {
        self.clusters.first()?.name.as_deref().map(quoted)
    }

    /// Which servers belong together: databases that share one lead to one cluster, others each to their own. True if there are several.
    pub(super) fn lead(&mut self, led: Servers, same_cluster: bool) -> bool {
        let apart = if same_cluster { Vec::new() } else { groups(&led) };
        if apart.len() < 2 {
            let mut nodes: Vec<String> = Vec::new();
            for node in led.into_iter().flat_map(|(_, nodes)| nodes) {
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
            self.clusters.push(Cluster { name: None, nodes });
            return false;
        }
        let mut said = Vec::new();
        for (databases, nodes) in apart {
            let first = databases.iter().find(|name| *name != "*").map_or("others", String::as_str).to_owned();
            for (name, lines) in &mut self.databases {
                // The first cluster is meant where none is named.
                if databases.contains(name) && !self.clusters.is_empty() {
                    lines.insert(0, ("cluster", quoted(&first)));
                }
            }
            said.push(format!("{} on {}", databases.join(", "), nodes.join(", ")));
            self.clusters.push(Cluster { name: Some(first), nodes });
        }
        self.about_clusters = Some(format!(
            "Databases on different servers are in different clusters: {}. If some of the servers are standbys of others, say --same-cluster.",
            said.join("; ")
        ));
        true
    }

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
            self.write_cluster(to, table, &cluster.nodes)?;
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

    /// What is below the name of a cluster.
    fn write_cluster(&self, to: &mut String, table: &str, nodes: &[String]) -> std::fmt::Result {
        writeln!(to, "# Who watches the nodes: needs CONNECT, and pg_monitor for a prompt view of failovers.")?;
        write_lines(to, &self.cluster)?;
        write_table(to, &format!("{table}.tls"), &self.cluster_tls)?;
        for (index, node) in nodes.iter().enumerate() {
            writeln!(to, "\n[[{table}.nodes]]\nname = \"node{}\"\naddress = {}", index + 1, quoted(node))?;
            write_lines(to, self.nodes.get(node).map_or(&[], Vec::as_slice))?;
        }
        Ok(())
    }
}

/// A table, unless it is empty.
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

/// As a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// As a TOML array of strings.
pub(super) fn quoted_list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
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
