//! `kingpost up`, `down`, `status`: a local cluster in one directory.
//!
//! ```text
//!  Directory (marker, lock, state) ─▶ Cluster (plan, servers, relay) ─▶ run (topology + proxy), registry ─▶ selfcheck
//!                                  ─▶ agents ─▶ tour, if asked for ─▶ watch
//! ```
//!
//! Every end takes the same order: agents, proxy, replicas, primary, relay. After a kill -9, the next `up` and `down` find the servers left behind by
//! their pid file and the working directory of that process.

mod args;
mod binlog;
mod children;
mod cluster;
mod dir;
mod plan;
mod port;
mod postgres;
mod relay;
mod returns;
mod selfcheck;
mod status;
mod stop;
mod tour;
mod watch;

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use args::{DownArgs, StatusArgs, UpArgs};
use args::{Durability, Tour};
use children::{Identity, Launcher};
use cluster::Cluster;
use daemon::{Registry, Running, end};
pub use dir::Engine;
use dir::{Directory, Lock, UpState};
use futures_util::future::try_join_all;
use metrics::Admin;
use node::LocalAgent;
use process::{Failure, LogConfig, LogFlags, control_runtime, logging, terminal};
use registry_client::nodes;
use stop::Stop;

/// Usual address of /metrics, if its port is free.
const METRICS: &str = "127.0.0.1:9632";
/// Usual address of the registry, if its port is free.
const REGISTRY: &str = "127.0.0.1:8632";
/// Usual address of the web console, if its port is free.
const CONSOLE: &str = "127.0.0.1:7632";
/// Longest time from the servers' start until the proxy knows the primary.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Time that clients' transactions have to end when stopping.
const GRACE: Duration = Duration::from_secs(5);

