//! Every difference from a direct connection that is meant: one table, for the comparer and for docs/conformance.md.

use std::collections::BTreeMap;

use crate::compare::Oids;
use crate::config::Config;
use crate::reply::Reply;

/// A difference that is meant.
pub(crate) struct Rule {
    /// By which it is counted, and switched off (`--strict`).
    pub(crate) name: &'static str,
    /// What differs, as the documentation says it.
    pub(crate) what: &'static str,
    /// Why that is meant.
    pub(crate) why: &'static str,
    /// Whether it is this difference, and what follows; the replies are never both None.
    covers: fn(&Scene<'_>, Option<&Reply>, Option<&Reply>) -> Option<Verdict>,
}

/// What follows from a difference that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: the two replies count as the same.
    Same,
    /// The worlds are not alike any more: the session ends without a difference.
    Over,
}

/// Where two replies were seen.
pub(crate) struct Scene<'a> {
    pub(crate) oids: &'a mut Oids,
    /// The client's database.
    pub(crate) database: &'a str,
    pub(crate) config: &'a Config,
    /// What has happened before.
    pub(crate) before: Before,
}

/// What of the session so far decides whether a difference is meant.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    /// A client past the proxy has changed what columns there are.
    pub(crate) changed_past: bool,
    /// The client began with parameters of its own, has gone back to them in some text, and is in a transaction or in the middle of a batch.
    pub(crate) resets_inside: bool,
    /// Somebody has set a parameter of an extension's kind (`app.t`).
    pub(crate) has_placeholder: bool,
}

/// Which rules hold, and how often each was needed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Allowed {
    /// None of the rules holds.
    strict: bool,
    /// By name.
    pub(crate) used: BTreeMap<&'static str, u64>,
}

/// The table.
pub(crate) const RULES: [Rule; 8] = [
    Rule {
        name: "statement-name",
        what: "an error about a prepared statement names it `?name` (unknown) or `kp…`, also where PostgreSQL says `unnamed`",
        why: "servers know prepared statements by names of the proxy's own; SQLSTATE and the rest are the same",
        covers: statement_name,
    },
    Rule {
        name: "sql-execute",
        what: "`EXECUTE name` does not find what was prepared by the protocol, and `PREPARE name` is not refused because of it (not generated)",
        why: "as above; `DEALLOCATE name` is the proxy's own and does find it",
        covers: not_generated,
    },
    Rule {
        name: "notification-process",
        what: "a notification may have the server's process id instead of the sender's",
        why: "who has sent it is not known where connections have changed hands; never another client's",
        covers: notification_process,
    },
    Rule {
        name: "lost-server",
        what: "a client whose server connection ends is not closed but hears 40003, or nothing (a breach of the protocol during COPY, say)",
        why: "it has done nothing wrong; in session mode it is closed, as directly",
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
               accepted, as it was, and then fail with 0A000, for some seconds",
        why: "prepared statements are shared; a table that takes another's place with the same columns is no such change",
        covers: changed_past,
    },
    Rule {
        name: "placeholder",
        what: "a parameter with a dot in its name that another client has set before is empty, not unknown: `current_setting('app.t', true)` gives \
               `''` instead of NULL, `SHOW` no error",
        why: "PostgreSQL cannot forget such a parameter again; policies should say `nullif(current_setting('app.t', true), '')`",
        covers: placeholder,
    },
    Rule {
        name: "application-name",
        what: "a client that names no `application_name` sees `kingpost`",
        why: "administrators see in `pg_stat_activity` where a connection comes from",
        covers: application_name,
    },
];

impl<'a> Scene<'a> {
    /// For a client of this database.
    pub(crate) fn new(oids: &'a mut Oids, database: &'a str, config: &'a Config) -> Scene<'a> {
        Scene { oids, database, config, before: Before::default() }
    }
}

impl Allowed {
    /// All rules hold.
    pub(crate) fn all() -> Allowed {
        Allowed::default()
    }

    /// No rule holds.
    pub(crate) fn none() -> Allowed {
        Allowed { strict: true, used: BTreeMap::new() }
    }

    /// What the first rule that covers this difference says.
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

/// An error's text with `?` for the name of a prepared statement, and whether that name was one of the proxy's or marked by it.
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
    let others =
        |fields: &crate::reply::Fields| fields.0.iter().filter(|(code, _)| *code != b'M').cloned().collect::<Vec<_>>();
    let (expected, _) = without_statement(direct.message())?;
    let (said, is_own) = without_statement(proxied.message())?;
    (is_own && said == expected && others(direct) == others(proxied)).then_some(Verdict::Same)
}

fn not_generated(_: &Scene<'_>, _: Option<&Reply>, _: Option<&Reply>) -> Option<Verdict> {
    None
}

/// Each notification's process is the place of its client, counted from 1; 0: nobody's that is known.
fn notification_process(_: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let (Reply::Notification { channel, payload, .. }, Reply::Notification { process: 0, channel: c, payload: p }) =
        (direct?, proxied?)
    else {
        return None;
    };
    (channel == c && payload == p).then_some(Verdict::Same)
}

/// The server itself has ended the connection.
fn lost_server(scene: &Scene<'_>, direct: Option<&Reply>, _: Option<&Reply>) -> Option<Verdict> {
    let Some(Reply::Error(fields)) = direct else { return None };
    let ended = fields.get(b'V') == "FATAL" && fields.code() == "08P01";
    (ended && !scene.config.session_mode).then_some(Verdict::Over)
}

fn reset_inside(scene: &Scene<'_>, _: Option<&Reply>, _: Option<&Reply>) -> Option<Verdict> {
    scene.before.resets_inside.then_some(Verdict::Over)
}

fn changed_past(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    let covered = match (direct?, proxied?) {
        (Reply::Error(_), Reply::Plain(b'1')) => true,
        (_, Reply::Error(fields)) => fields.code() == "0A000",
        (Reply::Columns(_), Reply::Columns(_)) => true,
        _ => false,
    };
    (scene.before.changed_past && covered).then_some(Verdict::Over)
}

fn placeholder(scene: &Scene<'_>, direct: Option<&Reply>, proxied: Option<&Reply>) -> Option<Verdict> {
    if !scene.before.has_placeholder {
        return None;
    }
    match (direct?, proxied?) {
        (Reply::Row(direct), Reply::Row(proxied)) if direct.len() == proxied.len() => {
            let same =
                |(d, p): (&Option<Vec<u8>>, &Option<Vec<u8>>)| d == p || (d.is_none() && p.as_deref() == Some(b""));
            direct.iter().zip(proxied).all(same).then_some(Verdict::Same)
        }
        (Reply::Error(fields), _) => {
            let unknown = fields.message().starts_with("unrecognized configuration parameter \"app.");
            unknown.then_some(Verdict::Over)
        }
        _ => None,
    }
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

/// The table as docs/conformance.md shows it.
pub(crate) fn markdown() -> String {
    let mut out = String::from("| rule | what differs | why |\n|---|---|---|\n");
    for rule in &RULES {
        out.push_str(&format!("| `{}` | {} | {} |\n", rule.name, rule.what, rule.why));
    }
    out
}
