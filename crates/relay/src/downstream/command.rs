//! The commands of a replication connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use watermark::Lsn;
use wire::message::Status;
use wire::replication::{self, Command, CommandError, Identity, Order};
use wire::{Severity, Sqlstate, message};

use super::stream::Stream;
use super::{Connection, Gone, MAX_MESSAGE, shown, watch};
use crate::log::{Log, Serve, Timeline};
use crate::orders;
use crate::shared::{Shared, major};
use crate::slots::SlotError;

/// Longest silence between two commands. A standby that waits for WAL to replay is silent; it connects again.
const IDLE: Duration = Duration::from_secs(600);

/// Answers commands until the client leaves or the relay stops.
pub(super) async fn serve(connection: &mut Connection, shared: &Arc<Shared>) -> Result<(), Gone> {
    loop {
        let message = tokio::select! {
            message = timeout(IDLE, connection.message()) => message,
            () = shared.stopped() => {
                let text = "terminating connection due to administrator command";
                connection.fatal(Sqlstate::ADMIN_SHUTDOWN, text).await;
                return Err(Gone::Stopping);
            }
        };
        let Ok(message) = message else {
            let text = "terminating connection due to idle-session timeout";
            return Err(connection.fatal(Sqlstate::IDLE_SESSION_TIMEOUT, text).await);
        };
        let (tag, payload) = message?;
        match tag {
            b'Q' => {
                let text = payload.split(|&b| b == 0).next().unwrap_or_default();
                let command = std::str::from_utf8(text).map_err(|_| ()).map(Command::parse);
                run(connection, shared, command.unwrap_or(Err(CommandError::Sql))).await?;
            }
            b'X' => return Ok(()),
            // Messages that were under way when a copy ended.
            b'd' | b'c' | b'f' => {}
            _ => {
                let text = "extended query protocol not supported in a replication connection";
                return Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, text).await);
            }
        }
    }
}

/// An error response to the client.
pub(super) struct Refusal {
    code: Sqlstate,
    pub(super) text: String,
    detail: String,
    hint: &'static str,
}

impl Refusal {
    fn new(code: Sqlstate, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), detail: String::new(), hint: "" }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        message::error_with_detail(out, Severity::Error, self.code, &self.text, &self.detail, self.hint);
    }
}

impl From<SlotError> for Refusal {
    fn from(error: SlotError) -> Refusal {
        Refusal { hint: error.hint, ..Refusal::new(error.code, error.text) }
    }
}

async fn run(
    connection: &mut Connection,
    shared: &Arc<Shared>,
    command: Result<Command, CommandError>,
) -> Result<(), Gone> {
    let mut out = Vec::new();
    let result = match (command, shared.log()) {
        (Ok(Command::Operate(order)), _) => answer_order(&mut out, connection, shared, order).await,
        (Ok(Command::Promise), _) => {
            let columns = shared.recollection().columns();
            let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
            message::text_row(&mut out, &columns);
            message::complete(&mut out, "KINGPOST");
            Ok(())
        }
        (Ok(command), Some(log)) => replicate(&mut out, connection, shared, &log, command).await?,
        (Ok(_), None) => Err(Refusal::new(
            Sqlstate::CANNOT_CONNECT_NOW,
            "the relay has not reached its upstream yet: it holds nothing",
        )),
        (Err(error), _) => Err(Refusal { detail: error.detail(), ..Refusal::new(error.sqlstate(), error.to_string()) }),
    };
    if let Err(refusal) = result {
        out.clear();
        refusal.write(&mut out);
    }
    shared.slots.release(connection.id, false);
    message::ready(&mut out, Status::Idle);
    connection.send(&out).await
}

/// Answers the commands that servers have, too, and `WATCH_FLUSHED`.
async fn replicate(
    out: &mut Vec<u8>,
    connection: &mut Connection,
    shared: &Arc<Shared>,
    log: &Arc<Log>,
    command: Command,
) -> Result<Result<(), Refusal>, Gone> {
    Ok(match command {
        Command::Start { slot, at, timeline } => {
            match Stream::begin(connection, shared, log, slot, Lsn(at), timeline.map(Timeline)) {
                Ok(stream) => {
                    stream.run(connection).await?;
                    Ok(())
                }
                Err(refusal) => Err(refusal),
            }
        }
        Command::WatchFlushed => {
            watch::run(connection, shared, log).await?;
            Ok(())
        }
        Command::DropSlot { name, wait: true } => {
            wait_until_free(connection, shared, &name).await?;
            answer(out, connection.id, shared, log, Command::DropSlot { name, wait: false })
        }
        command => answer(out, connection.id, shared, log, command),
    })
}

/// Returns once no other connection uses a slot, or after [`IDLE`].
async fn wait_until_free(connection: &mut Connection, shared: &Shared, name: &str) -> Result<(), Gone> {
    /// Interval of the checks: no event reports the release of a slot.
    const LOOK: Duration = Duration::from_millis(100);
    let end = Instant::now() + IDLE;
    while shared.slots.is_used_by_another(name, connection.id) && Instant::now() < end {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            heard = connection.read() => {
                heard?;
                // Commands that arrive meanwhile are answered afterwards; a client that sends without end is refused.
                if connection.input.len() > MAX_MESSAGE {
                    return Err(Gone::Refused("more commands while DROP_REPLICATION_SLOT waits".into()));
                }
            }
            () = shared.stopped() => {
                let text = "terminating connection due to administrator command";
                connection.fatal(Sqlstate::ADMIN_SHUTDOWN, text).await;
                return Err(Gone::Stopping);
            }
        }
    }
    Ok(())
}

