//! Every intended difference from a direct connection: one table, for the comparer and for docs/conformance.md.

use std::collections::BTreeMap;

use crate::before::Before;
use crate::compare::Oids;
use crate::config::Config;
use crate::reply::{Column, Fields, Reply};

/// An intended difference.
pub(crate) struct Rule {
    /// Name, for counting and for switching the rule off (`--strict`).
    pub(crate) name: &'static str,
    /// The difference, as in the documentation.
    pub(crate) what: &'static str,
    /// The reason why it is intended.
    pub(crate) why: &'static str,
    /// Returns the verdict if the rule covers the difference; the replies are never both None.
    covers: fn(&Scene<'_>, Option<&Reply>, Option<&Reply>) -> Option<Verdict>,
}

/// Consequence of an intended difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// None: the two replies count as equal.
    Same,
    /// PostgreSQL's reply has no counterpart.
    Missing,
    /// The proxy sends one more reply, which has no counterpart.
    More,
    /// The worlds differ from now on: the session ends without a difference.
    Over,
}

/// Context of two replies.
pub(crate) struct Scene<'a> {
    pub(crate) oids: &'a mut Oids,
    /// The client's database.
    pub(crate) database: &'a str,
    pub(crate) config: &'a Config,
    /// Earlier events that matter to rules.
    pub(crate) before: Before,
}

/// The active rules, with the number of uses of each.
#[derive(Debug, Default, Clone)]
pub(crate) struct Allowed {
    /// True if no rule is active.
    strict: bool,
    /// Number of uses by name.
    pub(crate) used: BTreeMap<&'static str, u64>,
}

