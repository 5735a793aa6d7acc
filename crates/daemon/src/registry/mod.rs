//! `kingpost registry`: the server, and its client.
//!
//! ```text
//!  config ─▶ run: store, core, fronts ◀─ admin (metrics, health)
//!                  ▲ nodes: what the topology sees, as instances (`kingpost up`)
//!  client: register, deregister, ls, watch, import, export ──HTTP──▶ any registry
//! ```

mod eureka;
pub(crate) mod run;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::args::RegistryArgs;
use crate::console::Scene;
use crate::endpoints::Endpoints;
use config as file;
use config::{registry::RegistryConfig, settle, warn};
use metrics::Admin;
use process::{Failure, LogFlags, StopSignals, control_runtime, listen_for, logging, systemd, terminal};
use registry_client::RegistryCommand;
use run::Running;
use tokio::signal::unix::SignalKind;

/// Runs the registry until a signal ends it, or one of the client's commands.
pub fn command(args: &RegistryArgs, log: &LogFlags) -> Result<(), Failure> {
    let runtime = control_runtime()?;
    match (&args.command, &args.config) {
        (Some(RegistryCommand::Token { name }), _) => token(name),
        (Some(command), _) => runtime.block_on(registry_client::run(command)),
        (None, Some(path)) => {
            let (config, warnings) = file::load(path)?.accept(path)?;
            logging::start(&log.over(&config.log), None)?;
            warn(&warnings);
            runtime.block_on(serve(path, config, args.grace))
        }
        // clap does not let this through.
        (None, None) => Err(Failure::config("no configuration is named").advise("name the file with --config")),
    }
}

async fn serve(path: &Path, mut config: file::Config, grace: Duration) -> Result<(), Failure> {
    // Signals first: a reload that comes while starting must not kill the process.
    let mut hangup = listen_for(SignalKind::hangup())?;
    let mut stop = StopSignals::new()?;
    let running = Arc::new(Running::start(&config.registry).await?);
    let scene = Scene::default().with_registry(running.known());
    let mut endpoints = match Endpoints::start(&config, (None, None), Arc::clone(&running), scene, None).await {
        Ok(endpoints) => endpoints,
        Err(failure) => {
            running.shutdown(Duration::ZERO).await;
            return Err(failure);
        }
    };
    // Metrics and console are for operators only.
    let console = endpoints.console.as_ref().map(|serving| serving.console.address());
    let operators = [endpoints.admin.as_ref().map(Admin::address), console];
    running.registry.keep_from_probes(operators.into_iter().flatten());
    let listen: Vec<String> = running.addresses().iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = listen.join(", "),
        dns = running.dns_address().map(|address| address.to_string()).unwrap_or_default(),
        metrics = endpoints.metrics(),
        console = endpoints.console(),
        instances = running.registry.status().instances,
        "registry started"
    );
    systemd::ready();
    let name = loop {
        tokio::select! {
            name = stop.next() => break name,
            _ = hangup.recv() => {
                // The error is in the log.
                let _ = reload(path, &mut config, &running);
            }
        }
    };
    tracing::info!(signal = name, ?grace, "stopping");
    systemd::notify("STOPPING=1");
    endpoints.console = None;
    endpoints.flush().await;
    tokio::select! {
        () = running.shutdown(grace) => {}
        name = stop.next() => {
            tracing::warn!(signal = name, "stopping at once");
            std::process::exit(process::INTERRUPTED);
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Reads the file again. With any error in it, the running configuration stays.
fn reload(path: &Path, config: &mut file::Config, running: &Running) -> Result<(), Failure> {
    let loaded = file::load(path).and_then(|loaded| loaded.accept(path));
    let applied =
        loaded.and_then(|(new, warnings)| running.reload(&config.registry, &new.registry).map(|()| (new, warnings)));
    settle(path, config, applied, |old, new| {
        let (mut old, mut new) = (old.clone(), new.clone());
        for config in [&mut old, &mut new] {
            config.registry = RegistryConfig::default();
        }
        if old != new {
            tracing::warn!("outside of [registry] nothing takes effect before the next start");
        }
    })
}

/// Makes a token and prints it, with the part for the registry's configuration.
fn token(name: &str) -> Result<(), Failure> {
    let (text, sha256) = process::token::make()?;
    terminal::note(format_args!(
        "the token, for the client; it is shown only now. For the registry's configuration:\n\n\
         [[registry.tokens]]\nname = {name:?}\nsha256 = \"{sha256}\"\nrole = \"write\"\nnamespaces = [\"default\"]\n"
    ));
    terminal::line(text);
    Ok(())
}
