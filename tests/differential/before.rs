//! Facts of a session so far that decide whether a difference is intended.

use crate::session::{Message, Packet, Session, Step};

/// Events up to and including a step, as far as the rules need them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    /// A client past the proxy has changed columns.
    pub(crate) changed_past: bool,
    /// A client past the proxy has renamed a table, so that another table may have taken its place.
    pub(crate) swapped_past: bool,
    /// The client has prepared a text without a statement.
    pub(crate) parses_nothing: bool,
    /// A table made past the proxy now comes first in a search path, and this client has a text that names it.
    pub(crate) hidden_past: bool,
    /// The client has dropped prepared statements by SQL.
    pub(crate) deallocates: bool,
    /// The client began with its own parameters, has reset them in some text, and is in a transaction or in the middle of a batch.
    pub(crate) resets_inside: bool,
    /// Some client has begun a transaction READ ONLY.
    pub(crate) reads_elsewhere: bool,
    /// Another client has run a statement that locks a table against readers: `ALTER TABLE`, `LOCK TABLE`,
    pub(crate) others_lock: bool,
    /// The client has ended a transaction with AND CHAIN.
    pub(crate) chains: bool,
    /// Another client has sent messages without a later Sync or Flush.
    pub(crate) others_unfinished: bool,
    /// Another client of the database has written between messages of this client and the Sync behind them: `a: P '' "select …"; B; E`, then
    /// `b: Q "insert …"`, then `a: S`.
    pub(crate) others_write_before_sync: bool,
    /// Another client has prepared a statement, or described it, without a later Sync: `P s "select * from t"; H`.
    pub(crate) others_prepare: bool,
    /// The client has sent a Parse of an EXECUTE.
    pub(crate) parses_execute: bool,
    /// The client has begun to listen in the same packet, behind its own NOTIFY.
    pub(crate) listens_behind_notify: bool,
    /// The client has begun to listen in a text with other statements.
    pub(crate) listens_inside: bool,
    /// A client has notified between this client's LISTEN and the end of its transaction: `a: P '' "listen c"; B; E`, then `b: Q "notify c"`, then
    /// `a: S`.
    pub(crate) notified_before_listening: bool,
    /// The client has sent SET TRANSACTION behind the Parse of another statement, without a Sync in between.
    pub(crate) sets_transaction_behind: bool,
    /// The client has made a temporary table that hides another one: `create temp table t as …`.
    pub(crate) shadows: bool,
    /// The client has just stopped listening behind another statement in the same packet, and has notified so far: `Q "notify c"; Q "unlisten *"`.
    pub(crate) unlistens_behind_notify: bool,
    /// The client has sent another statement behind COMMIT or ROLLBACK, without a Sync in between: `P '' "commit"; B; E; P '' "insert …"`, or
    /// `Q "commit; insert …"`.
    pub(crate) goes_on: bool,
    /// A client has set a custom parameter (`app.t`).
    pub(crate) has_placeholder: bool,
}

fn says(packet: &Packet, words: &[&str]) -> bool {
    packet.messages.iter().filter_map(Message::sql).any(|text| {
        let text = text.to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    })
}

/// Texts in every statement of a session that may change rows.
const WRITES: [&str; 10] =
    ["insert", "update", "delete", "truncate", "copy", "call", "noting", "execute", "commit", "end"];

/// True if the statement ends a transaction.
fn ends(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    ["commit", "rollback", "end", "abort"].iter().any(|word| text.starts_with(word))
}

/// True if the statement begins a transaction.
fn begins(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    ["begin", "start transaction"].iter().any(|word| text.starts_with(word))
}

/// True if the text has another statement behind one that ends a transaction.
fn goes_on_inside(text: &str) -> bool {
    let statements: Vec<&str> = text.split(';').filter(|statement| !statement.trim().is_empty()).collect();
    statements.split_last().is_some_and(|(_, before)| before.iter().any(|statement| ends(statement)))
}

/// True for more than one statement in one packet.
fn is_batch(packet: &Packet) -> bool {
    let texts: Vec<&str> = packet.messages.iter().filter_map(Message::sql).collect();
    texts.len() > 1 || texts.iter().any(|text| text.contains("; "))
}

