//! Nacos' naming and configuration: over HTTP, and over gRPC (versions 2 and 3).
//!
//! ```text
//!  http ───────────────┐
//!                      ├─▶ naming ─▶ Registry
//!  grpc ─▶ connection ─┘      (instance, service and permission: one place for both)
//! ```
//!
//! A namespace of Nacos is the namespace of the same name, `public` by default. A service has a group: `GROUP@@name`. The group `DEFAULT_GROUP` is
//! omitted in the name that other fronts see. An instance is identified by service, cluster, address and port ([`identity::nacos`]); clients choose
//! no id.
//!
//! Over HTTP an ephemeral instance depends on its beats: after 15 s without one it is critical, after 15 s more it is removed; its metadata may set
//! other times. Over gRPC it depends on the connection that registered it last ([`connection`]). An instance that is not ephemeral is probed at its
//! port.
//!
//! A configuration entry's namespace is found in the same way ([`config`]). A client over gRPC is told of a change of an entry that it listens to; over
//! HTTP it waits in a request.
//!
//! A service has a record, if an operator has set one ([`service`]): then its protection threshold is in force on what clients see.
//!
//! Not supported: management of clusters, pushes over UDP (HTTP clients poll every 10 s).
//!
//! Format: <https://nacos.io/docs/v1/open-api/>; of gRPC, `proto/nacos/nacos.proto`, and [`messages`] for the JSON in it.

mod config;
mod connection;
mod http;
mod messages;
mod naming;
mod service;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{ApiError, Context, Reply, Request, identity};
use crate::Instance;

pub(super) use config::has_password_in_form;
#[doc(hidden)]
pub use config::read_listening;
pub(super) use connection::{Connection, End, Opened};
pub(super) use http::{handle, is_login};
use messages::{Asked, message};
pub(super) use messages::{OutgoingMessage, Sign};

/// Returns an error about a request that Nacos' clients know by its code.
fn coded(code: Code, text: impl Into<String>) -> ApiError {
    let (code, message) = code.shown();
    ApiError::Coded { code, message, text: text.into() }
}

/// Returns the error about a parameter that is not there.
fn required(name: &str) -> ApiError {
    coded(Code::Missing, format!("{name} is missing"))
}

/// Errors of an invalid request that have codes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Missing,
    Weight,
    ServiceExists,
    NoService,
    /// A service with instances cannot be deleted.
    ServiceDelete,
}

impl Code {
    /// Returns code and text, which are those of Nacos' own server.
    fn shown(self) -> (u32, &'static str) {
        match self {
            Code::Missing => (10_000, "parameter missing"),
            Code::Weight => (21_001, "weight error"),
            Code::ServiceExists => (21_007, "service already exist"),
            Code::NoService => (21_008, "service not exist"),
            Code::ServiceDelete => (21_009, "service delete failure"),
        }
    }
}

/// Default namespace.
const PUBLIC: &str = "public";
/// Time for which clients cache a list, in milliseconds.
const CACHE_MILLIS: u64 = 10_000;
/// Maximum number of names in a page of the list of services.
const MOST_NAMES: usize = 10_000;
