//! The end of WAL: checks page headers and record checksums, page by page. No I/O.
//!
//! This needs only parts of PostgreSQL's format that have not changed from 13 to 19, except the magic number:
//!
//! - A page (8 kB) begins with a header: `magic u16, info u16, timeline u32, address u64, remaining u32`, padded to 24 bytes;
//!   on the first page of a segment `system id u64, segment size u32, page size u32` follow. `remaining` says how much of a
//!   record from the page before comes first.
//! - A record begins at a multiple of 8 with a header of 24 bytes: `length u32, xid u32, previous u64, info u8, resource
//!   manager u8, 2 unused, crc u32`. The CRC-32C covers what follows the header, then the header without the CRC.
//!
//! Integers are little-endian: the files of a big-endian server are refused at their first page.

use watermark::Lsn;

use super::segment::PAGE;
use super::{Identity, Timeline};

/// Bytes of a page.
pub const PAGE_BYTES: usize = PAGE as usize;
/// Bytes of a page's header, of that on the first page of a segment, and of a record's header.
const SHORT_HEADER: usize = 24;
const LONG_HEADER: usize = 40;
const RECORD_HEADER: usize = 24;

/// Flags of a page: begins with the rest of a record; has the long header; begins instead of the rest of a record that a
/// crash cut off. `BKP_REMOVABLE` (4) says nothing about validity.
const FIRST_IS_CONTINUATION: u16 = 1;
const HAS_LONG_HEADER: u16 = 2;
const OVERWRITES_CONTINUATION: u16 = 8;
const ALL_FLAGS: u16 = 15;

/// Resource manager 0 (`RM_XLOG_ID`), info 0x40 in the high four bits: the rest of the segment is padding.
const XLOG_MANAGER: u8 = 0;
const XLOG_SWITCH: u8 = 0x40;
/// Records of that manager with a time: two kinds of checkpoints.
const XLOG_CHECKPOINTS: [u8; 2] = [0x00, 0x10];
/// Resource manager 1 (`RM_XACT_ID`): its kinds up to this one end a transaction, and contain its time.
const XACT_MANAGER: u8 = 1;
const XACT_LAST_END: u8 = 0x40;
const XACT_KIND: u8 = 0x70;
/// Kinds that commit: of a plain transaction, and of a prepared one.
const XACT_COMMITS: [u8; 2] = [0x00, 0x30];
/// Record of manager 0 that names a restore point.
const XLOG_RESTORE_POINT: u8 = 0x70;
/// Bytes of a record's body that are kept for a [`Landmark`]: more than its time and name, and the headers before them.
const KEPT: usize = 192;
/// Microseconds from 1970 to 2000, where servers' times begin.
const EPOCH: i64 = 946_684_800_000_000;

/// A record that a recovery can end at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landmark {
    /// End of the record.
    pub end: Lsn,
    /// Time, in microseconds since 1970.
    pub time: i64,
    /// Name of a restore point; None for a commit.
    pub name: Option<String>,
}

/// Reason for the end of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The page's magic number is not one of PostgreSQL 13 and later.
    #[error("no WAL page (magic {0:#06x})")]
    Magic(u16),
    /// The page belongs elsewhere: old contents of a recycled file.
    #[error("the page is of position {0}")]
    Address(Lsn),
    /// Unknown flags, or a long header in the wrong place.
    #[error("page flags {0:#06x} are impossible here")]
    Flags(u16),
    /// The timeline has not begun, or had ended.
    #[error("the page is of timeline {0}")]
    Timeline(u32),
    /// The page is another cluster's.
    #[error("the page is of the cluster with system identifier {0}")]
    SystemId(u64),
    /// Segment or page size differ from the expected ones.
    #[error("the page says segments of {segment} and pages of {page} bytes")]
    Sizes {
        /// Bytes of a segment.
        segment: u32,
        /// Bytes of a page.
        page: u32,
    },
    /// The page does not continue the record before it.
    #[error("the page does not continue the record before it")]
    Continuation,
    /// No record: zeroes, or an impossible length.
    #[error("no record (length {0})")]
    Length(u32),
    /// The record does not follow the one before it.
    #[error("the record says that it follows the one at {0}")]
    Previous(Lsn),
    /// The record's bytes differ from what was written.
    #[error("wrong checksum")]
    Checksum,
}

