//! Settings for `SHOW`: those that receivers and tools query. Any other name is unknown, as on a server.

use std::time::Duration;

use crate::log::Log;
use crate::shared::{Shared, major};
use crate::slots::MOST_SLOTS;

/// Returns a setting's name and value; None for an unknown name.
pub(super) fn shown(name: &str, shared: &Shared, log: &Log) -> Option<(&'static str, String)> {
    let greeting = shared.slots.greeting();
    let version = greeting.as_ref().map(|greeting| greeting.server_version.as_str()).unwrap_or_default();
    let on = |on: bool| (if on { "on" } else { "off" }).to_owned();
    let settings = || shared.settings();
    let known = NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(name))?;
    let value = match known {
        // Queried by pg_receivewal, pg_basebackup and relays.
        "wal_segment_size" => size(log.identity().segment_size.bytes()),
        "data_directory_mode" => greeting.as_ref().map(|g| g.data_directory_mode.clone()).unwrap_or_default(),
        // Queried by drivers, monitoring and barman.
        "server_version" => version.to_owned(),
        "server_version_num" => number(version).to_string(),
        "block_size" | "wal_block_size" => "8192".into(),
        "integer_datetimes" | "standard_conforming_strings" => on(true),
        "ssl" => on(settings().acceptor.is_some()),
        // Queried by libpq for target_session_attrs: values of a standby.
        "in_hot_standby" if major(version) < 14 => return None,
        "in_hot_standby" | "transaction_read_only" => on(true),
        "default_transaction_read_only" => on(false),
        // Queried by relays; nothing is committed here.
        "synchronous_commit" => on(true),
        "max_wal_senders" => settings().max_downstreams.to_string(),
        "max_replication_slots" => MOST_SLOTS.to_string(),
        "wal_sender_timeout" => time(settings().downstream_timeout),
        "kingpost.downstreams" => shared.downstreams().len().to_string(),
        "kingpost.upstream" => shared.upstream().state,
        _ => return None,
    };
    Some((known, value))
}

const NAMES: [&str; 18] = [
    "wal_segment_size",
    "data_directory_mode",
    "server_version",
    "server_version_num",
    "block_size",
    "wal_block_size",
    "integer_datetimes",
    "standard_conforming_strings",
    "ssl",
    "in_hot_standby",
    "transaction_read_only",
    "default_transaction_read_only",
    "synchronous_commit",
    "max_wal_senders",
    "max_replication_slots",
    "wal_sender_timeout",
    "kingpost.downstreams",
    "kingpost.upstream",
];

/// Formats a number of bytes as `SHOW` does.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{}GB", bytes >> 30) } else { format!("{}MB", bytes >> 20) }
}

/// Formats a time as `SHOW` does: a whole number of the largest unit.
fn time(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0".into(),
        None => format!("{millis}ms"),
    }
}

/// Returns the `server_version_num` of a `server_version`: `150018` for `15.18 (Debian …)`.
fn number(version: &str) -> u32 {
    let minor = version.split_once('.').map_or(0, |(_, minor)| major(minor));
    major(version) * 10_000 + minor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_servers_show_them() {
        for (bytes, text) in [(16 << 20, "16MB"), (1 << 30, "1GB"), (1 << 20, "1MB"), (512 << 20, "512MB")] {
            assert_eq!(size(bytes), text);
            assert_eq!(crate::upstream::parse_size(text), Some(bytes));
        }
        for (seconds, text) in
            [(0.0, "0"), (60.0, "1min"), (10.0, "10s"), (0.5, "500ms"), (90.0, "90s"), (7200.0, "2h")]
        {
            assert_eq!(time(Duration::from_secs_f64(seconds)), text);
        }
        for (version, expected) in
            [("15.18 (Debian 15.18-0+deb12u1)", 150_018), ("18.4", 180_004), ("18beta1", 180_000)]
        {
            assert_eq!(number(version), expected, "{version}");
        }
    }
}