/// Starts a cluster and runs it until a signal.
pub fn up(args: &UpArgs, log: &LogFlags) -> Result<(), Failure> {
    let runtime = control_runtime()?;
    let result = runtime.block_on(start(args, log));
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

async fn start(args: &UpArgs, log: &LogFlags) -> Result<(), Failure> {
    let stop = Stop::listen()?;
    if args.no_relay && args.durability == Durability::Relay {
        let what = "commits cannot be durable on a relay where there is none";
        return Err(Failure::config(what).advise("give only one of --durability relay and --no-relay"));
    }
    if args.no_relay && args.tour.is_some() {
        let what = "the tour needs the relay, which archives, and from which a lost primary is replaced";
        return Err(Failure::config(what).advise("give only one of --tour and --no-relay"));
    }
    let directory = Directory::create(&args.dir.dir)?;
    let Some(_lock) = directory.try_lock()? else {
        return Err(already_runs(&directory)?);
    };
    start_logging(&directory, log)?;
    let engine = engine_of(args.engine, &directory)?;
    if engine == Engine::Postgresql {
        check_listen(&args.listen)?;
    }
    let metrics = bind(args.metrics_listen.as_deref(), METRICS, "metrics")?;
    let registry = free(args.registry_listen.as_deref(), REGISTRY, "registry")?;
    let console = bind(args.console_listen.as_deref(), CONSOLE, "console")?;
    let token = directory.console_token()?;
    let mut record = UpState {
        process: Identity::own()?,
        proxy: Vec::new(),
        metrics: metrics.1.to_string(),
        relay: None,
        registry: String::new(),
        console: console.1.to_string(),
    };
    let places = Places { metrics, registry, console, token };
    if engine != Engine::Postgresql {
        if args.tour.is_some() {
            return Err(Failure::config("the tour is of PostgreSQL's servers: leave out --tour"));
        }
        return binlog::start(args, engine, &directory, places, &mut record, &stop).await;
    }
    let mut cluster = Cluster::prepare(&directory, args.pg_bin.as_deref(), stop.clone())?;
    directory.save_running(&record)?;
    let started = Instant::now();
    for name in cluster.stop_leftovers().await {
        terminal::line(format_args!("stopped {name}, which an earlier run had left"));
    }
    terminal::line(format_args!(
        "cluster in {} · PostgreSQL {}{}{}",
        directory.path.display(),
        cluster.version(),
        cluster.account().map(|name| format!(" as user {name}")).unwrap_or_default(),
        cluster.data_elsewhere().map(|data| format!(" · data in {}", data.display())).unwrap_or_default(),
    ));
    let step = |text: &str| terminal::line(format_args!("  {:5.1} s  {text}", started.elapsed().as_secs_f32()));
    let result =
        match cluster.start(args.replicas, (!args.no_relay).then_some(args.tour == Some(Tour::All)), &step).await {
            Ok(()) => serve(args, &directory, &cluster, places, &mut record, &stop, &step).await,
            Err(failure) => Err(failure),
        };
    if !args.once || result.is_err() {
        terminal::line("stopping");
    }
    cluster.stop().await;
    if !cluster.is_complete() {
        cluster.discard();
    }
    directory.clear_running();
    if result.is_ok() {
        terminal::line(format_args!("stopped; the data stay in {}", directory.path.display()));
    }
    result
}

/// Returns the engine of the servers: the wanted one, or that of the directory.
fn engine_of(asked: Option<Engine>, directory: &Directory) -> Result<Engine, Failure> {
    let there = directory.state()?.map(|state| state.engine);
    match (asked, there) {
        (Some(asked), Some(there)) if asked != there => {
            let what = format!("the servers in {} are of {}", directory.path.display(), there.name());
            Err(Failure::config(what).advise("leave --engine out, or name another directory with --dir"))
        }
        (asked, there) => Ok(asked.or(there).unwrap_or_default()),
    }
}

/// Addresses of the parts; taken before servers are made.
struct Places {
    metrics: (TcpListener, SocketAddr),
    registry: String,
    console: (TcpListener, SocketAddr),
    /// The token that permits actions in the console.
    token: String,
}

/// Runs the proxy in front of the servers until a signal, and stops it.
async fn serve(
    args: &UpArgs,
    directory: &Directory,
    cluster: &Cluster,
    Places { metrics, registry, console, token }: Places,
    record: &mut UpState,
    stop: &Stop,
    step: &dyn Fn(&str),
) -> Result<(), Failure> {
    let nodes = cluster.ports();
    let path = directory.path.join("kingpost.toml");
    let store = directory.path.join("registry.sqlite");
    let relay = cluster.relay.as_ref().map(|relay| relay.address()).filter(|_| args.durability == Durability::Relay);
    let text = written_config(&args.listen, metrics.1, (&registry, &store), (console.1, &token), &nodes, relay);
    dir::write_whole(&path, text.as_bytes())?;
    let (config, _) = config::load(&path)?.accept(&path)?;
    step("starting the proxy");
    let running = Arc::new(Running::start(&config, &tokio::runtime::Handle::current())?);
    if let Some(relay) = &cluster.relay {
        running.show_relay(Arc::clone(relay.relay()));
    }
    let known = Registry::start(&config.registry).await;
    let result = async {
        let known = known.as_ref().map_err(Failure::again)?;
        let listener = tokio::net::TcpListener::from_std(metrics.0)
            .map_err(|error| Failure::runtime(format!("cannot serve metrics: {error}")))?;
        let admin = Admin::serve(listener, Arc::clone(&running), metrics::IDLE)?;
        let listener = tokio::net::TcpListener::from_std(console.0)
            .map_err(|error| Failure::runtime(format!("cannot serve the console: {error}")))?;
        let scene = running.scene().with_registry(known.known());
        let serving = scene.serve(listener, &config.console, Some(&running.topology()))?;
        known.registry.keep_from_probes([admin.address(), serving.console.address()]);
        tokio::select! {
            result = check_through_proxy(&running, nodes.len() > 1, step) => result?,
            failure = stop.failure() => return Err(failure),
        }
        record.proxy = running.addresses();
        record.relay = cluster.relay.as_ref().map(|relay| relay.address().to_string());
        record.registry = known.addresses().first().map(ToString::to_string).unwrap_or_default();
        let seen = Arc::clone(&running);
        let (servers, proxies) = (config.cluster.nodes.clone(), record.proxy.clone());
        let relays: Vec<String> = record.relay.clone().into_iter().collect();
        let rows = move || nodes::of_postgres(&seen.view(), &servers, &relays, &proxies);
        let _nodes = Task(tokio::spawn(nodes::keep(known.registry.clone(), rows)));
        directory.save_running(record)?;
        dir::write_whole(&path, format!("{text}{}", failover_config(record)).as_bytes())?;
        let (whole, _) = config::load(&path)?.accept(&path)?;
        let agents = try_join_all(cluster.agents(&whole).into_iter().map(LocalAgent::start)).await?;
        let work = async {
            if let Some(part) = args.tour {
                tokio::select! {
                    shown = tour(part, &running, cluster, (&path, &record.registry), step) => shown?,
                    failure = stop.failure() => return Err(failure),
                }
            }
            announce(record, directory);
            if !args.once {
                tokio::select! {
                    () = watch::until_stopped(&nodes, &running, cluster.relay.as_ref(), stop) => {}
                    // Never returns.
                    () = returns::tell(&running) => {}
                }
            }
            Ok(())
        };
        tokio::select! {
            done = work => done,
            failed = keep(agents) => failed,
            // Never returns.
            () = relay::follow_primary(cluster.relay.as_ref(), &cluster.servers, &running) => Ok(()),
        }
    }
    .await;
    if let Ok(known) = &known {
        known.shutdown(GRACE).await;
    }
    end(&running, GRACE).await;
    result
}

/// Runs the servers' agents. Returns only a failure: agents have no end of their own.
async fn keep(agents: Vec<LocalAgent>) -> Result<(), Failure> {
    try_join_all(agents.into_iter().map(LocalAgent::run)).await?;
    std::future::pending().await
}

/// A task that is aborted when this value is dropped.
struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits until the proxy knows a primary, then writes and reads through it.
async fn check_through_proxy(running: &Running, replicas: bool, step: &dyn Fn(&str)) -> Result<(), Failure> {
    running.wait_ready(READY_LIMIT).await?;
    let address = proxy_address(running)?;
    let outcome = selfcheck::run(&address.ip().to_string(), address.port(), replicas).await?;
    match outcome.reader {
        Some(reader) => step(&format!(
            "self-check: wrote through the proxy to port {}, read it back from the replica at port {reader}",
            outcome.writer
        )),
        None => step(&format!("self-check: wrote and read through the proxy at port {}", outcome.writer)),
    }
    Ok(())
}

/// Returns the TCP address of the proxy.
fn proxy_address(running: &Running) -> Result<SocketAddr, Failure> {
    let addresses = running.addresses();
    addresses
        .iter()
        .find_map(|address| address.parse().ok())
        .ok_or_else(|| Failure::runtime(format!("the proxy listens on no TCP address: {}", addresses.join(", "))))
}

/// Runs the tour. `places`: the configuration's file, and the address of the registry.
async fn tour(
    part: Tour,
    running: &Running,
    cluster: &Cluster,
    places: (&Path, &str),
    step: &dyn Fn(&str),
) -> Result<(), Failure> {
    let address = proxy_address(running)?;
    tour::run(part, cluster, (&address.ip().to_string(), address.port()), places, step).await
}

fn announce(record: &UpState, directory: &Directory) {
    terminal::line("");
    for address in &record.proxy {
        terminal::line(format_args!("proxy    {address}"));
    }
    announce_services(record, directory);
    if let Some(address) = record.proxy.iter().find_map(|address| address.parse::<SocketAddr>().ok()) {
        let superuser = postgres::SUPERUSER;
        terminal::line(format_args!("try      psql -h {} -p {} -U {superuser}", address.ip(), address.port()));
    }
    terminal::line("");
}

/// Prints the addresses of relay, metrics, registry and console.
fn announce_services(record: &UpState, directory: &Directory) {
    if let Some(relay) = &record.relay {
        terminal::line(format_args!("relay    {relay}"));
    }
    terminal::line(format_args!("metrics  http://{}/metrics", record.metrics));
    terminal::line(format_args!("registry http://{}/v1/namespaces/{}/services", record.registry, nodes::NAMESPACE));
    terminal::line(format_args!(
        "console  http://{}/ (to act there: the token in {})",
        record.console,
        directory.token_file().display()
    ));
}

/// Makes the configuration of the parts of a local cluster; it is written to a file for the user to read.
fn written_config(
    listen: &str,
    metrics: SocketAddr,
    (registry, store): (&str, &Path),
    (console, token): (SocketAddr, &str),
    nodes: &[(String, u16)],
    relay: Option<SocketAddr>,
) -> String {
    let mut text = format!(
        "# Written by `kingpost up` at each start. KINGPOST__… variables change it; see the guide's configuration page.\n\
         [proxy]\nlisten = [{listen:?}]\nauth = \"trust\"\n\n\
         [metrics]\nlisten = \"{metrics}\"\n\n\
         [registry]\nlisten = {registry:?}\nauth = \"none\"\nstore = {:?}\n\n\
         [console]\nlisten = \"{console}\"\n\n\
         [[console.tokens]]\nname = \"local\"\nsha256 = \"{}\"\nrole = \"operator\"\n\n\
         [cluster]\nname = \"local\"\nuser = \"{}\"\ndatabase = \"postgres\"\n\
         # By TCP, so that inet_server_port() says which server has answered.\nlocal_sockets = false\n",
        format!("sqlite:{}", store.display()),
        process::token::hash(token),
        postgres::SUPERUSER
    );
    for (name, port) in nodes {
        let _ = write!(text, "\n[[cluster.nodes]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
    }
    if let Some(relay) = relay {
        let _ = write!(text, "\n[[cluster.relays]]\nname = \"relay\"\naddress = \"{relay}\"\n");
        text.push_str("\n[proxy.gate]\ncommit_durability = \"relay\"\n");
    }
    text
}

/// Makes the configuration for `kingpost failover` and `switchover`.
fn failover_config(record: &UpState) -> String {
    let superuser = postgres::SUPERUSER;
    let mut text =
        format!("\n[failover]\nuser = \"{superuser}\"\nstep_timeout = \"20s\"\nrejoined_by = \"kingpost up\"\n");
    let parts = [("relays", "relay", record.relay.as_ref()), ("proxies", "proxy", record.proxy.first())];
    for (list, name, address) in parts {
        if let Some(address) = address {
            let _ = write!(text, "\n[[failover.{list}]]\nname = \"{name}\"\naddress = {address:?}\n");
        }
    }
    text
}

fn already_runs(directory: &Directory) -> Result<Failure, Failure> {
    let path = directory.path.display();
    let what = match directory.running()? {
        Some(state) => {
            let listen = listens(&state);
            format!("a cluster runs in {path} already (process {}, {listen})", state.process.pid)
        }
        None => format!("another kingpost is at work in {path}"),
    };
    Ok(Failure::environment(what).advise("stop it with `kingpost down`, or name another directory with --dir"))
}

/// Names the address that clients of a running cluster, or its replicas, connect to.
fn listens(state: &UpState) -> String {
    match (state.proxy.as_slice(), &state.relay) {
        ([], None) => "starting".into(),
        ([], Some(relay)) => format!("relay {relay}"),
        (proxy, _) => format!("proxy {}", proxy.join(", ")),
    }
}

/// Starts the log; on a terminal it goes to a file, because the table is redrawn in place.
fn start_logging(directory: &Directory, flags: &LogFlags) -> Result<(), Failure> {
    let base = LogConfig { level: "warn".into(), ..LogConfig::default() };
    let file = match terminal::is_terminal() {
        true => Some(children::log_file(&directory.logs().join("kingpost.log"), false)?.0),
        false => None,
    };
    logging::start(&flags.over(&base), file)
}

/// Refuses an address before servers are made.
fn check_listen(listen: &str) -> Result<(), Failure> {
    if listen.starts_with('/') || !process::address::is_loopback(listen) {
        return Err(Failure::config(format!(
            "cannot listen on {listen}: a local cluster has no passwords, so only loopback addresses such as \
             127.0.0.1:6432 are allowed"
        ))
        .advise("for other machines, configure `kingpost proxy` with auth = \"scram-sha-256\""));
    }
    match TcpListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::environment(format!("cannot listen on {listen} for clients: {error}"))
            .advise("choose another address with --listen; --listen 127.0.0.1:0 lets the system choose a port")),
    }
}

