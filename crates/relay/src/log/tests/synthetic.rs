//! Synthetic WAL for tests: valid pages and records without a server.

use watermark::Lsn;

use super::super::{Identity, PAGE, Timeline};

/// WAL from a segment's start on.
#[derive(Debug, Clone)]
pub(super) struct Wal {
    identity: Identity,
    timeline: Timeline,
    pub(super) start: Lsn,
    pub(super) bytes: Vec<u8>,
    /// Start and end of each record.
    pub(super) records: Vec<(Lsn, Lsn)>,
    /// End of each record without the padding after it, whose bytes are known.
    whole: Vec<Lsn>,
}

impl Wal {
    pub(super) fn new(identity: Identity, timeline: u32, start: Lsn) -> Wal {
        assert_eq!(identity.segment_size.offset(start), 0);
        Wal { identity, timeline: Timeline(timeline), start, bytes: Vec::new(), records: Vec::new(), whole: Vec::new() }
    }

    pub(super) fn at(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }

    /// Returns the end of the last record, without padding, that is whole in the bytes up to `at`; the start if there is none.
    pub(super) fn end_before(&self, at: Lsn) -> Lsn {
        let count = self.whole.iter().take_while(|whole| **whole <= at).count();
        count.checked_sub(1).map_or(self.start, |last| self.records[last].1)
    }

    /// Returns the end of the last record that is whole in the bytes up to `at` with its alignment; the start if there is none.
    pub(super) fn aligned_end_before(&self, at: Lsn) -> Lsn {
        let count = self.whole.iter().take_while(|whole| whole.0.next_multiple_of(8) <= at.0).count();
        count.checked_sub(1).map_or(self.start, |last| self.records[last].1)
    }

    /// Returns the bytes from `from` up to `to`.
    pub(super) fn range(&self, from: Lsn, to: Lsn) -> &[u8] {
        &self.bytes[(from.0 - self.start.0) as usize..(to.0 - self.start.0) as usize]
    }

    /// Writes a page's header, if one is due; `rest` is the remaining length of a record.
    fn page(&mut self, rest: usize, flags: u16) {
        let at = self.at();
        if !at.0.is_multiple_of(PAGE) {
            return;
        }
        let first = self.identity.segment_size.offset(at) == 0;
        let flags = flags | u16::from(rest > 0) | if first { 2 } else { 0 };
        self.bytes.extend(0xD110_u16.to_le_bytes());
        self.bytes.extend(flags.to_le_bytes());
        self.bytes.extend(self.timeline.0.to_le_bytes());
        self.bytes.extend(at.0.to_le_bytes());
        self.bytes.extend((rest as u32).to_le_bytes());
        self.bytes.extend([0; 4]);
        if first {
            self.bytes.extend(self.identity.system_id.to_le_bytes());
            self.bytes.extend((self.identity.segment_size.bytes() as u32).to_le_bytes());
            self.bytes.extend((PAGE as u32).to_le_bytes());
        }
    }

    fn body(length: usize, seed: u64, info: u8, previous: Lsn) -> Vec<u8> {
        let mut record = Vec::with_capacity(24 + length);
        record.extend((24 + length as u32).to_le_bytes());
        record.extend(7_u32.to_le_bytes());
        record.extend(previous.0.to_le_bytes());
        record.extend([info, u8::from(info != 0x40), 0, 0, 0, 0, 0, 0]);
        // The bytes repeat after 2^11, for only the lowest 11 bits of the position count: one by one, megabytes of them take an unoptimised build seconds.
        let period: Vec<u8> = (0..length.min(1 << 11) as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect();
        while record.len() < 24 + length {
            let here = period.len().min(24 + length - record.len());
            record.extend_from_slice(&period[..here]);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&record[24..]), &record[..20]);
        record[20..24].copy_from_slice(&crc.to_le_bytes());
        record
    }

    fn put(&mut self, record: &[u8]) -> Lsn {
        self.page(0, 0);
        let start = self.at();
        let mut rest = record;
        while !rest.is_empty() {
            self.page(if rest.len() == record.len() { 0 } else { rest.len() }, 0);
            let room = (PAGE - self.at().0 % PAGE) as usize;
            let (here, later) = rest.split_at(rest.len().min(room));
            self.bytes.extend(here);
            rest = later;
        }
        start
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn previous(&self) -> Lsn {
        self.records.last().map_or(Lsn(self.start.0 - 64), |(start, _)| *start)
    }

    /// Writes a record with `length` bytes after its header, and a time among them.
    pub(super) fn record(&mut self, length: usize) {
        self.record_of(length, 0x10);
    }

    /// Writes a record without a time.
    pub(super) fn undated(&mut self, length: usize) {
        self.record_of(length, 0x50);
    }

    fn record_of(&mut self, length: usize, info: u8) {
        let record = Wal::body(length, self.at().0, info, self.previous());
        let start = self.put(&record);
        self.whole.push(self.at());
        self.align();
        self.records.push((start, self.at()));
    }

    /// Writes a segment switch, with the padding.
    pub(super) fn switch(&mut self) {
        let record = Wal::body(0, 1, 0x40, self.previous());
        let start = self.put(&record);
        self.whole.push(self.at());
        let size = self.identity.segment_size;
        if size.offset(self.at()) != 0 {
            let end = size.start_of(self.at()).0 + size.bytes();
            self.bytes.resize((end - self.start.0) as usize, 0);
        }
        self.records.push((start, self.at()));
    }

    /// Writes the first pages of a record of `total` bytes, whose rest has not come. Only those pages are built.
    pub(super) fn begin_record(&mut self, total: u32, pages: u64) {
        self.page(0, 0);
        let stop = self.at().0 - self.at().0 % PAGE + pages * PAGE;
        let mut header = Vec::from(total.to_le_bytes());
        header.extend(7_u32.to_le_bytes());
        header.extend(self.previous().0.to_le_bytes());
        header.extend([0x10, 1, 0, 0, 0, 0, 0, 0]);
        let mut content = header.into_iter().chain(std::iter::repeat(0x5a));
        let mut rest = total as usize;
        while self.at().0 < stop {
            self.page(if rest == total as usize { 0 } else { rest }, 0);
            let room = (PAGE - self.at().0 % PAGE) as usize;
            self.bytes.extend(content.by_ref().take(room));
            rest -= room;
        }
    }

    /// Writes the first pages of a record of `length` bytes, whose rest a crash of the server cut off; WAL continues after it.
    pub(super) fn cut_off_record(&mut self, length: usize, pages: u64) {
        let record = Wal::body(length, 3, 0x10, self.previous());
        let start = self.put(&record);
        let stop = start.0 - start.0 % PAGE + pages * PAGE;
        assert!(stop < self.at().0, "the record must be longer than what is kept of it");
        self.bytes.truncate((stop - self.start.0) as usize);
        self.page(0, 8);
    }

    /// Returns the same WAL up to `at`, continued on another timeline.
    pub(super) fn fork(&self, timeline: u32, at: Lsn) -> Wal {
        let mut fork = self.clone();
        fork.timeline = Timeline(timeline);
        fork.bytes.truncate((at.0 - self.start.0) as usize);
        fork.records.retain(|(_, end)| *end <= at);
        fork.whole.truncate(fork.records.len());
        fork
    }
}
