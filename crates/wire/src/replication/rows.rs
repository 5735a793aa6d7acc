//! The few rows in answers to replication commands.

use super::{position, read_position};
use crate::message::{self, Column};

const TEXT: u32 = 25;
const INT4: u32 = 23;
const INT8: u32 = 20;
const BYTEA: u32 = 17;

/// Answer to `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Identifier of the database system.
    pub system: u64,
    /// Timeline of the server.
    pub timeline: u32,
    /// End of the WAL that the server has flushed.
    pub position: u64,
}

/// End of a streamed timeline: the row after the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEnd {
    /// Number of the next timeline.
    pub next: u32,
    /// Position at which the next timeline starts.
    pub at: u64,
}

/// Columns of one `DataRow`, as text; `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows(pub Vec<Option<Vec<u8>>>);

impl Rows {
    /// Maximum number of accepted columns: more than any replication command returns.
    const MAX: usize = 32;

    /// Decodes the payload of a `DataRow`; None if it is malformed or has too many columns.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Rows> {
        let (count, mut rest) = payload.split_first_chunk::<2>()?;
        let count = usize::from(u16::from_be_bytes(*count));
        if count > Rows::MAX {
            return None;
        }
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            let (length, after) = rest.split_first_chunk::<4>()?;
            rest = after;
            columns.push(match i32::from_be_bytes(*length) {
                -1 => None,
                length => {
                    let (value, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                    rest = after;
                    Some(value.to_vec())
                }
            });
        }
        rest.is_empty().then_some(Rows(columns))
    }

    /// Returns column `n` as text; `None` if it is missing, NULL or not UTF-8.
    #[must_use]
    pub fn text(&self, n: usize) -> Option<&str> {
        std::str::from_utf8(self.0.get(n)?.as_deref()?).ok()
    }

    /// Decodes the row as the answer to `IDENTIFY_SYSTEM`.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        Some(Identity {
            system: self.text(0)?.parse().ok()?,
            timeline: self.text(1)?.parse().ok().filter(|timeline| *timeline > 0)?,
            position: read_position(self.text(2)?)?,
        })
    }

    /// Decodes the row as the end of a timeline.
    #[must_use]
    pub fn timeline_end(&self) -> Option<TimelineEnd> {
        Some(TimelineEnd { next: self.text(0)?.parse().ok()?, at: read_position(self.text(1)?)? })
    }
}

/// Returns the type and size of a timeline column: int8 since version 16, int4 before.
fn wide(version: u32) -> (u32, i16) {
    if version >= 16 { (INT8, 8) } else { (INT4, 4) }
}

/// Formats a position as a server of major version `version` does: since version 19 the second part has eight digits.
fn shown(version: u32, at: u64) -> String {
    if version >= 19 { format!("{:X}/{:08X}", at >> 32, at & 0xffff_ffff) } else { position(at) }
}

/// Appends the answer to `IDENTIFY_SYSTEM` of a server of major version `version`.
pub fn identity(out: &mut Vec<u8>, version: u32, identity: Identity) {
    let (timeline, size) = wide(version);
    message::row_description(
        out,
        &[
            Column { name: "systemid", kind: TEXT, size: -1 },
            Column { name: "timeline", kind: timeline, size },
            Column { name: "xlogpos", kind: TEXT, size: -1 },
            Column { name: "dbname", kind: TEXT, size: -1 },
        ],
    );
    message::data_row(
        out,
        &[
            Some(identity.system.to_string().as_bytes()),
            Some(identity.timeline.to_string().as_bytes()),
            Some(shown(version, identity.position).as_bytes()),
            None,
        ],
    );
}

/// Appends the answer to `TIMELINE_HISTORY n`: bytea up to 13, text since.
pub fn timeline_history(out: &mut Vec<u8>, version: u32, timeline: u32, content: &[u8]) {
    let kind = if version >= 14 { TEXT } else { BYTEA };
    message::row_description(
        out,
        &[Column { name: "filename", kind: TEXT, size: -1 }, Column { name: "content", kind, size: -1 }],
    );
    message::data_row(out, &[Some(format!("{timeline:08X}.history").as_bytes()), Some(content)]);
}

/// Appends the row that follows the end of a timeline.
pub fn timeline_end(out: &mut Vec<u8>, end: TimelineEnd) {
    message::row_description(
        out,
        &[Column { name: "next_tli", kind: INT8, size: 8 }, Column { name: "next_tli_startpos", kind: TEXT, size: -1 }],
    );
    message::data_row(out, &[Some(end.next.to_string().as_bytes()), Some(position(end.at).as_bytes())]);
}

/// Appends the answer to `CREATE_REPLICATION_SLOT`.
pub fn slot_created(out: &mut Vec<u8>, version: u32, name: &str) {
    let column = |name| Column { name, kind: TEXT, size: -1 };
    message::row_description(
        out,
        &[column("slot_name"), column("consistent_point"), column("snapshot_name"), column("output_plugin")],
    );
    message::data_row(out, &[Some(name.as_bytes()), Some(shown(version, 0).as_bytes()), None, None]);
}

/// Appends the answer to `READ_REPLICATION_SLOT`; `None` if the slot does not exist. The pair is the slot's restart position and its timeline.
pub fn slot_read(out: &mut Vec<u8>, version: u32, slot: Option<Option<(u64, u32)>>) {
    message::row_description(
        out,
        &[
            Column { name: "slot_type", kind: TEXT, size: -1 },
            Column { name: "restart_lsn", kind: TEXT, size: -1 },
            Column { name: "restart_tli", kind: INT8, size: 8 },
        ],
    );
    let restart = slot.flatten().map(|(at, timeline)| (shown(version, at), timeline.to_string()));
    let (at, timeline) = restart.unzip();
    let kind = slot.is_some().then_some(&b"physical"[..]);
    message::data_row(out, &[kind, at.as_ref().map(String::as_bytes), timeline.as_ref().map(String::as_bytes)]);
}
