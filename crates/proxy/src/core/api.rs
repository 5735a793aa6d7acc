//! What a core is given beside bytes, and what it asks of its driver.

use std::net::IpAddr;
use std::sync::Arc;

use topology::{Address, NodeId};

use super::memory::Token;
use super::notify::Word;
use super::pool::PoolKey;
use super::server::Server;
use super::session::Client;
use crate::accounts::Answer;
use crate::config::{Access, RouteTo};
use crate::console::Operation;
use crate::settings::Settings;

/// What a client connection came with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer {
    /// The listener's fixed destination.
    pub route: Option<RouteTo>,
    /// It came over a Unix socket: there is no TLS, and none is asked for.
    pub local: bool,
    /// From where; None: over a Unix socket.
    pub address: Option<IpAddr>,
}

/// What one worker sends another.
pub enum Mail {
    /// An idle server connection is wanted. Any answer is an [`Effect::Move`].
    Want {
        /// Of which pool.
        key: PoolKey,
        /// On which node.
        node: NodeId,
        /// By which worker.
        from: usize,
    },
    /// A cancel request for one of this worker's clients.
    Cancel {
        /// As the requester sent it.
        pid: u32,
        /// Likewise.
        secret: Vec<u8>,
        /// Which worker is to be told when it is done.
        from: usize,
        /// The requester's connection there.
        requester: Token,
    },
    /// A cancel request has had its effect, or none: the requester may be closed.
    Cancelled(Token),
    /// About a pool's shared connection that listens.
    Listen {
        /// Which pool.
        key: PoolKey,
        /// What.
        word: Word,
    },
    /// A new configuration.
    Settings(Arc<Settings>),
    /// What the console says to one of this worker's clients.
    Answer {
        /// Whose command it was.
        client: Token,
        /// Messages up to `ReadyForQuery`.
        bytes: Vec<u8>,
    },
    /// What a lookup has found for one of this worker's clients.
    Account {
        /// Whose login it was.
        client: Token,
        /// What there is to compare its proof with.
        answer: Answer,
    },
    /// An operator's doing.
    Operate(Operation),
    /// Idle clients are closed now; the others when their transaction ends.
    Drain,
}

/// What the driver is asked to do.
pub enum Effect {
    /// Connect a socket; then [`Core::connected`](super::Core::connected) or [`Core::closed`](super::Core::closed).
    Connect {
        /// For this connection.
        token: Token,
        /// Where to.
        address: Address,
    },
    /// From here on the connection speaks TLS. What the core still has to write to it goes before that, in clear;
    /// what it was given and has not used ([`Core::early`](super::Core::early)) is TLS already. Then [`Core::secured`](super::Core::secured) or [`Core::insecure`](super::Core::insecure).
    Secure {
        /// Which.
        token: Token,
        /// How.
        with: Secure,
    },
    /// Write `last` as far as that goes at once, and close. The token is no longer known to the core.
    Close {
        /// Which.
        token: Token,
        /// What was still to be written.
        last: Vec<u8>,
    },
    /// Stop reading.
    Pause(Token),
    /// Read again.
    Resume(Token),
    /// Give a connection, socket and all, to another worker.
    Move {
        /// Which socket. The token is no longer known to the core.
        token: Token,
        /// To which worker.
        to: usize,
        /// What goes with the socket: for [`Core::adopt`](super::Core::adopt).
        moved: Box<Moved>,
    },
    /// Ask the console: its answer comes by [`Mail::Answer`].
    Ask {
        /// For this client.
        client: Token,
        /// The command.
        text: String,
        /// What the client may do.
        access: Access,
    },
    /// Look a user up: what is found comes by [`Mail::Account`].
    LookUp {
        /// For this client.
        client: Token,
        /// Its name.
        user: Arc<str>,
    },
    /// Send mail to a worker.
    Post {
        /// To which.
        to: usize,
        /// What.
        mail: Mail,
    },
}

/// How a connection begins with TLS.
#[derive(Debug)]
pub enum Secure {
    /// As the server.
    Accept {
        /// With the certificates of the day.
        acceptor: Arc<tls::Acceptor>,
        /// The client began with it, without SSLRequest.
        direct: bool,
    },
    /// As the client.
    Connect(tls::Target),
}

/// A connection on its way to another worker.
pub struct Moved(pub(super) Moving);

/// Which.
pub(super) enum Moving {
    /// An idle server connection of this pool.
    Server { key: PoolKey, server: Box<Server> },
    /// A client that has shown who it is, and has not been told so.
    Client(Box<Client>),
}

impl Moved {
    /// Bytes have come for it meanwhile.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Moving::Server { server, .. } => server.input.extend_from_slice(bytes),
            Moving::Client(client) => client.input.extend_from_slice(bytes),
        }
    }
}
