//! The backups and the WAL of an archive: records, marks, pieces, timelines, and how far WAL reaches.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use archive::config::ArchiveConfig;
use archive::{
    Archive, ArchiveError, BASES, BLOCK, BackupId, BackupPart, FileName, HISTORIES, Identity, Kind, RECORDS, Sealed,
    Span, TURNS, backup_of_path, backup_path, block_directory, block_path, blocks, chain, part_directory, part_of_path,
    turn_of_path, turn_path,
};
use futures_util::StreamExt as _;
use process::Failure;
use relay::log::{Landmark, PAGE_BYTES, Segment, SegmentSize, Timeline, Walker};
use tokio::sync::mpsc;
use watermark::Lsn;

use crate::branch::{PointFound, Side, one_point};
use crate::chain::Chains;
use crate::mark::Mark;
use crate::record::{Point, Record};
use crate::timelines::Timelines;
use crate::window::Window;

/// Pieces read ahead.
const AHEAD: usize = 3;
/// Attempts of an operation that fails for a reason that may pass.
const ATTEMPTS: u32 = 5;
/// Most WAL that is searched for commits beside the way to the newest timeline, in bytes.
const MOST_SEARCHED: u64 = 1 << 30;
/// Most restore points that are noted of a branch.
const MOST_POINTS: usize = 1000;

/// An archive, as backups look at it.
#[derive(Debug, Clone)]
pub(crate) struct Catalog {
    archive: Archive,
    size: SegmentSize,
}

/// Makes the failure of an archive.
pub(crate) fn failed(error: ArchiveError) -> Failure {
    Failure::environment(error.to_string())
}

