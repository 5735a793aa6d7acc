//! Sessions, pools and routing: a sans-I/O core and its event-loop driver.
//!
//! ```text
//!  acceptor ──socket──▶ worker: driver ⇄ core        worker ⇄ worker: mailboxes (idle server connections, cancels)
//!                                 ▲
//!                control: topology (views, replayed LSNs, oracle), settings
//! ```
//!
//! [`Proxy::start`] starts the threads; [`Proxy::adopt`] and [`Proxy::shutdown`] send them messages. The crate does not use tokio, and each thread
//! waits only in its own event loop.

pub mod accounts;
pub mod config;
pub mod console;
pub mod core;
pub mod demand;
mod driver;
pub mod fleet;
pub mod gss;
pub mod hba;
pub mod hba_entries;
pub mod ident;
pub mod ldap;
mod limits;
pub mod metrics;
pub mod oauth;
pub mod pam;
pub mod renewals;
pub mod secrets;
pub mod settings;
mod start;
mod tokens;
pub mod traffic;
pub mod verify;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use topology::Topology;

pub use crate::core::{statistics, trace};

use crate::console::{ConsoleContext, Observer, Operation, Orders, Process};
use crate::core::{Core, CoreMessage, Shared};
use config::{Driver, ProxyConfig};
use driver::acceptor::{self, Listener, Stop};
use driver::mailbox::{Mailbox, WorkerCommand};
use driver::worker::Worker;
use fleet::{Fleet, Membership};
use metrics::{Metrics, Snapshot};
use settings::{Settings, SettingsError};

/// Maximum number of workers: the process ID that a client is told has eight bits for its worker, and the sets of workers in a pool's budget have as
/// many bits.
const MOST_WORKERS: usize = core::MOST_WORKERS;

/// Limit on the wait of a reload for the workers: they answer between two events, so in microseconds as a rule.
const ADOPTED_WITHIN: Duration = Duration::from_secs(1);

/// Reason why a proxy could not start, or could not apply a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A listening address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address as configured.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// The clusters of this process together have more workers than there are numbers.
    #[error("the clusters have more than {most} workers together: lower proxy.workers")]
    TooManyWorkers {
        /// Maximum number of workers.
        most: usize,
    },
    /// The system refused a thread, a descriptor or random bytes.
    #[error("cannot start {what}: {source}")]
    System {
        /// The purpose of the resource.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// A listening socket on its way from one process to another.
#[derive(Debug)]
pub struct Socket {
    /// The address as in [`config::Listen::address`].
    pub address: String,
    /// The socket.
    pub fd: OwnedFd,
    /// True if the service manager also listens on it: a Unix socket's file then stays when this process ends.
    pub of_manager: bool,
}

/// A running proxy.
pub struct Proxy {
    mailboxes: Arc<Vec<Mailbox>>,
    metrics: Vec<Arc<Metrics>>,
    addresses: Vec<String>,
    /// None after the proxy has stopped accepting.
    listeners: Option<Arc<Vec<Listener>>>,
    shared: Arc<Shared>,
    context: Arc<ConsoleContext>,
    console: Option<JoinHandle<()>>,
    stop: Arc<Stop>,
    acceptor: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    enrolled: Enrolled,
}

/// Place of a cluster in its fleet, released at the end.
struct Enrolled(Arc<Fleet>, Membership);

impl Enrolled {
    /// Removes the cluster from the fleet: no more clients are handed over to it.
    fn end(&self) {
        self.0.dismiss(&self.1.cluster, self.1.first_worker);
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        self.end();
    }
}

/// A configuration that a proxy can apply: all errors have been excluded.
pub struct Prepared(Arc<Settings>);

impl Prepared {
    /// Reads password files and rules, and computes verifiers.
    ///
    /// # Errors
    /// The error in the configuration.
    pub fn new(config: &ProxyConfig) -> Result<Prepared, StartError> {
        Ok(Prepared(Arc::new(Settings::new(config)?)))
    }
}

/// Handle of the service that looks up users that are not configured.
#[derive(Clone)]
pub struct LookupDesk {
    mailboxes: Arc<Vec<Mailbox>>,
    shared: Arc<Shared>,
}

/// Handle of the service that reads passwords again after a server has refused one.
#[derive(Clone)]
pub struct RenewalDesk {
    mailboxes: Arc<Vec<Mailbox>>,
    shared: Arc<Shared>,
}

impl RenewalDesk {
    /// Sets the function that is called at each request. Only the first call has an effect.
    pub fn serve(&self, wake: renewals::WakeFn) {
        self.shared.renewals.serve(wake);
    }

    /// Returns the last ticket. To be called before passwords are read.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.shared.renewals.asked()
    }

    /// Answers all tickets up to this one: passwords were read, and a reload has applied the changes.
    pub fn answer(&self, ticket: u64) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.post(WorkerCommand::Core(CoreMessage::Renewed(ticket))));
    }
}