/// The table.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "statement-name",
        what: "an error about a prepared statement names it `?name` (unknown) or `kp…`, also where PostgreSQL says `unnamed`",
        why: "servers know prepared statements by names of the proxy's own; SQLSTATE and the rest are the same",
        covers: statement_name,
    },
    Rule {
        name: "process-id",
        what: "process ids and cancel keys (not compared)",
        why: "a client is told one of the proxy's own, for its server connections change",
        covers: elsewhere,
    },
    Rule {
        name: "error-source",
        what: "file, line and routine in errors (not compared)",
        why: "the proxy's own errors have none",
        covers: elsewhere,
    },
    Rule {
        name: "parameter-status",
        what: "when ParameterStatus comes (compared: what a client has been told by ReadyForQuery); `kingpost.version` and `kingpost.pool_mode` (not compared)",
        why: "a server connection is brought to its client's parameters ahead of a statement",
        covers: elsewhere,
    },
    Rule {
        name: "notification-time",
        what: "when a notification comes (compared: that it comes, between two transactions, and in which order), also one's own; none that has not come \
               before `UNLISTEN`, as where one packet has both; one that was sent right before a `LISTEN` may be heard; one that came between a `LISTEN` and its commit need not be; and those of two channels may come in another order, where one \
               `LISTEN` stood in a text with other statements",
        why: "one server connection listens for all clients of a pool ([0024](decisions/0024-listen.md)); what stands in such a text listens on the client's own",
        covers: notification_time,
    },
    Rule {
        name: "functions",
        what: "what a function leaves in a session (`set_config`, temporary tables, locks) may be lost for its own client, with `unknown_functions` as \
               it is by default (compared: nobody else ever sees it; with `pin`, and in session mode, all of it)",
        why: "nothing in the statement says so",
        covers: elsewhere,
    },
    Rule {
        name: "notification-process",
        what: "a notification may have the server's process id instead of the sender's",
        why: "who has sent it is not known where connections have changed hands; never another client's",
        covers: notification_process,
    },
    Rule {
        name: "lost-server",
        what: "a client whose server shuts down, crashes or is not reached any more is not closed but hears 40001, 40003, or nothing; and which of its \
               messages came first may be another one (a breach of the protocol during COPY, say); a Close during COPY is none",
        why: "it has done nothing wrong; in session mode it is closed, as directly. Where its own session is the reason (25P03, 25P04, 57P05 in session \
              mode, 08P01), it hears the server's FATAL and is closed",
        covers: lost_server,
    },
    Rule {
        name: "reset-inside",
        what: "after `RESET` or `SET … TO DEFAULT` of something that a client began with (start-up parameters), it has the server's default for the \
               rest of the transaction, text or batch",
        why: "a server connection goes back to what itself began with; the client's own comes back at the end ([0014](decisions/0014-what-a-session-keeps.md))",
        covers: reset_inside,
    },
    Rule {
        name: "changed-past",
        what: "after a change of columns that the proxy has not seen (made past it), a statement that somebody prepared before may be described, or \
               accepted, as it was, and then fail with 0A000, for some seconds; where a table has taken another's place past the proxy with the same \
               columns, only the table's OID in the description may be the former one's",
        why: "prepared statements are shared; a table that takes another's place with the same columns changes nothing that a statement gives",
        covers: changed_past,
    },
    Rule {
        name: "hidden-past",
        what: "after a table was made past the proxy that now comes first in the search path, a text that somebody prepared before still means the \
               table that came first then, as long as its server connection lives (`RECONNECT` ends that)",
        why: "PostgreSQL analyses a prepared statement anew when a table that it names changes, but not when another one comes before that; and the proxy \
              prepares a text once and lends the statement",
        covers: hidden_past,
    },
    Rule {
        name: "placeholder",
        what: "whether a parameter with a dot in its name that is not set now is empty or unknown: `current_setting('app.t', true)` may give `''` where \
               it gives NULL directly, and the other way round; `SHOW` an error",
        why: "once set in a session, PostgreSQL has it there as empty for ever, and statements meet other sessions; policies should say \
              `nullif(current_setting('app.t', true), '')`",
        covers: placeholder,
    },
    Rule {
        name: "prepared-anew",
        what: "a prepared statement whose columns have changed works, and is described as it is now, where PostgreSQL says 0A000, if the client was not told \
               of its columns",
        why: "it is prepared on a connection that has not seen it before the change",
        covers: prepared_anew,
    },
    Rule {
        name: "described-failed",
        what: "in a failed transaction `Describe` of a statement that returns no rows, and `Bind` with too many or too few parameters, may say 25P02",
        why: "PostgreSQL describes it even then, and counts parameters first, but a server connection that does not have the statement cannot be given it",
        covers: described_failed,
    },
    Rule {
        name: "deallocate-first",
        what: "`SET TRANSACTION ISOLATION LEVEL`, or `BEGIN ISOLATION LEVEL`, right behind a `DEALLOCATE` in the same transaction, or the same messages up to Sync, is not refused with \
               25001; and behind a Parse there neither. `COMMIT PREPARED` behind a `DEALLOCATE` in the same messages up to Sync is carried out",
        why: "the proxy carries DEALLOCATE out by itself, and a Parse of a statement that it knows: the server has seen no query yet",
        covers: deallocate_first,
    },
    Rule {
        name: "kept-unit",
        what: "messages that no Sync or Flush has followed yet are not carried out: they lock nothing, and see what others write until then; and of those behind which the client ends nothing is said",
        why: "what is executed as one is routed as one ([0004](decisions/0004-units-and-replay.md)); PostgreSQL keeps only the answers",
        covers: kept_unit,
    },
    Rule {
        name: "known-unit",
        what: "a Parse or Describe with a Flush behind it, and no Sync yet, locks no table (`P s \"select * from t\"; H`)",
        why: "the proxy answers it by itself where it knows the statement",
        covers: known_unit,
    },
    Rule {
        name: "inserted-parse",
        what: "where `Describe` or `Bind` waits in vain for a lock, 55P03 comes without the ParameterDescription before it, or with a position in the text; \
               and so do 42P01 and 42703 where a table or a column is not there any more as the client's texts are read now, and in place of the ParseComplete \
               of an `EXECUTE`; `Execute` of the portal that could not be bound so says 34000, where PostgreSQL has an empty portal there",
        why: "the proxy prepares the statement first on a connection that does not have it: that waits for the same lock, and misses the same table or column",
        covers: inserted_parse,
    },
    Rule {
        name: "parse-warning",
        what: "a warning about how a text is written (22P06, nonstandard use of escapes) comes to the first that prepares it, and not to who has the same \
               text after that; and twice where the name is taken already (42P05)",
        why: "prepared statements are shared: the text is not read again; a server says that a name is taken once it has the statement under that name",
        covers: parse_warning,
    },
    Rule {
        name: "replica-locks",
        what: "a read-only transaction that runs on a replica keeps nobody waiting on the primary; and a read on a replica does not wait for a transaction \
               that has locked the table on the primary (`ALTER TABLE`, `LOCK TABLE`) and is not over, as long as the replica has not replayed the lock",
        why: "locks are those of the server that the statement runs on; who wants the primary's says `BEGIN` without READ ONLY. The read comes before \
              whatever that transaction commits",
        covers: replica_locks,
    },
    Rule {
        name: "kept-to-the-primary",
        what: "on a replica an advisory lock, a snapshot for or of others (`pg_export_snapshot()`, `SET TRANSACTION SNAPSHOT`) and a cursor WITH HOLD are refused with 25006, also where a hint has sent them there",
        why: "the lock would exclude nobody on the primary, who wants the snapshot is elsewhere, and the session does not stay on the replica",
        covers: kept_to_the_primary,
    },
    Rule {
        name: "replica-words",
        what: "on a replica 25006 says \"during recovery\" where the primary says \"in a read-only transaction\"; and a transaction that goes on there by \
               `AND CHAIN` after a failure is one that may not write; and in a transaction READ ONLY that has begun with what a replica can do (`SHOW` alone does not count), \
               `LOCK TABLE`, `txid_current()`, `NOTIFY` and `SET TRANSACTION READ WRITE` are refused (25006, 0A000)",
        why: "they are PostgreSQL's own words there; who may have to write, or to lock, says `BEGIN` without READ ONLY",
        covers: replica_words,
    },
    Rule {
        name: "behind-the-end",
        what: "where a read-only transaction has run on a replica, a write behind its COMMIT or ROLLBACK is refused (25006) if no Sync stands in between, or in one text",
        why: "what is sent up to a Sync, or as one Query, goes to one server; drivers send a Sync there, and then it goes to the primary",
        covers: behind_the_end,
    },
    Rule {
        name: "first-temporary",
        what: "what a session has prepared by SQL for a table, and a temporary table takes that table's place: `EXECUTE` may fail (0A000) where it would still read \
               the former table",
        why: "PostgreSQL looks again with a server connection's first temporary table, and not with later ones; clients without any keep no connection",
        covers: first_temporary,
    },
    Rule {
        name: "sequences",
        what: "`currval` and `lastval` in a client's first statement that asks for them, outside of a transaction, may be another session's; \
               `last_value` read on a replica is up to 32 ahead (not generated)",
        why: "`nextval` keeps no connection; PostgreSQL logs sequences ahead",
        covers: elsewhere,
    },
    Rule {
        name: "time",
        what: "`now()` in a transaction is the time of its first statement, not of `BEGIN` (not generated)",
        why: "`BEGIN` goes to a server with the statement after it ([0022](decisions/0022-deferred-begin.md))",
        covers: elsewhere,
    },
    Rule {
        name: "early-reads",
        what: "with `transaction_reads = \"replica\"`: a transaction that has only read locks no table, and its now() is that of the statement that begins \
               it on the primary; `SET TRANSACTION` behind such reads is not refused with 25001; once such a read has failed, everything but the end is \
               refused with 25P02, also a text that does not parse, or `ROLLBACK TO` (not generated)",
        why: "such a transaction exists on no server yet ([0121](decisions/0121-early-reads.md))",
        covers: elsewhere,
    },
    Rule {
        name: "application-name",
        what: "a client that names no `application_name` sees `kingpost`",
        why: "administrators see in `pg_stat_activity` where a connection comes from",
        covers: application_name,
    },
];

