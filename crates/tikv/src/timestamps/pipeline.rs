//! Which batches are on their way, and what an answer means for them. No I/O and no clock: times come in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use watermark::{Dispenser, Draw, Range};

use super::LOGICAL_BITS;

/// Logical parts of one millisecond.
const LOGICAL: i64 = 1 << LOGICAL_BITS;
/// Milliseconds that fit above the logical part, with the sign's bit free.
const PHYSICAL: i64 = 1 << (63 - LOGICAL_BITS);
/// PD marks timestamps of its local allocators by bits below; more than these leave nothing of the logical part.
const MOST_SUFFIX_BITS: u32 = 4;

/// What PD answers, as far as it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) count: u32,
    pub(super) physical: i64,
    pub(super) logical: i64,
    pub(super) suffix_bits: u32,
}

/// Batches on their way, oldest first: PD answers a stream in order.
#[derive(Debug)]
pub(super) struct Pipeline {
    most: usize,
    flying: VecDeque<Flight>,
    /// The highest timestamp that was given.
    last: u64,
}

#[derive(Debug)]
struct Flight {
    draw: Draw,
    /// When it was sent over the present stream; `None`: not yet.
    sent: Option<Duration>,
}

/// An answer that can be published.
#[derive(Debug)]
pub(super) struct Landed {
    draw: Draw,
    range: Range,
    /// From sending to answer.
    pub(super) round_trip: Duration,
}

impl Landed {
    pub(super) fn takers(&self) -> u32 {
        self.draw.takers()
    }

    /// Tells the takers.
    pub(super) fn publish(self, dispenser: &Dispenser) {
        dispenser.complete(self.draw, self.range);
    }
}

impl Pipeline {
    /// With at most so many batches on their way.
    pub(super) fn new(most: usize) -> Pipeline {
        Pipeline { most: most.clamp(1, 64), flying: VecDeque::new(), last: 0 }
    }

    /// How many timestamps to ask for now, over the present stream: a batch that an earlier stream has lost, else one of those who
    /// wait. `None`: nothing, for now. To be called until then.
    pub(super) fn next(&mut self, dispenser: &Dispenser, now: Duration) -> Option<u32> {
        if let Some(lost) = self.flying.iter_mut().find(|flight| flight.sent.is_none()) {
            lost.sent = Some(now);
            return Some(lost.draw.takers());
        }
        if self.flying.len() >= self.most {
            return None;
        }
        let draw = dispenser.begin()?;
        let takers = draw.takers();
        self.flying.push_back(Flight { draw, sent: Some(now) });
        Some(takers)
    }

    /// PD has answered. What comes back is for [`Landed::publish`]; the place on the way is free already.
    ///
    /// # Errors
    /// When this cannot be the answer to the oldest batch, or is not higher than all answers before. Nothing of it is given to anybody:
    /// the stream has to be given up, and the batch is asked for again over the next one.
    pub(super) fn answered(&mut self, said: Said, now: Duration) -> Result<Landed, Arc<str>> {
        let Some(Flight { draw, sent: Some(sent) }) = self.flying.front() else {
            return Err("an answer that nobody asked for".into());
        };
        let first = first_of(said, draw.takers())?;
        if first <= self.last {
            return Err(format!("a timestamp that is not higher than one before: {first} after {}", self.last).into());
        }
        let step = 1 << said.suffix_bits;
        let range = Range { first, step, note: micros(*sent) };
        let round_trip = now.saturating_sub(*sent);
        self.last = first + u64::from(draw.takers() - 1) * step;
        let Some(Flight { draw, .. }) = self.flying.pop_front() else { return Err("no batch".into()) };
        Ok(Landed { draw, range, round_trip })
    }

    /// The stream is gone: all that is on the way has to be asked for again. PD may have answered some; what nobody heard is nobody's.
    pub(super) fn lost(&mut self) {
        for flight in &mut self.flying {
            flight.sent = None;
        }
    }

    /// Since when the oldest batch waits for its answer.
    pub(super) fn waits_since(&self) -> Option<Duration> {
        self.flying.front().and_then(|flight| flight.sent)
    }
}