/// Handle of the service that has a client's password or token verified.
#[derive(Clone)]
pub struct VerifyDesk {
    mailboxes: Arc<Vec<Mailbox>>,
    shared: Arc<Shared>,
}

impl VerifyDesk {
    /// Sets the function that takes questions. Only the first call has an effect.
    pub fn serve(&self, ask: verify::Ask) {
        self.shared.verifier.serve(ask);
    }

    /// Delivers the answer to a question.
    pub fn answer(&self, question: &verify::Question, verdict: verify::Verdict) {
        let (worker, client) = question.waiting;
        self.mailboxes[worker].post(WorkerCommand::Core(CoreMessage::Verified { client, verdict }));
    }
}

impl LookupDesk {
    /// Sets the function that looks up users: `ask` gets a name, and returns false if it accepts no more. Only the first call has an effect.
    pub fn serve(&self, ask: accounts::Ask) {
        self.shared.accounts.serve(ask);
    }

    /// Delivers the result of a lookup, to be cached for `keep`.
    pub fn answer(&self, user: &str, answer: &accounts::LookupResult, keep: Duration) {
        for (worker, client) in self.shared.accounts.answer(user, answer, keep, Instant::now()) {
            self.mailboxes[worker].post(WorkerCommand::Core(CoreMessage::Account { client, answer: answer.clone() }));
        }
    }
}

