//! The console: a database named `kingpost` in the proxy itself, in which operators look and act.
//!
//! ```text
//!  operator ──psql──▶ worker: core ──Request──▶ console thread ──Look──▶ every worker
//!                               ◀──CoreMessage::Answer── (command, show) ◀──Report──
//! ```
//!
//! A worker only passes commands on and answers back, so the console can delay a statement only by the time that a
//! worker takes for a [`Report`]. One thread serves all consoles, one command after the other. A command that takes
//! time (`PAUSE`, `WAIT_CLOSE`) is put in a list and checked again later, so no other command waits for it.
//!
//! Commands and columns are those of PgBouncer where the meaning is the same, so that programs for its console work
//! with this one (PgBouncer's usage page, "Admin console").

mod command;
mod durable;
mod gather;
mod inside;
mod lease;
mod limits;
mod observer;
mod orders;
mod show;
mod table;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use wire::Sqlstate;

use crate::config::Access;
pub use crate::core::directory::DATABASES;
use crate::core::paused::Paused;
pub use crate::core::report::{
    ClientReport, ConnectError, GateReport, LaneReport, Look, MemoryReport, Operation, PoolReport, Report,
    ServerReport, Totals,
};
use crate::core::token::Token;
use crate::core::{CoreMessage, Shared};
use crate::driver::mailbox::{Mailbox, WorkerCommand};
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::settings::Settings;
use command::{Command, Show};
use gather::Gathering;
pub(crate) use gather::{Asker, CommandResult};
use lease::Lease;
pub use observer::Observer;
pub(crate) use orders::Changes;
pub use orders::{ChangeFreeze, NoOrders, Orders, TakingOver};
use show::{Averages, Scene};
use table::Table;

/// Most commands that wait for the console's thread.
const QUEUE: usize = 64;
/// Most commands that wait for an event, over all consoles.
const MOST_PENDING: usize = 64;
/// Time between two checks of the conditions of pending commands.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait for the workers' reports.
const REPORTS: Duration = Duration::from_secs(5);
/// Longest wait for a primary that the caller says exists.
const TIMELINE: Duration = Duration::from_secs(60);
/// Period over which `SHOW STATS` averages.
const PERIOD: Duration = Duration::from_secs(60);

/// Operations of the surrounding process that an operator may request.
pub trait Process: Send + Sync {
    /// Reads the configuration again.
    ///
    /// # Errors
    /// The new configuration is refused and the old one stays; the text says why.
    fn reload(&self) -> Result<(), String>;
    /// Changes a setting until the configuration is read again. `key` is a key of the file (`proxy.pool.size`) or
    /// PgBouncer's name for it, `value` as an environment variable would have it.
    ///
    /// # Errors
    /// There is no such key, it can't be changed while the process runs, or the value is refused; the text says which.
    fn set(&self, key: &str, value: &str) -> Result<(), String>;
    /// Begins to stop, as SIGTERM does.
    fn stop(&self);
}

/// An operator's command.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) asker: Asker,
    pub(crate) text: String,
    pub(crate) access: Access,
    /// True if the command is about all clusters of the process.
    pub(crate) whole: bool,
}

/// Task of a console's thread, which executes one after the other.
pub(crate) enum ConsoleTask {
    /// Executes a command.
    Command(Request),
    /// Returns the orders of operators.
    Orders(SyncSender<Orders>),
}

/// Queue into which workers put commands.
#[derive(Clone)]
pub(crate) struct ConsoleHandle(SyncSender<ConsoleTask>);

/// State of the proxy that the console uses.
pub(crate) struct ConsoleContext {
    /// Name of the interface by which the workers wait.
    pub(crate) driver: &'static str,
    pub(crate) shared: Arc<Shared>,
    /// The clusters of the process.
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) mailboxes: Arc<Vec<Mailbox>>,
    pub(crate) metrics: Vec<Arc<Metrics>>,
    /// The newest configuration.
    pub(crate) settings: Mutex<Arc<Settings>>,
    /// Pauses as last sent to the workers. The lock is held while they are sent, so that the last order is the same for all workers.
    pub(crate) paused: Mutex<Paused>,
    /// Set once the process has registered itself.
    pub(crate) process: OnceLock<Box<dyn Process>>,
    pub(crate) started: Instant,
}

