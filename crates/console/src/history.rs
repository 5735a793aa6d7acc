//! History of the samples: coarser points for older times. Bounded and pure: the caller passes the time.
//!
//! The samples of the last minutes go to every viewer with the stream ([`crate::board`]). Coarser points are requested, with a cursor: the time of
//! the last point that the client has.

use std::collections::VecDeque;
use std::fmt::Write;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Maximum number of samples of a point. Samples come once a second, so this is a little more than a minute.
const MOST_OPEN: usize = 128;

/// The coarser spans: name, milliseconds of a step, number of steps kept.
const SPANS: [(&str, u64, usize); 2] = [("hour", 10_000, 360), ("day", 60_000, 1440)];

/// Function that merges several samples into one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// The mean, for rates and amounts.
    Mean,
    /// The maximum, for values that indicate a problem: it must not disappear in a mean.
    Peak,
}

/// The series recorded. Rates are per second, times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Series {
    Reads,
    Writes,
    Local,
    Transactions,
    Clients,
    Waiting,
    P50,
    P99,
    Wal,
    Instances,
    Unwell,
    Changes,
    Heartbeats,
    Watchers,
}

/// Number of [`Series`].
const SERIES: usize = Series::ALL.len();

/// A point of the curves. A series without a value belongs to a part that does not run here, or its value is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Milliseconds since 1970; for a coarse point, its beginning.
    pub(crate) t: u64,
    values: [Option<f64>; SERIES],
}

/// Points of the coarser spans.
#[derive(Debug)]
pub(crate) struct History {
    spans: [Span; SPANS.len()],
}

#[derive(Debug)]
struct Span {
    name: &'static str,
    step: u64,
    most: usize,
    /// Finished points, oldest first.
    closed: VecDeque<Sample>,
    /// Samples of the current step.
    open: Vec<Sample>,
}

impl Series {
    const ALL: [Series; 14] = [
        Series::Reads,
        Series::Writes,
        Series::Local,
        Series::Transactions,
        Series::Clients,
        Series::Waiting,
        Series::P50,
        Series::P99,
        Series::Wal,
        Series::Instances,
        Series::Unwell,
        Series::Changes,
        Series::Heartbeats,
        Series::Watchers,
    ];

    fn name(self) -> &'static str {
        match self {
            Series::Reads => "reads",
            Series::Writes => "writes",
            Series::Local => "local",
            Series::Transactions => "transactions",
            Series::Clients => "clients",
            Series::Waiting => "waiting",
            Series::P50 => "p50",
            Series::P99 => "p99",
            Series::Wal => "wal",
            Series::Instances => "instances",
            Series::Unwell => "unwell",
            Series::Changes => "changes",
            Series::Heartbeats => "heartbeats",
            Series::Watchers => "watchers",
        }
    }

    fn merge(self) -> Merge {
        match self {
            Series::Waiting | Series::P99 | Series::Unwell => Merge::Peak,
            _ => Merge::Mean,
        }
    }
}

impl Sample {
    /// Makes a sample at a time, without values.
    pub(crate) fn at(t: u64) -> Sample {
        Sample { t, ..Sample::default() }
    }

    /// Sets a value; one that is not finite is stored as absent.
    pub(crate) fn put(&mut self, series: Series, value: Option<f64>) {
        // Two decimals are finer than a screen's pixels, and keep the text short.
        self.values[series as usize] =
            value.filter(|value| value.is_finite()).map(|value| (value * 100.0).round() / 100.0);
    }

    #[cfg(test)]
    fn get(&self, series: Series) -> Option<f64> {
        self.values[series as usize]
    }

    /// Encodes `[t,1,null,…]`, in the order of [`Series::ALL`].
    fn row(&self) -> String {
        let mut text = format!("[{}", self.t);
        for value in self.values {
            // Writing to a String cannot fail.
            let _ = match value {
                Some(value) => write!(text, ",{value}"),
                None => write!(text, ",null"),
            };
        }
        text.push(']');
        text
    }
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(SERIES + 1))?;
        map.serialize_entry("t", &self.t)?;
        for series in Series::ALL {
            map.serialize_entry(series.name(), &self.values[series as usize])?;
        }
        map.end()
    }
}

