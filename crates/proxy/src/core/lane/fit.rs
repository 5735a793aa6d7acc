//! Decides from plain values which units may share a server connection, and which connection they use. In doubt a unit does not share.

use sql::{Access, Class, Flags};

use super::micros;
use crate::core::session::{SingleStatement, Unit};
use crate::settings::Lanes;

/// Values that decide if a unit may enter a lane.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Candidate {
    /// True if lanes are enabled for the pool.
    pub on: bool,
    pub unit: Unit,
    pub pinned: bool,
    /// True if an earlier attempt in a lane failed.
    pub alone: bool,
}

/// Choice of a lane for a unit that may enter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Pick {
    /// A new lane on an idle connection.
    Start,
    /// The lane at this position.
    Join(usize),
    /// No lane: the unit waits, or gets a connection of its own.
    None,
}

impl Unit {
    /// True if the unit is one statement: a Query, or `P B D E S` that runs one statement to its end in the unnamed portal.
    pub(in crate::core) fn is_one(&self) -> bool {
        let complete = match self.end {
            b'Q' => true,
            b'S' => self.bound && self.executed,
            _ => false,
        };
        self.single && self.whole && complete
    }

    /// True if the unit's messages and statement permit a lane.
    pub(in crate::core) fn is_single(&self) -> bool {
        self.is_one() && self.statement_kind == SingleStatement::Read && self.read && self.key != 0
    }
}

/// True if this unit may certainly share a connection.
pub(in crate::core) fn is_fit(candidate: &Candidate) -> bool {
    candidate.on && !candidate.pinned && !candidate.alone && candidate.unit.is_single()
}

/// True if a statement of this class is certainly a plain read.
pub(in crate::core) fn is_plain(class: Class) -> bool {
    class.access == Access::Read
        && class.flags.without(Flags::BEGIN_TIME) == Flags(0)
        && class.pins.is_empty()
        && !class.local
}

/// Returns the number of seats of a lane for statements that usually take `usual` microseconds. The last seat should not wait much longer than the
/// time of one slow statement.
pub(in crate::core) fn seats_for(usual: u32, lanes: &Lanes) -> usize {
    (micros(lanes.slow) / usual.max(1)).clamp(1, lanes.depth as u32) as usize
}

/// Chooses a lane. `open`: position and number of taken seats of each lane that can be entered. `count`: the number of all lanes.
pub(in crate::core) fn pick(
    open: impl Iterator<Item = (usize, usize)>,
    count: usize,
    idle: bool,
    seats: usize,
    width: usize,
) -> Pick {
    if idle && count < width {
        return Pick::Start;
    }
    match open.filter(|&(_, taken)| taken < seats).min_by_key(|&(_, taken)| taken) {
        Some((position, _)) => Pick::Join(position),
        None if idle => Pick::Start,
        None => Pick::None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_fit() {
        let query = Unit { whole: true, statement_kind: SingleStatement::Read, end: b'Q', key: 7, ..Unit::default() };
        let extended = Unit { end: b'S', bound: true, executed: true, ..query };
        let fit = |unit| Candidate { on: true, unit, pinned: false, alone: false };
        let cases = [
            (fit(query), true),
            (fit(extended), true),
            (Candidate { on: false, ..fit(query) }, false),
            (Candidate { pinned: true, ..fit(query) }, false),
            (Candidate { alone: true, ..fit(query) }, false),
            // A write; a part of a unit; a unit that ends in Flush; no statement; another kind of statement; no shape to know its cost by.
            (fit(Unit { read: false, ..query }), false),
            (fit(Unit { whole: false, ..query }), false),
            (fit(Unit { end: b'H', ..extended }), false),
            (fit(Unit { statement_kind: SingleStatement::Nothing, ..query }), false),
            (fit(Unit { statement_kind: SingleStatement::Other, ..query }), false),
            (fit(Unit { key: 0, ..query }), false),
            // Only described; bound and not executed; a function call.
            (fit(Unit { bound: false, executed: false, ..extended }), false),
            (fit(Unit { executed: false, ..extended }), false),
            (fit(Unit { end: b'F', ..query }), false),
            (fit(Unit { single: false, ..extended }), false),
        ];
        for (candidate, expected) in cases {
            assert_eq!(is_fit(&candidate), expected, "{candidate:?}");
        }
    }

    #[test]
    fn which_classes_are_plain() {
        use sql::{Control, Pins};
        let read = Class { access: Access::Read, ..Class::UNKNOWN };
        let cases = [
            (read, true),
            (Class::UNKNOWN, false),
            (Class { flags: Flags::BEGIN_TIME, ..read }, true),
            (Class { flags: Flags::APART, ..read }, false),
            (Class { flags: Flags::MULTI, ..read }, false),
            (Class { flags: Flags::EMPTY, ..read }, false),
            (Class { pins: Pins::TEMP, ..read }, false),
            (Class { local: true, ..read }, false),
            (Class { control: Control::Begin { read_only: true }, ..Class::UNKNOWN }, false),
        ];
        for (class, expected) in cases {
            assert_eq!(is_plain(class), expected, "{class:?}");
        }
    }

    #[test]
    fn where_it_goes() {
        // Lanes that can be entered, with their taken seats; number of all lanes; true if a connection is idle; seats for such a statement; number of
        // lanes before one is shared.
        type Case = (&'static [(usize, usize)], usize, bool, usize, usize, Pick);
        let cases: [Case; 9] = [
            (&[], 0, true, 16, 2, Pick::Start),
            (&[], 0, false, 16, 2, Pick::None),
            (&[(0, 1)], 1, true, 16, 2, Pick::Start),
            (&[(0, 1)], 1, false, 16, 2, Pick::Join(0)),
            (&[(0, 3), (1, 2)], 2, true, 16, 2, Pick::Join(1)),
            // All full, or stalled: one more, while there are connections.
            (&[(0, 16), (1, 16)], 2, true, 16, 2, Pick::Start),
            (&[], 2, true, 16, 2, Pick::Start),
            (&[(0, 16), (1, 16)], 2, false, 16, 2, Pick::None),
            // A slow statement has fewer before it.
            (&[(0, 3), (1, 2)], 2, false, 2, 2, Pick::None),
        ];
        for (open, count, idle, seats, width, expected) in cases {
            assert_eq!(
                pick(open.iter().copied(), count, idle, seats, width),
                expected,
                "{open:?} {count} {idle} {seats}"
            );
        }
    }

    #[test]
    fn quick_statements_have_more_seats() {
        let (slow, stall) = (Duration::from_millis(5), Duration::from_millis(20));
        let lanes = Lanes { depth: 16, width: 2, most_width: 2, slow, stall, gather: Duration::ZERO, bytes: 1 };
        let cases = [(0, 16), (100, 16), (312, 16), (500, 10), (2_500, 2), (4_999, 1), (u32::MAX, 1)];
        for (micros, expected) in cases {
            assert_eq!(seats_for(micros, &lanes), expected, "{micros}");
        }
    }
}
