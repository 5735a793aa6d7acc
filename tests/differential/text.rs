//! The text form of a session, in which differences are printed and kept.
//!
//! ```text
//! # One worker, clients that share one server connection.
//! config one three
//! pool 1
//! setup app "alter role bob set datestyle = 'German'"
//! client a alice app
//! client b bob shop TimeZone="Asia/Tokyo"
//! client c postgres app past
//! a: P s1 "select $1::int" (23) ; B '' s1 ("1") binary ; D P '' ; E '' 2 ; S
//! b: Q "begin"
//! & a: Q "select 1"
//! & b: Q "select 2"
//! a: reconnect
//! b: terminate Q "select 1"
//! operator: pause
//! ```
//!
//! One line is one packet. `''` is the unnamed statement or portal; `null` a value that is NULL; lines that begin with `&` and follow
//! one another are sent at the same time; `terminate`, `half-close` and `reset` end a client behind its messages ([`Way`](crate::session::Way)); a client marked `past` connects to the server itself; the operator does something to the proxy
//! ([`Order`](crate::session::Order)). Messages have the letters of the protocol:
//! `Q` Query, `P` Parse, `B` Bind, `D` Describe, `E` Execute, `C` Close, `S` Sync, `H` Flush, `d` CopyData, `c` CopyDone, `f` CopyFail.

use std::fmt::{self, Display, Write as _};

use crate::session::{Client, Message, ORDERS, Packet, Session, Setup, Step, Target, WAYS, client_name};

/// A session in a file, with the configurations in which it was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Script {
    /// Names of the proxy's configurations under which it runs.
    pub(crate) configs: Vec<String>,
    /// Known reason why the proxy differs here today; empty if it does not differ.
    pub(crate) open: String,
    /// The session.
    pub(crate) session: Session,
}

// === writing ===

/// Quotes a text in double quotes, with `
/// `, `\t`, `\"` and `\\`. Long runs of one letter stay as they are: shrinking removes them.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a name of a statement, portal, user or database.
fn name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    match text {
        "" => "''".into(),
        text if text.chars().all(plain) => text.into(),
        text => quoted(text),
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = |target: &Target| char::from(target.byte());
        match self {
            Message::Query(text) => write!(f, "Q {}", quoted(text)),
            Message::Parse { name: to, text, types } => {
                write!(f, "P {} {}", name(to), quoted(text))?;
                if types.is_empty() {
                    return Ok(());
                }
                let types: Vec<String> = types.iter().map(u32::to_string).collect();
                write!(f, " ({})", types.join(" "))
            }
            Message::Bind { portal, statement, values, binary } => {
                write!(f, "B {} {}", name(portal), name(statement))?;
                if !values.is_empty() {
                    let one = |value: &Option<String>| value.as_ref().map_or("null".into(), |value| quoted(value));
                    write!(f, " ({})", values.iter().map(one).collect::<Vec<_>>().join(" "))?;
                }
                f.write_str(if *binary { " binary" } else { "" })
            }
            Message::Describe(of, to) => write!(f, "D {} {}", target(of), name(to)),
            Message::Execute { portal, rows: 0 } => write!(f, "E {}", name(portal)),
            Message::Execute { portal, rows } => write!(f, "E {} {rows}", name(portal)),
            Message::Close(of, to) => write!(f, "C {} {}", target(of), name(to)),
            Message::Sync => f.write_str("S"),
            Message::Flush => f.write_str("H"),
            Message::CopyData(data) => write!(f, "d {}", quoted(data)),
            Message::CopyDone => f.write_str("c"),
            Message::CopyFail(reason) => write!(f, "f {}", quoted(reason)),
        }
    }
}

impl Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: Vec<String> = self.messages.iter().map(Message::to_string).collect();
        write!(f, "{}: {}", client_name(self.client), messages.join(" ; "))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send(packet) => write!(f, "{packet}"),
            Step::Together(packets) => {
                let lines: Vec<String> = packets.iter().map(|packet| format!("& {packet}")).collect();
                f.write_str(&lines.join("\n"))
            }
            Step::End(packet, way) => {
                let messages: Vec<String> = packet.messages.iter().map(Message::to_string).collect();
                let with = if messages.is_empty() { "" } else { " " };
                write!(f, "{}: {}{with}{}", client_name(packet.client), way.name(), messages.join(" ; "))
            }
            Step::Reconnect(client) => write!(f, "{}: reconnect", client_name(*client)),
            Step::Operate(order) => write!(f, "operator: {}", order.name()),
        }
    }
}

impl Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pool {}", self.pool)?;
        for Setup { database, sql } in &self.setup {
            writeln!(f, "setup {} {}", name(database), quoted(sql))?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            write!(f, "client {} {} {}", client_name(index), name(&client.user), name(&client.database))?;
            f.write_str(if client.past { " past" } else { "" })?;
            for (parameter, value) in &client.parameters {
                write!(f, " {parameter}={}", quoted(value))?;
            }
            f.write_char('\n')?;
        }
        let mut joins = false;
        for step in &self.steps {
            // An empty line separates two groups.
            let together = matches!(step, Step::Together(_));
            f.write_str(if together && joins { "\n" } else { "" })?;
            writeln!(f, "{step}")?;
            joins = together;
        }
        Ok(())
    }
}

