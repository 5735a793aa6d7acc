//! `kingpost relay` with `engine = "mariadb"` or `"mysql"`: the relay of a binary log, wired to configuration, signals and admin HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::relay::config::{Engine, RelayConfig};
use ::relay::log::FLUSH_BUCKETS_US;
use ::relay::{BinlogRelay, BinlogStatus};
use tokio::signal::unix::SignalKind;

use crate::console::{Scene, ShownBinlog};
use crate::endpoints::Endpoints;
use crate::relay::{failure_of, say_what_comes_later};
use config::{self, Config, settle};
use metrics::{Exposition, Source, Type};
use process::{Failure, StopSignals, listen_for, systemd};

/// Interval between two checks of the log.
const WATCH: Duration = Duration::from_millis(500);

/// A relay as a source of admin HTTP.
pub struct Relaying {
    /// The relay.
    pub relay: Arc<BinlogRelay>,
}

impl Source for Relaying {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        describe(&self.relay, &mut exposition);
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.relay.alive()
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.relay.status();
        if status.upstream_state != "streaming" {
            return Err(format!("not receiving from {}: {}", status.upstream, status.upstream_state));
        }
        if !status.concerns.is_empty() {
            return Err(format!("commits may not wait until they are durable here: {}", status.concerns.join("; ")));
        }
        Ok(())
    }
}

/// Runs the relay until a signal, or until it cannot go on.
pub(crate) async fn serve(path: &Path, mut config: Config) -> Result<(), Failure> {
    // Signals first: a reload that comes while starting must not kill the process.
    let mut hangup = listen_for(SignalKind::hangup())?;
    let mut stop = StopSignals::new()?;
    let relay = BinlogRelay::start(&config.relay, &tokio::runtime::Handle::current());
    let relay = Arc::new(relay.map_err(|error| failure_of(&error))?);
    let relaying = Arc::new(Relaying { relay: Arc::clone(&relay) });
    let (engine, shown) = match config.relay.engine {
        Engine::Mysql => ("mysql", ::console::picture::Engine::Mysql),
        _ => ("mariadb", ::console::picture::Engine::Mariadb),
    };
    let mut scene = Scene::default();
    scene.parts.relay =
        Some(Arc::new(ShownBinlog { relay, engine: shown, name: Box::new(|id| format!("server_id {id}")) }));
    let endpoints = match Endpoints::start(&config, (None, None), Arc::clone(&relaying), scene, None).await {
        Ok(endpoints) => endpoints,
        Err(failure) => {
            let ending = Arc::clone(&relaying);
            let _ = tokio::task::spawn_blocking(move || ending.relay.shutdown()).await;
            return Err(failure);
        }
    };
    let addresses: Vec<String> = relaying.relay.addresses().iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        engine,
        listen = addresses.join(", "),
        metrics = endpoints.metrics(),
        console = endpoints.console(),
        dir = %config.relay.dir.display(),
        "started"
    );
    systemd::ready();
    let result = loop {
        tokio::select! {
            name = stop.next() => {
                tracing::info!(signal = name, "stopping");
                break Ok(());
            }
            _ = hangup.recv() => reload(path, &mut config, &relaying.relay),
            () = tokio::time::sleep(WATCH) => if let Err(reason) = relaying.relay.alive() {
                break Err(Failure::runtime(format!("the relay cannot go on: {reason}"))
                    .advise("look after the disk; what was acknowledged is in the log and stays there"));
            }
        }
    };
    systemd::notify("STOPPING=1");
    endpoints.flush().await;
    let ending = Arc::clone(&relaying);
    if let Err(error) = tokio::task::spawn_blocking(move || ending.relay.shutdown()).await {
        tracing::error!(%error, "stopping failed");
    }
    tracing::info!("stopped");
    result
}

