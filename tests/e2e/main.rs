//! End to end: the real binary, real PostgreSQL, real clients.
//!
//! One binary for all modules, as linking is slow. Tests that change nothing for others share a cluster (see
//! `common::shared`); what kills or slows servers has a cluster of its own.
#![allow(clippy::unwrap_used)]

mod auth;
mod cancel;
mod clients;
mod common;
mod consistency;
mod console;
mod copy;
mod failover;
mod faults;
mod gate;
mod harness;
mod hostile;
mod isolation;
mod lanes;
mod large;
mod listen;
mod login;
mod operations;
mod parameters;
mod pools;
mod prepared;
mod protocol;
mod psql;
mod registry;
mod registry_clients;
mod registry_fire;
mod registry_fronts;
mod registry_identity;
mod registry_nodes;
mod registry_probes;
mod registry_races;
mod registry_safety;
mod registry_source;
mod registry_walls;
mod relay;
mod relay_amnesia;
mod relay_failover;
mod relay_fetch;
mod relay_full;
mod relay_gap;
mod relay_heartbeat;
mod relay_life;
mod relay_orders;
mod relay_recovery;
mod relay_slots;
mod relay_tls;
mod routing;
mod sql;
mod statements;
mod switch;
mod tls;
mod torture;
mod traces;
mod up;
mod upgrade;
mod wal;
mod watch;
mod ways;
mod web;