/// Walks through WAL from a segment's start, page by page.
#[derive(Debug, Clone)]
pub struct Walker {
    identity: Identity,
    timeline: Timeline,
    /// Start of the next page.
    at: Lsn,
    place: Place,
    /// Timeline of the last page.
    page_timeline: u32,
    last: Option<Lsn>,
    end: Option<Lsn>,
    /// End of the last whole record without the padding after a segment switch, and `end` before that record.
    own_end: Lsn,
    end_before: Option<Lsn>,
    records: u64,
    dated: bool,
    /// None if they are not asked for.
    landmarks: Option<Vec<Landmark>>,
}

/// State of the walk between pages.
#[derive(Debug, Clone)]
enum Place {
    /// At the first page: it may begin with the rest of a record whose start was not read.
    Start,
    /// In the rest of that record: number of bytes to come.
    Skip(u32),
    /// A record begins here.
    Between,
    Record(Record),
    /// After a segment switch: all bytes from here up to the segment's end are padding.
    Padding(Lsn),
}

#[derive(Debug, Clone)]
struct Record {
    start: Lsn,
    total: u32,
    got: u32,
    header: [u8; RECORD_HEADER],
    /// Checksum so far of what follows the header.
    crc: u32,
    /// First bytes of what follows the header, if landmarks are asked for.
    body: Option<Vec<u8>>,
}

impl Walker {
    /// Creates a walk from `start`, the start of a segment, through the history that ends with `timeline`.
    #[must_use]
    pub fn new(identity: Identity, timeline: Timeline, start: Lsn) -> Walker {
        debug_assert_eq!(identity.segment_size.offset(start), 0);
        Walker {
            identity,
            timeline,
            at: start,
            place: Place::Start,
            page_timeline: 0,
            last: None,
            end: None,
            own_end: start,
            end_before: None,
            records: 0,
            dated: false,
            landmarks: None,
        }
    }

    /// Collects commits and restore points.
    #[must_use]
    pub fn with_landmarks(mut self) -> Walker {
        self.landmarks = Some(Vec::new());
        self
    }

