//! The registry's data model as plain values: no I/O, no clock.

mod check;
mod digest;
mod instance;
mod limits;
mod machine;
mod metadata;
mod name;
mod overlay;
mod text;

pub use check::{Check, CheckKind, InstanceCheck, MOST_CHECKS, Pace, ProbeRequest, ProbeTls};
pub use digest::Digest;
pub(crate) use instance::WATCHED;
pub use instance::{Health, Instance, Location, Patch, Registration};
pub(crate) use limits::text as check_text;
pub use limits::{Invalid, Limits};
pub use machine::{AGENT, Machines, ON, machine_id, machines};
pub use metadata::Metadata;
pub(crate) use metadata::{OWN_BYTES, RESERVED};
pub use name::{InstanceId, NamespaceName, ServiceKey};
pub use overlay::OverlayChange;
pub use text::{is_invisible, visible};

/// The commit number: each committed batch gets the next one, across all nodes of a store. 0 is before the first commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
