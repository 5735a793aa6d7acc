//! The moment of a restore, and the choice of the timeline and the backup for it. Pure.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use watermark::Lsn;
use wire::replication::{position, read_position};

use crate::record::{Point, Record};
use crate::timelines::Timelines;

/// Longest name of a restore point, in bytes.
const MAX_NAME: usize = 63;

/// The moment to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The end of the archived WAL.
    Latest,
    /// A time, in microseconds since 1970; true if the text named its zone.
    Time(i64, bool),
    /// A position.
    Lsn(Lsn),
    /// A restore point.
    Name(String),
}

impl Target {
    /// Parses the text of `--at`. A time without a zone is read in UTC.
    ///
    /// # Errors
    /// Neither a time, a position, nor a name.
    pub fn parse(text: &str) -> Result<Target, String> {
        if text == "latest" {
            return Ok(Target::Latest);
        }
        if let Some(at) = read_position(text) {
            return Ok(Target::Lsn(Lsn(at)));
        }
        let begins = text.as_bytes();
        let like_time = begins.len() >= 10 && begins[4] == b'-' && begins[..4].iter().all(u8::is_ascii_digit);
        if like_time {
            let time = read_time(text).ok_or("expected a time as 2026-11-28 16:44:37+01, with Z, +HH or +HH:MM")?;
            return Ok(Target::Time(time.0, time.1));
        }
        if text.is_empty() || text.len() > MAX_NAME || text.contains(|c: char| c.is_control()) {
            return Err(format!("a restore point has a name of 1 to {MAX_NAME} bytes"));
        }
        Ok(Target::Name(text.into()))
    }
}

/// Parses a time; returns microseconds since 1970, and true if it has a zone.
fn read_time(text: &str) -> Option<(i64, bool)> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, offset) = match rest.find(['+', '-', 'Z', 'U']) {
        None => (rest, None),
        Some(at) => (&rest[..at], Some(read_offset(rest[at..].trim())?)),
    };
    let mut clock = clock.trim_start_matches(['T', ' ']).trim_end().to_owned();
    if clock.len() == 5 {
        clock.push_str(":00");
    }
    let time = humantime::parse_rfc3339_weak(&format!("{date}T{clock}Z")).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    let micros = i64::try_from(since.as_micros()).ok()?;
    Some((micros.checked_sub(offset.unwrap_or(0).checked_mul(60_000_000)?)?, offset.is_some()))
}

/// Parses `Z`, `UTC`, `+01`, `+0130` or `+01:30`, to minutes.
fn read_offset(text: &str) -> Option<i64> {
    if text == "Z" || text == "UTC" {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let hours: i64 = digits[..2].parse().ok()?;
    let minutes: i64 = if digits.len() == 4 { digits[2..].parse().ok()? } else { 0 };
    (hours <= 15 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Formats a time, in microseconds since 1970, in UTC.
pub(crate) fn show_time(micros: i64) -> String {
    let since = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
    let text = humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + since).to_string();
    text.replace('T', " ").replace('Z', "+00")
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Latest => f.write_str("the end of the archived WAL"),
            Target::Time(micros, true) => f.write_str(&show_time(*micros)),
            Target::Time(micros, false) => write!(f, "{} (read in UTC: it has no zone)", show_time(*micros)),
            Target::Lsn(lsn) => write!(f, "position {}", position(lsn.0)),
            Target::Name(name) => write!(f, "restore point {name:?}"),
        }
    }
}

/// WAL that is not on the way to the newest timeline: a timeline of its own, or the end of one that was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) timeline: u32,
    /// Position at which it leaves the way to the newest timeline.
    pub(crate) from: Lsn,
    /// End of its WAL.
    pub(crate) to: Lsn,
    /// Time of the last commit before `from`; None if it is not known.
    pub(crate) after: Option<i64>,
    /// Time of its last commit; None without a commit.
    pub(crate) until: Option<i64>,
    /// Restore points behind `from`, in the order of the WAL.
    pub(crate) points: Vec<(String, Lsn)>,
}

impl Side {
    fn holds(&self, target: &Target) -> bool {
        match target {
            Target::Latest => false,
            Target::Lsn(at) => self.from < *at && *at <= self.to,
            Target::Time(at, _) => {
                self.until.is_some_and(|until| *at <= until) && self.after.is_none_or(|after| after < *at)
            }
            Target::Name(name) => self.point(name).is_some(),
        }
    }

    /// Returns the position of the first restore point of this name.
    pub(crate) fn point(&self, name: &str) -> Option<Lsn> {
        self.points.iter().find(|(of, _)| of == name).map(|(_, at)| *at)
    }
}