/// The state of the console's thread.
struct Console {
    context: Arc<ConsoleContext>,
    pending: Vec<Pending>,
    lease: Lease,
    averages: Averages,
}

/// A command that waits for an event.
struct Pending {
    asker: Asker,
    until: Until,
    tag: &'static str,
}

enum Until {
    /// No server connection of this database is open (`None`: of any database).
    Closed(Option<String>),
    /// No server connection is open that was to be closed when the command came.
    ClosedOld(Option<String>, Instant),
    /// No worker has bytes to be written or answers to come.
    Suspended,
    /// No server connection is open, and no answer to a commit is held back: everything that the lease pauses is at
    /// rest.
    Quiet,
    /// A primary on this timeline or a later one is known, or this time has come.
    Timeline(u32, Instant),
    /// The consoles of all clusters have carried it out.
    Gathered(Gathering),
}

/// The result of a command.
enum Outcome {
    Answer(CommandResult),
    Wait(Until, &'static str),
}

/// Checks that a text is a command of the console.
///
/// # Errors
/// The text is no command: the message for its sender.
pub fn understands(text: &str) -> Result<(), String> {
    command::parse(text).map(drop)
}

// === impl ConsoleHandle ===

/// Returns a handle and the queue that it fills.
pub(crate) fn console_handle() -> (ConsoleHandle, Receiver<ConsoleTask>) {
    let (sender, receiver) = sync_channel(QUEUE);
    (ConsoleHandle(sender), receiver)
}

impl ConsoleHandle {
    /// Hands a request over; an answer at once if that is impossible.
    pub(crate) fn put(&self, request: Request) -> Result<(), Vec<u8>> {
        self.0.try_send(ConsoleTask::Command(request)).map_err(|error| {
            let text = match error {
                TrySendError::Full(_) => "the console has too many commands waiting: try again",
                TrySendError::Disconnected(_) => "the console has ended: the proxy is shutting down",
            };
            CommandResult::Refused(Sqlstate::CANNOT_CONNECT_NOW, text.into()).bytes()
        })
    }

    /// Has the console send the orders of operators, after the commands put before. Returns false if the queue is full.
    fn ask_for_orders(&self, to: SyncSender<Orders>) -> bool {
        self.0.try_send(ConsoleTask::Orders(to)).is_ok()
    }
}

impl ConsoleContext {
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn paused(&self) -> Paused {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell_all(&self, operation: &Operation) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.note(operation);
        for mailbox in self.mailboxes.iter() {
            mailbox.post(WorkerCommand::Core(CoreMessage::Operate(operation.clone())));
        }
    }

    /// Returns the reports of all workers. A worker that does not answer in time is left out: a partial answer is better than none.
    fn look(&self, look: Look, limit: Duration) -> Vec<Report> {
        let (sender, receiver) = sync_channel(self.mailboxes.len());
        for mailbox in self.mailboxes.iter() {
            mailbox.post(WorkerCommand::Look(look, sender.clone()));
        }
        drop(sender);
        let until = Instant::now() + limit;
        let mut reports = Vec::new();
        while let Ok(report) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            reports.push(report);
        }
        if reports.len() < self.mailboxes.len() {
            tracing::warn!(
                workers = self.mailboxes.len(),
                answered = reports.len(),
                "not every worker reported in time"
            );
        }
        reports.sort_by_key(|report| report.worker);
        reports
    }

    /// Sends an operation to a worker, by its number among those of all clusters.
    fn tell(&self, worker: usize, operation: Operation) {
        let own = worker.checked_sub(self.shared.membership.first_worker).and_then(|own| self.mailboxes.get(own));
        if let Some(mailbox) = own {
            mailbox.post(WorkerCommand::Core(CoreMessage::Operate(operation)));
        }
    }

