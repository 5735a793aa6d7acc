//! `kingpost up --engine mariadb`, or `mysql`: a primary, a relay of its binary log, and replicas behind the relay.
//!
//! ```text
//!  Cluster (servers, relay) ─▶ self-check ─▶ registry, console, metrics ─▶ watch, former primaries come back
//! ```
//!
//! Servers and relay accept the user `kingpost` from this host only, with a password from a file in the cluster's directory.

mod cluster;
mod family;
mod look;
mod server;

use std::collections::HashMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::console::ClusterPart;
use ::console::picture;
use ::relay::BinlogRelay;
use tokio::sync::watch::{Receiver, Sender};

use super::dir::{self, Directory, Engine, UpState};
use super::status::NodeStatus;
use super::stop::Stop;
use super::{GRACE, Places, Task, announce_services, watch};
use crate::args::UpArgs;
use cluster::{Cluster, lock};
use daemon::{Registry, Relaying, Scene, ShownBinlog};
pub(super) use family::Family;
pub(super) use look::observe;
use metrics::Admin;
use process::{Failure, terminal};
use registry_client::nodes;
pub(super) use server::stop_data;
use server::{USER, ask};

/// Interval between two looks at servers and relay.
const PACE: Duration = Duration::from_secs(1);
/// Longest time for a statement of the self-check.
const CHECK: Duration = Duration::from_secs(60);
/// Consecutive looks at which a former primary must be down or stale.
const LOOKS: u32 = 3;
/// Most attempts to bring a former primary back; after them an operator has to act.
const ATTEMPTS: u32 = 3;

/// Starts the servers and the relay, and runs until a signal.
pub(super) async fn start(
    args: &UpArgs,
    engine: Engine,
    directory: &Directory,
    places: Places,
    record: &mut UpState,
    stop: &Stop,
) -> Result<(), Failure> {
    if args.no_relay {
        let what = format!("--no-relay is of PostgreSQL: a cluster of {} is servers around a relay", engine.name());
        return Err(Failure::config(what).advise("leave it out"));
    }
    let bin = args.mysql_bin.as_deref().filter(|_| engine == Engine::Mysql);
    let mut cluster = Cluster::prepare(directory, engine, bin, stop.clone())?;
    directory.save_running(record)?;
    let started = Instant::now();
    for name in cluster.stop_leftovers().await {
        terminal::line(format_args!("stopped {name}, which an earlier run had left"));
    }
    let elsewhere = (cluster.data() != directory.path).then(|| format!(" · data in {}", cluster.data().display()));
    terminal::line(format_args!(
        "cluster in {} · {} {}.{}{}{}",
        directory.path.display(),
        engine.name(),
        cluster.version() / 100,
        cluster.version() % 100,
        cluster.account().map(|name| format!(" as user {name}")).unwrap_or_default(),
        elsewhere.unwrap_or_default(),
    ));
    let step = |text: &str| terminal::line(format_args!("  {:5.1} s  {text}", started.elapsed().as_secs_f32()));
    let result = match cluster.start(args.replicas, &step).await {
        Ok(()) => serve(args, directory, &mut cluster, places, record, stop, &step).await,
        Err(failure) => Err(failure),
    };
    if !args.once || result.is_err() {
        terminal::line("stopping");
    }
    cluster.stop().await;
    directory.clear_running();
    if result.is_ok() {
        terminal::line(format_args!("stopped; the data stay in {}", directory.path.display()));
    }
    result
}

