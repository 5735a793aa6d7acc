//! The sampling of traced statements, and their spans.
//!
//! A statement is traced if its text asks for it (`/*traceparent='00-…-01'*/`, as sqlcommenter writes it), otherwise by chance. Without
//! `[proxy.tracing]` none of this code runs, and a statement that is not sampled allocates nothing. A [`Span`] travels with the statement's unit and
//! is passed to the [`Sink`] at the end; the unit never waits for the sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::statistics::Text;
use crate::settings::Tracing;

/// Takes a span; returns false if it has no room. Called by workers, so it must not block.
pub type Sink = Arc<dyn Fn(Span) -> bool + Send + Sync>;

/// Maximum number of examined bytes of a comment.
const MOST_COMMENT: usize = 1024;

/// Contents of a `traceparent` (W3C Trace Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Parent {
    trace: u128,
    /// The client's span in which the statement was sent.
    span: u64,
    /// True if the client's spans are recorded.
    sampled: bool,
}

/// Span of a statement: its way through the proxy and a server, and back.
#[derive(Debug)]
pub struct Span {
    /// ID of the trace; never 0.
    pub trace: u128,
    /// ID of the span; never 0.
    pub id: u64,
    /// The client's span in which the statement was sent; 0 if unknown.
    pub parent: u64,
    /// Time for which the statement waited for a server connection, or for a replica to catch up.
    pub waited: Duration,
    /// Time at which the statement was sent to the server.
    pub sent: Instant,
    /// Time of the end of its answer.
    pub ended: Instant,
    /// The database, by the name that the client uses.
    pub database: Arc<str>,
    /// The client's user.
    pub user: Arc<str>,
    /// The node, by its name in `[[cluster.nodes]]`.
    pub node: String,
    /// True if the node was the primary.
    pub primary: bool,
    /// True if the server connection was a lane.
    pub lane: bool,
    /// Rows returned or changed.
    pub rows: u64,
    /// Outcome of the statement.
    pub outcome: Outcome,
    /// The statement's text.
    pub text: Text,
}

/// Outcome of a traced statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// An error with this SQLSTATE.
    Failed([u8; 5]),
    /// The server connection was lost. A repetition of the statement has a span of its own.
    Lost,
}

/// Random number generator of one worker.
#[derive(Debug)]
pub(in crate::core) struct Dice(u64);

impl Span {
    /// Continues the span with the unit's next statement: the span shows the text of the last one.
    pub(in crate::core) fn of_next(mut self: Box<Self>, text: &[u8]) -> Box<Span> {
        self.text = Text::new(text);
        self
    }
}

// === impl Dice ===

impl Dice {
    pub(in crate::core) fn new(secret: &[u8; 32], worker: usize) -> Dice {
        let seed = secret.iter().fold(worker as u64, |seed, &b| (seed ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Dice(seed)
    }

    /// Returns the next number of splitmix64, whose period is 2^64 from any seed.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next().max(1)
    }
}

/// Decides if a statement is traced; returns its trace and parent.
///
/// A parent decides: if it is not sampled, the statement is not traced.
pub(super) fn sample(tracing: &Tracing, parent: Option<Parent>, dice: &mut Dice) -> Option<(u128, u64)> {
    match parent {
        Some(parent) => parent.sampled.then_some((parent.trace, parent.span)),
        None if tracing.below == 0 || dice.next() > tracing.below => None,
        None => Some((u128::from(dice.number()) << 64 | u128::from(dice.next()), 0)),
    }
}

/// Returns the `traceparent` in a comment at the end or at the beginning of a text.
pub(in crate::core) fn parent(text: &[u8]) -> Option<Parent> {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b";").unwrap_or(text).trim_ascii_end();
    if let Some(rest) = text.strip_suffix(b"*/") {
        let rest = &rest[rest.len().saturating_sub(MOST_COMMENT)..];
        let begin = rest.windows(2).rposition(|two| two == b"/*")?;
        return in_comment(&rest[begin + 2..]);
    }
    let rest = text.trim_ascii_start().strip_prefix(b"/*")?;
    let rest = &rest[..rest.len().min(MOST_COMMENT)];
    let end = rest.windows(2).position(|two| two == b"*/")?;
    in_comment(&rest[..end])
}

/// Parses `key='value',key='value'`.
fn in_comment(comment: &[u8]) -> Option<Parent> {
    const KEY: &[u8] = b"traceparent='";
    let at = comment.windows(KEY.len()).position(|part| part == KEY)?;
    let begins = at == 0 || matches!(comment[at - 1], b',' | b' ' | b'\n' | b'\t');
    let rest = &comment[at + KEY.len()..];
    let end = rest.iter().position(|&b| b == b'\'')?;
    if begins { traceparent(&rest[..end]) } else { None }
}