// === reading ===

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Mark(char),
}

fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(&c) = chars.peek() {
        match c {
            c if c.is_whitespace() => {
                chars.next();
            }
            '"' => {
                chars.next();
                let mut text = String::new();
                loop {
                    match chars.next().ok_or("a text without its closing quote")? {
                        '"' => break,
                        '\\' => match chars.next() {
                            Some('n') => text.push('\n'),
                            Some('t') => text.push('\t'),
                            Some(c @ ('"' | '\\')) => text.push(c),
                            other => return Err(format!("\\ before {other:?}: expected n, t, \" or \\")),
                        },
                        c => text.push(c),
                    }
                }
                tokens.push(Token::Quoted(text));
            }
            ';' | '(' | ')' | '&' | ':' | '=' => {
                tokens.push(Token::Mark(c));
                chars.next();
            }
            _ => {
                let mut word = String::new();
                while let Some(&c) = chars.peek().filter(|c| !c.is_whitespace() && !";()&:=\"".contains(**c)) {
                    word.push(c);
                    chars.next();
                }
                tokens.push(Token::Word(word));
            }
        }
    }
    Ok(tokens)
}

/// The remaining tokens of a line.
struct Line<'a>(&'a [Token]);

impl Line<'_> {
    fn next(&mut self) -> Option<&Token> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self, what: &str) -> Result<String, String> {
        match self.next() {
            Some(Token::Word(word)) if word == "''" => Ok(String::new()),
            Some(Token::Word(text) | Token::Quoted(text)) => Ok(text.clone()),
            other => Err(format!("{other:?}: expected {what}")),
        }
    }

    fn takes(&mut self, mark: char) -> bool {
        let found = self.0.first() == Some(&Token::Mark(mark));
        if found {
            self.next();
        }
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = matches!(self.0.first(), Some(Token::Word(found)) if found == word);
        if found {
            self.next();
        }
        found
    }

    /// Returns the tokens between parentheses, if there are any.
    fn list(&mut self) -> Result<Vec<Token>, String> {
        let mut list = Vec::new();
        if self.takes('(') {
            while !self.takes(')') {
                list.push(self.next().ok_or("a list without its closing parenthesis")?.clone());
            }
        }
        Ok(list)
    }

    fn target(&mut self) -> Result<Target, String> {
        match self.word("S or P")?.as_str() {
            "S" => Ok(Target::Statement),
            "P" => Ok(Target::Portal),
            other => Err(format!("{other}: expected S (a statement) or P (a portal)")),
        }
    }

    fn message(&mut self) -> Result<Message, String> {
        Ok(match self.word("a message")?.as_str() {
            "Q" => Message::Query(self.word("a text")?),
            "P" => {
                let (name, text) = (self.word("a name")?, self.word("a text")?);
                let types = self.list()?.into_iter().map(|token| match token {
                    Token::Word(word) => word.parse().map_err(|_| format!("{word}: expected the OID of a type")),
                    other => Err(format!("{other:?}: expected the OID of a type")),
                });
                Message::Parse { name, text, types: types.collect::<Result<_, _>>()? }
            }
            "B" => {
                let (portal, statement) = (self.word("a portal")?, self.word("a statement")?);
                let values = self.list()?.into_iter().map(|token| match token {
                    Token::Quoted(text) => Ok(Some(text)),
                    Token::Word(word) if word == "null" => Ok(None),
                    other => Err(format!("{other:?}: expected a value in quotes, or null")),
                });
                let values = values.collect::<Result<_, _>>()?;
                Message::Bind { portal, statement, values, binary: self.takes_word("binary") }
            }
            "D" => Message::Describe(self.target()?, self.word("a name")?),
            "C" => Message::Close(self.target()?, self.word("a name")?),
            "E" => {
                let portal = self.word("a portal")?;
                let rows = match self.0.first() {
                    Some(Token::Word(_)) => self.word("rows")?,
                    _ => "0".into(),
                };
                Message::Execute { portal, rows: rows.parse().map_err(|_| format!("{rows}: expected a number"))? }
            }
            "S" => Message::Sync,
            "H" => Message::Flush,
            "d" => Message::CopyData(self.word("data")?),
            "c" => Message::CopyDone,
            "f" => Message::CopyFail(self.word("a reason")?),
            other => return Err(format!("{other}: no such message")),
        })
    }
}

fn client(line: &mut Line<'_>) -> Result<Client, String> {
    let mut client = Client {
        user: line.word("a user")?,
        database: line.word("a database")?,
        past: line.takes_word("past"),
        parameters: Vec::new(),
    };
    while !line.0.is_empty() {
        let name = line.word("a parameter")?;
        if !line.takes('=') {
            return Err(format!("{name}: expected = and a value"));
        }
        client.parameters.push((name, line.word("a value")?));
    }
    Ok(client)
}

