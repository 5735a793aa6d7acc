//! `kingpost registry`: running one, and talking to one.
//!
//! ```text
//!  config ─▶ run: store, core, fronts ◀─ admin (metrics, health)
//!                  ▲ nodes: what the topology sees, as instances (`kingpost up`)
//!  client: register, deregister, ls, watch, import, export ──HTTP──▶ any registry
//! ```

mod client;
pub(crate) mod config;
mod http;
pub(crate) mod nodes;
pub(crate) mod run;

use std::sync::Arc;
use std::time::Duration;

use crate::admin::Admin;
use crate::cli::{RegistryArgs, RegistryCommand};
use crate::config::{self as file, LogFlags};
use crate::error::Failure;
use crate::serve::{StopSignals, control_runtime, warn};
use crate::{logging, out};
use run::Running;

pub(crate) use http::Remote;

/// Runs the registry until a signal ends it, or one of the client's commands.
pub(crate) fn command(args: &RegistryArgs, log: &LogFlags) -> Result<(), Failure> {
    let runtime = control_runtime()?;
    match (&args.command, &args.config) {
        (Some(RegistryCommand::Token { name }), _) => token(name),
        (Some(command), _) => runtime.block_on(client::run(command)),
        (None, Some(path)) => {
            let (config, warnings) = file::load(path)?.accept(path)?;
            logging::start(&log.over(&config.log), None)?;
            warn(&warnings);
            runtime.block_on(serve(config, args.grace))
        }
        // clap does not let this through.
        (None, None) => Err(Failure::config("no configuration is named").advise("name the file with --config")),
    }
}

async fn serve(config: file::Config, grace: Duration) -> Result<(), Failure> {
    let mut stop = StopSignals::new()?;
    let running = Arc::new(Running::start(&config.registry).await?);
    let admin = match config.metrics.listen.as_str() {
        "" => None,
        address => match Admin::start(address, Arc::clone(&running)).await {
            Ok(admin) => Some(admin),
            Err(failure) => {
                running.shutdown(Duration::ZERO).await;
                return Err(failure);
            }
        },
    };
    let listen: Vec<String> = running.addresses().iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = listen.join(", "),
        dns = running.dns_address().map(|address| address.to_string()).unwrap_or_default(),
        metrics = admin.as_ref().map(|admin| admin.address().to_string()).unwrap_or_default(),
        instances = running.registry.status().instances,
        "registry started"
    );
    let name = stop.next().await;
    tracing::info!(signal = name, ?grace, "stopping");
    tokio::select! {
        () = running.shutdown(grace) => {}
        name = stop.next() => {
            tracing::warn!(signal = name, "stopping at once");
            std::process::exit(crate::serve::INTERRUPTED);
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Makes a token, and says what of it goes where.
fn token(name: &str) -> Result<(), Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let token = format!("kp_{}", hex(&random));
    out::note(format_args!(
        "the token, for the client; it is shown only now. For the registry's configuration:\n\n\
         [[registry.tokens]]\nname = {name:?}\nsha256 = \"{}\"\nrole = \"write\"\nnamespaces = [\"default\"]\n",
        hex(&registry::api::hash_of(&token))
    ));
    out::line(token);
    Ok(())
}
