//! The grammar of replication commands, as far as physical replication uses it.

use super::read_position;
use crate::Sqlstate;

/// Longest command accepted, in bytes. Real ones are below 200.
pub const MAX_COMMAND: usize = 4096;
/// Most tokens of a command.
const MAX_TOKENS: usize = 64;
/// Longest identifier: PostgreSQL's `NAMEDATALEN` less one.
const MAX_NAME: usize = 63;
/// Longest name of a node or an address, in bytes.
const MAX_QUOTED: usize = 256;

/// A command of a client on a replication connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `IDENTIFY_SYSTEM`.
    IdentifySystem,
    /// `SHOW name`; the name in lower case, unless it was quoted.
    Show(String),
    /// `TIMELINE_HISTORY n`.
    TimelineHistory(u32),
    /// `CREATE_REPLICATION_SLOT name [TEMPORARY] PHYSICAL [RESERVE_WAL]`.
    CreateSlot {
        /// The name as given; see [`is_slot_name`] for the check.
        name: String,
        /// True if the slot ends with the connection.
        temporary: bool,
        /// True if WAL is kept for the slot from now on, rather than from its first use on.
        reserve: bool,
    },
    /// `READ_REPLICATION_SLOT name` (15 and later).
    ReadSlot(String),
    /// `DROP_REPLICATION_SLOT name [WAIT]`.
    DropSlot {
        /// The slot's name.
        name: String,
        /// True if the command waits until the slot is no longer in use.
        wait: bool,
    },
    /// `START_REPLICATION [SLOT name] [PHYSICAL] X/X [TIMELINE n]`.
    Start {
        /// The slot to use, if any.
        slot: Option<String>,
        /// The position to start at.
        at: u64,
        /// The timeline of that position; the server's current one if `None`.
        timeline: Option<u32>,
    },
    /// An operator's order to a relay, at a failover. PostgreSQL servers do not know it.
    Operate(Order),
    /// `KINGPOST PROMISE`, to relays only: the relay's record of failovers. Requested by another relay that has lost its memory.
    Promise,
    /// `WATCH_FLUSHED`, to relays only: report up to where the log is durable, now and whenever that changes. See
    /// [`Flushed`](super::Flushed).
    WatchFlushed,
    /// A known command outside of physical replication: its first word in capitals, such as `BASE_BACKUP`, or
    /// `LOGICAL`.
    Other(&'static str),
}

/// An operator's order to a relay: `KINGPOST …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// `LOOK`: report the state.
    Look,
    /// `FENCE TERM n TIMELINE t`: accept nothing more on timeline `t` or an older one; promised to the holder of term
    /// `n`.
    Fence {
        /// The term: higher than any promised to before.
        term: u64,
        /// The last timeline that is fenced.
        timeline: u32,
    },
    /// `CHOOSE TERM n NODE "name"`: this node is to become the primary.
    Choose {
        /// The term that was promised to.
        term: u64,
        /// The node's configured name.
        node: String,
    },
    /// `WITHDRAW TERM n NODE "name"`: this node is not to become the primary after all; the fence stays. Only the holder of the term may send it, and
    /// only for a node that can no longer be promoted by the one that chose it. Nothing happens if no node is chosen; if another node is chosen, that
    /// is an error.
    Withdraw {
        /// The term that was promised to.
        term: u64,
        /// The chosen node's name.
        node: String,
    },
    /// `FOLLOW TERM n ADDRESS "host:port"`: receive WAL from this address.
    Follow {
        /// The term that was promised to.
        term: u64,
        /// `host:port`, or the path of a Unix socket.
        address: String,
    },
    /// `RELEASE TERM n`: drop the fence; the failover is called off.
    Release {
        /// The term: higher than any promised to before.
        term: u64,
    },
}

impl Order {
    /// Returns the command as text, without a terminator. Quotes in names are doubled.
    #[must_use]
    pub fn text(&self) -> String {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        match self {
            Order::Look => "KINGPOST LOOK".into(),
            Order::Fence { term, timeline } => format!("KINGPOST FENCE TERM {term} TIMELINE {timeline}"),
            Order::Choose { term, node } => format!("KINGPOST CHOOSE TERM {term} NODE {}", quoted(node)),
            Order::Withdraw { term, node } => format!("KINGPOST WITHDRAW TERM {term} NODE {}", quoted(node)),
            Order::Follow { term, address } => format!("KINGPOST FOLLOW TERM {term} ADDRESS {}", quoted(address)),
            Order::Release { term } => format!("KINGPOST RELEASE TERM {term}"),
        }
    }
}

