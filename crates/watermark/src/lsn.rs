//! A position in a write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A byte position in PostgreSQL's write-ahead log; written as `X/X` in hexadecimal. 0 is not a valid position and means "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Length of a WAL page.
    const PAGE: u64 = 8192;
    /// Length of a page's header, and of the longer header of a segment's first page.
    const PAGE_HEADER: u64 = 24;
    const SEGMENT_HEADER: u64 = 40;

    /// Returns the end of the last record from the position of the next one: `pg_current_wal_insert_lsn()`, lowered to the page's start if only the
    /// page's header lies in between.
    ///
    /// `segment_size` is the server's `wal_segment_size` in bytes. If a record ends at the end of its page, the primary's insert position is already
    /// behind the next page's header (24 bytes, 40 on the first page of a segment), but a standby that has replayed that record reports the page's
    /// start: without the correction it would never appear to have caught up. No record ends just behind a header, so the correction never lowers a
    /// position below a written record.
    #[must_use]
    pub fn end_of_record(self, segment_size: u64) -> Lsn {
        let in_page = self.0 % Lsn::PAGE;
        let page = self.0 - in_page;
        let header = if page.is_multiple_of(segment_size) { Lsn::SEGMENT_HEADER } else { Lsn::PAGE_HEADER };
        if in_page == header { Lsn(page) } else { self }
    }
}

/// Error for a text that is not of the form `X/X`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an LSN: expected two hexadecimal numbers of at most 8 digits, as in 16/B374D848")]
pub struct ParseLsnError(pub String);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(s: &str) -> Result<Lsn, ParseLsnError> {
        let half = |part: &str| {
            let digits = !part.is_empty() && part.len() <= 8 && part.bytes().all(|b| b.is_ascii_hexdigit());
            if digits { u64::from_str_radix(part, 16).ok() } else { None }
        };
        s.split_once('/')
            .and_then(|(high, low)| Some(Lsn(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| ParseLsnError(s.into()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_as_postgresql_does() {
        for (lsn, text) in [
            (0, "0/0"),
            (1, "0/1"),
            (0x16_B374_D848, "16/B374D848"),
            (0x1_0000_0000, "1/0"),
            (u64::MAX, "FFFFFFFF/FFFFFFFF"),
        ] {
            assert_eq!(Lsn(lsn).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn(lsn)));
        }
        assert_eq!("a/b".parse(), Ok(Lsn(0xA_0000_000B)), "small digits too");
        assert_eq!("0000000a/0000000b".parse(), Ok(Lsn(0xA_0000_000B)), "leading zeroes too");
    }

    #[test]
    fn rejects() {
        for text in [
            "",
            "/",
            "1/",
            "/1",
            "1",
            "1/2/3",
            "+1/2",
            "1/-2",
            " 1/2",
            "1/2 ",
            "g/1",
            "0x1/2",
            "123456789/1",
            "1/123456789",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError(text.into())), "{text:?}");
        }
    }

    #[test]
    fn end_of_record_takes_a_bare_header_away() {
        const SEGMENT: u64 = 16 << 20;
        for (insert, end, why) in [
            (SEGMENT + 8192 + 24, SEGMENT + 8192, "page header alone"),
            (SEGMENT + 8192 + 32, SEGMENT + 8192 + 32, "a record's tail after the header"),
            (SEGMENT + 8192, SEGMENT + 8192, "already the page's start"),
            (SEGMENT + 40, SEGMENT, "segment header alone"),
            (SEGMENT + 24, SEGMENT + 24, "no position of a segment's first page"),
            (SEGMENT + 8192 + 40, SEGMENT + 8192 + 40, "40 means nothing elsewhere"),
            (2 * SEGMENT + 40, 2 * SEGMENT, "next segment"),
            (0x300_0028 + 1, 0x300_0028 + 1, "neither"),
        ] {
            assert_eq!(Lsn(insert).end_of_record(SEGMENT), Lsn(end), "{why}");
        }
        // With 1 MB segments: an ordinary page of 16 MB segments is a first page here.
        assert_eq!(Lsn((17 << 20) + 40).end_of_record(1 << 20), Lsn(17 << 20));
        assert_eq!(Lsn((17 << 20) + 40).end_of_record(SEGMENT), Lsn((17 << 20) + 40));
        assert_eq!(Lsn(8192 + 24).end_of_record(0), Lsn(8192), "segment size not known");
    }

    proptest! {
        #[test]
        fn text_round_trip(lsn: u64) {
            prop_assert_eq!(Lsn(lsn).to_string().parse(), Ok(Lsn(lsn)));
        }

        #[test]
        fn parses_only_its_own_form(text in "[0-9A-Fa-f/xg +-]{0,20}") {
            let halves: Vec<&str> = text.split('/').collect();
            let good = halves.len() == 2
                && halves.iter().all(|half| (1..=8).contains(&half.len()) && half.chars().all(|c| c.is_ascii_hexdigit()));
            prop_assert_eq!(text.parse::<Lsn>().is_ok(), good);
        }

        #[test]
        fn never_panics(text: String) {
            let _ = text.parse::<Lsn>();
        }

        #[test]
        fn end_of_record_goes_down_by_a_header_at_most(lsn: u64, shift in 20_u32..30) {
            let end = Lsn(lsn).end_of_record(1 << shift);
            prop_assert!(end.0 <= lsn && lsn - end.0 <= 40);
        }
    }
}