async fn serve(
    args: &UpArgs,
    directory: &Directory,
    cluster: &mut Cluster,
    places: Places,
    record: &mut UpState,
    stop: &Stop,
    step: &dyn Fn(&str),
) -> Result<(), Failure> {
    let (relay, address) = cluster.relay.clone().ok_or_else(|| Failure::runtime("there is no relay"))?;
    let servers = cluster.ports();
    tokio::select! {
        result = self_check(cluster.family, &servers, &cluster.secret) => {
            let text = result.map_err(|why| {
                Failure::runtime(format!("the self-check failed: {why}"))
                    .advise("the servers' logs are in the logs directory of the cluster's directory")
            })?;
            step(&text);
        }
        failure = stop.failure() => return Err(failure),
    }
    let path = directory.path.join("kingpost.toml");
    dir::write_whole(&path, written_config(cluster.family, directory, &places, &servers, address).as_bytes())?;
    let client = directory.path.join("client.cnf");
    let text = format!("[client]\nuser = {USER}\npassword = {}\nhost = 127.0.0.1\n", cluster.secret);
    dir::write_secret(&client, &text)?;
    let (config, _) = config::load(&path)?.accept(&path)?;
    let relay_address = address.to_string();
    let first = observe(cluster.family, &servers, Some(&relay_address), &cluster.secret).await;
    let (sender, seen) = tokio::sync::watch::channel(Arc::new(first));
    let _looking = Task(tokio::spawn(keep_looking(
        cluster.family,
        servers,
        relay_address.clone(),
        cluster.secret.clone(),
        sender,
    )));
    let known = Registry::start(&config.registry).await?;
    let result = async {
        let cannot = |what: &'static str| move |error| Failure::runtime(format!("cannot serve {what}: {error}"));
        let listener = tokio::net::TcpListener::from_std(places.metrics.0).map_err(cannot("metrics"))?;
        let admin = Admin::serve(listener, Arc::new(Relaying { relay: Arc::clone(&relay) }), metrics::IDLE)?;
        let listener = tokio::net::TcpListener::from_std(places.console.0).map_err(cannot("the console"))?;
        let mut scene = Scene::default();
        scene.parts.cluster = Some(Arc::new(Watched(seen.clone(), cluster.family.shown)));
        let names = Arc::clone(&cluster.names);
        let name = Box::new(move |id| lock(&names).get(&id).cloned().unwrap_or_else(|| format!("server_id {id}")));
        scene.parts.relay =
            Some(Arc::new(ShownBinlog { relay: Arc::clone(&relay), engine: cluster.family.shown, name }));
        let serving = scene.with_registry(known.known()).serve(listener, &config.console, None)?;
        known.registry.keep_from_probes([admin.address(), serving.console.address()]);
        record.relay = Some(relay_address);
        record.registry = known.addresses().first().map(ToString::to_string).unwrap_or_default();
        let watched = seen.clone();
        let word = cluster.family.word;
        let rows = move || {
            let seen = watched.borrow();
            let part = |node: &NodeStatus| (node.name.clone(), node.address.clone(), node.role);
            nodes::of_binlog(word, seen.iter().map(part))
        };
        let _nodes = Task(tokio::spawn(nodes::keep(known.registry.clone(), rows)));
        directory.save_running(record)?;
        announce(cluster.family, record, directory, &seen.borrow());
        if !args.once {
            let look = async || seen.borrow().to_vec();
            tokio::select! {
                () = watch::show(look, || None, stop) => {}
                // Never returns.
                () = former_primaries(cluster, &relay, &seen) => {}
            }
        }
        Ok(())
    }
    .await;
    known.shutdown(GRACE).await;
    result
}

/// Observes the cluster once a second, until the task is dropped.
async fn keep_looking(
    family: &'static Family,
    servers: Vec<(String, u16)>,
    relay: String,
    secret: String,
    seen: Sender<Arc<Vec<NodeStatus>>>,
) {
    loop {
        tokio::time::sleep(PACE).await;
        seen.send_replace(Arc::new(observe(family, &servers, Some(&relay), &secret).await));
    }
}

