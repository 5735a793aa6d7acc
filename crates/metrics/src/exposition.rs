//! Metrics of a process: collected once, then rendered in Prometheus' text format or sent by OTLP.

use std::fmt::Write;

/// Prefix of every name.
const PREFIX: &str = "kingpost_";

/// A collection of metrics. Names get the prefix `kingpost_`.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<Family>,
}

/// A metric with all of its samples.
#[derive(Debug)]
pub struct Family {
    /// Name with the prefix, and the suffix of its kind or unit: `kingpost_wait_seconds`.
    pub name: String,
    pub help: String,
    pub data: Data,
}

/// Samples of a metric, by its kind.
#[derive(Debug)]
pub enum Data {
    /// A count that only grows, from zero at the start of the process.
    Counter(Vec<Sample>),
    Gauge(Vec<Sample>),
    Histogram(Vec<Observations>),
}

/// One histogram.
#[derive(Debug)]
pub struct Observations {
    pub labels: Vec<(String, String)>,
    /// Upper bounds, each with the number of observations in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// Observations above the last bound.
    pub above: u64,
    pub sum: f64,
}

/// One value of a metric.
#[derive(Debug)]
pub struct Sample {
    pub labels: Vec<(String, String)>,
    pub value: Number,
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy)]
pub enum Type {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
}

/// The samples of one metric.
pub struct Metric<'a>(&'a mut Vec<Sample>);

impl Exposition {
    /// Makes a collection that starts with the metrics of every process.
    pub fn of_this_build() -> Exposition {
        let mut exposition = Exposition::default();
        exposition
            .metric(Type::Gauge, "build_info", "Always 1; the label is the version.")
            .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
        exposition
    }

    /// Starts a metric; add at least one sample.
    pub fn metric<'a>(&'a mut self, kind: Type, name: &str, help: &str) -> Metric<'a> {
        let data = match kind {
            Type::Counter => Data::Counter(Vec::new()),
            Type::Gauge => Data::Gauge(Vec::new()),
        };
        match self.family(name, help, data) {
            Data::Counter(samples) | Data::Gauge(samples) => Metric(samples),
            Data::Histogram(_) => unreachable!("it was made above"),
        }
    }

    fn family(&mut self, name: &str, help: &str, data: Data) -> &mut Data {
        self.families.push(Family { name: format!("{PREFIX}{name}"), help: help.to_owned(), data });
        let last = self.families.len() - 1;
        &mut self.families[last].data
    }

    /// Adds a counter of one sample.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.metric(Type::Counter, name, help).sample(&[], value);
    }

    /// Adds a gauge of one sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.metric(Type::Gauge, name, help).sample(&[], value);
    }

    /// Adds a histogram: `buckets` are upper bounds and the number of observations in each alone, not summed up.
    pub fn histogram(&mut self, name: &str, help: &str, buckets: &[(f64, u64)], above: u64, sum: f64) {
        let of = Observations { labels: Vec::new(), buckets: buckets.to_vec(), above, sum };
        self.family(name, help, Data::Histogram(vec![of]));
    }

    /// Adds the metrics of another collection, each sample with one label more. Metrics of one name stay one metric.
    pub fn join(&mut self, other: Exposition, label: (&str, &str)) {
        for mut family in other.families {
            family.data.label(label);
            match self.families.iter_mut().find(|known| known.name == family.name) {
                Some(known) => known.data.append(family.data),
                None => self.families.push(family),
            }
        }
    }

    /// Returns all metrics.
    pub fn into_families(self) -> Vec<Family> {
        self.families
    }

    /// Renders Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            family.render(&mut text);
        }
        text
    }
}

impl Data {
    /// Puts a label before those of each sample.
    fn label(&mut self, (name, value): (&str, &str)) {
        let label = (name.to_owned(), value.to_owned());
        match self {
            Data::Counter(samples) | Data::Gauge(samples) => {
                samples.iter_mut().for_each(|sample| sample.labels.insert(0, label.clone()));
            }
            Data::Histogram(all) => all.iter_mut().for_each(|of| of.labels.insert(0, label.clone())),
        }
    }