/// Merges samples into one point that begins at `start`. A series without any value has none in the point either.
fn merged(start: u64, samples: &[Sample]) -> Sample {
    let mut point = Sample::at(start);
    for series in Series::ALL {
        let known = samples.iter().filter_map(|sample| sample.values[series as usize]);
        let (count, sum, peak) =
            known.fold((0u32, 0.0, f64::MIN), |(n, sum, peak), value| (n + 1, sum + value, value.max(peak)));
        let value = match series.merge() {
            Merge::Mean => sum / f64::from(count),
            Merge::Peak => peak,
        };
        point.put(series, (count > 0).then_some(value));
    }
    point
}

impl Default for History {
    fn default() -> History {
        let span = |(name, step, most)| Span { name, step, most, closed: VecDeque::new(), open: Vec::new() };
        History { spans: SPANS.map(span) }
    }
}

impl History {
    /// Adds a sample. If the clock was set back, points and samples later than the new one are removed.
    pub(crate) fn push(&mut self, sample: Sample) {
        for span in &mut self.spans {
            span.push(sample);
        }
    }

    /// Returns, as JSON, the points of a span that begin later than `after`, and the current one; `None` if there is no such span.
    pub(crate) fn after(&self, span: &str, after: u64) -> Option<String> {
        let span = self.spans.iter().find(|one| one.name == span)?;
        let names = Series::ALL.map(|series| format!("\"{}\"", series.name())).join(",");
        let points: Vec<String> = span.closed.iter().filter(|point| point.t > after).map(Sample::row).collect();
        let open = span.open_point().map_or_else(|| "null".to_owned(), |point| point.row());
        let (step, most, points) = (span.step, span.most, points.join(","));
        Some(format!("{{\"step\":{step},\"most\":{most},\"series\":[{names}],\"points\":[{points}],\"open\":{open}}}"))
    }
}

impl Span {
    fn start(&self, t: u64) -> u64 {
        t - t % self.step
    }

    fn push(&mut self, sample: Sample) {
        let start = self.start(sample.t);
        if self.open.first().is_some_and(|first| self.start(first.t) < start) {
            if let Some(point) = self.open_point() {
                if self.closed.len() == self.most {
                    self.closed.pop_front();
                }
                self.closed.push_back(point);
            }
            self.open.clear();
        }
        while self.closed.back().is_some_and(|last| last.t >= start) {
            self.closed.pop_back();
        }
        self.open.retain(|one| one.t < sample.t);
        if self.open.len() < MOST_OPEN {
            self.open.push(sample);
        }
    }