impl Before {
    /// Collects the facts for the replies to `client` in step `step`. `open`: it is in a transaction, or its messages are not complete. `takes_role`:
    /// it also began with a role.
    pub(crate) fn of(session: &Session, step: usize, client: usize, (open, takes_role): (bool, bool)) -> Before {
        let so_far = &session.steps[..session.steps.len().min(step + 1)];
        let packets = || so_far.iter().flat_map(Step::packets);
        let own = || packets().filter(|packet| packet.client == client);
        let own_messages = || own().flat_map(|packet| &packet.messages);
        let resets = own().any(|packet| says(packet, &["reset", "default", "discard all"]));
        let last = so_far.last().map(Step::packets).unwrap_or_default();
        let batch = last.iter().any(|packet| packet.client == client && is_batch(packet));
        let past = |packet: &&Packet| session.clients[packet.client].past;
        Before {
            changed_past: packets()
                .filter(past)
                .any(|packet| says(packet, &["column", "create", "drop", "alter type"])),
            swapped_past: packets().filter(past).any(|packet| says(packet, &["rename to"])),
            parses_nothing: own_messages()
                .any(|message| matches!(message, Message::Parse { text, .. } if text.trim().is_empty())),
            hidden_past: packets().filter(past).any(|packet| says(packet, &["create table if not exists a.sw"]))
                && own().any(|packet| says(packet, &["from sw"])),
            deallocates: own().any(|packet| says(packet, &["deallocate"])),
            resets_inside: (takes_role || !session.clients[client].parameters.is_empty()) && resets && (open || batch),
            reads_elsewhere: packets().any(|packet| says(packet, &["read only"])),
            others_lock: packets()
                .filter(|packet| packet.client != client)
                .any(|packet| says(packet, &["alter table", "lock table", "drop table", "truncate"])),
            chains: own().any(|packet| says(packet, &["and chain"])),
            others_unfinished: false,
            others_prepare: false,
            others_write_before_sync: {
                let database = &session.clients[client].database;
                let (mut kept, mut wrote, mut behind) = (false, false, false);
                for packet in packets() {
                    if packet.client == client {
                        behind = wrote;
                        for message in &packet.messages {
                            kept = !matches!(message, Message::Sync | Message::Flush | Message::Query(_));
                            wrote &= kept;
                        }
                    } else if kept && session.clients[packet.client].database == *database {
                        wrote |= says(packet, &WRITES);
                    }
                }
                behind || wrote
            },
            listens_behind_notify: own().any(|packet| {
                let texts: Vec<String> =
                    packet.messages.iter().filter_map(Message::sql).map(str::to_ascii_lowercase).collect();
                let first = texts.iter().position(|text| text.contains("notify"));
                first.is_some_and(|at| texts[at..].iter().any(|text| text.contains("listen ")))
            }),
            listens_inside: own_messages()
                .filter_map(Message::sql)
                .any(|text| text.to_ascii_lowercase().contains("listen ") && text.contains(';')),
            notified_before_listening: {
                let (mut in_transaction, mut listens) = (false, false);
                packets().any(|packet| {
                    if packet.client != client {
                        return listens && says(packet, &["notify"]);
                    }
                    for message in &packet.messages {
                        if let Some(text) = message.sql() {
                            let text = text.to_ascii_lowercase();
                            in_transaction = (in_transaction || begins(&text)) && !ends(&text);
                            listens |= text.contains("listen ") && !text.contains("unlisten ");
                        }
                        let is_over = matches!(message, Message::Sync | Message::Query(_)) && !in_transaction;
                        listens &= !is_over;
                    }
                    false
                })
            },
            shadows: own().any(|packet| says(packet, &["create temp table t as"])),
            unlistens_behind_notify: own().any(|packet| says(packet, &["notify"]))
                && last.iter().filter(|packet| packet.client == client).any(|packet| {
                    packet.messages.iter().filter_map(Message::sql).enumerate().any(|(at, text)| {
                        let text = text.to_ascii_lowercase();
                        let behind = at > 0 || text.contains(';');
                        behind && ["unlisten", "discard all"].iter().any(|words| text.contains(words))
                    })
                }),
            parses_execute: own_messages().any(
                |message| matches!(message, Message::Parse { text, .. } if text.to_ascii_lowercase().contains("execute ")),
            ),
            sets_transaction_behind: {
                let mut parsed = false;
                own_messages().any(|message| {
                    let sets = message.sql().map(str::to_ascii_lowercase).is_some_and(|text| {
                        ["set transaction", "isolation level"].iter().any(|words| text.contains(words))
                    });
                    let behind = parsed && sets;
                    // A Sync does not end a transaction that began with BEGIN.
                    parsed = match message {
                        Message::Query(_) => false,
                        Message::Parse { .. } => true,
                        _ => parsed,
                    };
                    behind
                })
            },
            goes_on: {
                let mut ended = false;
                own_messages().any(|message| match message {
                    Message::Parse { text, .. } => std::mem::replace(&mut ended, ends(text)),
                    Message::Query(text) => std::mem::take(&mut ended) || goes_on_inside(text),
                    Message::Sync => {
                        ended = false;
                        false
                    }
                    _ => false,
                })
            },
            has_placeholder: packets().any(|packet| says(packet, &["app.t", "enter"]))
                || session.setup.iter().any(|setup| setup.sql.contains("app.t"))
                || session.clients.iter().flat_map(|spec| &spec.parameters).any(|(_, value)| value.contains("app.t")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    /// Returns `c`, `r`, `e`, `k`, `p`, `m`, `l`, `i`, `g`, `s`, `u`, `t`, `w`, `h` for the facts that hold for client `a` in the last step.
    fn before(text: &str, open: bool) -> String {
        let session = parse(text).unwrap().session;
        let before = Before::of(&session, session.steps.len() - 1, 0, (open, false));
        let flags = [
            (before.changed_past, 'c'),
            (before.swapped_past, 'x'),
            (before.parses_nothing, 'n'),
            (before.resets_inside, 'r'),
            (before.reads_elsewhere, 'e'),
            (before.others_lock, 'k'),
            (before.has_placeholder, 'p'),
            (before.parses_execute, 'm'),
            (before.listens_behind_notify, 'l'),
            (before.listens_inside, 'i'),
            (before.goes_on, 'g'),
            (before.shadows, 's'),
            (before.unlistens_behind_notify, 'u'),
            (before.sets_transaction_behind, 't'),
            (before.others_write_before_sync, 'w'),
            (before.notified_before_listening, 'h'),
        ];
        flags.iter().filter(|(holds, _)| *holds).map(|(_, letter)| *letter).collect()
    }

    #[test]
    fn what_matters_is_seen() {
        const PLAIN: &str = "client a x y\nclient b x y past\n";
        const BEGINS: &str = "client a x y TimeZone=\"UTC\"\nclient b x y past\n";
        for (clients, steps, open, expected) in [
            (PLAIN, "a: Q \"select 1\"", true, ""),
            (PLAIN, "b: Q \"alter table t add COLUMN x int\"\na: S", false, "ck"),
            (PLAIN, "a: Q \"alter table t add column x int\"\na: S", false, ""),
            // Tables that are swapped keep their columns.
            (PLAIN, "b: Q \"alter table t rename to u; alter table v rename to t\"\na: S", false, "xk"),
            (PLAIN, "a: Q \"alter table t rename to u; alter table v rename to t\"\na: S", false, ""),
            (PLAIN, "a: P s \" \"\na: B '' s", false, "n"),
            (PLAIN, "b: P s \"\"\na: B '' s", false, ""),
            (PLAIN, "a: Q \"reset all\"", true, ""),
            (BEGINS, "a: Q \"reset all\"", false, ""),
            (BEGINS, "a: Q \"reset all\"", true, "r"),
            (BEGINS, "a: Q \"select 1; reset all\"", false, "r"),
            (BEGINS, "a: P '' \"reset all\" ; S ; P '' \"select 1\" ; S", false, "r"),
            (BEGINS, "b: Q \"reset all\"\na: S", true, ""),
            (PLAIN, "a: Q \"begin read only\"", true, "e"),
            (PLAIN, "b: Q \"set app.t = 'x'\"\na: S", false, "p"),
            (PLAIN, "a: P x \"EXECUTE s\"", false, "m"),
            (PLAIN, "a: Q \"execute s\"", false, ""),
            (PLAIN, "a: Q \"select pg_notify('c', '')\" ; Q \"listen c\"", false, "l"),
            (PLAIN, "a: Q \"listen c\" ; Q \"notify c\"", false, ""),
            (PLAIN, "a: Q \"begin; listen c\"\na: Q \"rollback\"", false, "i"),
            (PLAIN, "b: Q \"begin; listen c\"\na: S", false, ""),
            (PLAIN, "a: P '' \"listen c\" ; B '' '' ; E ''\nb: Q \"notify c\"\na: S", false, "h"),
            (PLAIN, "a: P '' \"listen c\" ; B '' '' ; E '' ; S\nb: Q \"notify c\"\na: S", false, ""),
            (PLAIN, "a: Q \"begin\" ; Q \"listen c\"\nb: Q \"notify c\"\na: Q \"commit\"", false, "h"),
            (PLAIN, "a: Q \"begin\" ; Q \"listen c\" ; Q \"commit\"\nb: Q \"notify c\"", false, ""),
            (PLAIN, "b: P '' \"listen c\" ; B '' '' ; E ''\na: Q \"notify c\"", false, ""),
            (PLAIN, "b: P s \"select 1\"\na: Q \"deallocate s\"", false, ""),
            (PLAIN, "a: P s \"COMMIT\" ; B '' s ; E ''\na: P s \"select 1\"", false, "g"),
            (PLAIN, "a: P s \"commit\" ; B '' s ; E '' ; S ; P s \"select 1\"", false, ""),
            (PLAIN, "a: P s \"commit\"\nb: P s \"select 1\"", false, ""),
            (PLAIN, "a: Q \"abort; insert into log values (4)\"", false, "g"),
            (PLAIN, "a: Q \"select 1; commit;\"", false, ""),
            (PLAIN, "a: Q \"create temp table t as select 1 as shadow\"\na: S", false, "s"),
            (PLAIN, "b: Q \"create temp table t as select 1 as shadow\"\na: S", false, "c"),
            (PLAIN, "a: Q \"notify c\" ; P '' \"unlisten *\"", false, "lu"),
            (PLAIN, "a: Q \"begin; notify c\"\na: Q \"commit\" ; Q \"DISCARD ALL\"", false, "u"),
            (PLAIN, "a: Q \"notify c\"\na: Q \"unlisten c\"", false, ""),
            (PLAIN, "b: Q \"notify c\" ; Q \"unlisten *\"\na: S", false, ""),
            (PLAIN, "a: P s \"select 1\"\na: P r \"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE\"", false, "t"),
            (PLAIN, "a: P s \"select 1\" ; S ; P r \"set transaction isolation level serializable\"", false, "t"),
            (
                PLAIN,
                "a: P s \"select 1\" ; S\na: Q \"begin\"\na: P r \"set transaction isolation level serializable\"",
                false,
                "",
            ),
            (PLAIN, "b: P s \"select 1\"\na: P r \"set transaction isolation level serializable\"", false, ""),
            (PLAIN, "a: P s \"select 1\" ; P r \"begin isolation level serializable\"", false, "t"),
            (PLAIN, "a: P '' \"select 1\" ; B '' '' ; E ''\nb: Q \"select n from noting\"", false, "w"),
            (PLAIN, "a: P '' \"select 1\" ; B '' '' ; E ''\nb: Q \"insert into log values (4)\"\na: S", false, "w"),
            (
                PLAIN,
                "a: P '' \"select 1\" ; B '' '' ; E ''\nb: Q \"insert into log values (4)\"\na: S\na: S",
                false,
                "",
            ),
            (PLAIN, "a: P '' \"select 1\" ; B '' '' ; E '' ; S\nb: Q \"insert into log values (4)\"\na: S", false, ""),
            (PLAIN, "a: P '' \"select 1\" ; B '' '' ; E ''\nb: Q \"select 1\"\na: S", false, ""),
            (
                "client a x y\nclient b x z\n",
                "a: P '' \"select 1\" ; B '' '' ; E ''\nb: Q \"insert into log values (4)\"\na: S",
                false,
                "",
            ),
            (PLAIN, "a: P '' \"select 1\" ; B '' '' ; E '' ; H\nb: Q \"insert into log values (4)\"\na: S", false, ""),
        ] {
            assert_eq!(before(&format!("{clients}{steps}"), open), expected, "{steps}");
        }
    }
}
