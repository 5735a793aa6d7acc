//! WAL pages and timeline history files, as they may be found on a disk.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;
use relay::log::{History, Identity, PAGE_BYTES, Segment, SegmentSize, Timeline, Walker};
use watermark::Lsn;

const START: Lsn = Lsn(5 << 20);
const SYSTEM_ID: u64 = 42;

/// Gives a page a valid header, so that its contents are parsed.
fn mend(page: &mut [u8; PAGE_BYTES], at: Lsn, flags: u16) {
    let first = at.0.is_multiple_of(1 << 20);
    page[..2].copy_from_slice(&0xD110_u16.to_le_bytes());
    page[2..4].copy_from_slice(&((flags & 9) | if first { 2 } else { 0 }).to_le_bytes());
    page[4..8].copy_from_slice(&1_u32.to_le_bytes());
    page[8..16].copy_from_slice(&at.0.to_le_bytes());
    if first {
        page[24..32].copy_from_slice(&SYSTEM_ID.to_le_bytes());
        page[32..36].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        page[36..40].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    if mode & 1 == 0 {
        if let Ok(history) = History::parse(Timeline(9), data) {
            for (timeline, at) in &history.ancestors {
                assert_eq!(history.left(*timeline).map(|(at, _)| at), Some(*at));
            }
            assert_eq!(history.newest_first().count(), history.ancestors.len() + 1);
        }
        if let Ok(name) = std::str::from_utf8(data) {
            let size = SegmentSize::DEFAULT;
            if let Some(segment) = Segment::of_name(name, size) {
                assert_eq!(segment.name(size), name);
            }
        }
        return;
    }
    let Ok(segment_size) = SegmentSize::new(1 << 20) else { return };
    let mut walker = Walker::new(Identity { system_id: SYSTEM_ID, segment_size }, Timeline(1), START);
    for piece in data.chunks(PAGE_BYTES) {
        let mut page = [0; PAGE_BYTES];
        page[..piece.len()].copy_from_slice(piece);
        if mode & 2 != 0 {
            let flags = u16::from_le_bytes([page[2], page[3]]);
            mend(&mut page, walker.at(), flags);
        }
        let before = walker.end();
        let stopped = walker.page(&page).is_err();
        assert!(walker.end() >= before, "the end only grows");
        if stopped {
            break;
        }
    }
    assert_eq!(walker.end().is_some(), walker.records() > 0);
});
