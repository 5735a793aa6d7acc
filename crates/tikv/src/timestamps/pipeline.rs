//! The pipeline of batches: the batches in flight, the time of the next one, and the handling of answers. No I/O and no clock: times are arguments.
//!
//! Answered callers request again at once, one after another as the scheduler wakes them. A batch sent for the first of them would be small, and so
//! would the next: a handful of small batches would take all places in flight, and every other caller would wait a whole round trip for a place, and
//! a second one for the answer. So a batch waits for more callers, but never for longer than an eighth of a round trip:
//!
//! - for as many callers as have just been answered, since they are about to request again;
//! - for an answer that is due within that time, and for its callers;
//! - otherwise until the previous batch is an eighth of a round trip old.
//!
//! Callers that request at about the same time share a batch from then on, which costs the least. A single caller never waits.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use watermark::{Dispenser, Draw, Range};

use super::LOGICAL_BITS;

/// Logical values of one millisecond.
const LOGICAL: i64 = 1 << LOGICAL_BITS;
/// Milliseconds that fit above the logical part, with a free sign bit.
const PHYSICAL: i64 = 1 << (63 - LOGICAL_BITS);
/// PD marks timestamps of its local allocators in the lowest bits; more of them than this leave nothing of the logical part.
const MOST_SUFFIX_BITS: u32 = 4;

/// Maximum wait of a batch for more callers, as a fraction of a round trip.
const PART: u32 = 8;
/// Minimum of that wait: a shorter one is not worth a timer.
const SHORTEST: Duration = Duration::from_micros(50);
/// Maximum of that wait, even if one slow answer has raised the mean round trip.
const LONGEST: Duration = Duration::from_millis(5);
/// Weight of a new round trip in the mean, as a fraction.
const SHARE: u32 = 8;

/// Size that no batch reaches, so that no caller wakes the driver.
const NOBODY: u32 = u32::MAX;

/// The driver's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Request this many timestamps, and call again.
    Send(u32),
    /// Call again at this time, or at an answer.
    Wait(Duration),
    /// Call again at an answer, or when a caller waits.
    Nothing,
}

/// The relevant fields of PD's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimestampResponse {
    pub(super) count: u32,
    pub(super) physical: i64,
    pub(super) logical: i64,
    pub(super) suffix_bits: u32,
}

/// Batches in flight, oldest first: PD answers a stream in order.
#[derive(Debug)]
pub(super) struct Pipeline {
    most: usize,
    flying: VecDeque<Flight>,
    /// Time at which the newest batch was sent.
    sent: Duration,
    /// Mean of the recent round trips; `None` before the first answer.
    round_trip: Option<Duration>,
    /// Callers about to request again; `None` after a batch was sent, and when their time is over.
    recent: Option<RecentResponses>,
    /// Time since which a caller waits in the next batch, as of the last look.
    waits: Option<Duration>,
    /// The highest timestamp given.
    last: u64,
}

/// Answers since the last batch was sent.
#[derive(Debug, Clone, Copy)]
struct RecentResponses {
    /// Time of the first of them.
    at: Duration,
    /// Number of waiting callers once all answered ones have requested again.
    expected: u32,
}

#[derive(Debug)]
struct Flight {
    draw: Draw,
    /// Time of sending over the present stream; `None`: not sent yet.
    sent: Option<Duration>,
}

/// An answer that can be published.
#[derive(Debug)]
pub(super) struct Landed {
    draw: Draw,
    range: Range,
    /// Time from sending to answer.
    pub(super) round_trip: Duration,
}

impl Landed {
    pub(super) fn takers(&self) -> u32 {
        self.draw.takers()
    }

    /// Publishes the timestamps to the callers.
    pub(super) fn publish(self, dispenser: &Dispenser) {
        dispenser.complete(self.draw, self.range);
    }
}

impl Pipeline {
    /// Makes a pipeline with at most `most` batches in flight.
    pub(super) fn new(most: usize) -> Pipeline {
        Pipeline {
            most: most.clamp(1, 64),
            flying: VecDeque::new(),
            sent: Duration::ZERO,
            round_trip: None,
            recent: None,
            waits: None,
            last: 0,
        }
    }