/// Position of the restore point that a restore names, on the way that is taken unless the user says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointFound {
    /// The moment is no restore point.
    NotAsked,
    /// The way has no such restore point behind a backup.
    Nowhere,
    At(Lsn),
}

/// Chooses one of the places of a restore point, in the order of the WAL, behind one backup. A server stops at the first one that it meets, so a
/// second one is the user's choice. `given`: the user named the backup.
pub(crate) fn one_point(name: &str, places: &[Lsn], given: bool) -> Result<PointFound, ChoiceError> {
    match places {
        [] => Ok(PointFound::Nowhere),
        [at, ..] if given || places.len() == 1 => Ok(PointFound::At(*at)),
        _ => {
            let places: Vec<String> = places.iter().map(|at| position(at.0)).collect();
            Err(ChoiceError::Twice { name: name.into(), places: places.join(" and ") })
        }
    }
}

/// No restore is possible, or the choice is the user's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChoiceError {
    #[error("the archive has no WAL: no timeline is there")]
    Empty,
    #[error("the archive has nothing of timeline {0}")]
    NoTimeline(u32),
    #[error("{target} is on {on_newest}{sides}, which the way to timeline {newest} leaves: choose one with --timeline")]
    Several { target: String, on_newest: String, newest: u32, sides: String },
    #[error(
        "{target} is not in the archived WAL behind any backup{on}: names are case-sensitive, and pg_waldump shows those of a segment"
    )]
    NoPoint { target: String, on: String },
    #[error("restore point {name:?} is at {places}: give one of these positions as the moment")]
    Twice { name: String, places: String },
    #[error("the archive has no backup that ended before {target} on the way to timeline {timeline}{oldest}")]
    NoBackup { target: String, timeline: u32, oldest: String },
    #[error("the archive has no backup {0:?}: `kingpost backup list` shows them")]
    NoSuchBackup(String),
    #[error("the backup {id} ended at {end}, which is not before {target} on the way to timeline {timeline}")]
    Unfit { id: String, end: String, target: String, timeline: u32 },
}

/// Returns the timeline that a restore goes along unless WAL beside it holds the moment: that of the user, else the newest.
pub(crate) fn main_way(timelines: &Timelines, given: Option<u32>) -> Result<u32, ChoiceError> {
    match given {
        Some(given) if timelines.has(given) => Ok(given),
        Some(given) => Err(ChoiceError::NoTimeline(given)),
        None => timelines.newest().ok_or(ChoiceError::Empty),
    }
}

/// Chooses the timeline to restore along: that of the user; else the newest, unless WAL beside it holds the moment as well. A restore point that is
/// on one branch only decides for that branch. `point`: the restore point on the way of [`main_way`]. Returns the point on the chosen way, too.
pub(crate) fn timeline(
    timelines: &Timelines,
    sides: &[Side],
    target: &Target,
    point: PointFound,
    given: Option<u32>,
) -> Result<(u32, PointFound), ChoiceError> {
    let newest = main_way(timelines, given)?;
    let holders: Vec<&Side> = sides.iter().filter(|side| given.is_none() && side.holds(target)).collect();
    match (point, holders.as_slice(), target) {
        (PointFound::Nowhere, [], _) => {
            let on = given.map(|given| format!(" on the way to timeline {given}")).unwrap_or_default();
            return Err(ChoiceError::NoPoint { target: target.to_string(), on });
        }
        (PointFound::Nowhere, [side], Target::Name(name)) => {
            return Ok((side.timeline, side.point(name).map_or(PointFound::Nowhere, PointFound::At)));
        }
        (_, [], _) => return Ok((newest, point)),
        _ => {}
    }
    let on_newest = if point == PointFound::Nowhere { String::new() } else { format!("timeline {newest}, and on ") };
    let sides: Vec<String> = holders
        .iter()
        .map(|side| {
            let until =
                side.until.map(|until| format!(", with commits until {}", show_time(until))).unwrap_or_default();
            format!("timeline {} up to {}{until}", side.timeline, side.to)
        })
        .collect();
    Err(ChoiceError::Several { target: target.to_string(), on_newest, newest, sides: sides.join(", ") })
}