/// The first of `takers` timestamps; an answer names the last.
fn first_of(said: Said, takers: u32) -> Result<u64, Arc<str>> {
    let Said { count, physical, logical, suffix_bits } = said;
    if count != takers {
        return Err(format!("{count} timestamps, where {takers} were asked for").into());
    }
    if suffix_bits > MOST_SUFFIX_BITS {
        return Err(format!("{suffix_bits} bits of suffix").into());
    }
    if !(1..PHYSICAL).contains(&physical) {
        return Err(format!("the time {physical}").into());
    }
    if !(0..LOGICAL).contains(&logical) {
        return Err(format!("a logical part of {logical}, the most is {}", LOGICAL - 1).into());
    }
    let first = logical - (i64::from(takers - 1) << suffix_bits);
    if first < 0 {
        return Err(format!("{takers} timestamps that end at the logical part {logical}").into());
    }
    Ok((physical as u64) << LOGICAL_BITS | first as u64)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashSet;

    use proptest::prelude::*;
    use watermark::Place;

    use super::*;

    fn now(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn said(count: u32, physical: i64, logical: i64) -> Said {
        Said { count, physical, logical, suffix_bits: 0 }
    }

    fn number(dispenser: &Dispenser, place: Place) -> Option<u64> {
        Some(dispenser.number(place)?.unwrap().number)
    }

    #[test]
    fn batches_are_sent_while_others_are_on_their_way_and_then_gather() {
        let dispenser = Dispenser::new(|| {});
        let mut pipeline = Pipeline::new(2);
        assert_eq!(pipeline.next(&dispenser, now(0)), None, "nobody waits");
        let first = dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(1)), Some(1));
        let second = dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(2)), Some(1), "it does not wait for the first one's answer");
        let third = [dispenser.take().unwrap(), dispenser.take().unwrap()];
        assert_eq!(pipeline.next(&dispenser, now(3)), None, "two are on their way");
        let landed = pipeline.answered(said(1, 7, 5), now(4)).unwrap();
        assert_eq!((landed.takers(), landed.round_trip), (1, now(3)));
        assert_eq!(pipeline.next(&dispenser, now(4)), Some(2), "before those of the first are told");
        landed.publish(&dispenser);
        assert_eq!(number(&dispenser, first), Some(7 << 18 | 5));
        assert_eq!(number(&dispenser, second), None);
        pipeline.answered(said(1, 7, 6), now(5)).unwrap().publish(&dispenser);
        pipeline.answered(said(2, 7, 8), now(5)).unwrap().publish(&dispenser);
        assert_eq!(third.map(|place| number(&dispenser, place)), [Some(7 << 18 | 7), Some(7 << 18 | 8)]);
    }

    #[test]
    fn what_a_stream_loses_is_asked_for_again_in_the_same_order() {
        let dispenser = Dispenser::new(|| {});
        let mut pipeline = Pipeline::new(2);
        let one = dispenser.take().unwrap();
        pipeline.next(&dispenser, now(0)).unwrap();
        let two = [(); 3].map(|()| dispenser.take().unwrap());
        pipeline.next(&dispenser, now(0)).unwrap();
        let late = dispenser.take().unwrap();
        pipeline.lost();
        assert_eq!(pipeline.waits_since(), None, "nothing is on its way");
        let again = [1, 2, 3].map(|n| pipeline.next(&dispenser, now(n)));
        assert_eq!(again, [Some(1), Some(3), None]);
        assert_eq!(pipeline.waits_since(), Some(now(1)));
        pipeline.answered(said(1, 9, 0), now(9)).unwrap().publish(&dispenser);
        pipeline.answered(said(3, 9, 3), now(9)).unwrap().publish(&dispenser);
        assert_eq!(number(&dispenser, one), Some(9 << 18));
        assert_eq!(two.map(|place| number(&dispenser, place).unwrap() & 0xff), [1, 2, 3]);
        assert_eq!((number(&dispenser, late), pipeline.next(&dispenser, now(9))), (None, Some(1)));
    }

    #[test]
    fn an_answer_that_cannot_be_right_is_given_to_nobody() {
        let last = LOGICAL - 1;
        for (answer, right) in [
            (said(2, 100, 1), true),
            (said(2, 100, last), true),
            (said(2, 99, last), false),
            (said(2, 100, 0), false),
            (said(2, 100, LOGICAL), false),
            (said(2, 100, -1), false),
            (said(1, 100, 5), false),
            (said(3, 100, 5), false),
            (said(2, 0, 5), false),
            (said(2, -1, 5), false),
            (said(2, i64::MAX, 5), false),
            (Said { suffix_bits: 1, ..said(2, 100, 2) }, true),
            (Said { suffix_bits: 1, ..said(2, 100, 1) }, false),
            (Said { suffix_bits: 40, ..said(2, 100, 9) }, false),
        ] {
            let dispenser = Dispenser::new(|| {});
            let mut pipeline = Pipeline::new(1);
            pipeline.last = (100 << 18) - 1;
            let places = [dispenser.take().unwrap(), dispenser.take().unwrap()];
            pipeline.next(&dispenser, now(0)).unwrap();
            let result = pipeline.answered(answer, now(1)).map(|landed| landed.publish(&dispenser));
            assert_eq!(result.is_ok(), right, "{answer:?}: {result:?}");
            assert_eq!(number(&dispenser, places[0]).is_some(), right, "{answer:?}");
            if !right {
                pipeline.lost();
                assert_eq!(pipeline.next(&dispenser, now(2)), Some(2), "asked for again after {answer:?}");
            }
        }
        assert!(Pipeline::new(1).answered(said(1, 1, 1), now(0)).is_err(), "an answer to nothing");
    }

    /// What may happen, one after the other.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask,
        Send,
        Answer,
        /// PD answers, and the answer is lost with the stream.
        Lose,
        /// PD's clock is back where it was.
        Regress,
    }

    proptest! {
        /// Whatever happens: no timestamp twice, each is higher than all that were given before it was asked for, and everybody is
        /// answered in the end.
        #[test]
        fn timestamps_rise_by_real_time(events in proptest::collection::vec(
            prop_oneof![
                4 => Just(Event::Ask), 3 => Just(Event::Send), 3 => Just(Event::Answer), 1 => Just(Event::Lose), 1 => Just(Event::Regress)
            ], 0..200), most in 1..5usize) {
            let dispenser = Dispenser::new(|| {});
            let mut pipeline = Pipeline::new(most);
            // The model's PD: a counter, and the questions that have reached it.
            let mut counter = 10 << 18;
            let mut asked: VecDeque<u32> = VecDeque::new();
            let mut waiting: Vec<(Place, u64)> = Vec::new();
            let mut given = HashSet::new();
            let mut highest = 0;
            let drain = [Event::Send, Event::Answer].repeat(300);
            for event in events.into_iter().chain(drain) {
                match event {
                    Event::Ask => waiting.push((dispenser.take().unwrap(), highest)),
                    Event::Send => asked.extend(pipeline.next(&dispenser, now(0))),
                    Event::Answer => {
                        if let Some(count) = asked.pop_front() {
                            counter += u64::from(count);
                            let answer = said(count, (counter >> 18) as i64, (counter & 0x3ffff) as i64);
                            pipeline.answered(answer, now(0)).unwrap().publish(&dispenser);
                        }
                    }
                    Event::Lose => {
                        counter += asked.drain(..).map(u64::from).sum::<u64>();
                        pipeline.lost();
                    }
                    Event::Regress => {
                        if let Some(count) = asked.front() && highest > 0 {
                            let old = highest - 1;
                            let answer = said(*count, (old >> 18) as i64, (old & 0x3ffff) as i64);
                            prop_assert!(pipeline.answered(answer, now(0)).is_err());
                            asked.clear();
                            pipeline.lost();
                        }
                    }
                }
                let mut newest = highest;
                for (place, before) in std::mem::take(&mut waiting) {
                    match number(&dispenser, place) {
                        Some(number) => {
                            prop_assert!(number > before, "{number} after {before}");
                            prop_assert!(given.insert(number), "{number} twice");
                            newest = newest.max(number);
                        }
                        None => waiting.push((place, before)),
                    }
                }
                highest = newest;
            }
            prop_assert!(waiting.is_empty(), "{} wait for ever", waiting.len());
        }
    }
}