    /// Returns the number of a connection in `SHOW`.
    fn public_id(&self, worker: usize, client: Token) -> u64 {
        show::public_id(self.shared.membership.first_worker + worker, client)
    }

    fn answer(&self, asker: &Asker, result: CommandResult) {
        match asker {
            Asker::Client { worker, client } => {
                let (client, bytes) = (*client, result.bytes());
                self.mailboxes[*worker].post(WorkerCommand::Core(CoreMessage::Answer { client, bytes }));
            }
            // The gathering console may have stopped waiting.
            Asker::Console(to) => drop(to.try_send(result)),
        }
    }
}

// === impl Console ===

/// Serves consoles until all handles are gone. `lease`: by which everything is paused from the beginning, if it is.
pub(crate) fn run(context: Arc<ConsoleContext>, tasks: &Receiver<ConsoleTask>, lease: Lease) {
    let averages = Averages::new(context.started);
    let mut console = Console { context, pending: Vec::new(), lease, averages };
    loop {
        let now = Instant::now();
        let wait = if console.pending.is_empty() { console.averages.due_in(now) } else { POLL };
        let wait = wait.min(console.lease.left(now).unwrap_or(wait));
        let wait = wait.min(console.context.shared.traffic.due_in(now).unwrap_or(wait));
        match tasks.recv_timeout(wait) {
            Ok(ConsoleTask::Command(request)) => console.serve(request),
            // The caller may have stopped waiting.
            Ok(ConsoleTask::Orders(to)) => drop(to.try_send(console.orders())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        console.look_after_lease();
        for rule in console.context.shared.traffic.expire(Instant::now()) {
            tracing::info!(rule, "the time of a traffic rule is over: it has ended");
        }
        console.look_after_pending();
        if console.averages.due_in(Instant::now()).is_zero() {
            let reports = console.context.look(Look::default(), REPORTS);
            console.averages.sample(&reports, Instant::now());
        }
    }
}

impl Console {
    fn serve(&mut self, request: Request) {
        let outcome = match command::parse(&request.text) {
            Err(error) => Outcome::Answer(CommandResult::Refused(Sqlstate::SYNTAX_ERROR, error)),
            Ok(command) if !command.only_looks() && request.access != Access::Operator => {
                Outcome::Answer(CommandResult::Refused(
                    Sqlstate::INSUFFICIENT_PRIVILEGE,
                    "this user may only look: its role is \"viewer\"".into(),
                ))
            }
            Ok(command) => {
                // A command passed on by another console was authorised there.
                let enters = !command.only_looks() && matches!(request.asker, Asker::Client { .. });
                let fleet = self.context.fleet.clone();
                match enters.then(|| fleet.changes.begin()).transpose() {
                    Err(error) => {
                        Outcome::Answer(CommandResult::Refused(Sqlstate::CANNOT_CONNECT_NOW, error.to_string()))
                    }
                    Ok(_changing) => {
                        if enters {
                            tracing::info!(command = request.text.trim(), "an operator's command");
                        }
                        match request.whole && command.is_by_cluster() {
                            true => self.gather(&command, &request),
                            false => self.carry_out(command, &request.asker),
                        }
                    }
                }
            }
        };
        match outcome {
            Outcome::Answer(result) => self.context.answer(&request.asker, result),
            Outcome::Wait(..) if self.pending.len() >= MOST_PENDING => {
                let text = "too many commands wait already; what this one does has begun";
                self.context
                    .answer(&request.asker, CommandResult::Refused(Sqlstate::TOO_MANY_CONNECTIONS, text.into()));
            }
            Outcome::Wait(until, tag) => self.pending.push(Pending { asker: request.asker, until, tag }),
        }
    }

    /// Returns the orders of operators, for another process.
    fn orders(&mut self) -> Orders {
        // It would end a lease here, and not there.
        self.refuse(&TakingOver.to_string(), |until| matches!(until, Until::Timeline(..)));
        let now = Instant::now();
        self.context.orders(self.lease.left(now), now)
    }

    /// Has the consoles of all clusters carry a command out, this one among them.
    fn gather(&mut self, command: &Command, request: &Request) -> Outcome {
        let mut parts = Vec::new();
        if let (Command::KillClient(id), Asker::Client { worker, client }) = (command, &request.asker)
            && *id == self.context.public_id(*worker, *client)
        {
            return Outcome::Answer(itself());
        }
        for (cluster, console) in self.context.fleet.consoles() {
            let (sender, receiver) = sync_channel(1);
            let asker = Asker::Console(sender);
            let part = Request { asker, text: request.text.clone(), access: request.access, whole: false };
            if cluster == self.context.shared.membership.cluster {
                self.serve(part);
            } else if console.0.try_send(ConsoleTask::Command(part)).is_err() {
                tracing::warn!(%cluster, "a cluster's console has too many commands waiting");
            }
            parts.push((cluster, receiver));
        }
        // A command that only looks is answered with the reports there are; one that acts may take its time.
        let until = command.only_looks().then(|| Instant::now() + 2 * REPORTS);
        Outcome::Wait(Until::Gathered(Gathering::new(parts, until)), "")
    }

    fn carry_out(&mut self, command: Command, asker: &Asker) -> Outcome {
        if let Some(name) = command.database()
            && self.context.settings().database(name).is_none()
        {
            return Outcome::Answer(CommandResult::NotHere(
                Sqlstate::INVALID_CATALOG_NAME,
                format!("no such database: {name:?}"),
            ));
        }
        match command {
            Command::Show(show) => Outcome::Answer(CommandResult::Table(self.show(show, asker))),
            Command::Nothing => Outcome::Answer(CommandResult::Nothing),
            Command::Reload => Outcome::Answer(match self.context.process.get().map(|process| process.reload()) {
                Some(Ok(())) => CommandResult::Done("RELOAD"),
                Some(Err(why)) => {
                    CommandResult::Refused(Sqlstate::INVALID_PARAMETER_VALUE, format!("not reloaded: {why}"))
                }
                None => starting(),
            }),
            Command::Shutdown => match self.context.process.get() {
                Some(process) => {
                    process.stop();
                    Outcome::Answer(CommandResult::Done("SHUTDOWN"))
                }
                None => Outcome::Answer(starting()),
            },
            Command::Set { key, value } => {
                let result = self.context.process.get().map(|process| process.set(&key, &value));
                Outcome::Answer(match result {
                    Some(Ok(())) => CommandResult::Done("SET"),
                    Some(Err(why)) => CommandResult::Refused(Sqlstate::INVALID_PARAMETER_VALUE, why),
                    None => starting(),
                })
            }
            Command::SetSession => Outcome::Answer(CommandResult::Done("SET")),
            Command::Suspend => {
                self.context.tell_all(&Operation::Suspend);
                Outcome::Wait(Until::Suspended, "SUSPEND")
            }
            Command::Disable(database) => {
                self.context.tell_all(&Operation::Disable(database));
                Outcome::Answer(CommandResult::Done("DISABLE"))
            }
            Command::Enable(database) => {
                self.context.tell_all(&Operation::Enable(database));
                Outcome::Answer(CommandResult::Done("ENABLE"))
            }
            Command::Pause(database) => {
                self.context.tell_all(&Operation::Pause(database.clone()));
                Outcome::Wait(Until::Closed(database), "PAUSE")
            }
            Command::PauseFor(time) => {
                self.lease.renew(Instant::now(), time);
                self.context.tell_all(&Operation::PauseLeased);
                Outcome::Wait(Until::Quiet, "PAUSE")
            }
            Command::Resume(database) => {
                self.context.tell_all(&Operation::Resume(database.clone()));
                if database.is_none() {
                    self.lease.end();
                }
                // A PAUSE that is still pending can't come to its end any more.
                self.refuse("RESUME came before everything was closed", |until| match until {
                    Until::Closed(of) => database.is_none() || *of == database,
                    Until::Quiet | Until::Suspended => database.is_none(),
                    Until::ClosedOld(..) | Until::Timeline(..) | Until::Gathered(_) => false,
                });
                Outcome::Answer(CommandResult::Done("RESUME"))
            }
            Command::ResumeWhen(timeline) => {
                Outcome::Wait(Until::Timeline(timeline, Instant::now() + TIMELINE), "RESUME")
            }
            Command::Reconnect(database) => {
                self.context.tell_all(&Operation::Reconnect(database));
                Outcome::Answer(CommandResult::Done("RECONNECT"))
            }
            Command::WaitClose(database) => Outcome::Wait(Until::ClosedOld(database, Instant::now()), "WAIT_CLOSE"),
            Command::Kill(database) => {
                self.context.tell_all(&Operation::Kill(database));
                Outcome::Answer(CommandResult::Done("KILL"))
            }
            Command::ResetStatements => {
                self.context.tell_all(&Operation::ResetStatements);
                Outcome::Answer(CommandResult::Done("RESET"))
            }
            Command::Limit(rule, ending) => {
                let until = ending.map(|time| Instant::now() + time);
                Outcome::Answer(match self.context.shared.traffic.set(*rule, until) {
                    Ok(()) => CommandResult::Done("LIMIT"),
                    Err(why) => CommandResult::Refused(Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, why.to_string()),
                })
            }
            Command::Lift(name) => Outcome::Answer(match self.context.shared.traffic.lift(&name) {
                true => CommandResult::Done("LIFT"),
                false => {
                    let why = format!("no traffic rule is called {name:?}: SHOW TRAFFIC has their names");
                    CommandResult::NotHere(Sqlstate::INVALID_PARAMETER_VALUE, why)
                }
            }),
            Command::KillClient(id) => match asker {
                Asker::Client { worker, client } if id == self.context.public_id(*worker, *client) => {
                    Outcome::Answer(itself())
                }
                _ => self.kill_client(id),
            },
        }
    }

    fn kill_client(&self, id: u64) -> Outcome {
        let reports = self.context.look(Look { clients: true, ..Look::default() }, REPORTS);
        let found = show::client_of(&reports, id);
        Outcome::Answer(match found {
            Some((worker, token)) => {
                self.context.tell(worker, Operation::KillClient(token));
                CommandResult::Done("KILL_CLIENT")
            }
            None => CommandResult::NotHere(
                Sqlstate::INVALID_PARAMETER_VALUE,
                format!("no client has the id {id}: see SHOW CLIENTS"),
            ),
        })
    }

    fn show(&self, show: Show, asker: &Asker) -> Table {
        let look = Look {
            clients: matches!(show, Show::Clients | Show::Pins) || show.is_about_sockets(),
            servers: matches!(show, Show::Servers | Show::Prepared | Show::Lanes) || show.is_about_sockets(),
            statements: show == Show::Statements,
            memory: show == Show::Memory,
        };
        let reports = if show.needs_reports() { self.context.look(look, REPORTS) } else { Vec::new() };
        let settings = self.context.settings();
        let scene = Scene {
            reports: &reports,
            settings: &settings,
            topology: &self.context.shared.topology,
            traffic: &self.context.shared.traffic,
            registry: &self.context.shared.registry,
            view: &self.context.shared.topology.view(),
            metrics: &self.context.metrics,
            averages: &self.averages,
            workers: self.context.shared.workers,
            driver: self.context.driver,
            now: Instant::now(),
            lease: self.lease.left(Instant::now()),
            paused: &self.context.paused(),
            own: match asker {
                Asker::Client { worker, client } => Some(self.context.public_id(*worker, *client)),
                Asker::Console(_) => None,
            },
        };
        scene.table(show)
    }

    /// Refuses pending commands of this kind.
    fn refuse(&mut self, why: &str, which: impl Fn(&Until) -> bool) {
        let context = &self.context;
        self.pending.retain(|pending| {
            let ends = which(&pending.until);
            if ends {
                context.answer(&pending.asker, CommandResult::Refused(Sqlstate::QUERY_CANCELED, why.into()));
            }
            !ends
        });
    }

    /// Ends a lease whose time is over.
    fn look_after_lease(&mut self) {
        let now = Instant::now();
        if self.lease.expire(now) {
            tracing::warn!("a pause was not renewed in time: its lease has ended, and clients go on");
            self.context.tell_all(&Operation::ResumeLeased);
            self.refuse("the lease of the pause has ended, and clients go on", |until| {
                matches!(until, Until::Quiet | Until::Timeline(..))
            });
        }
        self.refuse(
            "no primary on this timeline was found in time",
            |until| matches!(until, Until::Timeline(_, end) if *end <= now),
        );
    }

    /// Looks whether the primary is there that a pending command waits for, and ends the lease with it. Gives the timeline of the
    /// primary that is there, by which pending commands are judged: 0 if there is none.
    fn look_for_primary(&mut self) -> u32 {
        let topology = &self.context.shared.topology;
        let view = topology.view();
        let there = if view.primary.is_some() { view.term.told_timeline() } else { 0 };
        let wanted = self.pending.iter().filter_map(|pending| match pending.until {
            Until::Timeline(timeline, _) => Some(timeline),
            _ => None,
        });
        match wanted.min() {
            // The caller knows that the primary is there, so the next probe is not waited for.
            Some(wanted) if wanted > there => topology.probe_now(),
            Some(_) if self.lease.end() => {
                self.context.tell_all(&Operation::ResumeLeased);
                self.refuse("the pause was ended before everything was at rest", |until| matches!(until, Until::Quiet));
            }
            Some(_) | None => {}
        }
        there
    }

    /// Answers commands that all clusters have carried out.
    fn look_after_gatherings(&mut self) {
        let (context, now) = (&self.context, Instant::now());
        self.pending.retain_mut(|pending| {
            let Until::Gathered(gathering) = &mut pending.until else { return true };
            let complete = gathering.is_complete(now);
            if complete {
                context.answer(&pending.asker, gathering.sum());
            }
            !complete
        });
    }

    fn look_after_pending(&mut self) {
        self.look_after_gatherings();
        if self.pending.iter().all(|pending| matches!(pending.until, Until::Gathered(_))) {
            return;
        }
        let there = self.look_for_primary();
        let reports = self.context.look(Look { servers: true, ..Look::default() }, REPORTS);
        let open = |database: &Option<String>, before: Option<Instant>| {
            reports.iter().flat_map(|report| &report.servers).any(|server| {
                // A listening connection stays as long as its clients do.
                server.state != "listening"
                    && server.state != "replicating"
                    && database.as_ref().is_none_or(|name| **name == *server.database)
                    && before.is_none_or(|before| server.retire && server.connected <= before)
            })
        };
        let held =
            || reports.iter().flat_map(|report| &report.pools).any(|pool| pool.gate.is_some_and(|gate| gate.held > 0));
        let context = &self.context;
        self.pending.retain(|pending| {
            let waits = match &pending.until {
                Until::Closed(database) => open(database, None),
                Until::ClosedOld(database, before) => open(database, Some(*before)),
                Until::Quiet => open(&None, None) || held(),
                Until::Suspended => reports.iter().any(|report| report.suspended != Some(0)),
                Until::Timeline(timeline, _) => *timeline > there,
                Until::Gathered(_) => true,
            };
            if !waits {
                context.answer(&pending.asker, CommandResult::Done(pending.tag));
            }
            waits
        });
    }
}

fn starting() -> CommandResult {
    CommandResult::Refused(Sqlstate::CANNOT_CONNECT_NOW, "the process is still starting".into())
}

fn itself() -> CommandResult {
    CommandResult::Refused(Sqlstate::INVALID_PARAMETER_VALUE, "that is this console itself".into())
}
