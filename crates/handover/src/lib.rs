//! Hand-over of a running proxy: listening sockets from the service manager or from an old process, and the orders that operators gave the old process.

mod activation;
mod orders;
mod upgrade;

pub use activation::sockets;
pub use orders::Ordered;
pub use upgrade::{
    READY_WITHIN, Sockets, SuccessorListener, TakenOver, hand_over, inherited, say_bye, start_successor, take_over,
};
