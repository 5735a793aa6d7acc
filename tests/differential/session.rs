//! A session: clients, and their messages in one global order.

use kingpost_tests::raw;

/// Clients of one server and of one proxy, and their packets in order. The text form is in [`crate::text`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Session {
    /// `[proxy.pool] size`.
    pub(crate) pool: usize,
    /// Statements that a superuser runs in both worlds before the first step: settings of roles and databases.
    pub(crate) setup: Vec<Setup>,
    /// The clients. Steps refer to clients by their index here.
    pub(crate) clients: Vec<Client>,
    /// The steps, in order; each ends when it has been answered in both worlds.
    pub(crate) steps: Vec<Step>,
}

/// A statement that a superuser runs before the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Database of the statement.
    pub(crate) database: String,
    /// The statement.
    pub(crate) sql: String,
}

/// Login of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    /// Role that logs in.
    pub(crate) user: String,
    /// Database.
    pub(crate) database: String,
    /// True for a connection to the server itself in both worlds, which the proxy does not see.
    pub(crate) past: bool,
    /// Further start-up parameters.
    pub(crate) parameters: Vec<(String, String)>,
}

/// A step of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client sends a packet in one write.
    Send(Packet),
    /// Several clients send at the same time: plain reads, whose order does not matter.
    Together(Vec<Packet>),
    /// A client leaves (`Terminate`) and reconnects.
    Reconnect(usize),
    /// A client sends a packet, and ends at once. It reconnects when it sends again.
    End(Packet, Way),
    /// An operation on the proxy, or on its server connections. Clients must not notice it: directly nothing happens.
    Operate(Order),
}

/// The way in which a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Terminate`, and the socket stays open.
    Terminate,
    /// Shutdown of its sending direction.
    HalfClose,
    /// Reset of the connection, once everything is answered: nothing is sent with it.
    Reset,
}

/// Each way with its word in the text form.
pub(crate) const WAYS: [(Way, &str); 3] =
    [(Way::Terminate, "terminate"), (Way::HalfClose, "half-close"), (Way::Reset, "reset")];

/// An operation on the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// `RECONNECT`: server connections are replaced as they become free.
    Reconnect,
    /// `RELOAD` of the same file.
    Reload,
    /// `PAUSE`. The packets of the next step are sent while the proxy is paused; then `RESUME`.
    Pause,
    /// The server ends all connections that are idle in a pool.
    Cut,
}

/// Each order with its word in the text form.
pub(crate) const ORDERS: [(Order, &str); 4] =
    [(Order::Reconnect, "reconnect"), (Order::Reload, "reload"), (Order::Pause, "pause"), (Order::Cut, "cut")];

/// Messages of one client in one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Index in [`Session::clients`].
    pub(crate) client: usize,
    /// The messages, in order.
    pub(crate) messages: Vec<Message>,
}

/// Target of Describe and Close.
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
    /// Parse, with the OIDs of the parameters' types (0: the server infers the type).
    Parse { name: String, text: String, types: Vec<u32> },
    /// Bind, with values in text form (None: NULL) and results in text or binary form.
    Bind { portal: String, statement: String, values: Vec<Option<String>>, binary: bool },
    /// Describe.
    Describe(Target, String),
    /// Execute, with the limit of rows; 0: all.
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
    /// Returns the byte in Describe and Close.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Target::Statement => b'S',
            Target::Portal => b'P',
        }
    }
}

impl Message {
    /// Encodes the message for the wire.
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

    /// Returns the SQL text of the message, if it has one.
    pub(crate) fn sql(&self) -> Option<&str> {
        match self {
            Message::Query(text) | Message::Parse { text, .. } => Some(text),
            _ => None,
        }
    }
}

impl Way {
    /// Returns the word in the text form.
    pub(crate) fn name(self) -> &'static str {
        WAYS.iter().find(|(way, _)| *way == self).map_or("", |(_, name)| name)
    }
}

impl Order {
    /// Returns the word in the text form.
    pub(crate) fn name(self) -> &'static str {
        ORDERS.iter().find(|(order, _)| *order == self).map_or("", |(_, name)| name)
    }
}

impl Step {
    /// Returns the packets of the step.
    pub(crate) fn packets(&self) -> &[Packet] {
        match self {
            Step::Send(packet) | Step::End(packet, _) => std::slice::from_ref(packet),
            Step::Together(packets) => packets,
            Step::Reconnect(_) | Step::Operate(_) => &[],
        }
    }

    /// Returns the packets of the step, to be changed.
    pub(crate) fn packets_mut(&mut self) -> &mut [Packet] {
        match self {
            Step::Send(packet) | Step::End(packet, _) => std::slice::from_mut(packet),
            Step::Together(packets) => packets,
            Step::Reconnect(_) | Step::Operate(_) => &mut [],
        }
    }
}

impl Session {
    /// Returns all SQL texts of the session.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(Step::packets).flat_map(|packet| &packet.messages).filter_map(Message::sql)
    }
}

/// Returns the name of client `index` in texts and reports: `a`, `b`, …
pub(crate) fn client_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}