    /// Returns the next step for the present stream: sends a batch again that an earlier stream has lost, else a batch of the waiting callers. To be
    /// called until it no longer returns `Send`.
    pub(super) fn next(&mut self, dispenser: &Dispenser, now: Duration) -> Next {
        if let Some(lost) = self.flying.iter_mut().find(|flight| flight.sent.is_none()) {
            lost.sent = Some(now);
            return Next::Send(lost.draw.takers());
        }
        loop {
            let (next, enough) = self.decide(dispenser.waiting(), now);
            if !matches!(next, Next::Send(_)) {
                // A caller that came in between may not have woken the driver.
                if dispenser.wake_at(enough) {
                    continue;
                }
                return next;
            }
            let Some(draw) = dispenser.begin() else { return Next::Nothing };
            let takers = draw.takers();
            self.flying.push_back(Flight { draw, sent: Some(now) });
            (self.sent, self.recent, self.waits) = (now, None, None);
            return Next::Send(takers);
        }
    }

    /// Returns the next step for `waiting` callers; and the number of waiting callers that wakes the driver.
    fn decide(&mut self, waiting: u32, now: Duration) -> (Next, u32) {
        let patience = self.patience();
        if waiting > 0 && self.waits.is_none() {
            self.waits = Some(self.recent.map_or(now, |recent| recent.at));
        }
        self.recent = self.recent.filter(|recent| now < recent.at + patience);
        let expected = self.recent.map_or(0, |recent| recent.expected);
        if self.flying.len() >= self.most {
            return (Next::Nothing, NOBODY);
        }
        let Some(waits) = self.waits else {
            return match self.recent {
                Some(recent) if recent.expected > 1 => (Next::Wait(recent.at + patience), recent.expected),
                // A single answered caller wakes the driver: a timer would be useless.
                _ => (Next::Nothing, 1),
            };
        };
        let oldest = self.flying.front().and_then(|flight| flight.sent);
        let due_soon = oldest.is_some_and(|sent| sent + self.round_trip.unwrap_or_default() < now + patience);
        let until = waits + patience;
        let apart = if expected == 0 && oldest.is_some() { until.min(self.sent + patience) } else { now };
        if now < until && waiting < expected {
            (Next::Wait(until), expected)
        } else if now < until && due_soon {
            (Next::Wait(until), NOBODY)
        } else if now < apart {
            (Next::Wait(apart), NOBODY)
        } else {
            (Next::Send(waiting), NOBODY)
        }
    }

    /// Returns the maximum wait of a batch for more callers.
    fn patience(&self) -> Duration {
        self.round_trip.map_or(Duration::ZERO, |round_trip| (round_trip / PART).clamp(SHORTEST, LONGEST))
    }

    /// Applies PD's answer, with `waiting` callers for the next batch. Returns a value for [`Landed::publish`]; the place in flight is free already.
    ///
    /// # Errors
    /// The answer does not match the oldest batch, or is not higher than all answers before. None of it is given to any caller: the stream must be
    /// closed, and the batch is requested again over the next one.
    pub(super) fn answered(
        &mut self,
        response: TimestampResponse,
        waiting: u32,
        now: Duration,
    ) -> Result<Landed, Arc<str>> {
        let Some(Flight { draw, sent: Some(sent) }) = self.flying.front() else {
            return Err("an answer that nobody asked for".into());
        };
        let first = first_of(response, draw.takers())?;
        if first <= self.last {
            return Err(format!("a timestamp that is not higher than one before: {first} after {}", self.last).into());
        }
        let step = 1 << response.suffix_bits;
        let range = Range { first, step, note: micros(*sent) };
        let round_trip = now.saturating_sub(*sent);
        let mean = self.round_trip.map_or(round_trip, |mean| mean - mean / SHARE + round_trip / SHARE);
        self.round_trip = Some(mean);
        self.last = first + u64::from(draw.takers() - 1) * step;
        let Some(Flight { draw, .. }) = self.flying.pop_front() else { return Err("no batch".into()) };
        let before = self.recent.unwrap_or(RecentResponses { at: now, expected: waiting });
        self.recent = Some(RecentResponses { expected: before.expected + draw.takers(), ..before });
        Ok(Landed { draw, range, round_trip })
    }

