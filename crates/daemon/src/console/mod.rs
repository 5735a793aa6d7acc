//! The web console, wired to the running parts of this process.

mod cluster;
mod proxy;
mod registry;
mod relay;

use std::os::fd::OwnedFd;

use ::console::{Console, ConsoleConfig, Parts, StartError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use topology::Topology;

use crate::args::ConsoleCommand;
use process::{Failure, terminal, token};

pub(crate) use cluster::Watched;
pub(crate) use proxy::Observed;
pub(crate) use registry::Known;
pub(crate) use relay::Shown;
pub use relay::ShownBinlog;

/// A running console, and the task that it needs; both end with this value.
pub struct Serving {
    /// The console.
    pub console: Console,
    follower: Option<JoinHandle<()>>,
}

/// The parts that the console shows.
#[derive(Default)]
pub struct Scene {
    /// The parts, by kind.
    pub parts: Parts,
    /// The registry's part again: it follows the states of instances.
    pub known: Option<std::sync::Arc<Known>>,
}

impl Scene {
    /// Adds a registry.
    pub fn with_registry(mut self, known: Known) -> Scene {
        let known = std::sync::Arc::new(known);
        self.parts.registry = Some(known.clone());
        self.known = Some(known);
        self
    }

    /// Serves the console as configured, on the socket that another process handed over for it, if any; None without an address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(
        self,
        config: &ConsoleConfig,
        inherited: Option<OwnedFd>,
        topology: Option<&Topology>,
    ) -> Result<Option<Serving>, Failure> {
        if config.listen.is_empty() {
            return Ok(None);
        }
        let listener = process::listen(inherited, &config.listen).await;
        let console = listener
            .map_err(|source| StartError::Listen { address: config.listen.clone(), source })
            .and_then(|listener| Console::serve(listener, config, self.parts.clone()))
            .map_err(|error| failure_of(&error))?;
        Ok(Some(self.follow(console, topology)))
    }

    /// As [`Scene::start`], on a bound socket.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn serve(
        self,
        listener: TcpListener,
        config: &ConsoleConfig,
        topology: Option<&Topology>,
    ) -> Result<Serving, Failure> {
        let console = Console::serve(listener, config, self.parts.clone()).map_err(|error| failure_of(&error))?;
        Ok(self.follow(console, topology))
    }

    fn follow(self, console: Console, topology: Option<&Topology>) -> Serving {
        if let Some(topology) = topology {
            let wake = console.wake();
            topology.subscribe(Box::new(move || wake.wake()));
        }
        Serving { console, follower: self.known.map(|known| tokio::spawn(known.follow())) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

fn failure_of(error: &StartError) -> Failure {
    match error {
        StartError::Listen { .. } => {
            Failure::environment(error.to_string()).advise("choose another address: console.listen")
        }
        StartError::Config(_) => Failure::config(error.to_string()),
    }
}

/// `kingpost console …`.
pub fn command(command: &ConsoleCommand) -> Result<(), Failure> {
    let ConsoleCommand::Token { name, viewer } = command;
    let (text, sha256) = token::make()?;
    let role = if *viewer { "viewer" } else { "operator" };
    terminal::note(format_args!(
        "the token, to sign in with; it is shown only now. For the configuration:\n\n\
         [[console.tokens]]\nname = {name:?}\nsha256 = \"{sha256}\"\nrole = \"{role}\"\n"
    ));
    terminal::line(text);
    Ok(())
}