impl Proxy {
    /// Listens and starts the workers. Clients that connect before the topology has a primary wait for it. `sockets`: listening sockets that another
    /// process has handed over. Configured addresses that are not among them get new sockets; sockets whose address is not configured are closed.
    /// `fleet`: the clusters of this process, of which the one named `cluster` is started; its `config` is the result of [`ProxyConfig::of_cluster`].
    /// `orders`: the operators' orders to the process that this one takes over from; they are in force before the first client connects.
    pub fn start(
        config: &ProxyConfig,
        topology: Arc<Topology>,
        mut sockets: Vec<Socket>,
        fleet: &Arc<Fleet>,
        cluster: &str,
        orders: Orders,
    ) -> Result<Proxy, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let settings = Arc::new(Settings::new(config)?);
        let listeners = config
            .listen
            .iter()
            .map(|listen| {
                let taken = sockets.iter().position(|socket| socket.address == listen.address);
                let listener = match taken {
                    Some(at) => {
                        let socket = sockets.swap_remove(at);
                        let listener = Listener::adopt(listen, socket.fd);
                        if let (Ok(listener), true) = (&listener, socket.of_manager) {
                            listener.leave();
                        }
                        listener
                    }
                    None => Listener::bind(listen),
                };
                listener.map_err(|source| StartError::Listen { address: listen.address.clone(), source })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let listeners = Arc::new(listeners);
        let addresses = listeners.iter().map(|listener| listener.address.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (if config.workers == 0 { cores } else { config.workers }).min(MOST_WORKERS);
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| StartError::System {
            what: "the random generator",
            source: io::Error::other(e.to_string()),
        })?;
        let mailboxes =
            (0..count).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>().map_err(system("mailboxes"))?;
        let mailboxes = Arc::new(mailboxes);
        let metrics: Vec<Arc<Metrics>> = (0..count).map(|_| Arc::default()).collect();
        let (console, tasks) = console::console_handle();
        let cluster: Arc<str> = cluster.into();
        let first_worker = fleet
            .enroll(&cluster, &mailboxes, &metrics, &console)
            .ok_or(StartError::TooManyWorkers { most: MOST_WORKERS })?;
        let enrolled = Enrolled(fleet.clone(), Membership { clusters: fleet.clone(), cluster, first_worker });
        let shared = Shared::of(topology.clone(), count, secret, enrolled.1.clone());
        shared.traffic.configure(&settings.traffic);
        let ring = rings(config.driver);
        let context = Arc::new(ConsoleContext {
            driver: if ring { "io_uring" } else { "epoll" },
            shared: shared.clone(),
            fleet: fleet.clone(),
            mailboxes: mailboxes.clone(),
            metrics: metrics.clone(),
            settings: Mutex::new(settings.clone()),
            paused: Mutex::default(),
            process: OnceLock::new(),
            started: Instant::now(),
        });
        let lease = context.follow(orders, Instant::now());
        let mut workers = Vec::new();
        for (id, metrics) in metrics.iter().enumerate() {
            let core = Core::new(id, shared.clone(), settings.clone(), metrics.clone(), Instant::now());
            let mut worker = Worker::new(id, core, mailboxes.clone(), fleet.clone(), console.clone(), ring)
                .map_err(system("a worker"))?;
            let thread = std::thread::Builder::new().name(format!("worker-{id}")).stack_size(8 << 20);
            let body = move || {
                or_abort("a worker", || worker.run());
            };
            workers.push(thread.spawn(body).map_err(system("a worker"))?);
        }
        let stop = Arc::new(Stop::new().map_err(system("the acceptor"))?);
        let acceptor = if listeners.is_empty() {
            None
        } else {
            let (stop, mailboxes, metrics) = (stop.clone(), mailboxes.clone(), metrics.clone());
            let listeners = listeners.clone();
            let body = move || {
                or_abort("the acceptor", || acceptor::run(&listeners, &stop, &mailboxes, &metrics));
            };
            let thread = std::thread::Builder::new().name("acceptor".into());
            Some(thread.spawn(body).map_err(system("the acceptor"))?)
        };
        // The workers hold the handles: the console's thread ends with the last of them.
        drop(console);
        let console = {
            let context = context.clone();
            let body = move || {
                or_abort("the console", || {
                    console::run(context, &tasks, lease);
                    Ok(())
                });
            };
            std::thread::Builder::new().name("console".into()).spawn(body).map_err(system("the console"))?
        };
        let bells = mailboxes.clone();
        topology.subscribe(Box::new(move || bells.iter().for_each(Mailbox::ring)));
        Ok(Proxy {
            mailboxes,
            metrics,
            addresses,
            listeners: Some(listeners),
            shared,
            context,
            console: Some(console),
            stop,
            acceptor,
            workers,
            enrolled,
        })
    }

    /// Returns the addresses that clients can connect to, with the ports chosen by the system.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Applies a new configuration: users, databases, pools, limits and routing. `listen`, `workers` and `driver` stay as at the start of the
    /// process. Blocks until every worker has taken them over, at most a second.
    pub fn adopt(&self, prepared: Prepared) {
        let settings = prepared.0;
        *self.context.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings.clone();
        self.shared.accounts.clear();
        self.shared.traffic.configure(&settings.traffic);
        let (in_effect, all) = mpsc::channel();
        for mailbox in self.mailboxes.iter() {
            let message = CoreMessage::Settings(settings.clone(), Some(in_effect.clone()));
            mailbox.post(WorkerCommand::Core(message));
        }
        drop(in_effect);
        if all.recv_timeout(ADOPTED_WITHIN) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(within = ?ADOPTED_WITHIN, "a busy worker has not taken over the new configuration yet");
        }
    }