impl<'a> Scene<'a> {
    /// Creates the scene of a client of this database.
    pub(crate) fn new(oids: &'a mut Oids, database: &'a str, config: &'a Config) -> Scene<'a> {
        Scene { oids, database, config, before: Before::default() }
    }
}

impl Allowed {
    /// Activates all rules; none if `strict`.
    pub(crate) fn new(strict: bool) -> Allowed {
        Allowed { strict, used: BTreeMap::new() }
    }

    /// Returns the verdict of the first rule that covers this difference.
    pub(crate) fn verdict(
        &mut self,
        scene: &Scene<'_>,
        direct: Option<&Reply>,
        proxied: Option<&Reply>,
    ) -> Option<Verdict> {
        if self.strict {
            return None;
        }
        let found = RULES.iter().find_map(|rule| Some((rule.name, (rule.covers)(scene, direct, proxied)?)));
        let (name, verdict) = found?;
        *self.used.entry(name).or_default() += 1;
        Some(verdict)
    }
}

/// Replaces the name of a prepared statement in an error's text by `?`; the flag is true if the name was one of the proxy's or marked by it.
fn without_statement(message: &str) -> Option<(String, bool)> {
    const BEFORE: &str = "prepared statement \"";
    if message.starts_with("unnamed prepared statement") {
        return Some((message.replace("unnamed prepared statement", "prepared statement ?"), false));
    }
    let (before, rest) = message.split_once(BEFORE)?;
    let (name, after) = rest.split_once('"')?;
    Some((format!("{before}prepared statement ?{after}"), name.starts_with('?') || name.starts_with("kp")))
}

fn statement_name(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let (Some(Reply::Error(direct)), Some(Reply::Error(proxied))) = (direct, proxied) else { return None };
    let others = |fields: &Fields| fields.0.iter().filter(|(code, _)| *code != b'M').cloned().collect::<Vec<_>>();
    let (expected, _) = without_statement(direct.message())?;
    let (said, is_own) = without_statement(proxied.message())?;
    (is_own && said == expected && others(direct) == others(proxied)).then_some(Verdict::Same)
}

/// True if the reply is an error with this SQLSTATE.
fn is_error(reply: Option<&Reply>, code: &str) -> bool {
    matches!(reply, Some(Reply::Error(fields)) if fields.code() == code)
}

/// Covers nothing: the difference is removed before the comparison, or not generated.
fn elsewhere(_: &Scene<'_>, _: Option<&Reply>, _: Option<&Reply>) -> Option<Verdict> {
    None
}

fn kept_to_the_primary(_: &Scene<'_>, _: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let refused = matches!(proxied, Some(Reply::Error(fields)) if fields.code() == "25006" && fields.message().contains("it is on a replica"));
    refused.then_some(Verdict::Over)
}

fn replica_words(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if !scene.before.reads_elsewhere {
        return None;
    }
    let writes = matches!(proxied, Some(Reply::Error(fields)) if fields.code() == "0A000" && fields.message().contains("read-write mode during recovery"));
    if writes && matches!(direct, Some(Reply::Complete(tag)) if tag == "SET") {
        return Some(Verdict::Over);
    }
    if !is_error(proxied, "25006") {
        return None;
    }
    let about = |what| matches!(proxied, Some(Reply::Error(fields)) if fields.message().contains(what));
    match direct {
        Some(Reply::Row(_)) if about("pg_current_xact_id") || about("NOTIFY") => Some(Verdict::Over),
        Some(Reply::Complete(tag)) if tag == "NOTIFY" && about("NOTIFY") => Some(Verdict::Over),
        // Another error, too: a replica checks that first (`COMMIT PREPARED` in a transaction).
        Some(Reply::Error(_)) => Some(Verdict::Same),
        Some(Reply::Complete(tag)) if tag == "LOCK TABLE" => Some(Verdict::Over),
        _ => scene.before.chains.then_some(Verdict::Over),
    }
}

/// The process of each notification is the number of its client, counted from 1; 0: an unknown one.
fn notification_process(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let unknown = matches!(proxied, Some(Reply::Notification { process: 0, .. }));
    (unknown && is_heard(direct, proxied)).then_some(Verdict::Same)
}

/// True if both are the same notification, from any process.
fn is_heard(direct: Option<&Reply>, proxied: Option<&Reply>) -> bool {
    matches!(
        (direct, proxied),
        (
            Some(Reply::Notification { channel, payload, .. }),
            Some(Reply::Notification { channel: c, payload: p, .. }),
        ) if channel == c && payload == p
    )
}

fn notification_time(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    // Each of the two is examined, so a missing one is found.
    if let (Some(Reply::Notification { channel: one, .. }), Some(Reply::Notification { channel: other, .. })) =
        (direct, proxied)
        && one != other
        && scene.before.listens_inside
    {
        return Some(Verdict::Same);
    }
    // PostgreSQL guarantees notifications committed after an instant within the commit of a LISTEN. A session that already listens to another channel
    // receives more.
    let may_be_missing = scene.before.unlistens_behind_notify || scene.before.notified_before_listening;
    if matches!(direct, Some(Reply::Notification { .. })) && may_be_missing && !is_heard(direct, proxied) {
        return Some(Verdict::Missing);
    }
    let early = direct.is_none() && matches!(proxied, Some(Reply::Notification { .. }));
    (early && scene.before.listens_behind_notify).then_some(Verdict::Over)
}

/// Covers a connection that the server itself has ended.
fn lost_server(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let Some(Reply::Error(fields)) = direct else { return None };
    // `B '' s1; E; C S s3; E` with a COPY in s1: the proxy itself answers the Close of a name that the client does not have.
    let is_breach =
        |fields: &Fields| fields.code() == "08P01" && fields.get(b'M').starts_with("unexpected message type");
    if let Some(Reply::Error(other)) = proxied
        && is_breach(fields)
    {
        if is_breach(other) {
            return Some(Verdict::Same);
        }
        // Where nothing else than that Close breaches the protocol, CopyFail ends the statement only.
        if fields.get(b'M').contains("0x43") && other.code() == "57014" {
            return Some(Verdict::Over);
        }
    }
    let ended = fields.get(b'V') == "FATAL" && fields.code() == "08P01";
    (ended && !scene.config.session_mode).then_some(Verdict::Over)
}

fn reset_inside(scene: &Scene<'_>, _: Option<&Reply>, _: Option<&Reply>) -> Option<Verdict> {
    scene.before.resets_inside.then_some(Verdict::Over)
}

fn changed_past(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if let (Some(Reply::Columns(direct)), Some(Reply::Columns(proxied))) = (direct, proxied)
        && scene.before.swapped_past
        && !scene.before.changed_past
    {
        let placeless = |columns: &[Column]| -> Vec<Column> {
            columns.iter().map(|column| Column { table: 0, ..column.clone() }).collect()
        };
        return (placeless(direct) == placeless(proxied)).then_some(Verdict::Same);
    }
    let covered = match (direct?, proxied?) {
        (Reply::Error(_), Reply::Plain(b'1')) => true,
        (_, Reply::Error(fields)) => fields.code() == "0A000",
        (Reply::Columns(_), Reply::Columns(_)) => true,
        _ => false,
    };
    (scene.before.changed_past && covered).then_some(Verdict::Over)
}

fn hidden_past(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let covered = match (direct?, proxied?) {
        (Reply::Error(fields), Reply::Plain(b'2')) => fields.code() == "42501",
        (Reply::Columns(_), Reply::Columns(_)) => true,
        (Reply::Row(_) | Reply::Complete(_), Reply::Row(_) | Reply::Complete(_)) => true,
        _ => false,
    };
    (scene.before.hidden_past && covered).then_some(Verdict::Over)
}

fn placeholder(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if !scene.before.has_placeholder {
        return None;
    }
    match (direct?, proxied?) {
        (Reply::Row(direct), Reply::Row(proxied)) if direct.len() == proxied.len() => {
            let empty = |value: &Option<Vec<u8>>| value.as_ref().is_none_or(Vec::is_empty);
            let same = |(d, p): (&Option<Vec<u8>>, &Option<Vec<u8>>)| d == p || (empty(d) && empty(p));
            direct.iter().zip(proxied).all(same).then_some(Verdict::Same)
        }
        (Reply::Error(fields), _) | (_, Reply::Error(fields)) => {
            let unknown = fields.message().starts_with("unrecognized configuration parameter \"app.");
            unknown.then_some(Verdict::Over)
        }
        _ => None,
    }
}

fn prepared_anew(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let refused = is_error(direct, "0A000");
    (refused && matches!(proxied, Some(Reply::Plain(b'2') | Reply::Columns(_)))).then_some(Verdict::Over)
}

fn described_failed(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if !is_error(proxied, "25P02") {
        return None;
    }
    match direct {
        Some(Reply::Parameters(_)) => Some(Verdict::Over),
        Some(Reply::Error(fields))
            if fields.code() == "08P01" && fields.message().starts_with("bind message supplies") =>
        {
            Some(Verdict::Same)
        }
        _ => None,
    }
}

fn deallocate_first(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let done =
        matches!(proxied, Some(Reply::Complete(tag)) if ["SET", "BEGIN", "START TRANSACTION"].contains(&tag.as_str()));
    let before = scene.before;
    let sets = done && (before.deallocates || before.sets_transaction_behind);
    // No session prepares a transaction, so COMMIT PREPARED finds none.
    let commits = before.deallocates && is_error(proxied, "42704");
    ((sets || commits) && is_error(direct, "25001")).then_some(Verdict::Over)
}

fn kept_unit(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let waited = is_error(direct, "55P03") && scene.before.others_unfinished;
    let is_result = |reply: Option<&Reply>| matches!(reply, Some(Reply::Row(_) | Reply::Complete(_)));
    let later = is_result(direct) && is_result(proxied) && scene.before.others_write_before_sync;
    (waited || later).then_some(Verdict::Over)
}

fn known_unit(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let waited = is_error(direct, "55P03") && !matches!(proxied, Some(Reply::Error(_)) | None);
    (waited && scene.before.others_prepare).then_some(Verdict::Over)
}

fn inserted_parse(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if matches!(direct, Some(Reply::Plain(b'I'))) && is_error(proxied, "34000") {
        // A client without an empty Parse has bound no empty statement: the portal is left from a failed Bind.
        return (!scene.before.parses_nothing).then_some(Verdict::Same);
    }
    let waited = |reply: Option<&Reply>| is_error(reply, "55P03");
    let executes = scene.before.parses_execute;
    match direct {
        Some(Reply::Plain(b'1'))
            if executes && ["42P01", "42703", "55P03"].iter().any(|code| is_error(proxied, code)) =>
        {
            Some(Verdict::Over)
        }
        Some(Reply::Parameters(_)) if is_error(proxied, "42P01") || is_error(proxied, "42703") => Some(Verdict::Over),
        _ if !waited(proxied) => None,
        Some(Reply::Parameters(_)) => Some(Verdict::Over),
        direct => waited(direct).then_some(Verdict::Same),
    }
}

fn parse_warning(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let warned = matches!(direct, Some(Reply::Notice(fields)) if fields.code() == "22P06");
    let warned_again = matches!(proxied, Some(Reply::Notice(fields)) if fields.code() == "22P06");
    if warned && matches!(proxied, Some(Reply::Plain(b'1'))) {
        return Some(Verdict::Missing);
    }
    (warned_again && is_error(direct, "42P05")).then_some(Verdict::More)
}

fn replica_locks(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let waited = is_error(direct, "55P03");
    let not_locked_there = scene.before.others_lock && !matches!(proxied, Some(Reply::Error(_)) | None);
    (scene.config.replica && waited && (scene.before.reads_elsewhere || not_locked_there)).then_some(Verdict::Over)
}

fn behind_the_end(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let before = scene.before;
    let refused = is_error(proxied, "25006") && !matches!(direct, Some(Reply::Error(_)) | None);
    (scene.config.replica && before.reads_elsewhere && before.goes_on && refused).then_some(Verdict::Over)
}

fn first_temporary(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    (scene.before.shadows && matches!(direct, Some(Reply::Row(_))) && is_error(proxied, "0A000"))
        .then_some(Verdict::Over)
}

fn application_name(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let same = match (direct?, proxied?) {
        (Reply::Parameter(one, direct), Reply::Parameter(_, proxied)) => {
            one == "application_name" && direct.is_empty() && proxied == "kingpost"
        }
        (Reply::Row(direct), Reply::Row(proxied)) => {
            let is = |row: &[Option<Vec<u8>>], value: &str| row == [Some(value.as_bytes().to_vec())];
            is(direct, "") && is(proxied, "kingpost")
        }
        _ => false,
    };
    same.then_some(Verdict::Same)
}

/// Returns the table for docs/conformance.md; `differential rules` prints it.
pub(crate) fn markdown() -> String {
    let mut out = String::from("| rule | what differs | why |\n|---|---|---|\n");
    for rule in RULES {
        out.push_str(&format!("| `{}` | {} | {} |\n", rule.name, rule.what, rule.why));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Oids;
    use crate::config::CONFIGS;

    #[test]
    fn the_documentation_has_this_table() {
        let documented = include_str!("../../docs/conformance.md");
        assert!(documented.contains(&markdown()), "put the output of `differential rules` into docs/conformance.md");
    }

    fn error(code: &str, message: &str) -> Reply {
        let field = |letter, text: &str| (letter, text.to_owned());
        Reply::Error(Fields(vec![field(b'S', "ERROR"), field(b'V', "ERROR"), field(b'C', code), field(b'M', message)]))
    }

    fn row(value: Option<&str>) -> Reply {
        Reply::Row(vec![Some("x".into()), value.map(Into::into)])
    }

    /// Returns the rule that covers a difference, and its verdict.
    fn covered(before: Before, config: &str, direct: Reply, proxied: Reply) -> String {
        let mut oids = Oids::default();
        let config = CONFIGS.iter().find(|known| known.name == config).unwrap();
        let scene = Scene { before, ..Scene::new(&mut oids, "app", config) };
        let mut allowed = Allowed::new(false);
        match allowed.verdict(&scene, Some(&direct), Some(&proxied)) {
            Some(verdict) => format!("{} {verdict:?}", allowed.used.keys().next().unwrap()),
            None => String::new(),
        }
    }

    #[test]
    fn rules_are_narrow() {
        let none = Before::default();
        let unknown = |name: &str| error("26000", &format!("prepared statement \"{name}\" does not exist"));
        let needs = |name: &str| {
            error("08P01", &format!("bind message supplies 1 parameters, but prepared statement \"{name}\" requires 0"))
        };
        let past = Before { changed_past: true, ..none };
        let hidden = Before { hidden_past: true, ..none };
        let nothing = Before { parses_nothing: true, ..none };
        let swapped = Before { swapped_past: true, ..none };
        let columns = |table, name: &str| {
            let (name, attribute, kind, length) = (name.to_owned(), 1, 23, 4);
            Reply::Columns(vec![Column { name, table, attribute, kind, length, modifier: -1, format: 0 }])
        };
        let denied = || error("42501", "permission denied for table sw");
        let placeholder = Before { has_placeholder: true, ..none };
        let done = || Reply::Complete("SELECT 1".into());
        let heard = |process| Reply::Notification { process, channel: "c".into(), payload: "p".into() };
        let on_d = || Reply::Notification { process: 2, channel: "d".into(), payload: "p".into() };
        let warning = Reply::Notice(Fields(vec![(b'C', "22P06".into())]));
        let locked = || error("55P03", "canceling statement due to lock timeout");
        let old_plan = || error("0A000", "cached plan must not change result type");
        let aborted = || error("25P02", "current transaction is aborted");
        let gone = || error("26000", "prepared statement \"s1\" does not exist");
        let refused = |text: &str| error("25006", text);
        let late = || error("25001", "SET TRANSACTION ISOLATION LEVEL must be called before any query");
        let table = [
            (none, unknown("s1"), unknown("?s1"), "statement-name Same"),
            (none, needs("s1"), needs("kp7"), "statement-name Same"),
            (none, error("26000", "unnamed prepared statement does not exist"), unknown("?"), "statement-name Same"),
            (none, unknown("s1"), unknown("s2"), ""),
            (none, unknown("s1"), error("42P05", "prepared statement \"kp1\" does not exist"), ""),
            (none, unknown("s1"), needs("kp1"), ""),
            (none, done(), unknown("kp1"), ""),
            (none, heard(2), heard(0), "notification-process Same"),
            (none, heard(2), heard(1), ""),
            (Before { listens_inside: true, ..none }, heard(2), on_d(), "notification-time Same"),
            (none, heard(2), on_d(), ""),
            (Before { unlistens_behind_notify: true, ..none }, heard(2), done(), "notification-time Missing"),
            (Before { unlistens_behind_notify: true, ..none }, done(), heard(2), ""),
            (Before { unlistens_behind_notify: true, ..none }, heard(2), heard(0), "notification-process Same"),
            (Before { unlistens_behind_notify: true, ..none }, heard(2), heard(1), ""),
            (Before { notified_before_listening: true, ..none }, heard(2), done(), "notification-time Missing"),
            (Before { notified_before_listening: true, ..none }, done(), heard(2), ""),
            (none, heard(2), done(), ""),
            (none, done(), old_plan(), ""),
            (Before { shadows: true, ..none }, row(Some("1")), old_plan(), "first-temporary Over"),
            (none, row(Some("1")), old_plan(), ""),
            (past, done(), old_plan(), "changed-past Over"),
            (past, done(), error("42P01", "no table"), ""),
            (past, row(None), row(Some("1")), ""),
            (swapped, columns(1, "id"), columns(2, "id"), "changed-past Same"),
            (swapped, columns(1, "id"), columns(1, "name"), ""),
            (swapped, done(), old_plan(), ""),
            (none, columns(1, "id"), columns(2, "id"), ""),
            (hidden, denied(), Reply::Plain(b'2'), "hidden-past Over"),
            (hidden, done(), row(Some("old")), "hidden-past Over"),
            (hidden, error("42P01", "no table"), Reply::Plain(b'2'), ""),
            (none, denied(), Reply::Plain(b'2'), ""),
            (none, done(), row(Some("old")), ""),
            (none, old_plan(), Reply::Plain(b'2'), "prepared-anew Over"),
            (none, old_plan(), Reply::Columns(Vec::new()), "prepared-anew Over"),
            (none, old_plan(), done(), ""),
            (placeholder, row(None), row(Some("")), "placeholder Same"),
            (placeholder, row(Some("")), row(None), "placeholder Same"),
            (placeholder, row(None), row(Some("t1")), ""),
            (none, row(None), row(Some("")), ""),
            (none, warning.clone(), Reply::Plain(b'1'), "parse-warning Missing"),
            (none, warning.clone(), done(), ""),
            (none, error("42P05", "exists"), warning.clone(), "parse-warning More"),
            (none, error("42P04", "exists"), warning, ""),
            (none, Reply::Parameters(Vec::new()), locked(), "inserted-parse Over"),
            (none, done(), locked(), ""),
            (none, Reply::Parameters(Vec::new()), error("42P01", "no table"), "inserted-parse Over"),
            (none, Reply::Parameters(Vec::new()), error("42703", "no column"), "inserted-parse Over"),
            (none, done(), error("42P01", "no table"), ""),
            (none, Reply::Plain(b'1'), error("42P01", "no table"), ""),
            (
                Before { parses_execute: true, ..none },
                Reply::Plain(b'1'),
                error("42P01", "no table"),
                "inserted-parse Over",
            ),
            (none, Reply::Plain(b'I'), error("34000", "no portal"), "inserted-parse Same"),
            (nothing, Reply::Plain(b'I'), error("34000", "no portal"), ""),
            (none, done(), error("34000", "no portal"), ""),
            (none, locked(), error("55P03", "canceling statement due to lock timeout at 5"), "inserted-parse Same"),
            (none, locked(), error("55006", "canceling statement due to lock timeout"), ""),
            (none, locked(), done(), ""),
            (Before { others_unfinished: true, ..none }, locked(), done(), "kept-unit Over"),
            (Before { others_write_before_sync: true, ..none }, row(Some("3")), row(Some("4")), "kept-unit Over"),
            (Before { others_write_before_sync: true, ..none }, row(Some("3")), done(), "kept-unit Over"),
            (Before { others_write_before_sync: true, ..none }, row(Some("3")), aborted(), ""),
            (none, row(Some("3")), row(Some("4")), ""),
            (Before { others_prepare: true, ..none }, locked(), done(), "known-unit Over"),
            (Before { others_prepare: true, ..none }, done(), locked(), ""),
            (Before { others_prepare: true, ..none }, locked(), aborted(), ""),
            (Before { reads_elsewhere: true, ..none }, locked(), done(), ""),
            (Before { resets_inside: true, ..none }, row(Some("a")), row(Some("b")), "reset-inside Over"),
            (none, row(Some("")), row(Some("kingpost")), ""),
            (none, Reply::Parameters(Vec::new()), aborted(), "described-failed Over"),
            (none, needs("s1"), aborted(), "described-failed Same"),
            (none, error("08P01", "invalid message"), aborted(), ""),
            (none, done(), aborted(), ""),
            (Before { deallocates: true, ..none }, late(), Reply::Complete("SET".into()), "deallocate-first Over"),
            (Before { deallocates: true, ..none }, late(), error("42704", "no such"), "deallocate-first Over"),
            (none, late(), error("42704", "no such"), ""),
            (
                Before { sets_transaction_behind: true, ..none },
                late(),
                Reply::Complete("BEGIN".into()),
                "deallocate-first Over",
            ),
            (
                Before { sets_transaction_behind: true, ..none },
                late(),
                Reply::Complete("SET".into()),
                "deallocate-first Over",
            ),
            (none, late(), Reply::Complete("SET".into()), ""),
            (none, Reply::Complete("DEALLOCATE".into()), gone(), ""),
            (
                none,
                done(),
                refused("cannot take an advisory lock in this transaction: it is on a replica"),
                "kept-to-the-primary Over",
            ),
            (none, done(), refused("cannot execute INSERT during recovery"), ""),
            (
                Before { reads_elsewhere: true, ..none },
                refused("in a read-only transaction"),
                refused("during recovery"),
                "replica-words Same",
            ),
            (Before { reads_elsewhere: true, ..none }, done(), refused("during recovery"), ""),
            (
                Before { reads_elsewhere: true, ..none },
                row(Some("")),
                refused("cannot execute NOTIFY during recovery"),
                "replica-words Over",
            ),
            (none, row(Some("")), refused("cannot execute NOTIFY during recovery"), ""),
            (
                Before { reads_elsewhere: true, ..none },
                row(Some("")),
                refused("cannot execute INSERT during recovery"),
                "",
            ),
            (
                Before { reads_elsewhere: true, ..none },
                Reply::Complete("LOCK TABLE".into()),
                refused("during recovery"),
                "replica-words Over",
            ),
            (
                Before { reads_elsewhere: true, ..none },
                Reply::Complete("SET".into()),
                error("0A000", "cannot set transaction read-write mode during recovery"),
                "replica-words Over",
            ),
            (
                Before { reads_elsewhere: true, ..none },
                row(Some("t")),
                refused("cannot execute pg_current_xact_id() during recovery"),
                "replica-words Over",
            ),
            (none, row(Some("t")), refused("cannot execute pg_current_xact_id() during recovery"), ""),
            (
                none,
                Reply::Complete("SET".into()),
                error("0A000", "cannot set transaction read-write mode during recovery"),
                "",
            ),
            (
                Before { reads_elsewhere: true, chains: true, ..none },
                done(),
                refused("during recovery"),
                "replica-words Over",
            ),
            (
                none,
                Reply::Row(vec![Some("".into())]),
                Reply::Row(vec![Some("kingpost".into())]),
                "application-name Same",
            ),
        ];
        for (before, direct, proxied, expected) in table {
            let what = format!("{direct} / {proxied}");
            assert_eq!(covered(before, "one", direct, proxied), expected, "{what}");
        }
        let elsewhere = Before { reads_elsewhere: true, ..none };
        assert_eq!(covered(elsewhere, "replica", locked(), done()), "replica-locks Over");
        let behind = Before { reads_elsewhere: true, goes_on: true, ..none };
        assert_eq!(covered(behind, "replica", done(), refused("in a read-only transaction")), "behind-the-end Over");
        assert_eq!(covered(behind, "one", done(), refused("in a read-only transaction")), "");
        assert_eq!(covered(elsewhere, "replica", done(), refused("in a read-only transaction")), "");
        let others = Before { others_lock: true, ..none };
        assert_eq!(covered(others, "replica", locked(), row(Some("old"))), "replica-locks Over");
        assert_eq!(covered(others, "replica", locked(), error("42P01", "no such table")), "");
        assert_eq!(covered(others, "one", locked(), row(Some("old"))), "");
        let breach = |kind: &str| error("08P01", &format!("unexpected message type {kind} during COPY from stdin"));
        assert_eq!(covered(none, "one", breach("0x43"), breach("0x45")), "lost-server Same");
        assert_eq!(covered(none, "one", breach("0x43"), error("08P01", "invalid message")), "");
        assert_eq!(covered(none, "one", breach("0x43"), done()), "");
        let failed = || error("57014", "COPY from stdin failed: the end");
        assert_eq!(covered(none, "one", breach("0x43"), failed()), "lost-server Over");
        assert_eq!(covered(none, "one", breach("0x45"), failed()), "");
        let ended = Reply::Error(Fields(vec![(b'V', "FATAL".into()), (b'C', "08P01".into())]));
        assert_eq!(covered(none, "one", ended.clone(), done()), "lost-server Over");
        assert_eq!(covered(none, "session", ended, done()), "");
    }
}
