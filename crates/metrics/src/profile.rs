//! CPU profiles of the process: samples of stacks, as a pprof file, a flame graph or folded lines.
//!
//! Without a running profile there is no timer and no signal handler, and so no cost.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Longest profile.
pub(crate) const MOST_SECONDS: u64 = 120;
/// Most samples a second of CPU time.
const MOST_HZ: u32 = 999;
/// Most frames of a stack that are kept.
const MOST_DEPTH: usize = 200;

/// Allows one profile at a time: the timer belongs to the process.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// A client's request for a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// Duration in seconds of real time.
    pub seconds: u64,
    /// Samples a second of CPU time.
    pub hz: u32,
    pub form: Form,
}

/// Format of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Gzipped protobuf, as `go tool pprof` reads it.
    Pprof,
    /// A flame graph.
    Svg,
    /// One line for each stack, for other tools.
    Folded,
}

/// The reason why there is no profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("{0}")]
    Order(String),
    #[error("another profile is being taken: try again when it is done")]
    Busy,
    #[error("cannot take a profile: {0}")]
    Failed(String),
}

/// Stacks, outermost frame first, with their counts.
type Stacks = BTreeMap<Vec<String>, u64>;

impl Order {
    /// Parses a query such as `seconds=10&format=svg&hz=199`.
    pub(crate) fn parse(query: &str) -> Result<Order, ProfileError> {
        let mut order = Order { seconds: 10, hz: 99, form: Form::Pprof };
        for (key, value) in
            query.split('&').filter(|part| !part.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")))
        {
            let number = |most: u64| {
                let number = value.parse::<u64>().ok().filter(|number| (1..=most).contains(number));
                number.ok_or_else(|| ProfileError::Order(format!("{key}: found {value:?}, expected 1 to {most}")))
            };
            match key {
                "seconds" => order.seconds = number(MOST_SECONDS)?,
                "hz" => order.hz = number(MOST_HZ.into())? as u32,
                "format" => {
                    order.form = match value {
                        "pprof" => Form::Pprof,
                        "svg" => Form::Svg,
                        "folded" => Form::Folded,
                        _ => {
                            return Err(ProfileError::Order(format!(
                                "format: found {value:?}, expected pprof, svg or folded"
                            )));
                        }
                    }
                }
                _ => return Err(ProfileError::Order(format!("found {key:?}, expected seconds, hz or format"))),
            }
        }
        Ok(order)
    }
}

/// True while a profile is being taken.
pub(crate) fn is_running() -> bool {
    RUNNING.load(Ordering::Acquire)
}

impl Form {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Form::Pprof => "application/octet-stream",
            Form::Svg => "image/svg+xml",
            Form::Folded => "text/plain; charset=utf-8",
        }
    }
}

/// Mark of a running profile, cleared on drop, also when the client has gone.
struct Running;

impl Running {
    fn begin() -> Result<Running, ProfileError> {
        match RUNNING.swap(true, Ordering::AcqRel) {
            true => Err(ProfileError::Busy),
            false => Ok(Running),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Release);
    }
}

/// Takes a profile.
pub(crate) async fn take(order: Order) -> Result<Vec<u8>, ProfileError> {
    let running = Running::begin()?;
    let failed = |error: pprof::Error| ProfileError::Failed(error.to_string());
    let guard = pprof::ProfilerGuardBuilder::default()
        .frequency(order.hz.cast_signed())
        // A signal in these libraries may find a lock of the unwinder taken.
        .blocklist(&["libc", "libgcc", "pthread", "vdso"])
        .build()
        .map_err(failed)?;
    let began = SystemTime::now();
    tokio::time::sleep(Duration::from_secs(order.seconds)).await;
    // Names are looked up in the binary's debug information: too long for the control threads.
    let made = tokio::task::spawn_blocking(move || {
        let report = guard.report().build().map_err(failed)?;
        drop((guard, running));
        let stacks = stacks(&report);
        Ok(match order.form {
            Form::Folded => folded(&stacks).into_bytes(),
            Form::Svg => svg(&stacks, order.hz).into_bytes(),
            Form::Pprof => gzip(&protobuf(&stacks, &order, began)).map_err(|e| ProfileError::Failed(e.to_string()))?,
        })
    });
    made.await.map_err(|error| ProfileError::Failed(error.to_string()))?
}