    /// Replaces all server connections as they become free, like `RECONNECT` in the console.
    pub fn reconnect(&self) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(WorkerCommand::Core(CoreMessage::Operate(Operation::Reconnect(None))));
        }
    }

    /// Returns the handle for lookups of users.
    #[must_use]
    pub fn lookups(&self) -> LookupDesk {
        LookupDesk { mailboxes: self.mailboxes.clone(), shared: self.shared.clone() }
    }

    /// Returns the handle for the verification of clients' passwords and tokens.
    pub fn verifications(&self) -> VerifyDesk {
        VerifyDesk { mailboxes: self.mailboxes.clone(), shared: self.shared.clone() }
    }

    /// Returns the handle for requests to read passwords again.
    #[must_use]
    pub fn renewals(&self) -> RenewalDesk {
        RenewalDesk { mailboxes: self.mailboxes.clone(), shared: self.shared.clone() }
    }

    /// Sends all spans from here on to `sink`, which is called by workers and must not block. Only the first call has an effect.
    pub fn trace_to(&self, sink: trace::Sink) {
        let _ = self.shared.sink.set(sink);
    }

    /// Permits operators to reload and stop the process from the console. Only the first call has an effect.
    pub fn serve_operators(&self, process: Box<dyn Process>) {
        let _ = self.context.process.set(process);
    }

    /// Returns a view of the proxy that stays valid after its end.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer::new(self.context.clone())
    }

    /// Returns the sums of the workers' counters.
    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        Snapshot::of(self.metrics.iter().map(|metrics| &**metrics))
    }

    /// Returns the number of turns of each worker's loop; a number that does not grow shows a worker that hangs.
    #[must_use]
    pub fn turns(&self) -> Vec<u64> {
        self.metrics.iter().map(|metrics| metrics.turns.get()).collect()
    }

    /// Duplicates the listening sockets, for a process that takes over.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn sockets(&self) -> io::Result<Vec<Socket>> {
        let listeners = self.listeners.iter().flat_map(|listeners| listeners.iter());
        listeners
            .map(|of| Ok(Socket { address: of.configured.clone(), fd: of.duplicate()?, of_manager: false }))
            .collect()
    }

    /// Stops accepting, because another process accepts on the same sockets, and continues to serve the connected clients. The other process gets the
    /// connections that are still in a queue.
    pub fn stop_accepting(&mut self) {
        for listener in self.listeners.iter().flat_map(|listeners| listeners.iter()) {
            listener.leave();
        }
        self.end_acceptor();
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::Relaxed)
    }

    fn end_acceptor(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            self.stop.now();
            let _ = acceptor.join();
            self.listeners = None;
        }
    }

    /// Stops accepting, lets transactions end for at most `grace`, closes all connections, and waits for the threads.
    pub fn shutdown(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        self.end_acceptor();
        self.enrolled.end();
        if self.workers.is_empty() {
            return;
        }
        for mailbox in self.mailboxes.iter() {
            mailbox.post(WorkerCommand::Core(CoreMessage::Drain));
        }
        let until = Instant::now() + grace;
        while self.shared.clients.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        for mailbox in self.mailboxes.iter() {
            mailbox.post(WorkerCommand::Stop);
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        if let Some(console) = self.console.take() {
            let _ = console.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// True if the workers use io_uring.
fn rings(driver: Driver) -> bool {
    if driver == Driver::Epoll {
        return false;
    }
    match driver::ring::probe() {
        Ok(gathers) if driver == Driver::Auto && !gathers => {
            tracing::info!("this kernel's io_uring lets no completions gather, as that of Linux 6.12 does: epoll");
            false
        }
        Ok(_) => true,
        Err(error) if driver == Driver::Auto => {
            tracing::info!(%error, "the system lets us have no io_uring: epoll");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the system lets us have no io_uring (proxy.driver): epoll instead");
            false
        }
    }
}

/// Aborts the process if a thread fails: otherwise some clients would be served and others not.
fn or_abort(what: &str, body: impl FnOnce() -> io::Result<()>) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    match result {
        Ok(Ok(())) => return,
        Ok(Err(error)) => tracing::error!(%error, what, "ended; the process cannot go on"),
        Err(_) => tracing::error!(what, "panicked; the process cannot go on"),
    }
    std::process::abort();
}
