//! The long-running commands: proxy, relay, registry and their web console, wired to configuration, signals, metrics and each other.
//!
//! ```text
//!  serve     proxy:    config ─▶ run::Running (topology, proxy, authenticators, by cluster) ◀─ metrics, console, orders, take-over
//!  relay     relay:    config ─▶ the relay, and the topology where it follows the primary ◀─ metrics, console
//!  registry  registry: config ─▶ store, core, fronts ◀─ metrics, console
//! ```

mod args;
mod console;
mod endpoints;
mod registry;
mod relay;
mod relay_mariadb;
mod run;
mod serve;

pub use args::{ConsoleCommand, FetchArgs, ProxyArgs, RegistryArgs, RelayArgs, RelayCommand, ResetArgs};
pub use console::{Scene, Serving, ShownBinlog, command as console};
pub use registry::command as registry;
pub use registry::run::Running as Registry;
pub use relay::{command as relay, failure_of as relay_failure};
pub use relay_mariadb::{Relaying, check as check_mariadb};
pub use run::{Running, Traffic};
pub use serve::{end, proxy};
