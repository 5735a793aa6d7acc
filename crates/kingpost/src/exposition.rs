//! What a process measures: collected once, then said as Prometheus' text or sent by OTLP.

use std::fmt::Write;

/// What every name starts with.
const PREFIX: &str = "kingpost_";

/// Collects metrics. Names get the prefix `kingpost_`.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    families: Vec<Family>,
}

/// A metric with all of its samples.
#[derive(Debug)]
pub(crate) struct Family {
    /// With the prefix, and the suffix that its kind or its unit has: `kingpost_wait_seconds`.
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) data: Data,
}

/// What was measured.
#[derive(Debug)]
pub(crate) enum Data {
    /// Only grows, from zero at the start of the process.
    Counter(Vec<Sample>),
    Gauge(Vec<Sample>),
    Histogram {
        /// Upper bounds, each with the number of observations in that bucket alone.
        buckets: Vec<(f64, u64)>,
        /// Observations above the last bound.
        above: u64,
        sum: f64,
    },
}

/// One value of a metric.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: Number,
}

/// What a metric is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Type {
    Counter,
    Gauge,
}

/// The samples of one metric.
pub(crate) struct Metric<'a>(&'a mut Vec<Sample>);

impl Exposition {
    /// With what every process says of itself first.
    pub(crate) fn of_this_build() -> Exposition {
        let mut exposition = Exposition::default();
        exposition
            .metric(Type::Gauge, "build_info", "Always 1; the label is the version.")
            .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
        exposition
    }

    /// Starts a metric; add at least one sample.
    pub(crate) fn metric<'a>(&'a mut self, kind: Type, name: &str, help: &str) -> Metric<'a> {
        let data = match kind {
            Type::Counter => Data::Counter(Vec::new()),
            Type::Gauge => Data::Gauge(Vec::new()),
        };
        match self.family(name, help, data) {
            Data::Counter(samples) | Data::Gauge(samples) => Metric(samples),
            Data::Histogram { .. } => unreachable!("it was made above"),
        }
    }

    fn family(&mut self, name: &str, help: &str, data: Data) -> &mut Data {
        self.families.push(Family { name: format!("{PREFIX}{name}"), help: help.to_owned(), data });
        let last = self.families.len() - 1;
        &mut self.families[last].data
    }

    /// A counter of one sample.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.metric(Type::Counter, name, help).sample(&[], value);
    }

    /// A gauge of one sample.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.metric(Type::Gauge, name, help).sample(&[], value);
    }

    /// A histogram: `buckets` are upper bounds and the number of observations in each alone, not summed up.
    pub(crate) fn histogram(&mut self, name: &str, help: &str, buckets: &[(f64, u64)], above: u64, sum: f64) {
        self.family(name, help, Data::Histogram { buckets: buckets.to_vec(), above, sum });
    }

    /// All of it.
    pub(crate) fn into_families(self) -> Vec<Family> {
        self.families
    }

    /// Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            family.render(&mut text);
        }
        text
    }
}

impl Family {
    fn render(&self, text: &mut String) {
        let Family { name, help, data } = self;
        let kind = match data {
            Data::Counter(_) => "counter",
            Data::Gauge(_) => "gauge",
            Data::Histogram { .. } => "histogram",
        };
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        match data {
            Data::Counter(samples) | Data::Gauge(samples) => {
                for sample in samples {
                    sample.render(name, text);
                }
            }
            Data::Histogram { buckets, above, sum } => {
                let mut total = 0_u64;
                for (bound, count) in buckets {
                    total = total.saturating_add(*count);
                    let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {total}");
                }
                total = total.saturating_add(*above);
                let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {total}\n{name}_sum {sum}\n{name}_count {total}");
            }
        }
    }
}

impl Sample {
    fn render(&self, name: &str, text: &mut String) {
        text.push_str(name);
        for (index, (label, value)) in self.labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let _ = write!(text, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        if !self.labels.is_empty() {
            text.push('}');
        }
        let _ = match self.value {
            Number::Integer(value) => writeln!(text, " {value}"),
            Number::Float(value) => writeln!(text, " {value}"),
        };
    }
}

impl Metric<'_> {
    /// Adds a sample.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> &mut Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.0.push(Sample { labels, value: value.into() });
        self
    }
}

/// A sample's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(u64),
    Float(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        Number::Integer(value)
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Number {
        Number::Integer(value.into())
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Number {
        Number::Integer(value as u64)
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Number {
        Number::Integer(value.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Float(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_format() {
        let mut exposition = Exposition::default();
        exposition.gauge("clients", "Clients.", 3_u64);
        exposition
            .metric(Type::Gauge, "node_up", "Up.")
            .sample(&[("node", "a\"b\\c\nd"), ("role", "primary")], true)
            .sample(&[("node", "b"), ("role", "replica")], false);
        exposition.histogram("wait_seconds", "Waits.", &[(0.1, 2), (1.0, 3)], 1, 4.5);
        let expected = r#"# HELP kingpost_clients Clients.
# TYPE kingpost_clients gauge
kingpost_clients 3
# HELP kingpost_node_up Up.
# TYPE kingpost_node_up gauge
kingpost_node_up{node="a\"b\\c\nd",role="primary"} 1
kingpost_node_up{node="b",role="replica"} 0
# HELP kingpost_wait_seconds Waits.
# TYPE kingpost_wait_seconds histogram
kingpost_wait_seconds_bucket{le="0.1"} 2
kingpost_wait_seconds_bucket{le="1"} 5
kingpost_wait_seconds_bucket{le="+Inf"} 6
kingpost_wait_seconds_sum 4.5
kingpost_wait_seconds_count 6
"#;
        assert_eq!(exposition.render(), expected);
    }
}
