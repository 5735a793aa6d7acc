//! Prometheus' text format.

use std::fmt::Write;

/// Collects metrics and renders them. Names get the prefix `kingpost_`.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

/// What a metric is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Type {
    Counter,
    Gauge,
}

/// The samples of one metric.
pub(crate) struct Metric<'a> {
    text: &'a mut String,
    name: &'a str,
}

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
    pub(crate) fn metric<'a>(&'a mut self, kind: Type, name: &'a str, help: &str) -> Metric<'a> {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
        };
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(self.text, "# HELP kingpost_{name} {help}\n# TYPE kingpost_{name} {kind}");
        Metric { text: &mut self.text, name }
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
        let _ = writeln!(self.text, "# HELP kingpost_{name} {help}\n# TYPE kingpost_{name} histogram");
        let mut total = 0_u64;
        for (bound, count) in buckets {
            total = total.saturating_add(*count);
            let _ = writeln!(self.text, "kingpost_{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total = total.saturating_add(above);
        let _ = writeln!(
            self.text,
            "kingpost_{name}_bucket{{le=\"+Inf\"}} {total}\nkingpost_{name}_sum {sum}\nkingpost_{name}_count {total}"
        );
    }

    /// The text.
    pub(crate) fn render(self) -> String {
        self.text
    }
}

impl Metric<'_> {
    /// Adds a sample.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> &mut Self {
        let _ = write!(self.text, "kingpost_{}", self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let _ = write!(self.text, "{}{name}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = match value.into() {
            Number::Integer(value) => writeln!(self.text, " {value}"),
            Number::Float(value) => writeln!(self.text, " {value}"),
        };
        self
    }
}

/// A sample's value.
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