/// Checks that the source's commits wait for the relay, and changes nothing. Blocking.
///
/// # Errors
/// The commits do not wait, or the source cannot be asked.
pub fn check(config: &RelayConfig) -> Result<(), Failure> {
    let address = &config.upstream.address;
    match ::relay::source_concerns(config) {
        Ok(concerns) if concerns.is_empty() => Ok(()),
        Ok(concerns) => {
            let lines: Vec<String> = concerns.iter().map(|concern| format!("  {concern}")).collect();
            let lines = lines.join("\n");
            Err(Failure::config(format!(
                "commits on {address} may not wait until they are durable on the relay\n{lines}"
            )))
        }
        Err(why) => Err(Failure::environment(format!("cannot ask the source {address}: {why}"))),
    }
}

/// Reads the file again. With any error in it, the running configuration stays.
fn reload(path: &Path, config: &mut Config, relay: &BinlogRelay) {
    let applied = config::load(path).and_then(|loaded| loaded.accept(path)).and_then(|(new, warnings)| {
        relay
            .reload(&new.relay)
            .map_err(|error| Failure::config(format!("the new configuration is refused: {error}")))?;
        Ok((new, warnings))
    });
    // The failure is in the log.
    let _ = settle(path, config, applied, say_what_comes_later);
}

/// Adds the relay's metrics.
fn describe(relay: &BinlogRelay, exposition: &mut Exposition) {
    let status = relay.status();
    exposition.gauge("relay_streaming", "1 while events are received.", status.upstream_state == "streaming");
    exposition.gauge("relay_alarm", "1 while somebody has to look: see the log.", status.alarm);
    let help = "Settings of the source by which commits do not wait until they are durable here.";
    exposition.gauge("relay_source_concerns", help, status.concerns.len());
    exposition.gauge("relay_connections", "Connections of replicas.", status.connections);
    exposition.gauge("relay_epoch", "The directory that is written: one more with each source.", status.epoch);
    exposition.gauge("relay_source_server_id", "server_id of the source of that directory.", u64::from(status.source));
    exposition.gauge("relay_term", "Highest term that was promised to at a failover.", status.term);
    exposition.gauge("relay_fenced", "1 while nothing more is taken of that source.", status.fenced);
    exposition.gauge("relay_files", "Binary logs held.", status.files);
    exposition.gauge("relay_held_bytes", "Bytes of binary logs held.", status.bytes);
    for (name, help, value) in &status.counters {
        exposition.counter(&format!("{name}_total"), help, *value);
    }
    let help = "Bytes of the log since the process began: written, durable, durable in whole transactions.";
    let mut position = exposition.metric(Type::Gauge, "relay_position_bytes", help);
    for (name, at) in [("written", status.written), ("flushed", status.flushed), ("whole", status.whole)] {
        position.sample(&[("position", name)], at);
    }
    describe_durable(&status, exposition);
    relay.flush_times(|times| {
        let counts = times.buckets();
        let buckets: Vec<(f64, u64)> =
            FLUSH_BUCKETS_US.iter().zip(counts).map(|(bound, count)| (*bound as f64 / 1e6, count)).collect();
        let above = counts.last().copied().unwrap_or(0);
        let sum = times.sum_us() as f64 / 1e6;
        exposition.histogram("relay_flush_seconds", "How long a flush of the log took.", &buckets, above, sum);
    });
}

fn describe_durable(status: &BinlogStatus, exposition: &mut Exposition) {
    let help = "Always 1; the labels are what is durable: GTIDs, file.";
    let mut durable = exposition.metric(Type::Gauge, "relay_durable_info", help);
    let file = status.durable.as_ref().map_or("", |(file, _)| file);
    durable.sample(&[("gtids", &status.gtids), ("file", file)], 1_u64);
    let help = "Offset in that file up to which whole transactions are durable.";
    exposition.gauge("relay_durable_offset_bytes", help, status.durable.as_ref().map_or(0, |(_, offset)| *offset));
    let help = "Durable here and not sent to this replica yet.";
    let mut unsent = exposition.metric(Type::Gauge, "relay_downstream_unsent_bytes", help);
    for replica in &status.downstreams {
        let (id, server) = (replica.id.to_string(), replica.server_id.to_string());
        unsent.sample(&[("downstream", &server), ("id", &id)], replica.unsent);
    }
}