/// Returns the time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the time, in microseconds since 1970.
pub(crate) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Catalog {
    /// Opens an archive for reading.
    pub(crate) async fn attach(config: &ArchiveConfig) -> Result<Catalog, Failure> {
        let store = archive::open(config).map_err(ArchiveError::from).map_err(failed)?;
        Catalog::of(Archive::attach(store).await.map_err(failed)?)
    }

    /// Opens the archive of a cluster for writing; an empty store becomes one.
    pub(crate) async fn open(config: &ArchiveConfig, identity: Identity) -> Result<Catalog, Failure> {
        let store = archive::open(config).map_err(ArchiveError::from).map_err(failed)?;
        Catalog::of(Archive::open(store, identity, false).await.map_err(failed)?)
    }

    fn of(archive: Archive) -> Result<Catalog, Failure> {
        let size = SegmentSize::new(archive.identity().segment_size);
        Ok(Catalog { size: size.map_err(|error| Failure::environment(error.to_string()))?, archive })
    }

    /// Returns the location of the archive.
    pub(crate) fn name(&self) -> &str {
        self.archive.name()
    }

    /// Returns the records of all backups, oldest first.
    pub(crate) async fn records(&self) -> Result<Vec<Record>, Failure> {
        let listed = self.archive.list(RECORDS).await.map_err(failed)?;
        let mut ids: Vec<BackupId> = listed.iter().filter_map(|object| backup_of_path(&object.path)).collect();
        ids.sort();
        let mut records = Vec::new();
        for id in ids {
            records.extend(self.record(&id).await?);
        }
        // Names of the same second have no order.
        records.sort_by_key(|record| record.ended_micros);
        Ok(records)
    }

    /// Returns the records of all backups, oldest first; true for a restorable backup, whose chain is whole and whose WAL is in the archive.
    pub(crate) async fn judged(&self) -> Result<Vec<(Record, bool)>, Failure> {
        let records = self.records().await?;
        let mut restorable = Vec::with_capacity(records.len());
        let chains = Chains::new(&records);
        for record in &records {
            restorable.push(chains.of(record).is_ok() && self.has_wal(record).await?);
        }
        Ok(records.into_iter().zip(restorable).collect())
    }

    /// Returns the backups, and the window that can be restored.
    pub(crate) async fn survey(&self) -> Result<Survey, Failure> {
        let records = self.judged().await?;
        let timelines = self.timelines().await?;
        let mut survey = Survey { records, window: None };
        let newest = timelines.newest().unwrap_or(0);
        let reach = async |from| self.reach_along(&timelines, from, newest).await;
        survey.window = Window::find(&survey.restorable(), &timelines, reach).await?;
        Ok(survey)
    }

    /// True if the archive has the WAL from a backup's start to its end.
    async fn has_wal(&self, record: &Record) -> Result<bool, Failure> {
        Ok(self.reach(record.end.timeline, record.start.lsn, record.end.lsn).await? >= record.end.lsn)
    }

    /// Returns the system identifier of the cluster.
    pub(crate) fn system(&self) -> u64 {
        self.archive.identity().system_id
    }

    /// Returns the numbers of the turns, in order.
    pub(crate) async fn turns(&self) -> Result<Vec<u64>, Failure> {
        let listed = self.archive.list(TURNS).await.map_err(failed)?;
        let mut turns: Vec<u64> = listed.iter().filter_map(|object| turn_of_path(&object.path)).collect();
        turns.sort_unstable();
        Ok(turns)
    }

    /// Returns the backup of a turn.
    pub(crate) async fn turn(&self, number: u64) -> Result<Option<BackupId>, Failure> {
        self.archive.turn(number).await.map_err(failed)
    }

    /// Takes a turn for a backup, and removes earlier turns. False: another process has it.
    pub(crate) async fn take_turn(&self, number: u64, id: &BackupId) -> Result<bool, Failure> {
        if !self.archive.take_turn(number, id).await.map_err(failed)? {
            return Ok(false);
        }
        let turns = self.turns().await?;
        // A process that stood still comes with a number that is over, and was removed.
        let is_newest = turns.last() == Some(&number);
        for turn in turns.into_iter().filter(|turn| if is_newest { *turn < number } else { *turn == number }) {
            self.remove(&turn_path(turn)).await?;
        }
        Ok(is_newest)
    }

    /// Returns the record of a backup.
    async fn record(&self, id: &BackupId) -> Result<Option<Record>, Failure> {
        let Some(bytes) = self.archive.get(Kind::Record, &whole(id, BackupPart::Record)).await.map_err(failed)? else {
            return Ok(None);
        };
        let record = Record::parse(&bytes, id);
        let record = record.map_err(|why| {
            Failure::environment(format!("the record of the backup {id} in the archive {} {why}", self.name()))
        })?;
        Ok(Some(record))
    }

    /// True if the backup has a record.
    pub(crate) async fn has_record(&self, id: &BackupId) -> Result<bool, Failure> {
        Ok(self.record(id).await?.is_some())
    }

    /// Returns the chain of the backup of this name, or of the newest for `latest`: the full one first, the named one last.
    pub(crate) async fn find(&self, name: &str) -> Result<Vec<Record>, Failure> {
        let records = self.records().await?;
        let record = match name {
            "latest" => records.last(),
            name => records.iter().find(|record| record.id == name),
        };
        let record = record.ok_or_else(|| {
            Failure::runtime(format!("the archive {} has no backup {name:?}", self.name()))
                .advise("`kingpost backup list` shows them")
        })?;
        let chain = Chains::new(&records).of(record).map_err(|error| Failure::runtime(error.to_string()))?;
        Ok(chain.into_iter().cloned().collect())
    }

    /// Writes a record: from now on the backup is there.
    pub(crate) async fn put_record(&self, id: &BackupId, record: &Record) -> Result<(), Failure> {
        let bytes = record.render();
        let span = Span { to: bytes.len() as u64, ..whole(id, BackupPart::Record) };
        self.put(Kind::Record, &span, self.seal(Kind::Record, &span, &bytes)?).await
    }

    /// Removes a record: from now on the backup is not there.
    pub(crate) async fn remove_record(&self, id: &BackupId) -> Result<(), Failure> {
        self.archive.remove(&backup_path(id, BackupPart::Record, 0)).await.map_err(failed)
    }

    /// Returns the mark of a backup.
    pub(crate) async fn mark(&self, id: &BackupId) -> Result<Option<Mark>, Failure> {
        let bytes = self.archive.get(Kind::Mark, &whole(id, BackupPart::Mark)).await.map_err(failed)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Writes the mark of a backup, over an earlier one.
    pub(crate) async fn put_mark(&self, id: &BackupId, mark: &Mark) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(mark).unwrap_or_default();
        let span = Span { to: bytes.len() as u64, ..whole(id, BackupPart::Mark) };
        let sealed = self.seal(Kind::Mark, &span, &bytes)?;
        self.archive.overwrite(&backup_path(id, BackupPart::Mark, 0), sealed).await.map_err(failed)
    }

    /// Removes the mark of a backup.
    pub(crate) async fn remove_mark(&self, id: &BackupId) -> Result<(), Failure> {
        self.archive.remove(&backup_path(id, BackupPart::Mark, 0)).await.map_err(failed)
    }

    /// Returns the backups with data or a mark, and no record.
    pub(crate) async fn unfinished(&self) -> Result<Vec<BackupId>, Failure> {
        let listed = self.archive.list(RECORDS).await.map_err(failed)?;
        let records: HashSet<BackupId> = listed.iter().filter_map(|object| backup_of_path(&object.path)).collect();
        let directories = self.archive.directories(BASES).await.map_err(failed)?;
        let mut ids: Vec<BackupId> = directories.iter().filter_map(|path| backup_of_path(path)).collect();
        ids.retain(|id| !records.contains(id));
        ids.sort();
        Ok(ids)
    }

    /// Removes the data of a backup, and its mark last.
    pub(crate) async fn remove_data(&self, id: &BackupId) -> Result<u64, Failure> {
        let mut removed = 0;
        for directory in self.archive.directories(&format!("{BASES}/{id}")).await.map_err(failed)? {
            for object in self.archive.list(&directory).await.map_err(failed)? {
                self.archive.remove(&object.path).await.map_err(failed)?;
                removed += object.size;
            }
        }
        self.remove_mark(id).await?;
        Ok(removed)
    }

    fn seal(&self, kind: Kind, span: &Span, bytes: &[u8]) -> Result<Sealed, Failure> {
        let sealed = self.archive.seal(kind, span, bytes, bytes.len() as u64);
        sealed.map_err(|error| Failure::runtime(format!("cannot compress {}: {error}", span.file)))
    }

    /// Compresses and writes a piece of a stream or of the manifest; returns the object's size.
    pub(crate) async fn put_piece(
        &self,
        id: BackupId,
        part: BackupPart,
        from: u64,
        raw: Vec<u8>,
    ) -> Result<u64, Failure> {
        let span = Span { to: from + raw.len() as u64, from, file: FileName::of_backup(&id, part) };
        let (catalog, of) = (self.clone(), span.clone());
        let sealed = tokio::task::spawn_blocking(move || catalog.seal(Kind::Base, &of, &raw)).await;
        let sealed = sealed.map_err(|error| Failure::runtime(format!("cannot compress {}: {error}", span.file)))??;
        let size = sealed.object.len() as u64;
        self.put(Kind::Base, &span, sealed).await?;
        Ok(size)
    }

    async fn put(&self, kind: Kind, span: &Span, sealed: Sealed) -> Result<(), Failure> {
        let path = self.archive.path(kind, span);
        let mut attempt = 1;
        loop {
            match self.archive.put(&path, kind, span, sealed.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_final() || attempt == ATTEMPTS => return Err(failed(error)),
                Err(_) => tokio::time::sleep(Duration::from_secs(1 << attempt)).await,
            }
            attempt += 1;
        }
    }

    /// Returns the bytes of a part of a backup, as they are read by a thread of its own. `bytes`: the length that the record says.
    pub(crate) fn read(&self, id: &BackupId, part: BackupPart, bytes: u64) -> PartReader {
        let (sender, pieces) = mpsc::channel(1);
        let (archive, file) = (self.archive.clone(), FileName::of_backup(id, part));
        tokio::spawn(async move {
            let read = |piece: u64| {
                let (archive, from) = (archive.clone(), piece * BLOCK);
                let span = Span { file: file.clone(), from, to: from };
                async move {
                    let expected = BLOCK.min(bytes - from);
                    let path = archive.path(Kind::Base, &span);
                    match archive.get(Kind::Base, &span).await {
                        Ok(Some(raw)) if raw.len() as u64 == expected => Ok(raw),
                        Ok(Some(raw)) => Err(format!("{path} has {} bytes, where {expected} are expected", raw.len())),
                        Ok(None) => Err(format!("{path} is missing in the archive {}", archive.name())),
                        Err(error) => Err(error.to_string()),
                    }
                }
            };
            let mut pieces = futures_util::stream::iter((0..bytes.div_ceil(BLOCK)).map(read)).buffered(AHEAD);
            while let Some(piece) = pieces.next().await {
                let is_error = piece.is_err();
                if sender.send(piece).await.is_err() || is_error {
                    return;
                }
            }
            let _ = sender.send(Ok(Vec::new())).await;
        });
        PartReader { pieces, piece: Vec::new(), at: 0, is_done: false }
    }

    /// Returns the timelines of the archive.
    pub(crate) async fn timelines(&self) -> Result<Timelines, Failure> {
        let mut timelines = Timelines::default();
        for object in self.archive.list(HISTORIES).await.map_err(failed)? {
            let name = object.path.rsplit('/').next().and_then(FileName::parse).filter(FileName::is_history);
            let Some(file) = name else { continue };
            let Ok(timeline) = u32::from_str_radix(&file.as_str()[..8], 16) else { continue };
            let span = Span { file, from: 0, to: 0 };
            if let Some(content) = self.archive.get(Kind::History, &span).await.map_err(failed)? {
                timelines.add_history(timeline, &content).map_err(|why| {
                    Failure::environment(format!("cannot use {} of the archive {}: {why}", span.file, self.name()))
                })?;
            }
        }
        for directory in self.wal_directories().await? {
            timelines.add(directory.1);
        }
        for path in self.archive.directories("part").await.map_err(failed)? {
            let digits = path.strip_prefix("part/").and_then(|name| name.get(..8));
            if let Some(timeline) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
                timelines.add(timeline);
            }
        }
        Ok(timelines)
    }

    /// Returns the directories of whole segments, each with its timeline.
    async fn wal_directories(&self) -> Result<Vec<(String, u32)>, Failure> {
        let directories = self.archive.directories("wal").await.map_err(failed)?;
        let timeline = |path: &str| u32::from_str_radix(path.strip_prefix("wal/")?.get(..8)?, 16).ok();
        Ok(directories.into_iter().filter_map(|path| timeline(&path).map(|timeline| (path, timeline))).collect())
    }

    /// Returns the end of the WAL of a timeline that has no gap from `from` on; `from`, or less, if the archive does not have it. Looks no further than
    /// the segment of `enough`.
    pub(crate) async fn reach(&self, timeline: u32, from: Lsn, enough: Lsn) -> Result<Lsn, Failure> {
        let size = self.size.bytes();
        let mut listed: Option<(String, HashSet<String>)> = None;
        let mut number = self.size.number(from);
        loop {
            if number > self.size.number(enough) {
                return Ok(self.size.start(number));
            }
            let Some(file) = segment(timeline, number, self.size) else { return Ok(Lsn(number.saturating_mul(size))) };
            let directory = block_directory(&file);
            let held = match &mut listed {
                Some((of, held)) if *of == directory => held,
                _ => {
                    let objects = self.archive.list(&directory).await.map_err(failed)?;
                    let held = objects.into_iter().map(|object| object.path).collect();
                    &mut listed.insert((directory, held)).1
                }
            };
            let is_there = |range: &std::ops::Range<u64>| {
                let span = Span { file: file.clone(), from: range.start, to: range.end };
                held.contains(&block_path(&span, size))
            };
            let at = blocks(size).take_while(is_there).last().map_or(0, |range| range.end);
            if at == size {
                number += 1;
                continue;
            }
            let listed = self.archive.list(&part_directory(&file)).await.map_err(failed)?;
            let parts: Vec<Span> = listed.iter().filter_map(|object| part_of_path(&object.path)).collect();
            let at = chain(&parts, at).last().map_or(at, |part| part.to);
            return Ok(Lsn(number * size + at));
        }
    }

    /// Returns the end of the WAL on the way from a backup to `timeline`, and the timeline of that end.
    pub(crate) async fn reach_along(
        &self,
        timelines: &Timelines,
        from: Point,
        timeline: u32,
    ) -> Result<(Lsn, u32), Failure> {
        let way = timelines.ancestors(timeline).iter().copied().chain([(timeline, Lsn(u64::MAX))]);
        let (mut at, mut reached) = (from.lsn, from.timeline);
        for (on, left) in way.skip_while(|(on, _)| *on != from.timeline) {
            let end = self.reach(on, at, left).await?;
            // The segment in which a timeline is left is the next one's as well.
            let next_begins = self.size.start_of(left);
            if end > at {
                (at, reached) = (end.min(left), on);
            }
            if end < next_begins {
                break;
            }
            at = left.min(end.max(next_begins));
            if left == Lsn(u64::MAX) {
                return Ok((end, on));
            }
        }
        Ok((at, reached))
    }

    /// Returns the WAL beside the way to the newest timeline that a restore could mean.
    pub(crate) async fn sides(&self, timelines: &Timelines) -> Result<Vec<Side>, Failure> {
        let Some(newest) = timelines.newest() else { return Ok(Vec::new()) };
        let mut sides = Vec::new();
        for timeline in timelines.all().filter(|timeline| *timeline != newest) {
            let Some(fork) = timelines.fork(newest, timeline) else { continue };
            let begin = fork.max(timelines.begin(timeline));
            if self.reach(timeline, begin, begin).await? > begin {
                sides.extend(self.side(timeline, fork, begin).await?);
            }
        }
        Ok(sides)
    }

    /// Makes a walker that begins with a segment.
    fn walker(&self, timeline: u32, number: u64) -> Walker {
        let identity = relay::log::Identity { system_id: self.archive.identity().system_id, segment_size: self.size };
        Walker::new(identity, Timeline(timeline), self.size.start(number))
    }

    /// Walks over the archived bytes of a segment. Returns true if the walk may go on with the next one.
    async fn walk(&self, file: &FileName, walker: &mut Walker) -> Result<bool, Failure> {
        let (mut rest, mut ended) = (Vec::new(), false);
        let take = |bytes: &[u8], _| {
            rest.extend_from_slice(bytes);
            let whole = rest.len() / PAGE_BYTES * PAGE_BYTES;
            let (pages, _) = rest.as_chunks::<PAGE_BYTES>();
            for page in pages {
                ended = ended || walker.page(page).is_err();
            }
            rest.drain(..whole);
            Ok::<(), ArchiveError>(())
        };
        let found = self.archive.fetch(file, take).await.map_err(failed)?;
        if !ended && !rest.is_empty() {
            rest.resize(PAGE_BYTES, 0);
            let (pages, _) = rest.as_chunks::<PAGE_BYTES>();
            // The end of what was archived: the walk stops in this page, behind the last record.
            ended = true;
            let _ = pages.first().map(|page| walker.page(page));
        }
        Ok(found && !ended)
    }

    /// Reads the archived WAL of a timeline from the segment of `begin` on, up to the segment that begins at `until` or later. Gives each commit and
    /// restore point to `each`. Returns the end of the last record, and true if the WAL goes on at `until`.
    async fn scan(
        &self,
        timeline: u32,
        begin: Lsn,
        until: Lsn,
        mut each: impl FnMut(Landmark),
    ) -> Result<(Option<Lsn>, bool), Failure> {
        let mut number = self.size.number(begin);
        let mut walker = self.walker(timeline, number).with_landmarks();
        while self.size.start(number) < until {
            let Some(file) = segment(timeline, number, self.size) else { return Ok((walker.end(), false)) };
            let goes_on = self.walk(&file, &mut walker).await?;
            number += 1;
            walker.landmarks().into_iter().for_each(&mut each);
            // A segment that is not whole is the last.
            if !goes_on || walker.at() < self.size.start(number) {
                return Ok((walker.end(), false));
            }
        }
        Ok((walker.end(), true))
    }

    /// Reads the WAL of a timeline from the segment of `begin` on. None: it has no record behind `fork`.
    async fn side(&self, timeline: u32, fork: Lsn, begin: Lsn) -> Result<Option<Side>, Failure> {
        let mut side = Side { timeline, from: fork, to: fork, after: None, until: None, points: Vec::new() };
        let until = Lsn(self.size.start_of(begin).0.saturating_add(MOST_SEARCHED));
        let note = |mark: Landmark| match mark.name {
            Some(name) if mark.end > fork && side.points.len() < MOST_POINTS => side.points.push((name, mark.end)),
            Some(_) => {}
            None if mark.end <= fork => side.after = Some(mark.time),
            None => side.until = Some(mark.time.max(side.until.unwrap_or(mark.time))),
        };
        let (end, goes_on) = self.scan(timeline, begin, until, note).await?;
        side.to = end.unwrap_or(fork).max(fork);
        if goes_on {
            (side.until, side.to) = (Some(i64::MAX), side.to.max(until));
        }
        Ok((side.to > fork).then_some(side))
    }

    /// Returns the positions of a restore point on the way from `from` to `timeline`, up to `until`.
    pub(crate) async fn points_along(
        &self,
        timelines: &Timelines,
        name: &str,
        from: Point,
        timeline: u32,
        until: Lsn,
    ) -> Result<Vec<Lsn>, Failure> {
        let mut found = Vec::new();
        let way = timelines.ancestors(timeline).iter().copied().chain([(timeline, Lsn(u64::MAX))]);
        // The end of what was read: a timeline's first segment repeats the one before up to the branch.
        let mut read = from.lsn;
        for (on, left) in way.skip_while(|(on, _)| *on != from.timeline) {
            let (begin, end) = (read.max(timelines.begin(on)), left.min(until));
            if begin >= end {
                continue;
            }
            let note = |mark: Landmark| {
                let is_it = mark.name.as_deref() == Some(name) && read < mark.end && mark.end <= end;
                if is_it && found.len() < MOST_POINTS {
                    found.push(mark.end);
                }
            };
            let (reached, _) = self.scan(on, begin, end, note).await?;
            read = read.max(reached.unwrap_or(read).min(left));
        }
        Ok(found)
    }

    /// Returns the position of a restore point on the way to `timeline`. Reads the WAL behind the newest backup first, then that behind the one before,
    /// up to the first that has it. `given`: the backup that the user named, behind which alone it is looked for.
    pub(crate) async fn point(
        &self,
        records: &[Record],
        timelines: &Timelines,
        name: &str,
        timeline: u32,
        given: Option<&str>,
    ) -> Result<PointFound, Failure> {
        let fits = |record: &&Record| {
            given.is_none_or(|given| record.id == given)
                && timelines.passes(timeline, record.end.timeline, record.end.lsn)
        };
        let mut on_way: Vec<&Record> = records.iter().filter(fits).collect();
        on_way.sort_by_key(|record| record.end.lsn);
        let mut until = Lsn(u64::MAX);
        for record in on_way.into_iter().rev() {
            let places = self.points_along(timelines, name, record.end, timeline, until).await?;
            let found = one_point(name, &places, given.is_some());
            match found.map_err(|error| Failure::runtime(error.to_string()))? {
                PointFound::Nowhere => until = record.end.lsn,
                found => return Ok(found),
            }
        }
        Ok(PointFound::Nowhere)
    }

    /// Returns the start of the last record before `end`, where the archived WAL of a timeline ends. None: its segment has no whole record.
    pub(crate) async fn last_record(&self, timeline: u32, end: Lsn) -> Result<Option<Lsn>, Failure> {
        let number = self.size.number(Lsn(end.0.saturating_sub(1)));
        let Some(file) = segment(timeline, number, self.size) else { return Ok(None) };
        let mut walker = self.walker(timeline, number);
        self.walk(&file, &mut walker).await?;
        Ok(walker.last_record().filter(|last| *last < end))
    }

    /// Returns the objects of WAL that `is_needed` refuses, asked for with the timeline and the end of a segment.
    pub(crate) async fn wal_not_needed(
        &self,
        is_needed: impl Fn(u32, Lsn) -> bool,
    ) -> Result<BTreeMap<String, u64>, Failure> {
        let mut found = BTreeMap::new();
        let parts = self.archive.directories("part").await.map_err(failed)?;
        let wal = self.wal_directories().await?.into_iter().map(|(directory, _)| directory);
        for directory in wal.chain(parts) {
            for object in self.archive.list(&directory).await.map_err(failed)? {
                let name = object.path.split('/').find_map(|word| FileName::parse(word.get(..24)?));
                let Some((timeline, end)) = name.and_then(|name| end_of(name.as_str(), self.size)) else { continue };
                if !is_needed(timeline, end) {
                    found.insert(object.path, object.size);
                }
            }
        }
        Ok(found)
    }

    /// Removes an object.
    pub(crate) async fn remove(&self, path: &str) -> Result<(), Failure> {
        self.archive.remove(path).await.map_err(failed)
    }
}

