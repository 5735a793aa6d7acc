//! The overlap that an upstream sends again to prove the same history.

use super::super::{Link, Retention};
use super::*;

fn from(writer: &Writer) -> u64 {
    let (timeline, from) = writer.overlap();
    assert_eq!(timeline, writer.position().0);
    (from.0 - BEGIN.0) / MB
}

#[test]
fn it_reaches_back_to_a_record_with_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    assert_eq!(from(&writer), 0, "nothing is held");
    assert!(writer.link().is_none());
    let mut wal = wal([100, 200]);
    wal.switch();
    let switch = wal.records.last().unwrap().0;
    feed(&mut writer, &wal, wal.at());
    assert_eq!(writer.resume().1, Lsn(BEGIN.0 + MB), "exactly at a segment's end");
    assert_eq!(from(&writer), 0);
    let mut link = writer.link().unwrap();
    // Retention removes none of the segments that the proof needs.
    writer.flush().unwrap();
    log.retain(&Retention::default()).unwrap();
    assert_eq!(from(&writer), 0);

    wal.undated(50);
    let next = wal.range(Lsn(BEGIN.0 + MB), wal.at());
    assert!(link.take(&next[..63]).is_none());
    assert_eq!(link.take(&next[63..]), Some((next.to_vec(), true)));
    assert_eq!(link.at(), Lsn(BEGIN.0 + MB));
    assert_eq!(Link::new(link.at(), Lsn(switch.0 - 8)).take(next).map(|(_, follows)| follows), Some(false));
    // The rest of a record that is not held.
    let mut rest = next.to_vec();
    rest[2] |= 1;
    assert_eq!(Link::new(link.at(), switch).take(&rest).map(|(_, follows)| follows), Some(false));

    feed(&mut writer, &wal, wal.at());
    assert_eq!((from(&writer), writer.resume().1), (0, Lsn(BEGIN.0 + MB)), "no record with a time is there");
    assert!(writer.link().is_none(), "there is something to compare");
    wal.record(50);
    feed(&mut writer, &wal, wal.at());
    assert_eq!(from(&writer), 1);
    // As after a restart.
    drop(writer);
    let (writer, _) = open(dir.path()).unwrap();
    assert_eq!(from(&writer), 1);
}

#[test]
fn it_has_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    let mut wal = wal([100]);
    while wal.at().0 < BEGIN.0 + 70 * MB {
        wal.undated(MB as usize);
    }
    feed(&mut writer, &wal, wal.at());
    let resume = (writer.resume().1.0 - BEGIN.0) / MB;
    assert_eq!(from(&writer), resume - 64);
}

#[test]
fn it_does_not_leave_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    let mut wal = wal([100]);
    wal.switch();
    feed(&mut writer, &wal, wal.at());
    let at = wal.at();
    writer.switch_timeline(Timeline(2), at, format!("1\t{at}\tx\n").as_bytes()).unwrap();
    assert_eq!(from(&writer), 1, "the upstream has no earlier file of this timeline");
}
