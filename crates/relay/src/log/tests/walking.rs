//! The walker alone.

use proptest::prelude::*;

use super::super::{PAGE_BYTES, Stop, Walker};
use super::*;

/// Walks `bytes`, as if followed by endless repetitions of `tail`.
fn walk(bytes: &[u8], timeline: u32) -> (Walker, Option<Stop>) {
    let mut walker = Walker::new(identity(), Timeline(timeline), BEGIN);
    for piece in bytes.chunks(PAGE_BYTES) {
        let mut page = [0; PAGE_BYTES];
        page[..piece.len()].copy_from_slice(piece);
        if let Err(stop) = walker.page(&page) {
            return (walker, Some(stop));
        }
    }
    (walker, None)
}

#[test]
fn follows_every_length_over_pages_and_segments() {
    let wal = some_wal();
    let (walker, stop) = walk(&wal.bytes, 1);
    assert_eq!(walker.end(), Some(wal.at()));
    assert_eq!(walker.records(), wal.records.len() as u64);
    assert_eq!(walker.last_record(), wal.records.last().map(|(start, _)| *start));
    assert_eq!(stop, Some(Stop::Length(0)), "zeroes behind the last record");
}

#[test]
fn one_record_longer_than_two_segments() {
    let wal = wal([100, 2_500_000, 100]);
    assert_eq!(walk(&wal.bytes, 1).0.end(), Some(wal.at()));
    let cut = &wal.bytes[..2_400_000];
    assert_eq!(walk(cut, 1).0.end(), Some(wal.records[0].1));
}

#[test]
fn a_segment_switch_ends_with_its_padding() {
    let mut wal = wal([100, 200]);
    wal.switch();
    assert_eq!(wal.at(), Lsn(BEGIN.0 + MB));
    let (walker, stop) = walk(&wal.bytes, 1);
    assert_eq!((walker.end(), stop), (Some(wal.at()), None));
    wal.record(50);
    wal.record(60);
    assert_eq!(walk(&wal.bytes, 1).0.end(), Some(wal.at()));
    // The padding is certain once the switch is there.
    assert_eq!(walk(&wal.bytes[..420], 1).0.end(), Some(Lsn(BEGIN.0 + MB)));
}

#[test]
fn a_record_that_a_crash_of_the_server_cut_off_is_passed_over() {
    let mut wal = wal([100, 200]);
    wal.cut_off_record(30_000, 2);
    wal.record(80);
    wal.record(90);
    let (walker, _) = walk(&wal.bytes, 1);
    assert_eq!((walker.end(), walker.records()), (Some(wal.at()), 4));
}

#[test]
fn begins_behind_the_rest_of_a_record() {
    let wal = wal([100, MB as usize, 70, 80]);
    let mut walker = Walker::new(identity(), Timeline(1), Lsn(BEGIN.0 + MB));
    let mut stop = None;
    for page in wal.bytes[MB as usize..].chunks(PAGE_BYTES) {
        let mut whole = [0; PAGE_BYTES];
        whole[..page.len()].copy_from_slice(page);
        stop = walker.page(&whole).err();
    }
    assert_eq!((walker.end(), walker.records()), (Some(wal.at()), 2));
    assert_eq!(stop, Some(Stop::Length(0)));
}

/// One fault per case, in the second page.
#[test]
fn why_it_stops() {
    let wal = wal((0..200).map(|_| 100));
    let page = PAGE_BYTES;
    let set = |offset: usize, bytes: &[u8]| {
        let mut changed = wal.bytes.clone();
        changed[offset..offset + bytes.len()].copy_from_slice(bytes);
        walk(&changed, 1).1
    };
    assert_eq!(set(page, &[0, 0]), Some(Stop::Magic(0)));
    assert_eq!(set(page, &[5, 0xD1]), Some(Stop::Magic(0xD105)));
    assert_eq!(set(page + 2, &[0x11, 0]), Some(Stop::Flags(0x11)));
    assert_eq!(set(page + 2, &[3, 0]), Some(Stop::Flags(3)), "a long header in the middle");
    assert_eq!(set(page + 2, &[0, 0]), Some(Stop::Continuation));
    assert_eq!(set(page + 4, &[2, 0, 0, 0]), Some(Stop::Timeline(2)), "not begun");
    assert_eq!(set(page + 4, &[0, 0, 0, 0]), Some(Stop::Timeline(0)), "gone by");
    assert_eq!(set(page + 8, &[0; 8]), Some(Stop::Address(Lsn(0))));
    assert_eq!(set(page + 16, &[1, 0, 0, 0]), Some(Stop::Continuation));
    assert_eq!(set(24, &[43]), Some(Stop::SystemId(43)));
    assert_eq!(set(32, &[0; 4]), Some(Stop::Sizes { segment: 0, page: 8192 }));
    let second = (wal.records[1].0.0 - BEGIN.0) as usize;
    assert_eq!(set(second, &[23, 0, 0, 0]), Some(Stop::Length(23)));
    assert_eq!(set(second, &[0xff; 4]), Some(Stop::Continuation), "a length that the next page does not go on with");
    assert_eq!(set(second + 8, &[0; 8]), Some(Stop::Previous(Lsn(0))));
    for offset in [4, 17, 20, 24, 123] {
        assert_eq!(set(second + offset, &[0x5a]), Some(Stop::Checksum), "{offset}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With any bytes behind a cut, the end is that of the last whole record.
    #[test]
    fn the_end_is_that_of_the_last_whole_record(
        lengths in prop::collection::vec(prop_oneof![0_usize..60, 0_usize..9000, 8000_usize..8300, 0_usize..200_000], 1..60),
        cut in 0.0..1.0_f64,
        behind in prop_oneof![Just(None), any::<u64>().prop_map(Some)],
    ) {
        let wal = wal(lengths);
        let cut = (wal.bytes.len() as f64 * cut) as usize;
        let mut bytes = wal.bytes.clone();
        let mut state = behind.unwrap_or(0);
        for byte in &mut bytes[cut..] {
            *byte = 0;
            if behind.is_some() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 33) as u8;
            }
        }
        let (walker, _) = walk(&bytes, 1);
        // The bytes behind the cut may by chance equal the original ones: the log is unchanged up to the first differing byte.
        let same = bytes.iter().zip(&wal.bytes).take_while(|(now, was)| now == was).count();
        let (at, end) = (Lsn(BEGIN.0 + same as u64), walker.end().unwrap_or(BEGIN));
        prop_assert!(end == wal.end_before(at), "cut at {cut}, as it was up to {at}: {end}");
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..20_000), at in 0_usize..100) {
        let mut mixed = some_wal().bytes;
        let at = at * 4096;
        let end = mixed.len().min(at + bytes.len());
        mixed[at..end].copy_from_slice(&bytes[..end - at]);
        let _ = walk(&mixed, 1);
        let _ = walk(&bytes, 1);
    }
}