/// Error in a replication command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Longer than [`MAX_COMMAND`], or too many words.
    #[error("replication command too long: {0} bytes, expected at most {MAX_COMMAND}")]
    TooLong(usize),
    /// The first word starts no replication command: the text is SQL, or empty.
    #[error("cannot execute SQL commands in WAL sender for physical replication")]
    Sql,
    /// The text starts like a command and does not go on like one.
    #[error("syntax error")]
    Syntax {
        /// The command's first word.
        command: &'static str,
        /// Description of the expected token.
        what: &'static str,
    },
    /// A timeline's number is none.
    #[error("invalid timeline {0}")]
    Timeline(u32),
    /// An option that the command does not have.
    #[error("unrecognized option: {0}")]
    UnknownOption(String),
    /// An option that was given twice, or that only a logical slot has.
    #[error("conflicting or redundant options")]
    RedundantOption,
    /// The value of an option is neither true nor false.
    #[error("{0} requires a Boolean value")]
    NotBoolean(String),
}

impl CommandError {
    /// Returns the code that PostgreSQL gives the error.
    #[must_use]
    pub fn sqlstate(&self) -> Sqlstate {
        match self {
            CommandError::Sql => Sqlstate::FEATURE_NOT_SUPPORTED,
            // PostgreSQL has none for it.
            CommandError::UnknownOption(_) => Sqlstate::INTERNAL_ERROR,
            CommandError::TooLong(_)
            | CommandError::Syntax { .. }
            | CommandError::Timeline(_)
            | CommandError::RedundantOption
            | CommandError::NotBoolean(_) => Sqlstate::SYNTAX_ERROR,
        }
    }

    /// Returns the part of the text that is wrong, as an error's detail; empty where the message says it.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            CommandError::Syntax { command, what } => format!("In {command}: {what}."),
            _ => String::new(),
        }
    }
}

/// Returns true if PostgreSQL would accept `name` as the name of a slot: 1 to 63 lower-case letters, digits and underscores.
#[must_use]
pub fn is_slot_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// The word as written, and whether it was in double quotes.
    Word(String, bool),
    /// The content of single quotes.
    Text(String),
    Sign(char),
}

impl Token {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word, false) if word.eq_ignore_ascii_case(keyword))
    }
}

const COMMANDS: [&str; 13] = [
    "IDENTIFY_SYSTEM",
    "SHOW",
    "TIMELINE_HISTORY",
    "CREATE_REPLICATION_SLOT",
    "READ_REPLICATION_SLOT",
    "DROP_REPLICATION_SLOT",
    "START_REPLICATION",
    "WATCH_FLUSHED",
    "BASE_BACKUP",
    "ALTER_REPLICATION_SLOT",
    "UPLOAD_MANIFEST",
    "LOGICAL",
    "KINGPOST",
];

impl Command {
    /// Reads a command; a semicolon at its end is allowed.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn parse(text: &str) -> Result<Command, CommandError> {
        if text.len() > MAX_COMMAND {
            return Err(CommandError::TooLong(text.len()));
        }
        let first = text.trim_start().split(|c: char| c.is_ascii_whitespace() || c == ';').next().unwrap_or_default();
        let Some(command) = COMMANDS.into_iter().find(|known| first.eq_ignore_ascii_case(known)) else {
            return Err(CommandError::Sql);
        };
        let syntax = |what| CommandError::Syntax { command, what };
        let mut tokens = tokens(text).ok_or_else(|| syntax("it cannot be split into words"))?;
        while tokens.last() == Some(&Token::Sign(';')) {
            tokens.pop();
        }
        let mut rest = Rest { tokens: tokens.get(1..).unwrap_or_default(), command };
        let parsed = match command {
            "IDENTIFY_SYSTEM" => Command::IdentifySystem,
            "WATCH_FLUSHED" => Command::WatchFlushed,
            "SHOW" => Command::Show(rest.dotted()?),
            "TIMELINE_HISTORY" => Command::TimelineHistory(rest.timeline()?),
            "READ_REPLICATION_SLOT" => Command::ReadSlot(rest.name()?),
            "DROP_REPLICATION_SLOT" => Command::DropSlot { name: rest.name()?, wait: rest.keyword("WAIT") },
            "CREATE_REPLICATION_SLOT" => {
                let name = rest.name()?;
                let temporary = rest.keyword("TEMPORARY");
                if rest.keyword("LOGICAL") {
                    return Ok(Command::Other("LOGICAL"));
                }
                if !rest.keyword("PHYSICAL") {
                    return Err(syntax("expected PHYSICAL or LOGICAL after the slot's name"));
                }
                let options = rest.options()?;
                if !rest.tokens.is_empty() {
                    return Err(syntax("there is more after its end"));
                }
                let reserve = reserves(&options)?;
                Command::CreateSlot { name, temporary, reserve }
            }
            "START_REPLICATION" => {
                let slot = if rest.keyword("SLOT") { Some(rest.name()?) } else { None };
                if rest.keyword("LOGICAL") {
                    return Ok(Command::Other("LOGICAL"));
                }
                rest.keyword("PHYSICAL");
                let at = rest.position()?;
                let timeline = if rest.keyword("TIMELINE") { Some(rest.timeline()?) } else { None };
                Command::Start { slot, at, timeline }
            }
            "KINGPOST" if rest.keyword("PROMISE") => Command::Promise,
            "KINGPOST" => Command::Operate(rest.order()?),
            other => return Ok(Command::Other(other)),
        };
        if rest.tokens.is_empty() { Ok(parsed) } else { Err(syntax("there is more after its end")) }
    }
}