/// Returns an address for the registry, which binds it itself: last, after the servers have started.
fn free(wanted: Option<&str>, usual: &str, what: &str) -> Result<String, Failure> {
    Ok(match wanted {
        Some(wanted) if wanted.ends_with(":0") => bind(Some(wanted), usual, what).map(|_| wanted.to_owned())?,
        wanted => bind(wanted, usual, what)?.1.to_string(),
    })
}

/// Binds the wanted address; if none is wanted, the usual one, or a free port if that is taken.
fn bind(wanted: Option<&str>, usual: &str, what: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let address = wanted.unwrap_or(usual);
    if !process::address::is_loopback(address) {
        return Err(Failure::config(format!("cannot listen on {address} for {what}: it is not a loopback address")));
    }
    let listener = match TcpListener::bind(address) {
        Err(error) if wanted.is_none() && error.kind() == std::io::ErrorKind::AddrInUse => {
            TcpListener::bind("127.0.0.1:0")
        }
        result => result,
    };
    listener
        .and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        })
        .map_err(|error| {
            Failure::environment(format!("cannot listen on {address} for {what}: {error}"))
                .advise(format!("choose another address with --{what}-listen"))
        })
}

/// Stops the cluster of a directory.
pub fn down(args: &DownArgs) -> Result<(), Failure> {
    let directory = Directory::open(&args.dir.dir)?;
    control_runtime()?.block_on(async {
        let (_lock, mut stopped) = end_up(&directory, args.timeout).await?;
        if let Some(state) = directory.state()? {
            let installation = process::postgresql::Installation { bin: state.bin.clone(), version: state.version };
            let launcher = Launcher {
                account: children::Account::choose(&directory.path, state.engine.account())?,
                logs: directory.logs(),
                cwd: state.data.clone(),
                stop: Stop::listen()?,
            };
            for node in &state.nodes {
                let data = state.node_data(&node.name);
                if children::server(&data).is_some() {
                    match state.engine {
                        Engine::Postgresql => postgres::stop_data(&installation, &launcher, &data).await,
                        Engine::Mariadb | Engine::Mysql => binlog::stop_data(&data, None).await,
                    }
                    terminal::line(format_args!("stopped {}, which an earlier run had left", node.name));
                    stopped = true;
                }
            }
        }
        directory.clear_running();
        let path = directory.path.display();
        match stopped {
            true => terminal::line(format_args!("stopped; the data stay in {path}")),
            false => terminal::line(format_args!("nothing runs in {path}")),
        }
        Ok(())
    })
}

