//! What a core is given besides bytes, and what it asks of its driver.

use std::net::IpAddr;
use std::sync::Arc;

use topology::{Address, NodeId};

use super::memory::Token;
use super::notify::Word;
use super::pool::PoolKey;
use super::prepared::Place;
use super::server::Server;
use super::session::Client;
use crate::accounts::Answer;
use crate::config::{Access, RouteTo};
use crate::console::Operation;
use crate::settings::Settings;
use crate::verify::{Question, Verdict};

/// Where a client connection came from.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// The fixed destination that the listener is configured with.
    pub route: Option<RouteTo>,
    /// The client came over a Unix socket, where TLS is neither offered nor required.
    pub local: bool,
    /// The client's address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// What the operating system calls the user at the other end of a Unix socket; `None`: that is not known.
    pub system: Option<Arc<String>>,
}

/// A letter from one worker (or the control thread) to another.
pub enum Mail {
    /// Another worker wants an idle server connection. If this worker gives one, it sends it by [`Effect::Move`].
    Want {
        /// The pool of the connection.
        key: PoolKey,
        /// The node of the connection.
        node: NodeId,
        /// The worker that wants the connection.
        from: usize,
    },
    /// Another pool has no room under a limit that it shares with this one: an idle connection of this pool is closed.
    Yield {
        /// The pool whose connection is closed.
        key: PoolKey,
        /// The node of the connection.
        node: NodeId,
        /// The worker with the pool that waits; it is told by [`Mail::Room`].
        from: usize,
    },
    /// There may be room under a limit that several pools share.
    Room,
    /// A cancel request for a client of this worker.
    Cancel {
        /// The process id of the cancel request, as the requester sent it.
        pid: u32,
        /// The secret key of the cancel request, likewise.
        secret: Vec<u8>,
        /// The worker that is told when the request has been handled.
        from: usize,
        /// The requester's connection on that worker.
        requester: Token,
    },
    /// The cancel request has been handled, whether or not it cancelled something: the requester's connection may be
    /// closed.
    Cancelled(Token),
    /// About the server connection that listens for all clients of a pool.
    Listen {
        /// The pool.
        key: PoolKey,
        /// What is asked or answered.
        word: Word,
    },
    /// A new configuration.
    Settings(Arc<Settings>),
    /// Passwords were read again for whoever has asked up to this ticket; new settings came first.
    Renewed(u64),
    /// The console's answer to one of this worker's clients.
    Answer {
        /// The client whose command is answered.
        client: Token,
        /// Messages of the protocol, up to and with `ReadyForQuery`.
        bytes: Vec<u8>,
    },
    /// The result of looking up a user for a client of this worker.
    Account {
        /// The client that logs in.
        client: Token,
        /// The account, with the verifier or password that the client's proof is compared with.
        answer: Answer,
    },
    /// Whether the password of a client of this worker is its user's.
    Verified {
        /// The client that logs in.
        client: Token,
        /// The answer.
        verdict: Verdict,
    },
    /// A command of an operator.
    Operate(Operation),
    /// Shutdown: idle clients are closed now, the others when their transaction ends.
    Drain,
}

/// What the core asks the driver to do.
pub enum Effect {
    /// Connect a socket, then call [`Core::connected`](super::Core::connected) or
    /// [`Core::closed`](super::Core::closed).
    Connect {
        /// The core's token for the new connection.
        token: Token,
        /// Where to connect to.
        address: Address,
    },
    /// Start TLS on a connection. Output that the core has not seen written yet is sent first, in clear. Bytes that the
    /// core was given and has not used ([`Core::early`](super::Core::early)) are already TLS. Then call
    /// [`Core::secured`](super::Core::secured) or [`Core::insecure`](super::Core::insecure).
    Secure {
        /// The connection.
        token: Token,
        /// As TLS server or as TLS client.
        with: Secure,
    },
    /// Write as much of `last` as the socket takes at once, and close. The core no longer knows the token.
    Close {
        /// The connection.
        token: Token,
        /// Bytes that were still to be written.
        last: Vec<u8>,
    },
    /// Stop reading from the connection.
    Pause(Token),
    /// Read from the connection again.
    Resume(Token),
    /// Give a connection, with its socket, to another worker.
    Move {
        /// The connection. The core no longer knows the token.
        token: Token,
        /// Who takes the connection.
        to: Destination,
        /// The state that goes with the socket, for [`Core::adopt`](super::Core::adopt).
        moved: Box<Moved>,
    },
    /// Pass a command on to the console, which answers by [`Mail::Answer`].
    Ask {
        /// The client that sent the command.
        client: Token,
        /// The text of the command.
        text: String,
        /// What the client is allowed to do.
        access: Access,
        /// The command is about all clusters.
        whole: bool,
    },
    /// Look up a user; the result comes as [`Mail::Account`].
    LookUp {
        /// The client that logs in.
        client: Token,
        /// The user's name.
        user: Arc<str>,
    },
    /// Have somebody else judge whether a client's password is its user's; the answer comes as [`Mail::Verified`].
    Verify(Box<Question>),
    /// Send mail to a worker.
    Post {
        /// The worker.
        to: usize,
        /// The letter.
        mail: Mail,
    },
}

/// Who takes a connection that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// This worker of the same cluster.
    Worker(usize),
    /// Whichever worker of another cluster has the fewest clients.
    Cluster(Arc<str>),
}

/// How a connection starts TLS.
#[derive(Debug)]
pub enum Secure {
    /// The peer is a client.
    Accept {
        /// Has the current certificates.
        acceptor: Arc<tls::Acceptor>,
        /// The client began with TLS directly, without SSLRequest.
        direct: bool,
    },
    /// The peer is a server.
    Connect(tls::Target),
}

/// A connection on its way to another worker.
pub struct Moved(pub(super) Moving);

/// What moves.
pub(super) enum Moving {
    /// An idle server connection of the pool `key`. Its sender may have read the configuration, or have heard of
    /// `RECONNECT`, before its receiver or after: so it says where it was opened to, and how often the sender has heard
    /// of that.
    Server { key: PoolKey, place: Arc<Place>, reconnects: u64, odd_strings: bool, server: Box<Server> },
    /// A client that has authenticated and has not been told so yet.
    Client(Box<Client>),
    /// A client of another cluster than the one that has accepted it.
    Newcomer(Box<Newcomer>),
}

/// A connection as it was when its start-up packet, or its cancel request, had come.
pub(super) struct Newcomer {
    pub peer: Peer,
    pub identity: Option<Box<tls::Identity>>,
    /// From the packet on.
    pub input: Vec<u8>,
    /// What it was told and has not been sent yet: that there is no encryption.
    pub unsent: Vec<u8>,
}

impl Moved {
    /// Adds bytes that arrived while the connection was on its way.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Moving::Server { server, .. } => server.input.extend_from_slice(bytes),
            Moving::Client(client) => client.input.extend_from_slice(bytes),
            Moving::Newcomer(newcomer) => newcomer.input.extend_from_slice(bytes),
        }
    }
}
