//! State of a stopped server, from pg_controldata and the files of its data directory. Pure.

use watermark::Lsn;

/// State of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnDisk {
    /// System identifier.
    pub(crate) system: u64,
    /// True if the server would start in recovery.
    pub(crate) standby: bool,
    /// Highest timeline that the server has been on.
    pub(crate) timeline: u32,
    /// True if the server was stopped with a checkpoint.
    pub(crate) clean: bool,
    /// Position of the latest checkpoint.
    pub(crate) checkpoint: Lsn,
    /// Bytes in a WAL segment.
    pub(crate) segment: u64,
}

/// Parses pg_controldata's output. `histories` is the highest timeline with a history file: a primary that died right after its promotion may lack
/// its first checkpoint, but has the file.
pub(crate) fn parse(text: &str, standby: bool, histories: u32) -> Option<OnDisk> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    let checkpoint: u32 = field("Latest checkpoint's TimeLineID")?.parse().ok()?;
    let recovery: u32 = field("Min recovery ending loc's timeline")?.parse().ok()?;
    Some(OnDisk {
        system: field("Database system identifier")?.parse().ok()?,
        standby,
        timeline: checkpoint.max(recovery).max(if standby { 0 } else { histories }),
        clean: field("Database cluster state")? == "shut down",
        checkpoint: lsn(field("Latest checkpoint location")?)?,
        segment: field("Bytes per WAL segment")?.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two())?,
    })
}

/// Parses an LSN such as `16/B374D848`.
fn lsn(text: &str) -> Option<Lsn> {
    let (high, low) = text.split_once('/')?;
    Some(Lsn(u64::from(u32::from_str_radix(high, 16).ok()?) << 32 | u64::from(u32::from_str_radix(low, 16).ok()?)))
}

/// Reads the timeline from the name of a history file such as `00000002.history`.
pub(crate) fn history_timeline(name: &str) -> Option<u32> {
    u32::from_str_radix(name.strip_suffix(".history").filter(|hex| hex.len() == 8)?, 16).ok()
}

/// Returns the position at which the history of a newer timeline leaves `timeline`, from the newer one's history file.
pub(crate) fn fork(history: &str, timeline: u32) -> Option<Lsn> {
    history.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.next()?.parse() == Ok(timeline)).then(|| lsn(fields.next()?))?
    })
}

/// True if a file in pg_wal is a segment of an older timeline that also has what this server alone wrote: the one of the fork, or a later one.
pub(crate) fn is_left_segment(name: &str, leader: u32, fork: Lsn, segment: u64) -> bool {
    let hex = |range| u32::from_str_radix(name.get(range).unwrap_or_default(), 16).ok();
    let (24, Some(timeline), Some(high), Some(low)) = (name.len(), hex(0..8), hex(8..16), hex(16..24)) else {
        return false;
    };
    let per_file = (1_u64 << 32) / segment;
    timeline < leader && u64::from(high) * per_file + u64::from(low) >= fork.0 / segment
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
pg_control version number:            1300
Database system identifier:           7321
Database cluster state:               shut down
Latest checkpoint location:           0/3000028
Latest checkpoint's TimeLineID:       2
Min recovery ending loc's timeline:   0
Bytes per WAL segment:                16777216
";

    #[test]
    fn control_data() {
        let primary = OnDisk {
            system: 7321,
            standby: false,
            timeline: 2,
            clean: true,
            checkpoint: Lsn(0x300_0028),
            segment: 16 << 20,
        };
        assert_eq!(parse(TEXT, false, 1), Some(primary.clone()));
        assert_eq!(
            parse(TEXT, false, 3).map(|disk| disk.timeline),
            Some(3),
            "promoted, and killed before its checkpoint"
        );
        assert_eq!(parse(TEXT, true, 3).map(|disk| disk.timeline), Some(2), "a standby has histories of others");
        let killed = TEXT.replace("shut down", "in production");
        assert_eq!(parse(&killed, false, 0), Some(OnDisk { clean: false, ..primary }));
        assert_eq!(parse("", false, 0), None);
    }

    #[test]
    fn forks() {
        let history = "1\t0/3000000\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01\n";
        assert_eq!(fork(history, 1), Some(Lsn(0x300_0000)));
        assert_eq!(fork(history, 2), Some(Lsn(0x1_0000_00a0)));
        assert_eq!(fork(history, 3), None);
    }

    #[test]
    fn segments_that_are_left() {
        let fork = Lsn(0x1_0500_0000);
        for (name, expected) in [
            ("000000010000000100000005", true),
            ("000000010000000100000006", true),
            ("000000010000000200000000", true),
            ("000000010000000100000004", false),
            ("000000020000000100000005", false),
            ("00000002.history", false),
            ("000000010000000100000005.partial", false),
        ] {
            assert_eq!(is_left_segment(name, 2, fork, 16 << 20), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}", timeline: u32) {
            let _ = (parse(&text, false, 0), fork(&text, timeline), history_timeline(&text));
            let _ = is_left_segment(&text, timeline, Lsn(7), 16 << 20);
        }
    }
}
