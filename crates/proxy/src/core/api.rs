//! Inputs of a core besides bytes, and its requests to the driver.

use std::net::IpAddr;
use std::sync::{Arc, mpsc};

use topology::{Address, NodeId};

use super::memory::Token;
use super::notify::ListenerMessage;
use super::pool::PoolKey;
use super::prepared::StatementNamespace;
use super::report::Operation;
use super::server::Server;
use super::session::Client;
use crate::accounts::LookupResult;
use crate::config::{Access, RouteTo};
use crate::settings::Settings;
use crate::verify::{Question, Verdict};

/// Origin of a client connection.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Fixed destination of the listener, from the configuration.
    pub route: Option<RouteTo>,
    /// True if the client came over a Unix socket, where TLS is neither offered nor required.
    pub local: bool,
    /// The client's address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// Operating-system name of the user at the other end of a Unix socket; `None` if unknown.
    pub system: Option<Arc<String>>,
}

/// A message from one worker (or the control thread) to another.
pub enum CoreMessage {
    /// A request of another worker for an idle server connection. This worker may send one by [`Effect::Move`].
    Want {
        /// The pool of the connection.
        key: PoolKey,
        /// The node of the connection.
        node: NodeId,
        /// The worker that wants the connection.
        from: usize,
    },
    /// A request to close an idle connection of this pool, because another pool has no room under a limit that both share.
    Yield {
        /// The pool whose connection is closed.
        key: PoolKey,
        /// The node of the connection.
        node: NodeId,
        /// The worker of the pool that waits; it is notified by [`CoreMessage::Room`].
        from: usize,
    },
    /// Notice that there may be room under a limit shared by several pools.
    Room,
    /// A cancel request for a client of this worker.
    Cancel {
        /// Process ID of the cancel request, as the requester sent it.
        pid: u32,
        /// Secret key of the cancel request, as the requester sent it.
        secret: Vec<u8>,
        /// The worker to be notified once the request has been handled.
        from: usize,
        /// The requester's connection on that worker.
        requester: Token,
    },
    /// Notice that the cancel request has been handled, whether or not it cancelled a statement: the requester's connection may be closed.
    Cancelled(Token),
    /// A message about the server connection that listens for all clients of a pool.
    Listen {
        /// The pool.
        key: PoolKey,
        /// The question or the answer.
        message: ListenerMessage,
    },
    /// A new configuration. Who sent it waits until every worker has dropped its sender: each has put the settings into effect then.
    Settings(Arc<Settings>, Option<mpsc::Sender<()>>),
    /// Notice that passwords were read again for every request up to this ticket; new settings were sent before it.
    Renewed(u64),
    /// The console's answer to one of this worker's clients.
    Answer {
        /// The client whose command is answered.
        client: Token,
        /// Messages of the protocol, up to and including `ReadyForQuery`.
        bytes: Vec<u8>,
    },
    /// The result of looking up a user for a client of this worker.
    Account {
        /// The client that logs in.
        client: Token,
        /// The account, with the verifier or password for the client's proof.
        answer: LookupResult,
    },
    /// Result of the verification of a client's password.
    Verified {
        /// The client that logs in.
        client: Token,
        /// The result.
        verdict: Verdict,
    },
    /// A command of an operator.
    Operate(Operation),
    /// Shutdown: idle clients are closed now, the others when their transaction ends.
    Drain,
}

/// A request of the core to the driver.
pub enum Effect {
    /// Connect a socket, then call [`Core::connected`](super::Core::connected) or
    /// [`Core::closed`](super::Core::closed).
    Connect {
        /// The core's token for the new connection.
        token: Token,
        /// The address of the peer.
        address: Address,
    },
    /// Start TLS on a connection. Output that the core has not yet seen written is sent first, in clear. Bytes that the core was given and has not
    /// used ([`Core::early`](super::Core::early)) are already TLS. Then call [`Core::secured`](super::Core::secured) or
    /// [`Core::insecure`](super::Core::insecure).
    Secure {
        /// The connection.
        token: Token,
        /// The role: TLS server or TLS client.
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
        /// The receiver of the connection.
        to: Destination,
        /// The state that goes with the socket, for [`Core::adopt`](super::Core::adopt).
        moved: Box<Moved>,
    },
    /// Pass a command on to the console, which answers by [`CoreMessage::Answer`].
    Ask {
        /// The client that sent the command.
        client: Token,
        /// The text of the command.
        text: String,
        /// The client's permissions.
        access: Access,
        /// True if the command concerns all clusters.
        whole: bool,
    },
    /// Look up a user; the result comes as [`CoreMessage::Account`].
    LookUp {
        /// The client that logs in.
        client: Token,
        /// The user's name.
        user: Arc<str>,
    },
    /// Have a client's password verified outside of the core; the result comes as [`CoreMessage::Verified`].
    Verify(Box<Question>),
    /// Send a message to a worker.
    Post {
        /// The worker.
        to: usize,
        /// The message.
        message: CoreMessage,
    },
}

/// Receiver of a connection that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The worker of the same cluster with this number.
    Worker(usize),
    /// The worker of another cluster with the fewest clients.
    Cluster(Arc<str>),
}

/// Role of a connection in TLS.
#[derive(Debug)]
pub enum Secure {
    /// The peer is a client.
    Accept {
        /// The current certificates.
        acceptor: Arc<tls::Acceptor>,
        /// True if the client began with TLS directly, without SSLRequest.
        direct: bool,
    },
    /// The peer is a server.
    Connect(tls::Target),
}

/// A connection on its way to another worker.
pub struct Moved(pub(super) Moving);

/// Content of a moving connection.
pub(super) enum Moving {
    /// An idle server connection of the pool `key`. Its sender may have read the configuration, or have received `RECONNECT`, before its receiver or
    /// after: so the message names the namespace that the connection was opened to, and the number of `RECONNECT`s that the sender has received.
    Server { key: PoolKey, namespace: Arc<StatementNamespace>, reconnects: u64, odd_strings: bool, server: Box<Server> },
    /// A client that has authenticated, but has not yet been told so.
    Client(Box<Client>),
    /// A client of another cluster than that of the accepting worker.
    Newcomer(Box<Newcomer>),
}

/// A connection at the arrival of its start-up packet or its cancel request.
pub(super) struct Newcomer {
    pub peer: Peer,
    pub identity: Option<Box<tls::Identity>>,
    /// Input, beginning with the packet.
    pub input: Vec<u8>,
    /// Unsent output: the answer that there is no encryption.
    pub unsent: Vec<u8>,
}

impl Moved {
    /// Adds bytes that arrived while the connection was moving.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Moving::Server { server, .. } => server.input.extend_from_slice(bytes),
            Moving::Client(client) => client.input.extend_from_slice(bytes),
            Moving::Newcomer(newcomer) => newcomer.input.extend_from_slice(bytes),
        }
    }
}
