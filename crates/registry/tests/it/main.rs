//! Registries on real stores: their interfaces, several nodes, outages.
//!
//! One program for all modules, as linking is slow.
#![allow(clippy::unwrap_used)]

mod acl;
mod common;
mod consul;
mod eureka;
mod health;
mod mysql;
mod nacos;
mod nodes;
mod outage;
mod postgres;
mod queries;
mod sessions;
mod sqlite;
mod tikv;
