//! `kingpost proxy`.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};

use crate::args::ProxyArgs;
use crate::endpoints::Endpoints;
use crate::run::{self, Running};
use auth::Passwords;
use config::{self, Config, Overrides, Problem, warn};
use handover::{Ordered, Sockets, SuccessorListener, inherited};
use metrics::Admin;
use process::{Failure, INTERRUPTED, LogFlags, StopSignals, control_runtime, listen_for, logging, systemd};
use proxy::Socket;
use proxy::config::{ProxyConfig, TracingConfig};
use proxy::console::{ChangeFreeze, Process};
use registry_client::Sources;
use topology::NodeConfig;
use translate::alias;

/// Time for clients of a cluster that is no longer served to end their transactions.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Runs the proxy until a signal ends it.
pub fn proxy(args: &ProxyArgs, log: &LogFlags) -> Result<(), Failure> {
    let (config, warnings) = of_a_proxy(&args.config, &Overrides::default())?;
    logging::start(&log.over(&config.log), None)?;
    warn(&warnings);
    control_runtime()?.block_on(serve(args, config))
}

/// Reads the configuration of a proxy, with warnings.
///
/// # Errors
/// The file has errors, or no settings of a proxy.
fn of_a_proxy(path: &Path, overrides: &Overrides) -> Result<(Config, Vec<Problem>), Failure> {
    let (config, warnings) = config::load_with(path, overrides.variables())?.accept(path)?;
    if config.needs_no_proxy() {
        return Err(Failure::config(format!("{} says nothing of a proxy: nobody could log in", path.display()))
            .advise("list its users as [[proxy.users]]"));
    }
    Ok((config, warnings))
}