/// Chooses the backup: the newest on the way to `timeline` that ended before the moment, or the one of this name. `point`: the restore point that is
/// the moment.
pub(crate) fn backup<'a>(
    records: &'a [Record],
    timelines: &Timelines,
    target: &Target,
    point: PointFound,
    timeline: u32,
    given: Option<&str>,
) -> Result<&'a Record, ChoiceError> {
    let fits = |record: &&Record| {
        let Point { lsn, timeline: on } = record.end;
        let before = match target {
            Target::Latest => true,
            Target::Name(_) => !matches!(point, PointFound::At(at) if at < lsn),
            Target::Lsn(at) => lsn <= *at,
            Target::Time(at, _) => record.ended_micros <= *at,
        };
        before && timelines.passes(timeline, on, lsn)
    };
    let shown = target.to_string();
    if let Some(given) = given {
        let record = records.iter().find(|record| record.id == given);
        let record = record.ok_or_else(|| ChoiceError::NoSuchBackup(given.into()))?;
        // The server itself refuses a time that is too early for it.
        let early =
            matches!(target, Target::Time(..)) && timelines.passes(timeline, record.end.timeline, record.end.lsn);
        if early || fits(&record) {
            return Ok(record);
        }
        let (id, end) = (record.id.clone(), record.end.to_string());
        return Err(ChoiceError::Unfit { id, end, target: shown, timeline });
    }
    records.iter().filter(fits).max_by_key(|record| (record.end.lsn, record.ended)).ok_or_else(|| {
        let on_way = records.iter().filter(|record| timelines.passes(timeline, record.end.timeline, record.end.lsn));
        let oldest = on_way.min_by_key(|record| record.end.lsn).map(|record| {
            let ended = show_time(record.ended_micros);
            format!("; the oldest, {}, ended at {} ({ended})", record.id, record.end)
        });
        ChoiceError::NoBackup { target: shown, timeline, oldest: oldest.unwrap_or_default() }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use archive::BackupId;
    use proptest::prelude::*;

    use super::PointFound::{At, NotAsked, Nowhere};
    use super::*;

    #[test]
    fn moments() {
        let time = |seconds: i64, zone| Ok(Target::Time(seconds * 1_000_000, zone));
        for (text, expected) in [
            ("latest", Ok(Target::Latest)),
            ("0/5000028", Ok(Target::Lsn(Lsn(0x500_0028)))),
            ("2026-11-28T16:44:37Z", time(1_795_884_277, true)),
            ("2026-11-28 16:44:37 UTC", time(1_795_884_277, true)),
            ("2026-11-28 17:44:37+01", time(1_795_884_277, true)),
            ("2026-11-28 11:14:37 -05:30", time(1_795_884_277, true)),
            ("2026-11-28 16:44:37", time(1_795_884_277, false)),
            ("2026-11-28 16:44", time(1_795_884_240, false)),
            ("2026-11-28 16:44:37.5+0000", Ok(Target::Time(1_795_884_277_500_000, true))),
            ("before-the-release", Ok(Target::Name("before-the-release".into()))),
        ] {
            assert_eq!(Target::parse(text), expected, "{text}");
        }
        for text in ["2026-11-28", "2026-11-28 25:00:00", "2026-11-28 16:44:37+1", "2026-11-28 16:44 CET", "", "a\nb"] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
        assert_eq!(show_time(1_795_884_277_500_000), "2026-11-28 16:44:37.500000+00");
    }

    fn tree() -> Timelines {
        let mut timelines = Timelines::default();
        timelines.add(1);
        timelines.add_history(2, b"1 0/400 x").unwrap();
        timelines
    }

    /// The end of timeline 1 behind the promotion: commits of seconds 50 to 60, where the last before it was at 40.
    fn tail() -> Side {
        Side {
            timeline: 1,
            from: Lsn(0x400),
            to: Lsn(0x600),
            after: Some(40),
            until: Some(60),
            points: vec![("there".into(), Lsn(0x480)), ("both".into(), Lsn(0x500)), ("both".into(), Lsn(0x580))],
        }
    }

    #[test]
    fn the_branch_on_which_the_moment_lies() {
        for (target, given, expected) in [
            (Target::Latest, None, Some(2)),
            (Target::Lsn(Lsn(0x300)), None, Some(2)),
            (Target::Lsn(Lsn(0x400)), None, Some(2)),
            (Target::Lsn(Lsn(0x500)), None, None),
            (Target::Lsn(Lsn(0x500)), Some(1), Some(1)),
            (Target::Lsn(Lsn(0x500)), Some(2), Some(2)),
            (Target::Lsn(Lsn(0x700)), None, Some(2)),
            (Target::Time(40, true), None, Some(2)),
            (Target::Time(41, true), None, None),
            (Target::Time(60, true), None, None),
            (Target::Time(61, true), None, Some(2)),
            (Target::Latest, Some(3), None),
        ] {
            let chosen = timeline(&tree(), &[tail()], &target, NotAsked, given);
            assert_eq!(chosen.ok(), expected.map(|timeline| (timeline, NotAsked)), "{target} {given:?}");
        }
        let error = timeline(&tree(), &[tail()], &Target::Lsn(Lsn(0x500)), NotAsked, None).unwrap_err().to_string();
        assert!(error.contains("is on timeline 2, and on timeline 1 up to 0/600"), "{error}");
        assert!(error.contains("choose one with --timeline"), "{error}");
        assert_eq!(timeline(&Timelines::default(), &[], &Target::Latest, NotAsked, None), Err(ChoiceError::Empty));
    }

    #[test]
    fn the_branch_of_a_restore_point() {
        let at = |lsn| At(Lsn(lsn));
        for (name, point, given, expected) in [
            ("here", at(0x300), None, Some((2, at(0x300)))),
            ("there", Nowhere, None, Some((1, at(0x480)))),
            ("both", at(0x300), None, None),
            ("both", at(0x300), Some(2), Some((2, at(0x300)))),
            ("nowhere", Nowhere, None, None),
            // The way to the user's timeline is the one that was searched.
            ("there", Nowhere, Some(2), None),
            ("there", at(0x480), Some(1), Some((1, at(0x480)))),
        ] {
            let chosen = timeline(&tree(), &[tail()], &Target::Name(name.into()), point, given);
            assert_eq!(chosen.ok(), expected, "{name} {given:?}");
        }
        let two = [tail(), Side { timeline: 3, ..tail() }];
        let error = timeline(&tree(), &two, &Target::Name("there".into()), Nowhere, None).unwrap_err().to_string();
        assert!(error.starts_with("restore point \"there\" is on timeline 1 up to"), "{error}");
        let places = [Lsn(0x500), Lsn(0x580)];
        assert_eq!(one_point("x", &[], false), Ok(Nowhere));
        assert_eq!(one_point("x", &places[..1], false), Ok(at(0x500)));
        assert_eq!(one_point("x", &places, true), Ok(at(0x500)));
        assert!(one_point("x", &places, false).unwrap_err().to_string().contains("0/500 and 0/580"));
    }

    fn record(n: u32, timeline: u32, lsn: u64, ended: u64) -> Record {
        let id = BackupId::new(1_700_000_000, n);
        let mut record = Record::begin(&id, "n", "l", ended, Point { lsn: Lsn(lsn), timeline });
        record.ended = ended;
        record
    }

    #[test]
    fn the_newest_backup_before_the_moment() {
        let records =
            [record(1, 1, 0x100, 10), record(2, 1, 0x300, 30), record(3, 1, 0x500, 50), record(4, 2, 0x700, 70)];
        for (target, timeline, expected) in [
            (Target::Latest, 2, Some(3)),
            (Target::Latest, 1, Some(2)),
            (Target::Lsn(Lsn(0x2ff)), 2, Some(0)),
            (Target::Lsn(Lsn(0x300)), 2, Some(1)),
            (Target::Lsn(Lsn(0x600)), 2, Some(1)),
            (Target::Lsn(Lsn(0x600)), 1, Some(2)),
            (Target::Lsn(Lsn(0xff)), 2, None),
            (Target::Time(30_000_000, true), 2, Some(1)),
            (Target::Time(29_999_999, true), 2, Some(0)),
            (Target::Time(1, true), 2, None),
        ] {
            let chosen = backup(&records, &tree(), &target, NotAsked, timeline, None);
            assert_eq!(chosen.ok(), expected.map(|at: usize| &records[at]), "{target} {timeline}");
        }
        let point = Target::Name("x".into());
        for (at, expected) in [(0x200, Some(0)), (0x300, Some(1)), (0x600, Some(1)), (0x800, Some(3)), (0xff, None)] {
            let chosen = backup(&records, &tree(), &point, At(Lsn(at)), 2, None);
            assert_eq!(chosen.ok(), expected.map(|at: usize| &records[at]), "a restore point at {at:x}");
        }
        let late = backup(&records, &tree(), &point, At(Lsn(0x200)), 2, Some(&records[1].id));
        assert!(matches!(late, Err(ChoiceError::Unfit { .. })), "{late:?}");
        let error = backup(&records, &tree(), &Target::Lsn(Lsn(1)), NotAsked, 2, None).unwrap_err().to_string();
        assert!(error.contains("the oldest, "), "{error}");
        assert!(backup(&records, &tree(), &Target::Latest, NotAsked, 2, Some(&records[2].id)).is_err(), "on the side");
        assert_eq!(backup(&records, &tree(), &Target::Latest, NotAsked, 2, Some(&records[0].id)), Ok(&records[0]));
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = Target::parse(&text);
            let _ = Target::parse(&format!("2026-11-28 {text}"));
        }
    }
}