    fn open_point(&self) -> Option<Sample> {
        self.open.first().map(|first| merged(self.start(first.t), &self.open))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample(t: u64, values: &[(Series, f64)]) -> Sample {
        let mut sample = Sample::at(t);
        values.iter().for_each(|(series, value)| sample.put(*series, Some(*value)));
        sample
    }

    #[test]
    fn series_are_named_once_and_in_order() {
        for (index, series) in Series::ALL.into_iter().enumerate() {
            assert_eq!(series as usize, index, "{series:?}");
            assert_eq!(Series::ALL.iter().filter(|one| one.name() == series.name()).count(), 1, "{series:?}");
        }
    }

    #[test]
    fn samples_become_a_point() {
        use Series::{Clients, P50, P99, Reads, Waiting};
        for (name, samples, expected) in [
            (
                "means",
                vec![vec![(Reads, 10.0), (Clients, 1.0)], vec![(Reads, 20.0), (Clients, 2.0)]],
                vec![(Reads, Some(15.0)), (Clients, Some(1.5))],
            ),
            (
                "peaks do not disappear",
                vec![vec![(Waiting, 0.0), (P99, 5.0)], vec![(Waiting, 9.0), (P99, 1.0)]],
                vec![(Waiting, Some(9.0)), (P99, Some(5.0))],
            ),
            ("what only some know", vec![vec![(P50, 4.0)], vec![]], vec![(P50, Some(4.0)), (Reads, None)]),
            ("nothing", vec![], vec![(Reads, None), (P99, None)]),
            ("rounded", vec![vec![(Reads, 1.0)], vec![(Reads, 1.0)], vec![(Reads, 0.0)]], vec![(Reads, Some(0.67))]),
            (
                "no number",
                vec![vec![(Reads, f64::NAN)], vec![(Waiting, f64::INFINITY)]],
                vec![(Reads, None), (Waiting, None)],
            ),
        ] {
            let samples: Vec<Sample> = samples.iter().map(|values| sample(7, values)).collect();
            let point = merged(5, &samples);
            assert_eq!(point.t, 5, "{name}");
            for (series, value) in expected {
                assert_eq!(point.get(series), value, "{name}: {series:?}");
            }
        }
    }

    fn answer(history: &History, span: &str, after: u64) -> serde_json::Value {
        serde_json::from_str(&history.after(span, after).expect("a span")).expect("JSON")
    }

    #[test]
    fn older_time_has_coarser_steps_and_an_end() {
        let mut history = History::default();
        let start = 1_000_000_000_000;
        // Two days, a sample a second.
        for second in 0..2 * 86_400u64 {
            history.push(sample(start + second * 1000 + 3, &[(Series::Reads, (second % 60) as f64)]));
        }
        for (span, step, most) in SPANS {
            let found = answer(&history, span, 0);
            let points = found["points"].as_array().unwrap();
            assert_eq!((found["step"].as_u64(), points.len()), (Some(step), most), "{span}");
            let times: Vec<u64> = points.iter().map(|point| point[0].as_u64().unwrap()).collect();
            assert!(times.windows(2).all(|two| two[1] - two[0] == step), "{span}: no step is missing");
            assert!(times.iter().all(|t| t % step == 0), "{span}");
            let open = found["open"][0].as_u64().unwrap();
            assert_eq!(open, times[most - 1] + step, "{span}: the one that is not over follows");
            // A cursor gets each new point exactly once.
            assert_eq!(answer(&history, span, times[most - 3])["points"].as_array().unwrap().len(), 2, "{span}");
            assert_eq!(answer(&history, span, times[most - 1])["points"], serde_json::json!([]), "{span}");
        }
        let minute = answer(&history, "day", 0)["points"][0][1].as_f64();
        assert_eq!(minute, Some(29.5), "the mean of a minute");
        assert_eq!(history.after("year", 0), None);
    }

    #[test]
    fn gaps_clocks_and_bounds() {
        let times = |history: &History| -> Vec<u64> {
            let found = answer(history, "hour", 0);
            found["points"].as_array().unwrap().iter().map(|point| point[0].as_u64().unwrap()).collect()
        };
        assert_eq!(answer(&History::default(), "hour", 0)["open"], serde_json::Value::Null);
        for (name, pushed, expected) in [
            ("the machine slept: no points are made up", vec![1_000, 95_000, 101_000], vec![0, 90_000]),
            ("a step back inside a step", vec![5_000, 4_000, 11_000], vec![0]),
            ("a step back over points", vec![1_000, 11_000, 21_000, 31_000, 12_000, 22_000], vec![0, 10_000]),
        ] {
            let mut history = History::default();
            // Zero is the cursor of a client that has no points.
            pushed.iter().for_each(|t| history.push(Sample::at(100_000 + t)));
            assert_eq!(times(&history), expected.iter().map(|t| 100_000 + t).collect::<Vec<u64>>(), "{name}");
        }
        let mut history = History::default();
        (0..5000).for_each(|t| history.push(Sample::at(t)));
        assert!(history.spans.iter().all(|span| span.open.len() <= MOST_OPEN), "however often one samples");
    }

    #[test]
    fn a_sample_as_json() {
        let text = serde_json::to_value(sample(4, &[(Series::Reads, 1.5)])).unwrap();
        assert_eq!((&text["t"], &text["reads"]), (&serde_json::json!(4), &serde_json::json!(1.5)));
        assert!(text["p99"].is_null() && text.as_object().unwrap().len() == SERIES + 1);
        let row: Vec<Option<f64>> =
            serde_json::from_str(&sample(4, &[(Series::Watchers, 2.0)]).row()).expect("a row of JSON");
        assert_eq!((row.len(), row[0], row[SERIES]), (SERIES + 1, Some(4.0), Some(2.0)));
    }
}