fn place(name: &str, clients: usize) -> Result<usize, String> {
    (0..clients).find(|&index| client_name(index) == name).ok_or_else(|| format!("{name}: no such client"))
}

fn operate(line: &mut Line<'_>) -> Result<Step, String> {
    if !line.takes(':') {
        return Err("expected a colon behind the operator".into());
    }
    let word = line.word("an order")?;
    let found = ORDERS.iter().find(|(_, name)| *name == word);
    let all = || ORDERS.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    Ok(Step::Operate(found.ok_or_else(|| format!("{word}: no such order; there are: {}", all()))?.0))
}

fn step(first: &str, line: &mut Line<'_>, session: &Session, together: bool) -> Result<Step, String> {
    let client = place(first, session.clients.len())?;
    if !line.takes(':') {
        return Err("expected a colon behind the client".into());
    }
    if line.takes_word("reconnect") {
        return Ok(Step::Reconnect(client));
    }
    let way = WAYS.iter().find(|(_, name)| line.takes_word(name)).map(|(way, _)| *way);
    if let Some(way) = way.filter(|_| line.0.is_empty()) {
        return Ok(Step::End(Packet { client, messages: Vec::new() }, way));
    }
    let mut messages = vec![line.message()?];
    while line.takes(';') {
        messages.push(line.message()?);
    }
    if let Some(rest) = line.next() {
        return Err(format!("{rest:?} behind a message: expected a semicolon"));
    }
    let packet = Packet { client, messages };
    if let Some(way) = way {
        return Ok(Step::End(packet, way));
    }
    Ok(if together { Step::Together(vec![packet]) } else { Step::Send(packet) })
}

/// Parses a script.
///
/// # Errors
/// The first invalid line, with its number.
pub(crate) fn parse(text: &str) -> Result<Script, String> {
    let mut script = Script { session: Session { pool: 1, ..Session::default() }, ..Script::default() };
    let mut joined = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            joined = false;
            continue;
        }
        joined = parse_line(line, &mut script, joined).map_err(|e| format!("line {}: {e}", number + 1))?;
    }
    Ok(script)
}

/// Parses a line; returns true if it is one of several sent together. `joined`: the value of the previous line.
fn parse_line(line: &str, script: &mut Script, joined: bool) -> Result<bool, String> {
    let tokens = tokens(line)?;
    let mut line = Line(&tokens);
    let together = line.takes('&');
    let session = &mut script.session;
    match line.word("a word")?.as_str() {
        "config" => {
            while !line.0.is_empty() {
                script.configs.push(line.word("a configuration")?);
            }
        }
        "open" => script.open = line.word("a reason in quotes")?,
        "pool" => {
            let size = line.word("a number")?;
            session.pool = size.parse().map_err(|_| format!("{size}: expected a number"))?;
        }
        "setup" => session.setup.push(Setup { database: line.word("a database")?, sql: line.word("a text")? }),
        "client" => {
            let (name, expected) = (line.word("a name")?, client_name(session.clients.len()));
            if name != expected {
                return Err(format!("client {name}: the next one is {expected}"));
            }
            session.clients.push(client(&mut line)?);
        }
        "operator" => session.steps.push(operate(&mut line)?),
        first => match (step(first, &mut line, session, together)?, session.steps.last_mut()) {
            (Step::Together(more), Some(Step::Together(packets))) if joined => packets.extend(more),
            (step, _) => session.steps.push(step),
        },
    }
    Ok(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# what it is about
config one three
open "finding 1"
pool 2
setup app "alter role bob set datestyle = 'German'"
client a alice app
client b bob shop TimeZone="Asia/Tokyo" options="-c x=\"y\""
client c postgres app past

a: P s1 "select $1::int,\n'\\'" (23 0) ; B '' s1 ("1" null) binary ; D P '' ; E '' 2 ; C S s1 ; H ; S
& a: Q "select 1"
& b: Q "select 2"

& c: Q "x"
b: d "1\t2\n" ; c
b: f "no"
a: reconnect
b: terminate Q "select 1" ; H
b: half-close
operator: pause
"#;

    #[test]
    fn what_is_written_is_what_was_read() {
        let script = parse(TEXT).unwrap();
        assert_eq!((&*script.configs, &*script.open), (&["one".to_owned(), "three".to_owned()][..], "finding 1"));
        assert_eq!(script.session.pool, 2);
        assert_eq!(script.session.steps.len(), 9);
        assert_eq!(parse(&script.session.to_string()).unwrap().session, script.session);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, expected) in [
            ("client b alice app", "line 1: client b: the next one is a"),
            ("a: S", "line 1: a: no such client"),
            ("client a x y\n\na: Z", "line 3: Z: no such message"),
            ("client a x y\na: Q \"x", "line 2: a text without its closing quote"),
            ("client a x y\na: D x y", "line 2: x: expected S (a statement) or P (a portal)"),
            ("operator: rest", "line 1: rest: no such order; there are: reconnect, reload, pause, cut"),
            ("client a x y\na: S S", "line 2: Word(\"S\") behind a message: expected a semicolon"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