/// The backups of an archive, and the window that can be restored.
pub(crate) struct Survey {
    /// The records, oldest first; true for a restorable backup.
    pub(crate) records: Vec<(Record, bool)>,
    pub(crate) window: Option<Window>,
}

impl Survey {
    /// Returns the restorable backups.
    pub(crate) fn restorable(&self) -> Vec<&Record> {
        self.records.iter().filter(|(_, restorable)| *restorable).map(|(record, _)| record).collect()
    }

    /// True if the backup has a record.
    pub(crate) fn has(&self, id: &BackupId) -> bool {
        self.records.iter().any(|(record, _)| record.id == id.as_str())
    }
}

/// Returns a span by its name alone; the length is not part of it.
fn whole(id: &BackupId, part: BackupPart) -> Span {
    Span { file: FileName::of_backup(id, part), from: 0, to: 0 }
}

/// Returns the name of a segment. None: its position is beyond the last.
fn segment(timeline: u32, number: u64, size: SegmentSize) -> Option<FileName> {
    let segment = Segment { number, timeline: Timeline(timeline) };
    FileName::parse(&segment.name(size)).filter(|_| number <= u64::MAX / size.bytes())
}

/// Returns the timeline of a segment and the position of its end.
fn end_of(name: &str, size: SegmentSize) -> Option<(u32, Lsn)> {
    let segment = Segment::of_name(name, size)?;
    Some((segment.timeline.0, size.start(segment.number + 1)))
}

