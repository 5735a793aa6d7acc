//! The note of a failover on a server that it may promote: its term, and the primary that is replaced. A run promotes a server only if it finds its
//! own term there; so a run that was superseded cannot promote it any more.
//!
//! The note is a comment in `recovery_end_command` (PostgreSQL 13 and later), which a shell runs at the end of recovery, ignoring the comment:
//!
//! ```text
//! recovery_end_command = '/etc/postgresql/tell-somebody # kingpost: term=7 after=db1'
//! ```
//!
//! A session-level advisory lock is held while the note is read and written, and while the server is promoted: check and promotion are atomic.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::cluster_clients::{ClusterClients, PeerResult, first};

/// Start of the note.
const MARK: &str = "# kingpost: ";
/// Key of the advisory lock: "kingpost" in ASCII.
const LOCK: i64 = 0x6b69_6e67_706f_7374;
/// Longest wait for another run that holds the lock.
const WAIT: Duration = Duration::from_secs(5);

/// Note of an earlier failover on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    /// Term of that failover.
    pub(super) term: u64,
    /// The primary that it replaces, if known.
    pub(super) after: Option<String>,
}

impl Note {
    /// Splits the setting into the user's own command and the note behind it.
    pub(super) fn read(command: &str) -> (&str, Option<Note>) {
        let Some(at) = command.rfind(MARK) else { return (command, None) };
        let (mut term, mut after) = (None, None);
        for word in command[at + MARK.len()..].split_whitespace() {
            match word.split_once('=') {
                Some(("term", text)) => term = text.parse().ok(),
                Some(("after", text)) => after = decode(text),
                _ => {}
            }
        }
        (command[..at].trim_end(), term.map(|term| Note { term, after }))
    }

    /// Returns the user's own command with the note behind it.
    fn write(&self, command: &str) -> String {
        let after = self.after.as_ref().map(|name| format!(" after={}", encode(name))).unwrap_or_default();
        let space = if command.is_empty() { "" } else { " " };
        format!("{command}{space}{MARK}term={}{after}", self.term)
    }
}

/// Keeps letters, digits, `.`, `_` and `-`; encodes every other byte as `~XX`. A percent sign would have a meaning in the command.
fn encode(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("~{byte:02X}"));
        }
    }
    text
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'~' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

const IN_RECOVERY: &str = "SELECT pg_catalog.pg_is_in_recovery()";
/// Query of the setting as it is in the files now, not as the server has loaded it.
pub(super) const COMMAND: &str =
    "SELECT setting FROM pg_catalog.pg_file_settings WHERE name = 'recovery_end_command' ORDER BY seqno DESC LIMIT 1";

/// Queries that detect a promotion in progress: of the file that requests one, removed when the promotion begins; and of replay control, which fails
/// from then on.
const ASKED: &str = "SELECT (pg_catalog.pg_stat_file('promote', true)).size IS NOT NULL";
const BEGUN: &str =
    "SELECT CASE WHEN NOT pg_catalog.pg_is_wal_replay_paused() THEN pg_catalog.pg_wal_replay_resume() END";
/// Interval between two checks whether a server under promotion has left recovery.
const PACE: Duration = Duration::from_millis(10);

/// Notes a term on a standby, after which no run of a lower term promotes it.
///
/// # Errors
/// The server is no longer a standby or is about to be promoted, it carries a higher term, or it does not answer.
pub(super) async fn claim(clients: &ClusterClients, node: &str, note: &Note) -> PeerResult<()> {
    let client = locked(clients, node).await?;
    let command = first(&client, COMMAND).await?.unwrap_or_default();
    let (own, held) = Note::read(&command);
    if let Some(held) = held.filter(|held| held.term > note.term) {
        return Err(format!("a failover in term {} has begun on it since", held.term));
    }
    if first(&client, IN_RECOVERY).await?.as_deref() != Some("t") {
        return Err("it has been promoted".into());
    }
    if first(&client, ASKED).await?.as_deref() != Some("f") || first(&client, BEGUN).await.is_err() {
        return Err("it is being promoted".into());
    }
    let text = note.write(own).replace('\'', "''");
    first(&client, &format!("ALTER SYSTEM SET recovery_end_command = '{text}'")).await.map(drop)
}

/// Promotes a standby that carries this term, and waits until it has left recovery.
///
/// # Errors
/// The standby carries another term, does not answer, or does not leave recovery within `limit`.
pub(super) async fn promote(clients: &ClusterClients, node: &str, term: u64, limit: Duration) -> PeerResult<()> {
    let client = locked(clients, node).await?;
    let command = first(&client, COMMAND).await?.unwrap_or_default();
    match Note::read(&command).1 {
        Some(held) if held.term == term => {}
        Some(held) => return Err(format!("a failover in term {} has begun on it since", held.term)),
        None => return Err("nothing is noted on it any more".into()),
    }
    // Instead of pg_promote's own wait, which checks ten times a second.
    let began = Instant::now();
    first(&client, "SELECT pg_catalog.pg_promote(false)").await?;
    while first(&client, IN_RECOVERY).await?.as_deref() != Some("f") {
        if began.elapsed() > limit {
            return Err(format!("it has not left recovery within {limit:?}"));
        }
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

/// Opens a session on the server that holds the lock until it ends.
async fn locked(clients: &ClusterClients, node: &str) -> PeerResult<Client> {
    let client = clients.session(node).await?;
    first(&client, &format!("SET lock_timeout = {}", WAIT.as_millis())).await?;
    first(&client, &format!("SELECT pg_catalog.pg_advisory_lock({LOCK})"))
        .await
        .map_err(|why| format!("another run is at work on it: {why}"))?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes() {
        let note = |term, after: Option<&str>| Note { term, after: after.map(str::to_owned) };
        for (command, own, expected) in [
            ("", "", None),
            ("/bin/tell %r", "/bin/tell %r", None),
            ("# kingpost: term=7 after=db1", "", Some(note(7, Some("db1")))),
            ("/bin/tell # kingpost: term=7", "/bin/tell", Some(note(7, None))),
            ("/bin/tell # kingpost: term=x", "/bin/tell", None),
            ("/bin/tell # really", "/bin/tell # really", None),
            ("a # kingpost: term=1 # kingpost: term=2", "a # kingpost: term=1", Some(note(2, None))),
            ("# kingpost: term=1 after=a~2", "", Some(note(1, None))),
        ] {
            assert_eq!(Note::read(command), (own, expected), "{command}");
        }
        assert_eq!(note(3, Some("db 1")).write("/bin/tell"), "/bin/tell # kingpost: term=3 after=db~201");
        assert_eq!(note(3, None).write(""), "# kingpost: term=3");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(term: u64, name in "\\PC{1,20}", command in "[a-z/ %]{0,20}") {
            let note = Note { term, after: Some(name) };
            let written = note.write(command.trim_end());
            prop_assert!(!written[command.trim_end().len()..].contains('%'));
            prop_assert_eq!(Note::read(&written), (command.trim_end(), Some(note)));
        }

        #[test]
        fn never_panics(text in "\\PC{0,60}") {
            let _ = (Note::read(&text), Note::read(&format!("# kingpost: {text}")), decode(&text));
        }
    }
}
