//! Tokens: a worker's references to its connections.

/// The kind of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A connection from an application.
    Client,
    /// A connection to a server.
    Server,
    /// A connection to a server for one cancel request.
    Cancel,
}

/// Reference to a connection of one worker. The generation distinguishes a connection from an earlier one in the same slot, so that a late event for
/// a closed connection is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl Token {
    /// Creates a token from its parts; only the low 24 bits of the generation are kept.
    pub fn new(kind: Kind, generation: u32, index: usize) -> Token {
        let kind = match kind {
            Kind::Client => 1u64,
            Kind::Server => 2,
            Kind::Cancel => 3,
        };
        Token(kind << 56 | u64::from(generation & 0xff_ffff) << 32 | index as u64 & 0xffff_ffff)
    }

    /// Creates a token from [`raw`](Token::raw); `None` if the number is not a token.
    pub fn from_raw(raw: u64) -> Option<Token> {
        (1..=3).contains(&(raw >> 56)).then_some(Token(raw))
    }

    /// Returns the token as one number, never 0.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Returns the kind of the connection.
    pub fn kind(self) -> Kind {
        match self.0 >> 56 {
            1 => Kind::Client,
            2 => Kind::Server,
            _ => Kind::Cancel,
        }
    }

    /// Returns the connection's slot in the slab of its kind.
    pub fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}