fn stacks(report: &pprof::Report) -> Stacks {
    let mut stacks = Stacks::new();
    for (frames, count) in &report.data {
        let mut stack = vec![frames.thread_name.clone()];
        // Innermost first, and of each frame the inlined function first.
        let names = frames.frames.iter().rev().flat_map(|inlined| inlined.iter().rev());
        stack.extend(names.map(pprof::Symbol::name).take(MOST_DEPTH));
        *stacks.entry(stack).or_default() += u64::try_from(*count).unwrap_or(0);
    }
    stacks
}

fn folded(stacks: &Stacks) -> String {
    let mut text = String::new();
    for (stack, count) in stacks {
        let stack: Vec<String> = stack.iter().map(|name| name.replace([';', '\n'], ":")).collect();
        let _ = writeln!(text, "{} {count}", stack.join(";"));
    }
    text
}

// === the flame graph ===

#[derive(Default)]
struct Flame {
    samples: u64,
    above: BTreeMap<String, Flame>,
}

const WIDTH: f64 = 1200.0;
const ROW: usize = 17;

fn svg(stacks: &Stacks, hz: u32) -> String {
    let mut root = Flame::default();
    let mut deepest = 0;
    for (stack, count) in stacks {
        deepest = deepest.max(stack.len());
        root.samples += count;
        let mut at = &mut root;
        for name in stack {
            at = at.above.entry(name.clone()).or_default();
            at.samples += count;
        }
    }
    let height = (deepest + 3) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<text x=\"4\" y=\"13\">{} samples, {hz} a second of CPU time; a box is as wide as the share of \
         samples in it</text>\n",
        root.samples
    );
    if root.samples > 0 {
        let scale = WIDTH / root.samples as f64;
        draw(&mut out, &root, 0.0, scale, height - ROW, root.samples);
    }
    out.push_str("</svg>\n");
    out
}

