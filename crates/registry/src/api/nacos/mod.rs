//! Nacos' naming: over HTTP (version 1), and over gRPC (versions 2 and 3).
//!
//! ```text
//!  http ───────────────┐
//!                      ├─▶ naming ─▶ Registry
//!  grpc ─▶ connection ─┘      (which instance, which service, who may: one place for both)
//! ```
//!
//! A namespace of Nacos is the namespace of the same name; where none is given, `public`. A service has a group: `GROUP@@name`. The group
//! `DEFAULT_GROUP` is left out of the name that other fronts see. An instance is known by service, cluster, address and port
//! ([`identity::nacos`]); it has no id that a client chooses.
//!
//! Over HTTP an ephemeral instance lives by its beats: without one for 15 s it is critical, after 15 s more it is gone; its metadata may say
//! otherwise. Over gRPC it lives as long as the connection that registered it last ([`connection`]). One that is not ephemeral is probed at
//! its port.
//!
//! Not there: configuration, clusters and services as things of their own, pushes over UDP (clients of HTTP ask every 10 s).
//!
//! Format: <https://nacos.io/docs/v1/open-api/>; of gRPC, `proto/nacos/nacos.proto`, and [`messages`] for the JSON in it.

mod connection;
mod http;
mod messages;
mod naming;
mod wire;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{ApiError, Context, Reply, Request, identity};
use crate::Instance;

pub(super) use connection::{Connection, End, Opened, Shown};
pub(super) use http::{handle, is_login};
use messages::{Asked, said};
pub(super) use messages::{Said, Sign};

/// The namespace of who names none.
const PUBLIC: &str = "public";
/// How long clients keep a list, in milliseconds.
const CACHE_MILLIS: u64 = 10_000;
/// Names in one page of the list of services.
const MOST_NAMES: usize = 10_000;