/// Ends the `up` of a directory if one runs, and takes the directory's lock.
async fn end_up(directory: &Directory, limit: Duration) -> Result<(Lock, bool), Failure> {
    let started = Instant::now();
    let mut asked = false;
    loop {
        if let Some(lock) = directory.try_lock()? {
            return Ok((lock, asked));
        }
        let running = directory.running()?;
        if let (Some(state), false) = (&running, asked) {
            state.process.terminate();
            asked = true;
        }
        if started.elapsed() > limit {
            let who = running.map(|state| format!(" (process {})", state.process.pid)).unwrap_or_default();
            return Err(Failure::runtime(format!(
                "the cluster in {} did not stop within {} s{who}",
                directory.path.display(),
                limit.as_secs()
            ))
            .advise("wait longer with --timeout; after a kill -9 of that process, `kingpost down` stops its servers"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Shows the nodes of a directory.
pub fn status(args: &StatusArgs) -> Result<(), Failure> {
    let directory = Directory::open(&args.dir.dir)?;
    let running = directory.running()?;
    let state = directory.state()?;
    let engine = state.as_ref().map(|state| state.engine).unwrap_or_default();
    let nodes: Vec<(String, u16)> =
        state.map(|state| state.nodes.into_iter().map(|node| (node.name, node.port)).collect()).unwrap_or_default();
    let relay = running.as_ref().and_then(|state| state.relay.clone());
    let address = running.as_ref().map(|state| state.registry.clone()).unwrap_or_default();
    let observe = async || match engine {
        Engine::Postgresql => {
            let (nodes, relay) = tokio::join!(status::observe(&nodes), status::observe_relay(relay.as_deref()));
            Ok((nodes, relay))
        }
        Engine::Mariadb | Engine::Mysql => {
            let family = binlog::Family::of(engine);
            let mut all = binlog::observe(family, &nodes, relay.as_deref(), &directory.password(engine)?).await;
            let relay = all.pop_if(|node| node.name == "relay");
            Ok((all, relay))
        }
    };
    let (observed, known) =
        control_runtime()?.block_on(async { tokio::join!(observe(), status::registered(&address)) });
    let (mut observed, relay) = observed?;
    if args.json {
        let document = serde_json::json!({
            "directory": directory.path,
            "running": running.is_some(),
            "pid": running.as_ref().map(|state| state.process.pid),
            "proxy": running.as_ref().map(|state| state.proxy.clone()).unwrap_or_default(),
            "metrics": running.as_ref().map(|state| state.metrics.clone()),
            "relay": relay,
            "registry": running.as_ref().map(|state| state.registry.clone()),
            "console": running.as_ref().map(|state| state.console.clone()),
            "registered": known,
            "nodes": observed,
        });
        terminal::line(format_args!("{document:#}"));
        return Ok(());
    }
    if let Some(state) = &running {
        let listens = listens(state);
        terminal::line(format_args!(
            "{listens} · metrics http://{}/metrics · console http://{}/ · process {}",
            state.metrics, state.console, state.process.pid
        ));
    }
    observed.extend(relay);
    status::fill_lag(&mut observed);
    terminal::raw(&status::table(&observed, None));
    if let (Some(state), false) = (&running, known.is_empty()) {
        let told: Vec<String> = known.iter().map(ToString::to_string).collect();
        terminal::line(format_args!("registry http://{} · {}", state.registry, told.join(" · ")));
    }
    match running {
        Some(_) => Ok(()),
        None => Err(not_running(&directory.path)),
    }
}

fn not_running(path: &Path) -> Failure {
    Failure::runtime(format!("no `kingpost up` runs in {}", path.display())).advise("start it with `kingpost up`")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_written_configuration_is_good() {
        let nodes = vec![("node1".to_owned(), 1), ("node2".to_owned(), 2)];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kingpost.toml");
        let store = dir.path().join("registry.sqlite");
        let relay = Some("127.0.0.1:7".parse().unwrap());
        let mut text = written_config(
            "127.0.0.1:0",
            "127.0.0.1:9".parse().unwrap(),
            ("127.0.0.1:0", &store),
            ("127.0.0.1:8".parse().unwrap(), "kp_x"),
            &nodes,
            relay,
        );
        text.push_str(&failover_config(&UpState {
            process: Identity::own().unwrap(),
            proxy: vec!["127.0.0.1:5".into()],
            metrics: String::new(),
            relay: Some("127.0.0.1:6".into()),
            registry: String::new(),
            console: String::new(),
        }));
        std::fs::write(&path, text).unwrap();
        let (config, warnings) = config::load(&path).unwrap().accept(&path).unwrap();
        assert_eq!((config.cluster.nodes.len(), config.cluster.relays.len()), (2, 1));
        assert_eq!((config.failover.relays.len(), config.failover.proxies.len()), (1, 1));
        assert_eq!(warnings, []);
    }

    #[test]
    fn addresses_are_refused_early() {
        for (listen, exit) in [("0.0.0.0:6432", 3), ("/tmp/socket", 3), ("nonsense", 3)] {
            assert_eq!(check_listen(listen).unwrap_err().exit as u8, exit, "{listen}");
        }
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = held.local_addr().unwrap().to_string();
        let failure = check_listen(&taken).unwrap_err();
        assert_eq!(failure.exit as u8, 4);
        assert!(failure.to_string().contains(&taken) && failure.to_string().contains("--listen"), "{failure}");
        check_listen("127.0.0.1:0").unwrap();
    }
}