async fn serve(args: &ProxyArgs, mut config: Config) -> Result<(), Failure> {
    let (path, grace) = (args.config.as_path(), args.grace);
    // Signals first: a reload that comes while starting must not kill the process.
    let mut hangup = listen_for(SignalKind::hangup())?;
    let mut stop = StopSignals::new()?;
    let mut upgrade = listen_for(SignalKind::user_defined2())?;
    let runtime = tokio::runtime::Handle::current();
    let mut taken = match (&config.proxy.upgrade_socket, args.take_over) {
        (_, false) => None,
        (Some(socket), true) => Some(handover::take_over(socket)?),
        (None, true) => {
            return Err(Failure::config("--take-over needs proxy.upgrade_socket in the configuration"));
        }
    };
    let mut sources = Sources::start(&mut config).await?;
    let passwords = Passwords::new();
    let mut filled = tokio::task::block_in_place(|| {
        let (filled, store) = Passwords::fill_anew(&config)?;
        passwords.adopt(&config, store);
        Ok::<Config, Failure>(filled)
    })?;
    let topologies = run::watch(&filled, &runtime)?;
    let mut overrides = Overrides::default();
    let mut ordered = Ordered::default();
    if let Some(taken) = &mut taken {
        // The old process serves until this one can. A cluster that is down is down for both, so one that is ready is enough.
        let ready = topologies.iter().map(|topology| Box::pin(topology.wait_ready(handover::READY_WITHIN)));
        select_ok(ready)
            .await
            .map_err(|error| Failure::runtime(format!("not taken over, the old process goes on: {error}")))?;
        ordered = tokio::task::block_in_place(|| taken.orders())?;
        overrides = set_again(path, &mut config, &ordered.settings);
        if overrides != Overrides::default() {
            filled = tokio::task::block_in_place(|| passwords.fill(&config))?;
            for (of, topology) in filled.of_each_cluster().iter().zip(&topologies) {
                if let Err(error) = topology.reload(of.cluster.clone()) {
                    tracing::warn!(cluster = of.cluster.name, %error, "what operators have set is not used");
                }
            }
        }
    }
    let sockets = match taken.as_mut() {
        Some(taken) => std::mem::take(&mut taken.sockets),
        None => handover::sockets(&config)?,
    };
    let running = Arc::new(Running::start_on(&filled, topologies, sockets.proxy, ordered.clusters, &runtime)?);
    drop(filled);
    running.renew_by(Arc::clone(&passwords));
    let asked = Arc::downgrade(&running);
    let mut readings =
        passwords.watch(move || asked.upgrade().map(|running| running.asked_again()).unwrap_or_default());
    let inherit =
        (inherited(sockets.metrics, &config.metrics.listen), inherited(sockets.console, &config.console.listen));
    let (source, scene) = (Arc::clone(&running), running.scene());
    let mut endpoints = match Endpoints::start(&config, inherit, source, scene, Some(&running.topology())).await {
        Ok(endpoints) => endpoints,
        Err(failure) => {
            end(&running, Duration::ZERO).await;
            return Err(failure);
        }
    };
    let (operators, mut orders) = Operators::new();
    running.serve_operators(Box::new(operators.clone()));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = running.addresses().join(", "),
        metrics = endpoints.metrics(),
        console = endpoints.console(),
        "started"
    );
    if let Some(taken) = taken {
        tokio::task::block_in_place(|| taken.confirm())?;
        tracing::info!("has taken over");
    }
    let successors_listener = match config.proxy.upgrade_socket.as_deref().map(SuccessorListener::listen).transpose() {
        // Clients come to this process now, so it goes on, although no process can take over from it.
        Err(failure) if args.take_over => {
            tracing::error!(error = %failure, "cannot be taken over");
            None
        }
        successors_listener => successors_listener?,
    };
    let (handed, mut successors) = mpsc::channel(1);
    systemd::ready();
    let mut successor = None;
    loop {
        tokio::select! {
            stream = next_successor(successors_listener.as_ref()) => {
                let sockets = sockets_of(&config, &running, &endpoints);
                let (handed, running, operators) = (handed.clone(), Arc::clone(&running), operators.clone());
                tokio::task::spawn_blocking(move || give(stream, sockets, &running, &operators, &handed));
            }
            Some(handed) = successors.recv() => {
                successor = Some(handed);
                break;
            }
            _ = upgrade.recv() => match config.proxy.upgrade_socket {
                Some(_) => match handover::start_successor() {
                    Ok(pid) => tracing::info!(pid, "started a process to take over"),
                    Err(error) => tracing::error!(%error, "cannot start a process to take over"),
                },
                None => tracing::error!("SIGUSR2: proxy.upgrade_socket is not set, so no process can take over"),
            },
            name = stop.next() => {
                tracing::info!(signal = name, ?grace, "stopping");
                break;
            }
            _ = hangup.recv() => {
                // The error is in the log.
                let _ = reload(path, &mut config, &running, &passwords, &Overrides::default())
                    .inspect(|()| overrides = Overrides::default());
            }
            (cluster, nodes) = sources.next() => relist(&cluster, nodes, &mut config, &running, &passwords),
            Some(reading) = readings.recv() => {
                if reading.changed {
                    renew(&config, &running, &passwords);
                }
                running.read_again(reading.asked());
                passwords.applied(&reading);
            }
            Some(order) = orders.recv() => match order {
                Order::Reload(answer) => {
                    let result = reload(path, &mut config, &running, &passwords, &Overrides::default());
                    let result = result.inspect(|()| overrides = Overrides::default());
                    // The operator may have gone.
                    let _ = answer.send(result.map_err(|failure| failure.to_string()));
                }
                Order::Set { key, value, answer } => {
                    let new = overrides.with(&key, &value, alias);
                    let result = new.and_then(|new| {
                        reload(path, &mut config, &running, &passwords, &new).map_err(|failure| failure.to_string())?;
                        overrides = new;
                        Ok(())
                    });
                    let _ = answer.send(result);
                }
                Order::Tell(answer) => drop(answer.send(overrides.clone())),
                Order::Stop => {
                    tracing::info!(?grace, "an operator asks to stop");
                    break;
                }
            },
        }
    }
    // Operators who wait for an answer get an error.
    drop(orders);
    if let Some((mut successor, held)) = successor {
        drop(successors_listener);
        endpoints.close();
        let quiet = Arc::clone(&running);
        let limit = config.proxy.drain_timeout;
        let _ = tokio::task::spawn_blocking(move || {
            quiet.stop_accepting();
            handover::say_bye(&mut successor);
            drop(held);
        })
        .await;
        tracing::info!(
            clients = running.clients(),
            ?limit,
            "another process has taken over, serving the clients that are left"
        );
        tokio::select! {
            () = until_empty(&running, limit) => {}
            name = stop.next() => tracing::info!(signal = name, ?grace, "stopping"),
        }
    } else {
        // A process that was taken over no longer represents the service.
        systemd::notify("STOPPING=1");
    }
    endpoints.flush().await;
    tokio::select! {
        () = end(&running, grace) => {}
        name = stop.next() => {
            tracing::warn!(signal = name, "stopping at once");
            std::process::exit(INTERRUPTED);
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Returns the next process that wants to take over; never returns without an upgrade socket.
async fn next_successor(successors_listener: Option<&SuccessorListener>) -> UnixStream {
    match successors_listener {
        Some(successors_listener) => successors_listener.next().await,
        None => std::future::pending().await,
    }
}

/// Duplicates all listening sockets of this process.
fn sockets_of(config: &Config, running: &Running, endpoints: &Endpoints) -> std::io::Result<Sockets> {
    let named = |address: &String, fd| Socket { address: address.clone(), fd, of_manager: false };
    let metrics = endpoints.admin.as_ref().map(Admin::socket).transpose()?;
    let console = endpoints.console.as_ref().map(|serving| serving.console.socket()).transpose()?;
    Ok(Sockets {
        proxy: running.sockets()?,
        metrics: metrics.map(|fd| named(&config.metrics.listen, fd)),
        console: console.map(|fd| named(&config.console.listen, fd)),
    })
}

/// A process that is ready to take over, and the lock that keeps operators from giving orders that it would not get.
type Handed = (UnixStream, Option<ChangeFreeze>);

/// Hands over the sockets and the operators' orders; reports when the other process is ready.
fn give(
    mut stream: UnixStream,
    sockets: std::io::Result<Sockets>,
    running: &Running,
    operators: &Operators,
    done: &mpsc::Sender<Handed>,
) {
    let mut held = None;
    let given = sockets.and_then(|sockets| {
        handover::hand_over(&mut stream, &sockets, || {
            let (clusters, still) = running.orders().map_err(std::io::Error::other)?;
            held = Some(still);
            let settings = operators.overrides().map_err(std::io::Error::other)?;
            Ok(Ordered::new(clusters, &settings).write()?)
        })
    });
    match given {
        // A second one at the same time comes too late.
        Ok(()) => drop(done.blocking_send((stream, held))),
        Err(error) => tracing::error!(%error, "no process has taken over, this one goes on"),
    }
}

/// Waits until the last client has left, or the time is over.
async fn until_empty(running: &Running, limit: Duration) {
    let until = tokio::time::Instant::now() + limit;
    while running.clients() > 0 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Stops the parts without blocking the control threads.
pub async fn end(running: &Arc<Running>, grace: Duration) {
    let running = Arc::clone(running);
    if let Err(error) = tokio::task::spawn_blocking(move || running.shutdown(grace)).await {
        tracing::error!(%error, "stopping failed");
    }
}

/// An operator's order to the process, from the console.
enum Order {
    Reload(oneshot::Sender<Result<(), String>>),
    Set {
        key: String,
        value: String,
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// Asks for the settings changed so far.
    Tell(oneshot::Sender<Overrides>),
    Stop,
}

/// Passes operators' orders to the loop that also handles signals.
#[derive(Clone)]
struct Operators(mpsc::Sender<Order>);

impl Operators {
    fn new() -> (Operators, mpsc::Receiver<Order>) {
        // The console has one thread, which waits for each answer.
        let (sender, receiver) = mpsc::channel(2);
        (Operators(sender), receiver)
    }

    /// Returns the settings that operators have changed. Blocks.
    fn overrides(&self) -> Result<Overrides, String> {
        self.ask(Order::Tell)
    }

    /// Sends an order and returns its answer. Blocks.
    fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, String> {
        let (answer, answered) = oneshot::channel();
        let stopping = || "the process is stopping".to_owned();
        self.0.blocking_send(order(answer)).map_err(|_| stopping())?;
        answered.blocking_recv().map_err(|_| stopping())
    }
}

impl Process for Operators {
    fn reload(&self) -> Result<(), String> {
        self.ask(Order::Reload)?
    }

    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.ask(|answer| Order::Set { key: key.to_owned(), value: value.to_owned(), answer })?
    }

    fn stop(&self) {
        // A full channel means that the process is stopping already.
        let _ = self.0.try_send(Order::Stop);
    }
}

/// Reloads with other nodes of a cluster.
fn relist(cluster: &str, nodes: Vec<NodeConfig>, config: &mut Config, running: &Running, passwords: &Passwords) {
    let Some(of) = config.cluster_mut(cluster) else { return };
    let before = std::mem::replace(&mut of.nodes, nodes);
    let filled = tokio::task::block_in_place(|| passwords.fill(config));
    if let Err(failure) = filled.and_then(|filled| running.reload(&filled, GONE_WITHIN)) {
        tracing::error!(cluster, "the registry's list of nodes is not used, the old one stays: {failure}");
        if let Some(of) = config.cluster_mut(cluster) {
            of.nodes = before;
        }
    }
}

/// Reloads with changed passwords.
fn renew(config: &Config, running: &Running, passwords: &Passwords) {
    let filled = tokio::task::block_in_place(|| passwords.fill(config));
    match filled.and_then(|filled| running.reload(&filled, GONE_WITHIN)) {
        Ok(()) => tracing::info!("a password was read again and is another one now"),
        Err(failure) => tracing::error!("a password that was read again is not used, the last one stays: {failure}"),
    }
}

/// Reads the file again with settings over it that operators of another process have changed. Settings that this version refuses are left out.
fn set_again(path: &Path, config: &mut Config, settings: &[(String, String)]) -> Overrides {
    let mut overrides = Overrides::default();
    let mut set = |settings: &[(String, String)]| {
        let with =
            settings.iter().try_fold(overrides.clone(), |with, (key, value)| with.with(key, value, alias).ok())?;
        let (new, _) = of_a_proxy(path, &with).ok()?;
        *config = keep_nodes(new, config);
        overrides = with;
        Some(())
    };
    if settings.is_empty() || set(settings).is_some() {
        return overrides;
    }
    // All at once first: a setting may be valid only together with others.
    for setting in settings {
        if set(std::slice::from_ref(setting)).is_none() {
            tracing::warn!(
                key = setting.0,
                "what operators have set of the old process is dropped: it is refused here"
            );
        }
    }
    overrides
}

/// Puts the nodes of clusters that registries list into a new configuration.
fn keep_nodes(mut new: Config, config: &mut Config) -> Config {
    for of in std::iter::once(&mut new.cluster).chain(&mut new.clusters) {
        // A new cluster keeps the nodes of the file.
        let Some(before) = config.cluster_mut(&of.name) else { continue };
        if of.from != before.from {
            tracing::warn!(
                cluster = of.name,
                "changes of where its nodes are listed ([cluster.from]) take effect at the next start"
            );
            of.from.clone_from(&before.from);
        }
        // Its nodes come from a registry.
        if !of.from.urls.is_empty() || of.nodes.is_empty() {
            of.nodes.clone_from(&before.nodes);
        }
    }
    new
}

/// Reads the file again, with these settings over it. With any error in it, the running configuration stays.
fn reload(
    path: &Path,
    config: &mut Config,
    running: &Running,
    passwords: &Passwords,
    overrides: &Overrides,
) -> Result<(), Failure> {
    let loaded = of_a_proxy(path, overrides);
    let loaded = loaded.map(|(new, warnings)| (keep_nodes(new, config), warnings));
    let applied = loaded.and_then(|(new, warnings)| {
        let (filled, store) = tokio::task::block_in_place(|| Passwords::fill_anew(&new))?;
        running.reload(&filled, GONE_WITHIN)?;
        passwords.adopt(&new, store);
        Ok((new, warnings))
    });
    config::settle(path, config, applied, |old, new| {
        if new.metrics != old.metrics || new.log != old.log || new.console != old.console {
            tracing::warn!("changes of [metrics], [console] and [log] take effect at the next start");
        }
        let at_start =
            |proxy: &ProxyConfig| (proxy.listen.clone(), proxy.workers, proxy.driver, proxy.upgrade_socket.clone());
        if at_start(&new.proxy) != at_start(&old.proxy) {
            tracing::warn!("changes of proxy.listen, workers, driver and upgrade_socket take effect at the next start");
        }
        let at_start = |tracing: &TracingConfig| TracingConfig { ratio: None, comments: true, ..tracing.clone() };
        if at_start(&new.proxy.tracing) != at_start(&old.proxy.tracing) {
            tracing::warn!("changes of [proxy.tracing] but for ratio and comments take effect at the next start");
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn settings_of_another_process_are_taken_as_far_as_they_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kingpost.toml");
        let text = "[[cluster.nodes]]\nname = 'a'\naddress = '127.0.0.1:5432'\n[[proxy.users]]\nname = 'ann'\npassword = 'p'\n\
                    [proxy]\nlisten = ['127.0.0.1:0']\n";
        std::fs::write(&path, text).unwrap();
        let (file, _) = of_a_proxy(&path, &Overrides::default()).unwrap();
        let size = ("proxy.pool.size", "7");
        for (settings, expected) in [
            (vec![], vec![]),
            (vec![size, ("proxy.query_timeout", "9s")], vec![size, ("proxy.query_timeout", "9s")]),
            // An unknown key, a key that takes effect only at the start, and a value that is refused.
            (vec![("proxy.nonsense", "1"), size], vec![size]),
            (vec![("proxy.workers", "1"), size], vec![size]),
            (vec![size, ("proxy.query_timeout", "soon")], vec![size]),
        ] {
            let mut config = file.clone();
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let settings: Vec<_> = settings.iter().map(owned).collect();
            let overrides = set_again(&path, &mut config, &settings);
            let mut set: Vec<_> = overrides.each().collect();
            set.sort_unstable();
            assert_eq!(set, expected);
            assert_eq!(config.proxy.pool.size == 7, expected.contains(&size));
            assert_eq!(config.cluster.nodes, file.cluster.nodes);
        }
    }
}