/// Returns the words of a text. `None` if it has other characters, a quote that does not end, or too many words.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let token = match c {
            c if c.is_ascii_whitespace() => continue,
            '"' | '\'' => {
                let mut inside = String::new();
                loop {
                    match chars.next()? {
                        end if end == c && chars.peek() == Some(&c) => {
                            chars.next();
                            inside.push(c);
                        }
                        end if end == c => break,
                        other => inside.push(other),
                    }
                }
                if c == '"' { Token::Word(inside, true) } else { Token::Text(inside) }
            }
            '(' | ')' | ',' | ';' | '.' => Token::Sign(c),
            c if c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii() => {
                let mut word = String::from(c);
                // A position is one word; no other word contains a slash.
                while let Some(&c) = chars.peek() {
                    if !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '/') || !c.is_ascii()) {
                        break;
                    }
                    word.push(c);
                    chars.next();
                }
                Token::Word(word, false)
            }
            _ => return None,
        };
        if tokens.len() == MAX_TOKENS {
            return None;
        }
        tokens.push(token);
    }
    Some(tokens)
}

/// The part of a command that has not been read yet.
struct Rest<'a> {
    tokens: &'a [Token],
    command: &'static str,
}

impl Rest<'_> {
    fn error<T>(&self, what: &'static str) -> Result<T, CommandError> {
        Err(CommandError::Syntax { command: self.command, what })
    }

    fn keyword(&mut self, keyword: &str) -> bool {
        match self.tokens.split_first() {
            Some((token, rest)) if token.is(keyword) => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }

    fn word(&mut self) -> Option<(&str, bool)> {
        let (Token::Word(word, quoted), rest) = self.tokens.split_first()? else { return None };
        self.tokens = rest;
        Some((word, *quoted))
    }

    /// Reads an identifier: in lower case unless it was quoted, and cut after 63 bytes.
    fn name(&mut self) -> Result<String, CommandError> {
        let Some((word, quoted)) = self.word() else { return self.error("expected a name") };
        let word = &word[..word.floor_char_boundary(MAX_NAME)];
        Ok(if quoted { word.to_owned() } else { word.to_ascii_lowercase() })
    }

    /// Reads the name of a setting, which may be in two parts.
    fn dotted(&mut self) -> Result<String, CommandError> {
        let mut name = self.name()?;
        while let Some((Token::Sign('.'), rest)) = self.tokens.split_first() {
            self.tokens = rest;
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    fn position(&mut self) -> Result<u64, CommandError> {
        match self.word().and_then(|(word, _)| read_position(word)) {
            Some(at) => Ok(at),
            None => self.error("expected a position such as 16/B374D848"),
        }
    }

    fn timeline(&mut self) -> Result<u32, CommandError> {
        let digits = self.word().filter(|(word, _)| word.bytes().all(|b| b.is_ascii_digit()));
        match digits.and_then(|(word, _)| word.parse().ok()) {
            None => self.error("expected the number of a timeline, from 1 to 4294967295"),
            Some(0) => Err(CommandError::Timeline(0)),
            Some(timeline) => Ok(timeline),
        }
    }

    /// Parses the rest of a command that begins with `KINGPOST`.
    fn order(&mut self) -> Result<Order, CommandError> {
        if self.keyword("LOOK") {
            return Ok(Order::Look);
        }
        if self.keyword("FENCE") {
            let term = self.term()?;
            if !self.keyword("TIMELINE") {
                return self.error("expected TIMELINE after the term");
            }
            return Ok(Order::Fence { term, timeline: self.timeline()? });
        }
        if self.keyword("CHOOSE") {
            let term = self.term()?;
            if !self.keyword("NODE") {
                return self.error("expected NODE after the term");
            }
            return Ok(Order::Choose { term, node: self.quoted()? });
        }
        if self.keyword("WITHDRAW") {
            let term = self.term()?;
            if !self.keyword("NODE") {
                return self.error("expected NODE after the term");
            }
            return Ok(Order::Withdraw { term, node: self.quoted()? });
        }
        if self.keyword("FOLLOW") {
            let term = self.term()?;
            if !self.keyword("ADDRESS") {
                return self.error("expected ADDRESS after the term");
            }
            return Ok(Order::Follow { term, address: self.quoted()? });
        }
        if self.keyword("RELEASE") {
            return Ok(Order::Release { term: self.term()? });
        }
        self.error("expected LOOK, PROMISE, FENCE, CHOOSE, WITHDRAW, FOLLOW or RELEASE")
    }

    fn term(&mut self) -> Result<u64, CommandError> {
        if !self.keyword("TERM") {
            return self.error("expected TERM");
        }
        let digits = self.word().filter(|(word, _)| word.bytes().all(|b| b.is_ascii_digit()));
        match digits.and_then(|(word, _)| word.parse().ok()) {
            Some(0) | None => self.error("expected the number of a term, from 1"),
            Some(term) => Ok(term),
        }
    }

    /// Reads a name in double quotes, of up to 256 bytes.
    fn quoted(&mut self) -> Result<String, CommandError> {
        match self.word() {
            Some((word, true)) if (1..=MAX_QUOTED).contains(&word.len()) && !word.contains('\0') => Ok(word.to_owned()),
            _ => self.error("expected a name of 1 to 256 bytes in double quotes"),
        }
    }

    /// Reads `( name [value], … )`, or the words of versions before 15, in any order; also an empty list.
    fn options(&mut self) -> Result<Vec<SlotOption>, CommandError> {
        let mut options = Vec::new();
        let Some((Token::Sign('('), mut rest)) = self.tokens.split_first() else {
            while let Some((_, name)) = EARLIER_OPTIONS.into_iter().find(|(word, _)| self.keyword(word)) {
                options.push(SlotOption { name: name.into(), value: None });
            }
            return Ok(options);
        };
        loop {
            let Some((Token::Word(name, quoted), after)) = rest.split_first() else {
                return self.error("expected an option in the parentheses");
            };
            let name = if *quoted { name.clone() } else { name.to_ascii_lowercase() };
            let (value, after) = match after.split_first() {
                Some((value @ (Token::Word(..) | Token::Text(_)), after)) => (Some(value.clone()), after),
                _ => (None, after),
            };
            options.push(SlotOption { name, value });
            match after.split_first() {
                Some((Token::Sign(','), after)) => rest = after,
                Some((Token::Sign(')'), after)) => {
                    self.tokens = after;
                    return Ok(options);
                }
                _ => return self.error("expected a comma or a closing parenthesis after an option"),
            }
        }
    }
}

/// An option of `CREATE_REPLICATION_SLOT`, not yet looked at.
struct SlotOption {
    name: String,
    value: Option<Token>,
}

impl SlotOption {
    /// Returns the value as PostgreSQL reads it: none is true, a number is 0 or 1.
    fn is_true(&self) -> Result<bool, CommandError> {
        let (text, number) = match &self.value {
            None => return Ok(true),
            Some(Token::Word(word, quoted)) => (word, !quoted && word.bytes().all(|b| b.is_ascii_digit())),
            Some(Token::Text(text)) => (text, false),
            Some(Token::Sign(_)) => return Err(CommandError::NotBoolean(self.name.clone())),
        };
        match (text.to_ascii_lowercase().as_str(), number) {
            ("true" | "on", false) | ("1", true) => Ok(true),
            ("false" | "off", false) | ("0", true) => Ok(false),
            _ => Err(CommandError::NotBoolean(self.name.clone())),
        }
    }
}

/// Words of versions before 15, and the option that each is.
const EARLIER_OPTIONS: [(&str, &str); 5] = [
    ("RESERVE_WAL", "reserve_wal"),
    ("EXPORT_SNAPSHOT", "snapshot"),
    ("NOEXPORT_SNAPSHOT", "snapshot"),
    ("USE_SNAPSHOT", "snapshot"),
    ("TWO_PHASE", "two_phase"),
];

/// Returns true if WAL is to be reserved for a physical slot.
fn reserves(options: &[SlotOption]) -> Result<bool, CommandError> {
    let mut reserve = None;
    for option in options {
        match option.name.as_str() {
            "reserve_wal" if reserve.is_none() => reserve = Some(option.is_true()?),
            // Twice, or an option of a logical slot.
            "reserve_wal" | "snapshot" | "two_phase" | "failover" => return Err(CommandError::RedundantOption),
            _ => return Err(CommandError::UnknownOption(option.name.clone())),
        }
    }
    Ok(reserve.unwrap_or(false))
}
