//! State of a stopped server, from pg_controldata and the files of its data directory. Pure.

use process::postgresql::ControlData;
use relay::log::{History, Segment, SegmentSize, Timeline};
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

/// Returns the state of a data directory; None if pg_controldata is not understood.
pub(crate) fn on_disk(control: &ControlData) -> Option<OnDisk> {
    Some(OnDisk {
        system: control.system()?,
        standby: control.is_standby(),
        timeline: control.timeline()?,
        clean: control.field("Database cluster state")? == "shut down",
        checkpoint: control.field("Latest checkpoint location")?.parse().ok()?,
        segment: control.field("Bytes per WAL segment")?.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two())?,
    })
}

/// Returns the position at which the history of the timeline `leader` leaves `timeline`, from the leader's history file.
pub(crate) fn fork(history: &str, leader: u32, timeline: u32) -> Option<Lsn> {
    let history = History::parse(Timeline(leader), history.as_bytes()).ok()?;
    history.left(Timeline(timeline)).map(|(at, _)| at)
}

/// True if a file in pg_wal is a segment of an older timeline that also has what this server alone wrote: the one of the fork, or a later one.
pub(crate) fn is_left_segment(name: &str, leader: u32, fork: Lsn, segment: u64) -> bool {
    let Ok(size) = SegmentSize::new(segment) else { return false };
    let segment = Segment::of_name(name, size);
    segment.is_some_and(|segment| segment.timeline < Timeline(leader) && segment.number >= size.number(fork))
}

#[cfg(test)]
mod tests {
    use process::postgresql::history_timeline;
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

    fn parse(text: &str, standby: bool, histories: u32) -> Option<OnDisk> {
        on_disk(&ControlData::new(text.into(), standby, histories))
    }

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
        assert_eq!(fork(history, 3, 1), Some(Lsn(0x300_0000)));
        assert_eq!(fork(history, 3, 2), Some(Lsn(0x1_0000_00a0)));
        assert_eq!(fork(history, 3, 3), None);
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
            let _ = (parse(&text, false, 0), fork(&text, timeline, 1), history_timeline(&text));
            let _ = is_left_segment(&text, timeline, Lsn(7), 16 << 20);
        }
    }
}