/// Draws the boxes above a box, from the left; `y` is the row's upper edge.
fn draw(out: &mut String, flame: &Flame, mut x: f64, scale: f64, y: usize, all: u64) {
    for (name, above) in &flame.above {
        let width = above.samples as f64 * scale;
        // A narrower box, and those above it, would be invisible.
        if width >= 0.3 {
            let label = escape(name);
            let hash = name.bytes().fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
            let share = above.samples as f64 * 100.0 / all as f64;
            let letters = (width / 6.7) as usize;
            let shown: String =
                if letters < 3 { String::new() } else { escape(&name.chars().take(letters).collect::<String>()) };
            let _ = writeln!(
                out,
                "<g><title>{label}: {} samples, {share:.1}%</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" \
                 fill=\"rgb({},{},60)\" stroke=\"white\" stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{}\">{shown}</text></g>",
                above.samples,
                ROW - 1,
                205 + hash % 50,
                90 + hash / 50 % 130,
                x + 2.0,
                y + 12,
            );
            draw(out, above, x, scale, y.saturating_sub(ROW), all);
        }
        x += width;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

// === pprof's protobuf: github.com/google/pprof, proto/profile.proto ===

/// Encodes a profile. Fields are numbered as in profile.proto; a profile of functions has no mappings, lines or addresses.
fn protobuf(stacks: &Stacks, order: &Order, began: SystemTime) -> Vec<u8> {
    let mut strings = Strings::default();
    strings.of("");
    let mut out = Vec::new();
    let period = 1_000_000_000 / u64::from(order.hz);
    for (kind, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
        message(&mut out, 1, &value_type(&mut strings, kind, unit));
    }
    let mut functions: HashMap<&str, u64> = HashMap::new();
    let mut names = Vec::new();
    for (stack, count) in stacks {
        let mut sample = Vec::new();
        let (mut locations, mut values) = (Vec::new(), Vec::new());
        // Leaf first.
        for name in stack.iter().rev() {
            let id = *functions.entry(name).or_insert_with(|| {
                names.push(name.as_str());
                names.len() as u64
            });
            varint(&mut locations, id);
        }
        varint(&mut values, *count);
        varint(&mut values, count * period);
        message(&mut sample, 1, &locations);
        message(&mut sample, 2, &values);
        message(&mut out, 2, &sample);
    }
    for (id, name) in (1..).zip(&names) {
        let name = strings.of(name);
        // A location of one line in a function of the same number.
        let (mut line, mut location, mut function) = (Vec::new(), Vec::new(), Vec::new());
        number(&mut line, 1, id);
        number(&mut location, 1, id);
        message(&mut location, 4, &line);
        number(&mut function, 1, id);
        number(&mut function, 2, name);
        number(&mut function, 3, name);
        message(&mut out, 4, &location);
        message(&mut out, 5, &function);
    }
    let since = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    number(&mut out, 9, u64::try_from(since.as_nanos()).unwrap_or(0));
    number(&mut out, 10, order.seconds * 1_000_000_000);
    let period_type = value_type(&mut strings, "cpu", "nanoseconds");
    message(&mut out, 11, &period_type);
    number(&mut out, 12, period);
    for text in &strings.list {
        message(&mut out, 6, text.as_bytes());
    }
    out
}

#[derive(Default)]
struct Strings {
    list: Vec<String>,
    known: HashMap<String, u64>,
}

impl Strings {
    fn of(&mut self, text: &str) -> u64 {
        *self.known.entry(text.to_owned()).or_insert_with(|| {
            self.list.push(text.to_owned());
            self.list.len() as u64 - 1
        })
    }
}

fn value_type(strings: &mut Strings, kind: &str, unit: &str) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, 1, strings.of(kind));
    number(&mut out, 2, strings.of(unit));
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn message(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn example() -> Stacks {
        let stack = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Stacks::from([(stack(&["worker", "run", "send<T>"]), 3), (stack(&["worker", "run"]), 1)])
    }

    #[test]
    fn orders() {
        for (query, expected) in [
            ("", Some((10, 99, Form::Pprof))),
            ("seconds=3&format=svg", Some((3, 99, Form::Svg))),
            ("hz=199&format=folded&", Some((10, 199, Form::Folded))),
            ("seconds=0", None),
            ("seconds=121", None),
            ("seconds=-1", None),
            ("hz=1000", None),
            ("format=pdf", None),
            ("second=3", None),
        ] {
            let order = Order::parse(query).ok().map(|order| (order.seconds, order.hz, order.form));
            assert_eq!(order, expected, "{query}");
        }
    }

    #[test]
    fn forms() {
        assert_eq!(folded(&example()), "worker;run 1\nworker;run;send<T> 3\n");
        let svg = svg(&example(), 99);
        for part in
            ["4 samples", "<title>run: 4 samples, 100.0%", "<title>send&lt;T&gt;: 3 samples, 75.0%", "width=\"900.0\""]
        {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(super::svg(&Stacks::new(), 99).contains("0 samples"));
    }

    #[test]
    fn protobuf_as_profile_proto_has_it() {
        let order = Order { seconds: 2, hz: 100, form: Form::Pprof };
        let bytes = protobuf(&example(), &order, SystemTime::UNIX_EPOCH);
        // Read back by the rules of the format: tag, then varint or length and bytes.
        let mut fields: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let mut at = 0;
        let read = |at: &mut usize| {
            let (mut value, mut shift) = (0u64, 0);
            loop {
                let byte = bytes[*at];
                *at += 1;
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        };
        while at < bytes.len() {
            let tag = read(&mut at);
            let value = read(&mut at);
            let content = if tag & 7 == 2 {
                at += value as usize;
                bytes[at - value as usize..at].to_vec()
            } else {
                value.to_le_bytes().to_vec()
            };
            fields.entry(tag >> 3).or_default().push(content);
        }
        let strings: Vec<String> = fields[&6].iter().map(|s| String::from_utf8(s.clone()).unwrap()).collect();
        assert_eq!(strings[0], "");
        for name in ["samples", "count", "cpu", "nanoseconds", "worker", "run", "send<T>"] {
            assert!(strings.iter().any(|s| s == name), "{name} in {strings:?}");
        }
        assert_eq!((fields[&2].len(), fields[&4].len(), fields[&5].len()), (2, 3, 3));
        // The second sample: its leaf first, then 3 samples of 10 ms.
        assert_eq!(fields[&2][1], [0x0a, 3, 3, 1, 2, 0x12, 5, 3, 0x80, 0x87, 0xa7, 0x0e]);
    }
}
