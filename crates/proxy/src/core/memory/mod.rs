//! Parts of connections: buffers that they borrow while they hold bytes, values that they have only while they are active, and tokens.

mod buffer;
mod pooled_box;
pub mod token;

pub(in crate::core) use buffer::{Buffers, Output};
pub(in crate::core) use pooled_box::{Idle, PooledBox, Spare, keep_spare, take_spare};
pub(in crate::core) use token::{Kind, Token};