/// A part of a backup as a byte stream, for a thread that may block.
pub(crate) struct PartReader {
    pieces: mpsc::Receiver<Result<Vec<u8>, String>>,
    piece: Vec<u8>,
    at: usize,
    is_done: bool,
}

impl Read for PartReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.is_done {
            match self.pieces.blocking_recv() {
                Some(Ok(piece)) => {
                    self.is_done = piece.is_empty();
                    (self.piece, self.at) = (piece, 0);
                }
                Some(Err(why)) => return Err(io::Error::other(why)),
                None => return Err(io::Error::other("reading the archive has ended early")),
            }
        }
        let here = to.len().min(self.piece.len() - self.at);
        to[..here].copy_from_slice(&self.piece[self.at..self.at + here]);
        self.at += here;
        Ok(here)
    }
}

/// Shared counter of progress.
pub(crate) type Counter = Arc<std::sync::atomic::AtomicU64>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn segments() {
        let size = SegmentSize::DEFAULT;
        for (number, name) in [(1, "000000020000000000000001"), (0x1ff, "0000000200000001000000FF")] {
            assert_eq!(segment(2, number, size).unwrap().as_str(), name);
            assert_eq!(end_of(name, size), Some((2, Lsn((number + 1) * size.bytes()))));
        }
        assert_eq!(segment(2, u64::MAX / size.bytes(), size).unwrap().as_str(), "00000002FFFFFFFF000000FF");
        assert_eq!(segment(2, u64::MAX, size), None);
    }
}
