//! The admin HTTP address: GET requests, and a strict parser of Prometheus' text format.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(5);
const BODY_LIMIT: u64 = 16 << 20;

/// Returns status and body of a GET; None without a complete answer.
pub async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let request = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(BODY_LIMIT).read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Some((status, if chunked { unchunk(body)? } else { body.to_owned() }))
    };
    tokio::time::timeout(LIMIT, request).await.ok().flatten()
}

fn unchunk(mut body: &str) -> Option<String> {
    let mut out = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(out);
        }
        out.push_str(rest.get(..size)?);
        body = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// Labels of a sample, sorted by name.
pub type Labels = BTreeMap<String, String>;

/// A sample: one line with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name, with `_bucket`, `_sum`, `_count` for a histogram.
    pub name: String,
    /// Labels.
    pub labels: Labels,
    /// Value.
    pub value: f64,
}

/// A scrape.
#[derive(Debug)]
pub struct Metrics {
    /// Samples, in order.
    pub samples: Vec<Sample>,
    /// Type of each family.
    pub types: HashMap<String, String>,
}

impl Metrics {
    /// Returns the metrics at this port.
    ///
    /// # Panics
    /// When it cannot be had, or is not valid.
    pub async fn now(port: u16) -> Metrics {
        let (status, body) = get(port, "/metrics").await.expect("/metrics answers");
        assert_eq!(status, 200, "/metrics: {body}");
        Metrics::parse(&body).unwrap_or_else(|e| panic!("/metrics: {e}"))
    }

    /// Parses the text format, version 0.0.4.
    ///
    /// # Errors
    /// The first violation of a rule: bad syntax, a family in two places, a sample twice, a sample without a type, a counter not named `_total`,
    /// buckets that shrink or lack `+Inf`.
    pub fn parse(text: &str) -> Result<Metrics, String> {
        let mut metrics = Metrics { samples: Vec::new(), types: HashMap::new() };
        let mut finished: HashSet<String> = HashSet::new();
        let mut current = String::new();
        if !text.ends_with('\n') {
            return Err("the last line does not end".into());
        }
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fail = |why: &str| format!("{why}: {line}");
            let family = if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let (keyword, name, rest) = (words.next(), words.next(), words.next());
                let (Some(name), Some(rest)) = (name, rest) else { return Err(fail("an incomplete comment")) };
                match keyword {
                    Some("TYPE") => {
                        if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&rest) {
                            return Err(fail("an unknown type"));
                        }
                        if metrics.types.insert(name.into(), rest.into()).is_some() {
                            return Err(fail("a second TYPE"));
                        }
                        if rest == "counter" && !name.ends_with("_total") {
                            return Err(fail("a counter that is not named _total"));
                        }
                    }
                    Some("HELP") => {}
                    _ => return Err(fail("an unknown comment")),
                }
                name.to_owned()
            } else {
                let sample = parse_sample(line).ok_or_else(|| fail("not a sample"))?;
                let family = metrics.family(&sample.name).ok_or_else(|| fail("a sample without a TYPE before it"))?;
                if metrics.samples.iter().any(|old| old.name == sample.name && old.labels == sample.labels) {
                    return Err(fail("a sample twice"));
                }
                metrics.samples.push(sample);
                family
            };
            if family != current {
                if !finished.insert(family.clone()) {
                    return Err(fail("a family in two places"));
                }
                current = family;
            }
        }
        metrics.check_histograms()?;
        Ok(metrics)
    }

    fn family(&self, name: &str) -> Option<String> {
        if self.types.contains_key(name) {
            return Some(name.into());
        }
        let stems = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| name.strip_suffix(suffix));
        let is_histogram =
            |stem: &&str| self.types.get(*stem).is_some_and(|kind| kind == "histogram" || kind == "summary");
        stems.into_iter().find(is_histogram).map(str::to_owned)
    }

    fn check_histograms(&self) -> Result<(), String> {
        for family in self.types.iter().filter(|(_, kind)| *kind == "histogram").map(|(family, _)| family) {
            let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for sample in self.samples.iter().filter(|sample| sample.name == format!("{family}_bucket")) {
                let mut labels = sample.labels.clone();
                let bound = labels.remove("le").and_then(|le| parse_value(&le));
                let bound = bound.ok_or_else(|| format!("{family}: a bucket without a bound"))?;
                series.entry(labels).or_default().push((bound, sample.value));
            }
            for (labels, buckets) in series {
                if !buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
                    return Err(format!("{family}{labels:?}: buckets out of order: {buckets:?}"));
                }
                let last = buckets.last().filter(|last| last.0 == f64::INFINITY);
                let last = last.ok_or_else(|| format!("{family}{labels:?}: no bucket +Inf"))?;
                let pairs: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                if self.sum(&format!("{family}_count"), &pairs) != last.1 {
                    return Err(format!("{family}{labels:?}: _count is not the bucket +Inf"));
                }
            }
        }
        Ok(())
    }

    /// Sums the samples of this name that have at least these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matches = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        self.samples.iter().filter(matches).map(|sample| sample.value).sum()
    }
}

fn parse_value(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust accepts more ("inf", "infinity") than the format.
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+' || c == '.') => text.parse().ok(),
        _ => None,
    }
}

fn is_name(name: &str, extra: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || extra.contains(c);
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

fn parse_sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let name = &line[..end];
    let mut rest = &line[end..];
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            if !is_name(label, "") || labels.insert(label.into(), value).is_some() {
                return None;
            }
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let mut words = rest.strip_prefix(' ')?.split(' ');
    let value = parse_value(words.next()?)?;
    let timestamp_is_number = words.next().is_none_or(|time| time.parse::<i64>().is_ok());
    (is_name(name, ":") && timestamp_is_number && words.next().is_none()).then(|| Sample {
        name: name.into(),
        labels,
        value,
    })
}

/// Returns a label's value up to its closing quote, and the text after the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}