/// Writes to the primary, checks that the relay acknowledged the commit, and reads the row back from a replica. Returns a report.
async fn self_check(family: &Family, servers: &[(String, u16)], secret: &str) -> Result<String, String> {
    let Some(((primary, port), replicas)) = servers.split_first() else { return Err("there is no server".into()) };
    let address = |port: &u16| format!("127.0.0.1:{port}");
    let value = async |port: &u16, statement: &str| -> Result<String, String> {
        let rows = ask(&address(port), secret, CHECK, statement).await?;
        Ok(rows.first().and_then(|row| row.first().cloned().flatten()).unwrap_or_default())
    };
    let before = value(port, family.acknowledged).await?;
    for statement in [
        "DROP DATABASE IF EXISTS kingpost_selfcheck",
        "CREATE DATABASE kingpost_selfcheck",
        "CREATE TABLE kingpost_selfcheck.probe (id INT PRIMARY KEY, note TEXT NOT NULL)",
        "INSERT INTO kingpost_selfcheck.probe VALUES (1, 'written')",
    ] {
        value(port, statement).await?;
    }
    if value(port, family.acknowledged).await? == before {
        return Err(format!("{primary} committed without an acknowledgement of the relay"));
    }
    let gtid = value(port, family.written).await?;
    if let Some((replica, port)) = replicas.first() {
        if value(port, &family.wait_for(&gtid)).await? != "0" {
            return Err(format!("{replica} has not got {gtid} within 30 s"));
        }
        let note = value(port, "SELECT note FROM kingpost_selfcheck.probe WHERE id = 1").await?;
        if note != "written" {
            return Err(format!("{replica} has {note:?} instead of what was written"));
        }
    }
    value(port, "DROP DATABASE kingpost_selfcheck").await?;
    Ok(match replicas.first() {
        Some((replica, _)) => {
            format!("self-check: wrote to {primary}, the relay acknowledged it, read it back from {replica}")
        }
        None => format!("self-check: wrote to {primary}, the relay acknowledged it"),
    })
}

/// After a failover: brings a former primary that is down or stale back as a replica, with its data made anew. Never returns.
async fn former_primaries(cluster: &mut Cluster, relay: &BinlogRelay, seen: &Receiver<Arc<Vec<NodeStatus>>>) {
    let primary_of = |cluster: &Cluster| {
        let status = relay.status();
        let follows = |address: String| status.upstream_state == "streaming" && status.upstream == address;
        cluster.servers.iter().find(|server| follows(server.address())).map(|server| server.name.clone())
    };
    let mut first = primary_of(cluster);
    let mut former: HashMap<String, (u32, u32)> = HashMap::new();
    loop {
        tokio::time::sleep(PACE).await;
        let Some(primary) = primary_of(cluster) else { continue };
        if let Some(before) = first.replace(primary.clone())
            && before != primary
        {
            former.entry(before).or_default();
        }
        former.remove(&primary);
        for (name, (looks, attempts)) in &mut former {
            let lost = seen.borrow().iter().any(|node| node.name == *name && matches!(node.role, "down" | "stale"));
            *looks = if lost { *looks + 1 } else { 0 };
            if *looks < LOOKS || *attempts >= ATTEMPTS {
                continue;
            }
            (*looks, *attempts) = (0, *attempts + 1);
            terminal::line(format_args!("{name} was the primary before {primary}: it becomes a replica"));
            match cluster.rejoin(name, &|text: &str| terminal::line(format_args!("  {text}"))).await {
                Ok(()) => terminal::line(format_args!("{name} follows {primary}")),
                Err(failure) => terminal::line(format_args!("{name} cannot follow {primary}: {failure}")),
            }
        }
    }
}

/// The servers for the console's picture.
struct Watched(Receiver<Arc<Vec<NodeStatus>>>, picture::Engine);

impl ClusterPart for Watched {
    fn look(&self) -> picture::Cluster {
        let seen = self.0.borrow();
        let (relays, servers): (Vec<_>, Vec<_>) = seen.iter().partition(|node| node.name == "relay");
        picture::Cluster {
            name: "local".into(),
            engine: self.1,
            timeline: relays.first().and_then(|relay| relay.timeline).unwrap_or(0),
            primary: servers.iter().find(|node| node.role == "primary").map(|node| node.name.clone()),
            nodes: servers.into_iter().map(shown).collect(),
        }
    }
}