    /// Marks all batches in flight for sending again, since the stream is gone. PD may have answered some; an answer that was not received is given
    /// to nobody.
    pub(super) fn lost(&mut self) {
        for flight in &mut self.flying {
            flight.sent = None;
        }
    }

    /// Returns the time since which the oldest batch waits for its answer.
    pub(super) fn waits_since(&self) -> Option<Duration> {
        self.flying.front().and_then(|flight| flight.sent)
    }
}

/// Returns the first of `takers` timestamps; PD's answer contains the last.
fn first_of(response: TimestampResponse, takers: u32) -> Result<u64, Arc<str>> {
    let TimestampResponse { count, physical, logical, suffix_bits } = response;
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

    use std::collections::{BTreeSet, HashSet};
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;
    use watermark::Place;

    use super::*;

    fn now(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn response(count: u32, physical: i64, logical: i64) -> TimestampResponse {
        TimestampResponse { count, physical, logical, suffix_bits: 0 }
    }

    fn number(dispenser: &Dispenser, place: Place) -> Option<u64> {
        Some(dispenser.number(place)?.unwrap().number)
    }

    #[test]
    fn batches_are_sent_while_others_are_on_their_way_and_then_gather() {
        let dispenser = Dispenser::new(|| {});
        let mut pipeline = Pipeline::new(2);
        assert_eq!(pipeline.next(&dispenser, now(0)), Next::Nothing, "nobody waits");
        let first = dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(1)), Next::Send(1));
        let second = dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(2)), Next::Send(1), "it does not wait for the first one's answer");
        let third = [dispenser.take().unwrap(), dispenser.take().unwrap()];
        assert_eq!(pipeline.next(&dispenser, now(3)), Next::Nothing, "two are on their way");
        let landed = pipeline.answered(response(1, 7, 5), dispenser.waiting(), now(4)).unwrap();
        assert_eq!((landed.takers(), landed.round_trip), (1, now(3)));
        assert_eq!(pipeline.next(&dispenser, now(4)), Next::Send(2), "they have waited for too long already");
        landed.publish(&dispenser);
        assert_eq!(number(&dispenser, first), Some(7 << 18 | 5));
        assert_eq!(number(&dispenser, second), None);
        pipeline.answered(response(1, 7, 6), dispenser.waiting(), now(5)).unwrap().publish(&dispenser);
        pipeline.answered(response(2, 7, 8), dispenser.waiting(), now(5)).unwrap().publish(&dispenser);
        assert_eq!(third.map(|place| number(&dispenser, place)), [Some(7 << 18 | 7), Some(7 << 18 | 8)]);
    }

    #[test]
    fn what_a_stream_loses_is_asked_for_again_in_the_same_order() {
        let dispenser = Dispenser::new(|| {});
        let mut pipeline = Pipeline::new(2);
        let one = dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(0)), Next::Send(1));
        let two = [(); 3].map(|()| dispenser.take().unwrap());
        assert_eq!(pipeline.next(&dispenser, now(0)), Next::Send(3));
        let late = dispenser.take().unwrap();
        pipeline.lost();
        assert_eq!(pipeline.waits_since(), None, "nothing is on its way");
        let again = [1, 2, 3].map(|n| pipeline.next(&dispenser, now(n)));
        assert_eq!(again, [Next::Send(1), Next::Send(3), Next::Nothing]);
        assert_eq!(pipeline.waits_since(), Some(now(1)));
        pipeline.answered(response(1, 9, 0), dispenser.waiting(), now(9)).unwrap().publish(&dispenser);
        pipeline.answered(response(3, 9, 3), dispenser.waiting(), now(9)).unwrap().publish(&dispenser);
        assert_eq!(number(&dispenser, one), Some(9 << 18));
        assert_eq!(two.map(|place| number(&dispenser, place).unwrap() & 0xff), [1, 2, 3]);
        assert_eq!((number(&dispenser, late), pipeline.next(&dispenser, now(10))), (None, Next::Send(1)));
    }

    #[test]
    fn a_batch_waits_for_those_who_were_answered_and_for_an_answer_that_is_due() {
        let wakes = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&wakes);
        let dispenser = Dispenser::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let ask = |n: u32| {
            let before = wakes.load(Ordering::SeqCst);
            (0..n).for_each(|_| assert!(dispenser.take().is_some()));
            wakes.load(Ordering::SeqCst) - before
        };
        let mut pipeline = Pipeline::new(16);
        ask(3);
        assert_eq!(pipeline.next(&dispenser, now(0)), Next::Send(3));
        assert_eq!(
            (pipeline.next(&dispenser, now(0)), ask(2)),
            (Next::Nothing, 1),
            "the first who comes wakes the driver"
        );
        assert_eq!(pipeline.next(&dispenser, now(7)), Next::Send(2), "nobody knows yet how long a round trip takes");
        pipeline.answered(response(3, 1, 3), 0, now(16)).unwrap().publish(&dispenser);
        // A round trip takes 16 ms, so a batch waits 2 ms: for three callers, and then for the answer that is due at 23.
        assert_eq!(pipeline.next(&dispenser, now(16)), Next::Wait(now(18)));
        assert_eq!(ask(2), 0, "three are waited for");
        assert_eq!(pipeline.next(&dispenser, now(17)), Next::Wait(now(18)));
        assert_eq!(ask(1), 1);
        assert_eq!(pipeline.next(&dispenser, now(17)), Next::Send(3), "at once");
        assert_eq!((pipeline.next(&dispenser, now(17)), ask(1)), (Next::Nothing, 1));
        assert_eq!(pipeline.next(&dispenser, now(22)), Next::Wait(now(24)));
        pipeline.answered(response(2, 1, 5), dispenser.waiting(), now(23)).unwrap().publish(&dispenser);
        assert_eq!((pipeline.next(&dispenser, now(23)), ask(2)), (Next::Wait(now(24)), 1));
        assert_eq!(pipeline.next(&dispenser, now(23)), Next::Send(3), "all who are expected are there");
        // The answered callers do not come back.
        pipeline.answered(response(3, 1, 8), 0, now(33)).unwrap().publish(&dispenser);
        pipeline.answered(response(3, 1, 11), 0, now(34)).unwrap().publish(&dispenser);
        let Next::Wait(until) = pipeline.next(&dispenser, now(34)) else { panic!("six are expected") };
        assert_eq!((pipeline.next(&dispenser, until), ask(1)), (Next::Nothing, 1), "and not any longer");
        assert_eq!(pipeline.next(&dispenser, now(100)), Next::Send(1));
    }

    /// Observations of closed-loop callers in [`crowd`], once the round trip is known.
    #[derive(Debug, Default)]
    struct Crowd {
        /// The longest time from a request to the sending of its batch.
        longest: u64,
        batches: u64,
        most_on_the_way: usize,
    }

    /// Simulates callers that request again as soon as they are answered, for 40 round trips of so many microseconds; one in `straggles` takes up to
    /// a round trip for it. The scheduler wakes one caller a microsecond, and the driver takes 15 for a batch: so a batch sent for the first of many
    /// is small. The driver looks when it is woken, at an answer, and at the time it has asked for.
    fn crowd(callers: u64, round_trip: u64, straggles: u64) -> Crowd {
        let woken = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&woken);
        let dispenser = Dispenser::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let mut pipeline = Pipeline::new(16);
        let mut crowd = Crowd::default();
        // Request times of the callers.
        let mut runnable: VecDeque<u64> = (0..callers).collect();
        let mut late: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut asked: Vec<u64> = Vec::new();
        let mut answers: VecDeque<(u64, u32)> = VecDeque::new();
        let (mut counter, mut driver_free, mut alarm, mut random) = (0, 0, None, 1u64);
        for at in 0..40 * round_trip {
            let now = Duration::from_micros(at);
            if late.first().is_some_and(|(due, _)| *due <= at) && late.pop_first().is_some() {
                runnable.push_back(at);
            }
            if runnable.pop_front_if(|due| *due <= at).is_some() {
                dispenser.take().unwrap();
                asked.push(at);
            }
            if at < driver_free {
                continue;
            }
            let answer = answers.pop_front_if(|(due, _)| *due <= at);
            if let Some((_, takers)) = answer {
                counter += i64::from(takers);
                pipeline.answered(response(takers, 1, counter), dispenser.waiting(), now).unwrap().publish(&dispenser);
                for taker in 0..u64::from(takers) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if straggles > 0 && (random >> 33) % straggles == 0 {
                        late.insert((at + (random >> 40) % round_trip, at << 20 | taker));
                    } else {
                        runnable.push_back(at);
                    }
                }
            }
            if answer.is_none() && woken.swap(0, Ordering::SeqCst) == 0 && alarm.is_none_or(|due| now < due) {
                continue;
            }
            alarm = None;
            match pipeline.next(&dispenser, now) {
                Next::Send(takers) => {
                    answers.push_back((at + round_trip, takers));
                    driver_free = at + 15;
                    alarm = Some(now);
                    if at > 8 * round_trip {
                        crowd.longest = crowd.longest.max(at - asked.iter().min().unwrap());
                        crowd.batches += 1;
                        crowd.most_on_the_way = crowd.most_on_the_way.max(answers.len());
                    }
                    asked.clear();
                }
                Next::Wait(due) => alarm = Some(due),
                Next::Nothing => {}
            }
        }
        crowd
    }

    #[test]
    fn nobody_in_a_crowd_waits_for_more_than_a_part_of_a_round_trip_to_be_sent() {
        for (callers, round_trip, straggles, batches) in [
            (1, 3000, 0, 1),
            (2, 3000, 0, 1),
            (16, 3000, 0, 1),
            (64, 3000, 0, 1),
            (256, 3000, 0, 2),
            (1024, 3000, 0, 4),
            (16, 3000, 50, 3),
            (256, 3000, 50, 9),
            (256, 20_000, 50, 9),
            (16, 100, 0, 1),
            (256, 100, 0, 3),
            (256, 400, 0, 9),
        ] {
            let crowd = crowd(callers, round_trip, straggles);
            let case = format!("{callers} callers, {round_trip}, one of {straggles} late: {crowd:?}");
            // The driver may be busy with another batch, or with an answer, at that time.
            assert!(crowd.longest <= (round_trip / 8).max(50) + 50, "{case}");
            assert!(crowd.batches <= 32 * batches, "{case}");
            assert!(crowd.most_on_the_way <= 9, "{case}");
        }
    }

    #[test]
    fn one_slow_answer_does_not_keep_batches_apart_for_long() {
        let dispenser = Dispenser::new(|| {});
        let mut pipeline = Pipeline::new(16);
        dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(0)), Next::Send(1));
        pipeline.answered(response(1, 1, 1), dispenser.waiting(), now(1900)).unwrap().publish(&dispenser);
        dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, now(1901)), Next::Send(1), "nothing is on its way");
        assert_eq!(pipeline.next(&dispenser, now(1901)), Next::Nothing, "no timer for one");
        dispenser.take().unwrap();
        let due = now(1901) + LONGEST;
        assert_eq!(pipeline.next(&dispenser, now(1902)), Next::Wait(due), "the batch before is too new");
        dispenser.take().unwrap();
        assert_eq!(pipeline.next(&dispenser, due), Next::Send(2), "those who came meanwhile go with it");
    }

    #[test]
    fn an_answer_that_cannot_be_right_is_given_to_nobody() {
        let last = LOGICAL - 1;
        for (answer, right) in [
            (response(2, 100, 1), true),
            (response(2, 100, last), true),
            (response(2, 99, last), false),
            (response(2, 100, 0), false),
            (response(2, 100, LOGICAL), false),
            (response(2, 100, -1), false),
            (response(1, 100, 5), false),
            (response(3, 100, 5), false),
            (response(2, 0, 5), false),
            (response(2, -1, 5), false),
            (response(2, i64::MAX, 5), false),
            (TimestampResponse { suffix_bits: 1, ..response(2, 100, 2) }, true),
            (TimestampResponse { suffix_bits: 1, ..response(2, 100, 1) }, false),
            (TimestampResponse { suffix_bits: 40, ..response(2, 100, 9) }, false),
        ] {
            let dispenser = Dispenser::new(|| {});
            let mut pipeline = Pipeline::new(1);
            pipeline.last = (100 << 18) - 1;
            let places = [dispenser.take().unwrap(), dispenser.take().unwrap()];
            assert_eq!(pipeline.next(&dispenser, now(0)), Next::Send(2));
            let result =
                pipeline.answered(answer, dispenser.waiting(), now(1)).map(|landed| landed.publish(&dispenser));
            assert_eq!(result.is_ok(), right, "{answer:?}: {result:?}");
            assert_eq!(number(&dispenser, places[0]).is_some(), right, "{answer:?}");
            if !right {
                pipeline.lost();
                assert_eq!(pipeline.next(&dispenser, now(2)), Next::Send(2), "asked for again after {answer:?}");
            }
        }
        assert!(Pipeline::new(1).answered(response(1, 1, 1), 0, now(0)).is_err(), "an answer to nothing");
    }

    /// A step of the test.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask,
        Send,
        Answer,
        /// PD answers, and the answer is lost with the stream.
        Lose,
        /// PD's clock goes back to where it was.
        Regress,
    }

    proptest! {
        /// In any sequence of events: no timestamp is given twice, each is higher than all that were given before it was requested, and every caller
        /// is answered in the end.
        #[test]
        fn timestamps_rise_by_real_time(events in proptest::collection::vec(
            prop_oneof![
                4 => Just(Event::Ask), 3 => Just(Event::Send), 3 => Just(Event::Answer), 1 => Just(Event::Lose), 1 => Just(Event::Regress)
            ], 0..200), most in 1..5usize) {
            let dispenser = Dispenser::new(|| {});
            let mut pipeline = Pipeline::new(most);
            // The model's PD: a counter, and the requests that have reached it.
            let mut counter = 10 << 18;
            let mut asked: VecDeque<u32> = VecDeque::new();
            let mut waiting: Vec<(Place, u64)> = Vec::new();
            let mut given = HashSet::new();
            let mut highest = 0;
            let drain = [Event::Send, Event::Answer].repeat(300);
            let mut now = Duration::ZERO;
            for event in events.into_iter().chain(drain) {
                now += Duration::from_micros(100);
                match event {
                    Event::Ask => waiting.push((dispenser.take().unwrap(), highest)),
                    Event::Send => {
                        if let Next::Send(count) = pipeline.next(&dispenser, now) {
                            asked.push_back(count);
                        }
                    }
                    Event::Answer => {
                        if let Some(count) = asked.pop_front() {
                            counter += u64::from(count);
                            let answer = response(count, (counter >> 18) as i64, (counter & 0x3ffff) as i64);
                            pipeline.answered(answer, dispenser.waiting(), now).unwrap().publish(&dispenser);
                        }
                    }
                    Event::Lose => {
                        counter += asked.drain(..).map(u64::from).sum::<u64>();
                        pipeline.lost();
                    }
                    Event::Regress => {
                        if let Some(count) = asked.front() && highest > 0 {
                            let old = highest - 1;
                            let answer = response(*count, (old >> 18) as i64, (old & 0x3ffff) as i64);
                            prop_assert!(pipeline.answered(answer, dispenser.waiting(), now).is_err());
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