    /// Returns the commits and restore points since the last call.
    pub fn landmarks(&mut self) -> Vec<Landmark> {
        self.landmarks.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the start of the next page.
    #[must_use]
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Returns the end of the last whole record: the next record would be written there, headers aside. `None` before the first. After a segment
    /// switch: the segment's end, since the padding is certain.
    #[must_use]
    pub fn end(&self) -> Option<Lsn> {
        self.end
    }

    /// Returns [`Walker::end`] where the log holds no byte from `held` on, and the last page was filled with zeroes there: a record may be whole by
    /// zeroes that never came, and no standby replays it. So its alignment counts, too; the padding after a segment switch as far as it is held.
    #[must_use]
    pub fn end_within(&self, held: Lsn) -> Option<Lsn> {
        if self.own_end <= held { self.end.map(|end| end.min(held)) } else { self.end_before }
    }

    /// Returns the start of the last whole record.
    #[must_use]
    pub fn last_record(&self) -> Option<Lsn> {
        self.last
    }

    /// Returns the start of the padding that the next page is in, if any: zeroes up to the segment's end, which are not checked.
    #[must_use]
    pub fn padding(&self) -> Option<Lsn> {
        match self.place {
            Place::Padding(from) => Some(from),
            _ => None,
        }
    }

    /// Returns the number of whole records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// True once a whole record with a time was read: the end of a transaction, or a checkpoint.
    #[must_use]
    pub fn is_dated(&self) -> bool {
        self.dated
    }

    /// Takes the next page.
    ///
    /// # Errors
    /// [`Stop`]: WAL ends in this page, or before it. No other page may be passed afterwards.
    pub fn page(&mut self, page: &[u8; PAGE_BYTES]) -> Result<(), Stop> {
        let at = self.at;
        self.at = Lsn(at.0.saturating_add(PAGE));
        if matches!(self.place, Place::Padding(_)) {
            if self.identity.segment_size.offset(at) != 0 {
                return Ok(());
            }
            self.place = Place::Between;
        }
        let mut offset = self.header(at, page)?;
        while offset < PAGE_BYTES {
            match &mut self.place {
                Place::Start => self.place = Place::Between,
                Place::Padding(_) => return Ok(()),
                Place::Skip(remaining) => {
                    let here = (*remaining as usize).min(PAGE_BYTES - offset);
                    *remaining -= here as u32;
                    offset += here;
                    if *remaining == 0 {
                        offset = offset.next_multiple_of(8);
                        self.place = Place::Between;
                    }
                }
                Place::Between => {
                    let total = record_length(page, offset).ok_or_else(|| Stop::Length(u32_at(page, offset)))?;
                    let start = Lsn(at.0 + offset as u64);
                    let body = self.landmarks.is_some().then(Vec::new);
                    self.place =
                        Place::Record(Record { start, total, got: 0, header: [0; RECORD_HEADER], crc: 0, body });
                }
                Place::Record(record) => {
                    let here = ((record.total - record.got) as usize).min(PAGE_BYTES - offset);
                    record.take(&page[offset..offset + here], self.last)?;
                    offset += here;
                    if record.got == record.total {
                        let switch = record.finish()?;
                        self.dated |= record.is_dated();
                        offset = offset.next_multiple_of(8);
                        self.last = Some(record.start);
                        self.records += 1;
                        let end = Lsn(at.0 + offset as u64);
                        if let Some(landmarks) = &mut self.landmarks {
                            landmarks.extend(record.landmark(end));
                        }
                        (self.own_end, self.end_before) = (end, self.end);
                        let size = self.identity.segment_size;
                        if switch && size.offset(end) != 0 {
                            self.end = Some(Lsn(size.start_of(end).0 + size.bytes()));
                            self.place = Place::Padding(end);
                        } else {
                            self.end = Some(end);
                            self.place = Place::Between;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the page's header, and moves the state over the page's start. Returns the header's length.
    fn header(&mut self, at: Lsn, page: &[u8; PAGE_BYTES]) -> Result<usize, Stop> {
        let header = page_header(&self.identity, at, page)?;
        // Pages before the switch point are of older timelines; numbers never go down.
        if header.timeline < self.page_timeline || header.timeline > self.timeline.0 || header.timeline == 0 {
            return Err(Stop::Timeline(header.timeline));
        }
        self.page_timeline = header.timeline;
        let continues = header.continues();
        let remaining = match &self.place {
            Place::Skip(remaining) => Some(*remaining),
            Place::Record(record) => Some(record.total - record.got),
            Place::Start | Place::Between | Place::Padding(_) => None,
        };
        match remaining {
            // A server that crashed in the middle of a record continues after the sent part of it.
            Some(_) if header.flags & OVERWRITES_CONTINUATION != 0 => self.place = Place::Between,
            Some(remaining) if continues && remaining == header.remaining => {}
            Some(_) => return Err(Stop::Continuation),
            None if continues && matches!(self.place, Place::Start) => {
                if header.remaining == 0 {
                    return Err(Stop::Continuation);
                }
                self.place = Place::Skip(header.remaining);
            }
            None if continues => return Err(Stop::Continuation),
            None => {}
        }
        Ok(header.length)
    }
}

impl Record {
    fn take(&mut self, mut bytes: &[u8], last: Option<Lsn>) -> Result<(), Stop> {
        let got = self.got as usize;
        self.got += bytes.len() as u32;
        if got < RECORD_HEADER {
            let here = bytes.len().min(RECORD_HEADER - got);
            self.header[got..got + here].copy_from_slice(&bytes[..here]);
            bytes = &bytes[here..];
            if got + here == RECORD_HEADER {
                // Old contents of a recycled file do not follow what was written over them.
                let previous = Lsn(u64_at(&self.header, 8));
                if last.map_or(previous >= self.start, |last| previous != last) {
                    return Err(Stop::Previous(previous));
                }
            }
        }
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        if let Some(body) = &mut self.body {
            body.extend_from_slice(&bytes[..bytes.len().min(KEPT - body.len())]);
        }
        Ok(())
    }

    /// Checks the record; returns true for a segment switch.
    fn finish(&self) -> Result<bool, Stop> {
        if crc32c::crc32c_append(self.crc, &self.header[..20]) != u32_at(&self.header, 20) {
            return Err(Stop::Checksum);
        }
        Ok(self.header[17] == XLOG_MANAGER && self.header[16] & 0xf0 == XLOG_SWITCH)
    }

    fn landmark(&self, end: Lsn) -> Option<Landmark> {
        let kind = self.header[16] & XACT_KIND;
        let (is_commit, is_point) = match self.header[17] {
            XACT_MANAGER => (XACT_COMMITS.contains(&kind), false),
            XLOG_MANAGER => (false, self.header[16] & 0xf0 == XLOG_RESTORE_POINT),
            _ => (false, false),
        };
        if !is_commit && !is_point {
            return None;
        }
        let data = main_data(self.body.as_deref()?)?;
        let time = i64::from_le_bytes(data.get(..8)?.try_into().ok()?).checked_add(EPOCH)?;
        let name = match is_point {
            true => {
                let name = data.get(8..)?;
                let length = name.iter().take(64).position(|byte| *byte == 0)?;
                Some(String::from_utf8_lossy(&name[..length]).into_owned())
            }
            false => None,
        };
        Some(Landmark { end, time, name })
    }

    fn is_dated(&self) -> bool {
        let info = self.header[16];
        match self.header[17] {
            XLOG_MANAGER => XLOG_CHECKPOINTS.contains(&(info & 0xf0)),
            XACT_MANAGER => info & XACT_KIND <= XACT_LAST_END,
            _ => false,
        }
    }
}

/// Returns the main data of a record without blocks, as far as `body` has it: behind the headers of origin (253) and top transaction (252), a short
/// (255) or a long (254) length.
fn main_data(mut body: &[u8]) -> Option<&[u8]> {
    loop {
        let (&id, rest) = body.split_first()?;
        match id {
            253 => body = rest.get(2..)?,
            252 => body = rest.get(4..)?,
            255 => return rest.get(1..),
            254 => return rest.get(4..),
            _ => return None,
        }
    }
}

/// Returns the previous-record link of the first record of a segment, from the segment's first bytes; `Some(None)` if the segment begins with the
/// rest of a record. None if more bytes are needed.
pub(super) fn first_previous(head: &[u8]) -> Option<Option<Lsn>> {
    let head = head.get(..LONG_HEADER + RECORD_HEADER)?;
    let continues = u16_at(head, 2) & FIRST_IS_CONTINUATION != 0;
    Some((!continues).then(|| Lsn(u64_at(head, LONG_HEADER + 8))))
}

/// Header of a page.
pub(super) struct PageHeader {
    flags: u16,
    timeline: u32,
    /// Remaining bytes of a record from the page before, if the page continues one.
    pub(super) remaining: u32,
    /// Bytes of the header.
    pub(super) length: usize,
}

impl PageHeader {
    /// True if the page begins with the rest of a record.
    pub(super) fn continues(&self) -> bool {
        self.flags & FIRST_IS_CONTINUATION != 0
    }

    /// True if the page begins in place of the rest of a record that never comes.
    pub(super) fn overwrites(&self) -> bool {
        self.flags & OVERWRITES_CONTINUATION != 0
    }
}

/// Returns the length of the record that begins at `offset`, a multiple of 8; `None` if there is none. The field is the only limit: PostgreSQL 16 and
/// later write no record of more than 1,020 MiB, earlier versions check nothing, and their standbys replay almost 1 GiB.
pub(super) fn record_length(page: &[u8; PAGE_BYTES], offset: usize) -> Option<u32> {
    Some(u32_at(page, offset)).filter(|total| *total >= RECORD_HEADER as u32)
}

/// Parses the header of the page at `at`, if it is a valid one.
pub(super) fn page_header(identity: &Identity, at: Lsn, page: &[u8; PAGE_BYTES]) -> Result<PageHeader, Stop> {
    let magic = u16_at(page, 0);
    // 13 has 0xD106, 19 has 0xD120; the number rises with each format. Another format of pages or records would get a new range.
    if !(0xD106..=0xD1FF).contains(&magic) {
        return Err(Stop::Magic(magic));
    }
    let flags = u16_at(page, 2);
    let address = Lsn(u64_at(page, 8));
    if address != at {
        return Err(Stop::Address(address));
    }
    let first = identity.segment_size.offset(at) == 0;
    if flags & !ALL_FLAGS != 0 || (flags & HAS_LONG_HEADER != 0) != first {
        return Err(Stop::Flags(flags));
    }
    if first {
        let system_id = u64_at(page, 24);
        if system_id != identity.system_id {
            return Err(Stop::SystemId(system_id));
        }
        let (segment, page) = (u32_at(page, 32), u32_at(page, 36));
        if u64::from(segment) != identity.segment_size.bytes() || u64::from(page) != PAGE {
            return Err(Stop::Sizes { segment, page });
        }
    }
    let length = if first { LONG_HEADER } else { SHORT_HEADER };
    Ok(PageHeader { flags, timeline: u32_at(page, 4), remaining: u32_at(page, 16), length })
}

/// True if this is the page at `at` of the cluster's WAL, by its header alone.
#[must_use]
pub(super) fn is_page(identity: &Identity, at: Lsn, page: &[u8; PAGE_BYTES]) -> bool {
    page_header(identity, at, page).is_ok()
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}
