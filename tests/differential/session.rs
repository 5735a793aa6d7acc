//! What a session is: clients, and what each of them sends, in one global order.

use kingpost_tests::raw;

/// Clients of one server and of one proxy, and what they send in turn. The text form is in [`crate::text`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Session {
    /// `[proxy.pool] size`.
    pub(crate) pool: usize,
    /// What a superuser runs in both worlds before the first step: settings of roles and databases.
    pub(crate) setup: Vec<Setup>,
    /// Who takes part. Steps name clients by their place here.
    pub(crate) clients: Vec<Client>,
    /// One after the other; each is over when it has been answered in both worlds.
    pub(crate) steps: Vec<Step>,
}

/// A statement that a superuser runs before the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// In which database.
    pub(crate) database: String,
    /// The statement.
    pub(crate) sql: String,
}

/// How a client connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    /// Role that logs in.
    pub(crate) user: String,
    /// Database.
    pub(crate) database: String,
    /// Connects to the server itself in either world, so that the proxy sees nothing of what it does.
    pub(crate) past: bool,
    /// Further start-up parameters.
    pub(crate) parameters: Vec<(String, String)>,
}

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client sends this in one write.
    Send(Packet),
    /// Several clients send at the same time: plain reads, whose order does not matter.
    Together(Vec<Packet>),
    /// A client leaves (`Terminate`) and comes back with a new connection.
    Reconnect(usize),
    /// A client sends this, and ends in the same breath. It comes back when it sends something again.
    End(Packet, Way),
    /// Somebody does something to the proxy, or to its server connections. Clients must not notice: directly nothing happens.
    Operate(Order),
}

/// How a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Terminate`, and the socket stays open.
    Terminate,
    /// Its sending direction is shut down.
    HalfClose,
    /// The connection is reset, once everything is answered: nothing is sent with it.
    Reset,
}

/// Each way with its word in the text form.
pub(crate) const WAYS: [(Way, &str); 3] =
    [(Way::Terminate, "terminate"), (Way::HalfClose, "half-close"), (Way::Reset, "reset")];

/// What is done to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// `RECONNECT`: server connections are replaced as they become free.
    Reconnect,
    /// `RELOAD` of the same file.
    Reload,
    /// `PAUSE`. What the next step sends is sent while the proxy is paused; then `RESUME`.
    Pause,
    /// The server ends all connections that wait in a pool.
    Cut,
}

/// Each order with its word in the text form.
pub(crate) const ORDERS: [(Order, &str); 4] =
    [(Order::Reconnect, "reconnect"), (Order::Reload, "reload"), (Order::Pause, "pause"), (Order::Cut, "cut")];

/// What one client sends in one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Place in [`Session::clients`].
    pub(crate) client: usize,
    /// In order.
    pub(crate) messages: Vec<Message>,
}

/// What Describe and Close are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

/// A message of a client. Names may be empty: the unnamed statement or portal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Query.
    Query(String),
    /// Parse, with the OIDs of the parameters' types (0: the server finds out).
    Parse { name: String, text: String, types: Vec<u32> },
    /// Bind, with values in text form (None: NULL) and results in text or binary form.
    Bind { portal: String, statement: String, values: Vec<Option<String>>, binary: bool },
    /// Describe.
    Describe(Target, String),
    /// Execute, with the most rows to give; 0: all.
    Execute { portal: String, rows: u32 },
    /// Close.
    Close(Target, String),
    /// Sync.
    Sync,
    /// Flush.
    Flush,
    /// CopyData.
    CopyData(String),
    /// CopyDone.
    CopyDone,
    /// CopyFail, with the reason.
    CopyFail(String),
}

impl Target {
    /// As Describe and Close spell it.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Target::Statement => b'S',
            Target::Portal => b'P',
        }
    }
}

impl Message {
    /// As it goes over the wire.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let bytes = match self {
            Message::Query(text) => raw::query(text),
            Message::Parse { name, text, types } => {
                let mut body = format!("{name}\0{text}\0").into_bytes();
                body.extend_from_slice(&(types.len() as u16).to_be_bytes());
                types.iter().for_each(|oid| body.extend_from_slice(&oid.to_be_bytes()));
                raw::message(b'P', &body)
            }
            Message::Bind { portal, statement, values, binary } => {
                let mut body = format!("{portal}\0{statement}\0").into_bytes();
                body.extend_from_slice(&0u16.to_be_bytes());
                body.extend_from_slice(&(values.len() as u16).to_be_bytes());
                for value in values {
                    let length = value.as_ref().map_or(-1, |value| value.len() as i32);
                    body.extend_from_slice(&length.to_be_bytes());
                    body.extend_from_slice(value.as_deref().unwrap_or_default().as_bytes());
                }
                // One format for all columns, or none: text.
                body.extend_from_slice(&u16::from(*binary).to_be_bytes());
                if *binary {
                    body.extend_from_slice(&1u16.to_be_bytes());
                }
                raw::message(b'B', &body)
            }
            Message::Describe(target, name) => raw::describe(target.byte(), name),
            Message::Execute { portal, rows } => raw::execute(portal, *rows),
            Message::Close(target, name) => raw::close(target.byte(), name),
            Message::Sync => raw::sync(),
            Message::Flush => raw::flush(),
            Message::CopyData(data) => raw::message(b'd', data.as_bytes()),
            Message::CopyDone => raw::message(b'c', &[]),
            Message::CopyFail(reason) => raw::message(b'f', format!("{reason}\0").as_bytes()),
        };
        out.extend_from_slice(&bytes);
    }

    /// The SQL text in it, if it has one.
    pub(crate) fn sql(&self) -> Option<&str> {
        match self {
            Message::Query(text) | Message::Parse { text, .. } => Some(text),
            _ => None,
        }
    }
}

impl Way {
    /// Its word in the text form.
    pub(crate) fn name(self) -> &'static str {
        WAYS.iter().find(|(way, _)| *way == self).map_or("", |(_, name)| name)
    }
}

impl Order {
    /// Its word in the text form.
    pub(crate) fn name(self) -> &'static str {
        ORDERS.iter().find(|(order, _)| *order == self).map_or("", |(_, name)| name)
    }
}

impl Step {
    /// What is sent in it.
    pub(crate) fn packets(&self) -> &[Packet] {
        match self {
            Step::Send(packet) | Step::End(packet, _) => std::slice::from_ref(packet),
            Step::Together(packets) => packets,
            Step::Reconnect(_) | Step::Operate(_) => &[],
        }
    }

    /// What is sent in it, to be changed.
    pub(crate) fn packets_mut(&mut self) -> &mut [Packet] {
        match self {
            Step::Send(packet) | Step::End(packet, _) => std::slice::from_mut(packet),
            Step::Together(packets) => packets,
            Step::Reconnect(_) | Step::Operate(_) => &mut [],
        }
    }
}

impl Session {
    /// All SQL texts that are sent.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(Step::packets).flat_map(|packet| &packet.messages).filter_map(Message::sql)
    }
}

/// The name by which texts and reports call client `index`: `a`, `b`, …
pub(crate) fn client_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}