/// Carries out an operator's order, off the runtime: it waits for the disk.
async fn answer_order(
    out: &mut Vec<u8>,
    connection: &Connection,
    shared: &Arc<Shared>,
    order: Order,
) -> Result<(), Refusal> {
    let user = &connection.user;
    if !shared.settings().is_operator(user) {
        let text = format!("permission denied: {user:?} is no operator of this relay");
        let hint = "Set operator = true for it in [[relay.users]].";
        return Err(Refusal { hint, ..Refusal::new(Sqlstate(*b"42501"), text) });
    }
    let shared = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || orders::carry_out(&shared, &order)).await;
    let relay_state = match done {
        Ok(Ok(relay_state)) => relay_state,
        Ok(Err(error)) => return Err(Refusal::new(Sqlstate(*b"55000"), error.to_string())),
        Err(_) => return Err(Refusal::new(Sqlstate::INTERNAL_ERROR, "the order panicked")),
    };
    let columns = relay_state.columns();
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    message::text_row(out, &columns);
    message::complete(out, "KINGPOST");
    Ok(())
}

/// Answers all commands but orders and those that begin a copy.
fn answer(out: &mut Vec<u8>, id: u32, shared: &Shared, log: &Arc<Log>, command: Command) -> Result<(), Refusal> {
    let greeting = shared.slots.greeting();
    let version = greeting.as_ref().map(|greeting| greeting.server_version.as_str()).unwrap_or_default();
    let tag = match command {
        Command::IdentifySystem => {
            let identity = Identity {
                system: log.identity().system_id,
                timeline: log.tail().timeline.0,
                position: served(shared, log).0,
            };
            replication::identity(out, major(version), identity);
            "IDENTIFY_SYSTEM"
        }
        Command::Show(name) => {
            let Some((name, value)) = shown::shown(&name, shared, log) else {
                let text = format!("unrecognized configuration parameter \"{name}\"");
                return Err(Refusal::new(Sqlstate::UNDEFINED_OBJECT, text));
            };
            message::text_row(out, &[(name, &value)]);
            "SHOW"
        }
        Command::TimelineHistory(timeline) => {
            let Some(content) = log.history(Timeline(timeline)) else {
                let text = format!("could not open file \"pg_wal/{timeline:08X}.history\": No such file or directory");
                return Err(Refusal::new(Sqlstate::UNDEFINED_FILE, text));
            };
            replication::timeline_history(out, major(version), timeline, &content);
            "TIMELINE_HISTORY"
        }
        Command::CreateSlot { name, temporary, reserve } => {
            let restart = reserve.then(|| (served(shared, log), log.tail().timeline.0));
            shared.slots.create(&name, temporary, restart, id)?;
            replication::slot_created(out, major(version), &name);
            "CREATE_REPLICATION_SLOT"
        }
        Command::ReadSlot(name) => {
            let slot = shared.slots.restart(&name);
            let slot = slot.map(|restart| restart.map(|(at, timeline)| (at.0, timeline)));
            replication::slot_read(out, major(version), slot);
            "READ_REPLICATION_SLOT"
        }
        Command::DropSlot { name, wait: _ } => {
            shared.slots.drop_slot(&name, id)?;
            "DROP_REPLICATION_SLOT"
        }
        Command::Other("BASE_BACKUP") => {
            let refusal =
                Refusal::new(Sqlstate::FEATURE_NOT_SUPPORTED, "a relay holds write-ahead log and no data to back up");
            return Err(Refusal {
                hint: "Take the base backup from the primary or a standby, and let the new standby stream from here.",
                ..refusal
            });
        }
        Command::Other("LOGICAL") => {
            let text = "logical replication is not available from a relay: it needs a server's catalogs";
            return Err(Refusal::new(Sqlstate::FEATURE_NOT_SUPPORTED, text));
        }
        Command::Other("ALTER_REPLICATION_SLOT") => {
            let text = "cannot use ALTER_REPLICATION_SLOT with a physical replication slot";
            return Err(Refusal::new(Sqlstate::FEATURE_NOT_SUPPORTED, text));
        }
        Command::Other(command) => {
            return Err(Refusal::new(
                Sqlstate::FEATURE_NOT_SUPPORTED,
                format!("{command} is not available from a relay"),
            ));
        }
        // Handled by the caller.
        Command::Start { .. } | Command::Operate(_) | Command::Promise | Command::WatchFlushed => {
            return Err(Refusal::new(Sqlstate::INTERNAL_ERROR, "not a simple command"));
        }
    };
    message::complete(out, tag);
    Ok(())
}

/// Returns the end of the WAL that this relay serves.
pub(super) fn served(shared: &Shared, log: &Log) -> Lsn {
    let tail = log.tail();
    match shared.settings().serve {
        Serve::Flushed => tail.flushed.get(),
        Serve::Written => tail.written.get(),
    }
}

impl From<crate::log::ReadError> for Refusal {
    fn from(error: crate::log::ReadError) -> Refusal {
        let code = error.sqlstate().as_bytes().try_into().map_or(Sqlstate::INTERNAL_ERROR, Sqlstate);
        Refusal { code, text: error.to_string(), detail: error.detail().unwrap_or_default(), hint: "" }
    }
}
