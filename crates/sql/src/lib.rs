//! Classification of statements, for routing and pooling: PostgreSQL's own parser behind a cache of shapes. No I/O.
//!
//! ```text
//!  text ──shape (literals out, one pass, no allocation)──▶ cache ──hit──▶ Class
//!                                                            └─miss─▶ PostgreSQL's parser ──▶ classify (pure) ──▶ Class
//! ```
//!
//! A text in doubt is always a write.

mod class;
mod classifier;
mod fingerprint;
mod functions;
mod hint;
mod literal;
mod local;
mod newer;
mod parameter;
mod prepared;
mod redact;
mod set;
mod shape;
mod statement;
mod tree;
mod unparsed;

pub use class::{Access, Class, Control, Flags, Hint, Local, Pins};
pub use classifier::{Classifier, ClassifierConfig, Counters};
pub use fingerprint::{FINGERPRINT_MAX, fingerprint};
pub use literal::{has_literal, has_moving_literal};
pub use parameter::{ALIKE, Meaning, OF_LITERALS, changes_reading, is_utf8, meaning_of};
pub use prepared::{NameUse, PreparedName};
pub use redact::redact;
pub use set::{Change, Changes, Value};
