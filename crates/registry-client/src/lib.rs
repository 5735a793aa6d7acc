//! A client of registries: the commands of `kingpost registry`, imports from Consul and Eureka, and lists of servers for a proxy.

mod agent;
mod args;
mod client;
mod configs;
mod import;
mod member;
pub mod nodes;
mod source;

pub use args::{ConfigCommand, ConfigImportArgs, ImportArgs, RegisterArgs, RegistryCommand, RemoteArgs};
pub use client::run;
pub use member::{Claim, Entry, Member, Stored};
pub use source::{Listed, Sources};