    /// Adds the samples of the same metric, which has the same kind.
    fn append(&mut self, other: Data) {
        match (self, other) {
            (Data::Counter(own), Data::Counter(mut more)) | (Data::Gauge(own), Data::Gauge(mut more)) => {
                own.append(&mut more);
            }
            (Data::Histogram(own), Data::Histogram(mut more)) => own.append(&mut more),
            _ => debug_assert!(false, "a metric has one kind"),
        }
    }
}

impl Family {
    fn render(&self, text: &mut String) {
        let Family { name, help, data } = self;
        let kind = match data {
            Data::Counter(_) => "counter",
            Data::Gauge(_) => "gauge",
            Data::Histogram(_) => "histogram",
        };
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        match data {
            Data::Counter(samples) | Data::Gauge(samples) => {
                for sample in samples {
                    sample.render(name, text);
                }
            }
            Data::Histogram(all) => all.iter().for_each(|of| of.render(name, text)),
        }
    }
}

impl Observations {
    fn render(&self, name: &str, text: &mut String) {
        let mut total = 0_u64;
        let mut sample = |suffix: &str, bound: Option<String>, value: &str| {
            let bound = bound.map(|bound| ("le".to_owned(), bound));
            let labels: Vec<_> = self.labels.iter().cloned().chain(bound).collect();
            text.push_str(name);
            text.push_str(suffix);
            render_labels(&labels, text);
            let _ = writeln!(text, " {value}");
        };
        for (bound, count) in &self.buckets {
            total = total.saturating_add(*count);
            sample("_bucket", Some(bound.to_string()), &total.to_string());
        }
        total = total.saturating_add(self.above);
        sample("_bucket", Some("+Inf".into()), &total.to_string());
        sample("_sum", None, &self.sum.to_string());
        sample("_count", None, &total.to_string());
    }
}

fn render_labels(labels: &[(String, String)], text: &mut String) {
    for (index, (label, value)) in labels.iter().enumerate() {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let _ = write!(text, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' });
    }
    if !labels.is_empty() {
        text.push('}');
    }
}

impl Sample {
    fn render(&self, name: &str, text: &mut String) {
        text.push_str(name);
        render_labels(&self.labels, text);
        let _ = match self.value {
            Number::Integer(value) => writeln!(text, " {value}"),
            Number::Float(value) => writeln!(text, " {value}"),
        };
    }
}

impl Metric<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> &mut Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.0.push(Sample { labels, value: value.into() });
        self
    }
}

/// A sample's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
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

    #[test]
    fn what_two_clusters_measure_is_one_metric() {
        let of = |clients: u64, waits: u64| {
            let mut exposition = Exposition::default();
            exposition.gauge("clients", "Clients.", clients);
            exposition.metric(Type::Gauge, "node_up", "Up.").sample(&[("node", "a")], true);
            exposition.histogram("wait_seconds", "Waits.", &[(0.1, waits)], 1, 4.5);
            exposition
        };
        let mut all = Exposition::default();
        all.gauge("up", "Up.", 1_u64);
        all.join(of(1, 2), ("cluster", "shop"));
        all.join(of(3, 4), ("cluster", "bills"));
        let expected = r#"# HELP kingpost_up Up.
# TYPE kingpost_up gauge
kingpost_up 1
# HELP kingpost_clients Clients.
# TYPE kingpost_clients gauge
kingpost_clients{cluster="shop"} 1
kingpost_clients{cluster="bills"} 3
# HELP kingpost_node_up Up.
# TYPE kingpost_node_up gauge
kingpost_node_up{cluster="shop",node="a"} 1
kingpost_node_up{cluster="bills",node="a"} 1
# HELP kingpost_wait_seconds Waits.
# TYPE kingpost_wait_seconds histogram
kingpost_wait_seconds_bucket{cluster="shop",le="0.1"} 2
kingpost_wait_seconds_bucket{cluster="shop",le="+Inf"} 3
kingpost_wait_seconds_sum{cluster="shop"} 4.5
kingpost_wait_seconds_count{cluster="shop"} 3
kingpost_wait_seconds_bucket{cluster="bills",le="0.1"} 4
kingpost_wait_seconds_bucket{cluster="bills",le="+Inf"} 5
kingpost_wait_seconds_sum{cluster="bills"} 4.5
kingpost_wait_seconds_count{cluster="bills"} 5
"#;
        assert_eq!(all.render(), expected);
    }
}
