//! Helpers of the generators: uniform instances, and the resources used by this process.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod connection;

use std::time::Duration;

use registry::{Check, InstanceId, Metadata, NamespaceName, Registration, ServiceKey};

/// Returns the value of entry `e` of instance `n`; key and value together have `bytes`, at least 19. Half of the entries have a value common to one
/// in fifty instances, the other half a unique one.
pub(crate) fn value(n: usize, e: usize, bytes: usize) -> String {
    let length = bytes.saturating_sub(9).max(10);
    let value = if e.is_multiple_of(2) { format!("shared{:04}", (n + e) % 50) } else { format!("u{n:09}") };
    value.repeat(length.div_ceil(value.len()))[..length].to_owned()
}

pub(crate) fn metadata(n: usize, entries: usize, bytes: usize) -> Metadata {
    Metadata::from_pairs((0..entries).map(|e| (format!("key-{e:05}"), value(n, e, bytes)))).unwrap()
}

pub(crate) fn id(n: usize) -> InstanceId {
    InstanceId::new(&NamespaceName::default(), &format!("i{n:08}")).unwrap()
}

/// Returns the service of instance `n`, with the instances spread over `services`.
pub(crate) fn service(n: usize, services: usize) -> ServiceKey {
    ServiceKey::new(&NamespaceName::default(), &format!("service-{:05}", n % services)).unwrap()
}

pub(crate) fn host(n: usize) -> String {
    format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255)
}

pub(crate) fn registration(n: usize, services: usize, entries: usize, bytes: usize) -> Registration {
    let mut registration = Registration::new(id(n), service(n, services), &host(n), 8080);
    registration.protocol = "grpc".into();
    registration.version = "1.0.0".into();
    registration.check = Some(Check::ttl(Duration::from_secs(3600)));
    registration.metadata = metadata(n, entries, bytes);
    registration
}

/// Returns the CPU time of this process, user and system, in ms.
pub(crate) fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().unwrap()).sum();
    ticks as f64 * 10.0
}

/// Returns a line of `/proc/self/status`, in MB.
pub(crate) fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The command-line arguments; missing ones at the end take their defaults.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn get() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    pub(crate) fn text(&self, n: usize) -> &str {
        self.0.get(n).unwrap_or_else(|| panic!("argument {n} is missing: see the beginning of the source"))
    }

    pub(crate) fn has(&self, n: usize) -> Option<&str> {
        self.0.get(n).map(String::as_str)
    }

    pub(crate) fn number(&self, n: usize) -> usize {
        self.text(n).parse().unwrap_or_else(|_| panic!("argument {n}: expected a number"))
    }

    pub(crate) fn number_or(&self, n: usize, default: usize) -> usize {
        self.0.get(n).map_or(default, |_| self.number(n))
    }
}
