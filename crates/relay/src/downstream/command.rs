//! The commands of a replication connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use watermark::Lsn;
use wire::message::Status;
use wire::replication::{self, Command, CommandError, Identity, Order};
use wire::{Severity, Sqlstate, message};

use super::stream::Stream;
use super::{Connection, Gone, watch};
use crate::log::{Log, Serve, Timeline};
use crate::orders;
use crate::shared::{Shared, major};
use crate::slots::SlotError;

/// Longest silence between two commands. A standby that waits for something to replay is silent; it connects again.
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
            // What was on its way when a copy ended.
            b'd' | b'c' | b'f' => {}
            _ => {
                let text = "extended query protocol not supported in a replication connection";
                return Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, text).await);
            }
        }
    }
}

/// An error as the client gets it.
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
        Refusal::new(error.code, error.text)
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
        (Err(error @ CommandError::Sql), _) => Err(Refusal::new(Sqlstate::FEATURE_NOT_SUPPORTED, error.to_string())),
        (Err(error), _) => Err(Refusal::new(Sqlstate::SYNTAX_ERROR, error.to_string())),
    };
    if let Err(refusal) = result {
        out.clear();
        refusal.write(&mut out);
    }
    shared.slots.release(connection.id, false);
    message::ready(&mut out, Status::Idle);
    connection.send(&out).await
}

/// What a server could be asked as well, and `WATCH_FLUSHED`.
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
        command => answer(out, connection.id, shared, log, command),
    })
}

/// What an operator wants, off the runtime: it waits for the disk.
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
    let standing = match done {
        Ok(Ok(standing)) => standing,
        Ok(Err(error)) => return Err(Refusal::new(Sqlstate(*b"55000"), error.to_string())),
        Err(_) => return Err(Refusal::new(Sqlstate::INTERNAL_ERROR, "the order panicked")),
    };
    let columns = standing.columns();
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    message::text_row(out, &columns);
    message::complete(out, "KINGPOST");
    Ok(())
}

/// All commands but orders and those that begin a copy.
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
            let value = match name.as_str() {
                "wal_segment_size" => size(log.identity().segment_size.bytes()),
                "data_directory_mode" => greeting.map(|greeting| greeting.data_directory_mode).unwrap_or_default(),
                "server_version" => version.to_owned(),
                // What a relay that follows this one asks; nothing is committed here.
                "synchronous_commit" => "on".into(),
                "kingpost.downstreams" => shared.downstreams().len().to_string(),
                "kingpost.upstream" => shared.upstream().state,
                _ => {
                    let text = format!("unrecognized configuration parameter \"{name}\"");
                    return Err(Refusal::new(Sqlstate::UNDEFINED_OBJECT, text));
                }
            };
            message::text_row(out, &[(&name, &value)]);
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
            replication::slot_created(out, &name);
            "CREATE_REPLICATION_SLOT"
        }
        Command::ReadSlot(name) => {
            let slot = shared.slots.restart(&name);
            replication::slot_read(out, slot.map(|restart| restart.map(|(at, timeline)| (at.0, timeline))));
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
        Command::Other(command) => {
            return Err(Refusal::new(
                Sqlstate::FEATURE_NOT_SUPPORTED,
                format!("{command} is not available from a relay"),
            ));
        }
        // Dealt with by the caller.
        Command::Start { .. } | Command::Operate(_) | Command::Promise | Command::WatchFlushed => {
            return Err(Refusal::new(Sqlstate::INTERNAL_ERROR, "not a simple command"));
        }
    };
    message::complete(out, tag);
    Ok(())
}

/// Up to where this relay serves.
pub(super) fn served(shared: &Shared, log: &Log) -> Lsn {
    let tail = log.tail();
    match shared.settings().serve {
        Serve::Flushed => tail.flushed.get(),
        Serve::Written => tail.written.get(),
    }
}

/// As `SHOW` writes a number of bytes.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{}GB", bytes >> 30) } else { format!("{}MB", bytes >> 20) }
}

impl From<crate::log::ReadError> for Refusal {
    fn from(error: crate::log::ReadError) -> Refusal {
        let code = error.sqlstate().as_bytes().try_into().map_or(Sqlstate::INTERNAL_ERROR, Sqlstate);
        Refusal { code, text: error.to_string(), detail: error.detail().unwrap_or_default(), hint: "" }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_as_show_writes_them() {
        for (bytes, text) in [(16 << 20, "16MB"), (1 << 30, "1GB"), (1 << 20, "1MB"), (512 << 20, "512MB")] {
            assert_eq!(super::size(bytes), text);
            assert_eq!(crate::upstream::parse_size(text), Some(bytes));
        }
    }
}