/// Parses `00-` trace `-` span `-` flags, in lower case. In a later version, further fields are ignored.
fn traceparent(value: &[u8]) -> Option<Parent> {
    let fields = value.get(..55)?;
    let hex = |from: usize, to: usize| {
        fields[from..to].iter().try_fold(0u128, |number, &b| {
            let digit = match b {
                b'0'..=b'9' => b - b'0',
                b'a'..=b'f' => b - b'a' + 10,
                _ => return None,
            };
            Some(number << 4 | u128::from(digit))
        })
    };
    let version = hex(0, 2)?;
    let dashes = [2, 35, 52].iter().all(|&at| fields[at] == b'-');
    let ends = match version {
        0xff => false,
        0 => value.len() == 55,
        _ => value.get(55).is_none_or(|&b| b == b'-'),
    };
    let (trace, span, flags) = (hex(3, 35)?, hex(36, 52)? as u64, hex(53, 55)?);
    (dashes && ends && trace != 0 && span != 0).then_some(Parent { trace, span, sampled: flags & 1 == 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_found_in_a_comment() {
        let sampled = Some(Parent { trace: TRACE, span: SPAN, sampled: true });
        let quiet = Some(Parent { trace: TRACE, span: SPAN, sampled: false });
        let quiet_value = VALUE.replace("-01", "-00");
        for (text, expected) in [
            (format!("SELECT 1 /*traceparent='{VALUE}'*/"), sampled),
            (format!("SELECT 1 /*action='a',traceparent='{VALUE}',tracestate='x'*/ ;\n"), sampled),
            (format!("/* traceparent='{VALUE}' */ SELECT 1"), sampled),
            (format!("SELECT 1 /* x */ /*traceparent='{VALUE}'*/"), sampled),
            (format!("SELECT 1 /*traceparent='{quiet_value}'*/"), quiet),
            // Not the position that sqlcommenter uses.
            (format!("SELECT 1 /*traceparent='{VALUE}'*/ + 1"), None),
            (format!("SELECT 1 -- traceparent='{VALUE}'"), None),
            (format!("SELECT 'traceparent=''{VALUE}'''"), None),
            (format!("SELECT 1 /*xtraceparent='{VALUE}'*/"), None),
            (format!("SELECT 1 /*traceparent='{VALUE}*/"), None),
            (format!("SELECT 1 /*traceparent='{VALUE}',{}*/", "x".repeat(2000)), None),
            ("/*".into(), None),
            ("*/".into(), None),
            ("/*/".into(), None),
            (String::new(), None),
        ] {
            assert_eq!(parent(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn traceparents() {
        for (value, good) in [
            (VALUE.to_owned(), true),
            (VALUE.replacen("00", "01", 1), true),
            (format!("{}-more", VALUE.replacen("00", "01", 1)), true),
            (format!("{}more", VALUE.replacen("00", "01", 1)), false),
            (format!("{VALUE}-more"), false),
            (VALUE.replacen("00", "ff", 1), false),
            (VALUE.to_uppercase(), false),
            (VALUE.replace('-', "_"), false),
            (VALUE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)), false),
            (VALUE.replace("00f067aa0ba902b7", &"0".repeat(16)), false),
            (VALUE[..54].to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(traceparent(value.as_bytes()).is_some(), good, "{value}");
        }
    }

    #[test]
    fn the_caller_decides_else_chance() {
        let mut dice = Dice::new(&[7; 32], 1);
        let always = Tracing { below: u64::MAX, comments: true };
        let never = Tracing { below: 0, comments: true };
        let some = Tracing { below: u64::MAX / 10, comments: true };
        let parent = |sampled| Some(Parent { trace: TRACE, span: SPAN, sampled });
        assert_eq!(sample(&never, parent(true), &mut dice), Some((TRACE, SPAN)));
        assert_eq!(sample(&always, parent(false), &mut dice), None);
        assert_eq!(sample(&never, None, &mut dice), None);
        assert!(sample(&always, None, &mut dice).is_some_and(|(trace, parent)| trace != 0 && parent == 0));
        let sampled = (0..10_000).filter(|_| sample(&some, None, &mut dice).is_some()).count();
        assert!((800..1_200).contains(&sampled), "{sampled}");
        // Workers have different random numbers.
        assert_ne!(Dice::new(&[7; 32], 1).next(), Dice::new(&[7; 32], 2).next());
    }
}