fn shown(node: &NodeStatus) -> picture::Node {
    picture::Node {
        name: node.name.clone(),
        address: node.address.clone(),
        role: match node.role {
            "primary" => picture::Role::Primary,
            "replica" => picture::Role::Replica,
            "stale" => picture::Role::Stale,
            _ => picture::Role::Unknown,
        },
        usable: node.role == "primary" || node.streaming == Some(true),
        position: node.gtid.clone(),
        lag_ms: u64::try_from(node.lag.as_millis()).unwrap_or(u64::MAX),
        lag_transactions: node.lag_transactions,
        error: node.error.clone(),
        ..picture::Node::default()
    }
}

/// Makes the configuration of registry, console and `kingpost failover`.
fn written_config(
    family: &Family,
    directory: &Directory,
    places: &Places,
    nodes: &[(String, u16)],
    relay: SocketAddr,
) -> String {
    let word = family.word;
    let password = directory.password_file(family.engine).display().to_string();
    let store = format!("sqlite:{}", directory.path.join("registry.sqlite").display());
    let mut text = format!(
        "# Written by `kingpost up --engine {word}` at each start.\n\
         [metrics]\nlisten = \"{}\"\n\n\
         [registry]\nlisten = {:?}\nauth = \"none\"\nstore = {store:?}\n\n\
         [console]\nlisten = \"{}\"\n\n\
         [[console.tokens]]\nname = \"local\"\nsha256 = \"{}\"\nrole = \"operator\"\n\n\
         [failover]\nengine = \"{word}\"\nuser = \"{USER}\"\npassword_file = {password:?}\nstep_timeout = \"20s\"\n\
         replication_user = \"{USER}\"\nreplication_password_file = {password:?}\n\n\
         [[failover.relays]]\nname = \"relay\"\naddress = \"{relay}\"\nuser = \"{USER}\"\npassword_file = {password:?}\n\n\
         [cluster]\nname = \"local\"\n",
        places.metrics.1,
        places.registry,
        places.console.1,
        process::token::hash(&places.token)
    );
    for (name, port) in nodes {
        let _ = write!(text, "\n[[cluster.nodes]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
    }
    text
}

fn announce(family: &Family, record: &UpState, directory: &Directory, seen: &[NodeStatus]) {
    let path = |name: &str| directory.path.join(name);
    let show = |path: &Path| path.display().to_string();
    terminal::line("");
    for node in seen.iter().filter(|node| node.role != "relay") {
        terminal::line(format_args!("{:<8} {} ({})", node.role, node.address, node.name));
    }
    announce_services(record, directory);
    if let Some(primary) = seen.iter().find(|node| node.role == "primary") {
        let port = primary.address.rsplit(':').next().unwrap_or_default();
        terminal::line(format_args!(
            "try      {} --defaults-file={} --port={port}",
            family.word,
            show(&path("client.cnf"))
        ));
        terminal::line(format_args!(
            "failover kill the primary's process (SHUTDOWN there, or kill -9), then: kingpost failover --config {}",
            show(&path("kingpost.toml"))
        ));
        terminal::line(format_args!("change   kingpost switchover --config {}", show(&path("kingpost.toml"))));
    }
    terminal::line("");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_written_configuration_is_good() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::create(&dir.path().join("cluster")).unwrap();
        let bind = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            (listener, address)
        };
        let token = directory.console_token().unwrap();
        directory.password(Engine::Mysql).unwrap();
        let places = Places { metrics: bind(), registry: "127.0.0.1:0".into(), console: bind(), token };
        let nodes = [("node1".to_owned(), 1), ("node2".to_owned(), 2)];
        let path = dir.path().join("kingpost.toml");
        std::fs::write(
            &path,
            written_config(&family::MYSQL, &directory, &places, &nodes, "127.0.0.1:9".parse().unwrap()),
        )
        .unwrap();
        let (config, warnings) = config::load(&path).unwrap().accept(&path).unwrap();
        assert_eq!((config.cluster.nodes.len(), config.failover.relays.len()), (2, 1));
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}
