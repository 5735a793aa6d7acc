//! `kingpost proxy` and `kingpost check`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::admin::Admin;
use crate::cli::{CheckArgs, ProxyArgs};
use crate::config::{self, Config, LogFlags, Problem};
use crate::error::Failure;
use crate::run::Running;
use crate::{logging, out};
use proxy::console::Process;

/// Exit code after a second signal, as a shell reports a death by SIGINT.
pub(crate) const INTERRUPTED: i32 = 130;

/// Checks a file and says what is wrong.
pub(crate) fn check(args: &CheckArgs, _log: &LogFlags) -> Result<(), Failure> {
    let (config, warnings) = config::load(&args.config)?.accept(&args.config)?;
    for warning in &warnings {
        out::note(warning);
    }
    if config.is_relay_only() {
        out::line(format_args!("{}: good, a relay", args.config.display()));
        return Ok(());
    }
    if config.is_registry_only() {
        out::line(format_args!("{}: good, a registry", args.config.display()));
        return Ok(());
    }
    let nodes = config.cluster.nodes.len();
    out::line(format_args!("{}: good, {nodes} node{}", args.config.display(), if nodes == 1 { "" } else { "s" }));
    Ok(())
}

/// Runs the proxy until a signal ends it.
pub(crate) fn proxy(args: &ProxyArgs, log: &LogFlags) -> Result<(), Failure> {
    let (config, warnings) = config::load(&args.config)?.accept(&args.config)?;
    logging::start(&log.over(&config.log), None)?;
    warn(&warnings);
    control_runtime()?.block_on(serve(&args.config, config, args.grace))
}

pub(crate) fn warn(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!(key = warning.key, origin = %warning.origin, "{}", warning.message);
    }
}

/// The runtime of control work: probing, HTTP, signals. Sessions have threads of their own.
pub(crate) fn control_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("cannot start the control threads: {error}")))
}

async fn serve(path: &Path, mut config: Config, grace: Duration) -> Result<(), Failure> {
    // Signals first: a reload that comes while starting must not kill the process.
    let mut hangup = listen_for(SignalKind::hangup())?;
    let mut stop = StopSignals::new()?;
    let running = Arc::new(Running::start(&config, &tokio::runtime::Handle::current())?);
    let admin = match config.metrics.listen.as_str() {
        "" => None,
        address => match Admin::start(address, Arc::clone(&running)).await {
            Ok(admin) => Some(admin),
            Err(failure) => {
                end(&running, Duration::ZERO).await;
                return Err(failure);
            }
        },
    };
    let console = match running.scene().start(&config.console, Some(running.topology())).await {
        Ok(console) => console,
        Err(failure) => {
            end(&running, Duration::ZERO).await;
            return Err(failure);
        }
    };
    let (operators, mut orders) = Operators::new();
    running.serve_operators(Box::new(operators));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = running.addresses().join(", "),
        metrics = admin.as_ref().map(|admin| admin.address().to_string()).unwrap_or_default(),
        console = console.as_ref().map(|serving| serving.console.address().to_string()).unwrap_or_default(),
        "started"
    );
    loop {
        tokio::select! {
            name = stop.next() => {
                tracing::info!(signal = name, ?grace, "stopping");
                break;
            }
            _ = hangup.recv() => {
                // It has said in the log what was wrong.
                let _ = reload(path, &mut config, &running);
            }
            Some(order) = orders.recv() => match order {
                Order::Reload(answer) => {
                    let result = reload(path, &mut config, &running);
                    // Who asked may be gone.
                    let _ = answer.send(result.map_err(|failure| failure.to_string()));
                }
                Order::Stop => {
                    tracing::info!(?grace, "an operator asks to stop");
                    break;
                }
            },
        }
    }
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

/// Stops the parts without blocking the control threads.
pub(crate) async fn end(running: &Arc<Running>, grace: Duration) {
    let running = Arc::clone(running);
    if let Err(error) = tokio::task::spawn_blocking(move || running.shutdown(grace)).await {
        tracing::error!(%error, "stopping failed");
    }
}

/// What an operator asks of the process, in the console.
enum Order {
    Reload(oneshot::Sender<Result<(), String>>),
    Stop,
}

/// Passes operators' orders on to the loop that also hears signals.
struct Operators(mpsc::Sender<Order>);

impl Operators {
    fn new() -> (Operators, mpsc::Receiver<Order>) {
        // The console has one thread, which waits for each answer.
        let (sender, receiver) = mpsc::channel(2);
        (Operators(sender), receiver)
    }
}

impl Process for Operators {
    fn reload(&self) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let stopping = || "the process is stopping".to_owned();
        self.0.blocking_send(Order::Reload(answer)).map_err(|_| stopping())?;
        answered.blocking_recv().map_err(|_| stopping())?
    }

    fn stop(&self) {
        // A full channel means that it stops already.
        let _ = self.0.try_send(Order::Stop);
    }
}

/// Reads the file again. Anything wrong with it: the running configuration stays.
fn reload(path: &Path, config: &mut Config, running: &Running) -> Result<(), Failure> {
    let loaded = config::load(path).and_then(|loaded| loaded.accept(path));
    match loaded.and_then(|(new, warnings)| running.reload(&new).map(|()| (new, warnings))) {
        Ok((new, warnings)) => {
            warn(&warnings);
            if new.metrics != config.metrics || new.log != config.log || new.console != config.console {
                tracing::warn!("changes of [metrics], [console] and [log] take effect at the next start");
            }
            if new.proxy.listen != config.proxy.listen || new.proxy.workers != config.proxy.workers {
                tracing::warn!("changes of proxy.listen and proxy.workers take effect at the next start");
            }
            *config = new;
            tracing::info!(file = %path.display(), "reloaded");
            Ok(())
        }
        Err(failure) => {
            tracing::error!(file = %path.display(), "not reloaded, the old configuration stays: {failure}");
            Err(failure)
        }
    }
}

/// SIGINT and SIGTERM.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> Result<StopSignals, Failure> {
        Ok(StopSignals {
            interrupt: listen_for(SignalKind::interrupt())?,
            terminate: listen_for(SignalKind::terminate())?,
        })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

pub(crate) fn listen_for(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::runtime(format!("cannot listen for signals: {error}")))
}
