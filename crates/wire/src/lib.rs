//! PostgreSQL protocol 3 (3.0 and 3.2), sans-I/O: bytes in, values and bytes out.
//!
//! Messages are not turned into owned values. [`frame`] reads the five-byte header of every message after the startup;
//! [`startup`] reads the packets before that. [`frontend`] decodes clients' messages, [`payload`] reads single fields
//! of the few other payloads that a proxy must understand, and [`message`] appends messages to a buffer. [`scram`],
//! [`oauth`] and [`md5`] are the authentication exchanges, [`replication`] is the protocol of standbys, [`control`] has the
//! settings that our own SQL sessions begin with.
//!
//! Source of the formats: PostgreSQL documentation, "Frontend/Backend Protocol", "Message Formats".

pub mod control;
pub mod error;
pub mod frame;
pub mod frontend;
pub mod md5;
pub mod message;
pub mod oauth;
pub mod payload;
pub mod replication;
pub mod scram;
pub mod startup;

pub use error::{Severity, Sqlstate};
pub use frame::{Frame, FrameError, HEADER};
pub use startup::{Startup, StartupError};
