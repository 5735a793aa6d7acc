#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::key::{Kind, Takes};
use crate::{Limit, OrNever, Table, guide, rows};

crate::settings! {
    /// Choice of a color.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Color {
        /// Red.
        Red = "red",
        /// Blue.
        Blue = "dark-blue";
        /// Green, which no file has.
        Green = "green",
    }
}

crate::settings! {
    /// Outer table.
    #[derive(Debug, PartialEq)]
    struct Outer: Default {
        /// Number of things,
        /// on two lines.
        size: usize = 20, range(1, 100), pgbouncer("their_size");
        /// Time limit; `"0s"` means never.
        limit: Duration = Duration::from_secs(90), or_never();
        /// Color of all.
        color: Color = Color::Blue;
        /// Name, if any.
        name: Option<String> = None, example("\"a\"");
        /// Password.
        password: Option<String> = None, secret(), example("\"change-me\"");
        /// Time limit that is never by default.
        idle: OrNever = OrNever::NEVER;
        /// Most things; 0: no limit.
        most: Limit = Limit::NONE, range(0, 9);
        /// Words.
        words: Vec<String> = vec!["a".into()];
        /// Inner table.
        inner: Inner = Inner::default(), at_start();
        /// Entries.
        entries: Vec<Entry> = Vec::new(), shown_table();
    =>
        /// True if it was looked up.
        looked_up: bool;
    }
}

crate::settings! {
    /// Inner table.
    #[derive(Debug, PartialEq)]
    struct Inner: Default {
        /// True if on.
        on: bool = true;
    }
}

crate::settings! {
    /// Entry.
    #[derive(Debug, PartialEq)]
    struct Entry {
        /// Kind of entry.
        kind: String, named("type"), shown("\"x\"");
        /// Share of it.
        share: f64 = 0.5;
    }
}

fn read(json: &str) -> Result<Outer, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

#[test]
fn defaults_are_those_declared() {
    let read = read("{}").unwrap();
    assert_eq!(read, Outer::default());
    assert_eq!((read.size, read.limit, read.color), (20, Duration::from_secs(90), Color::Blue));
}

#[test]
fn a_file_is_read_and_written() {
    let mut outer =
        read(r#"{"color": "red", "limit": "1h", "password": "s", "entries": [{"type": "t"}], "inner": {"on": false}}"#)
            .unwrap();
    assert_eq!((outer.color, outer.limit, outer.inner.on), (Color::Red, Duration::from_secs(3600), false));
    assert_eq!((outer.entries[0].kind.as_str(), outer.entries[0].share), ("t", 0.5));
    assert_eq!(outer.password.as_deref(), Some("s"));
    let text = serde_json::to_string(&outer).unwrap();
    assert!(!text.contains("password"), "{text}");
    outer.password = None;
    assert_eq!(read(&text).unwrap(), outer);
    assert_eq!(Color::Green.name(), "green");
}

#[test]
fn a_zero_switches_a_limit_off() {
    let outer = read(r#"{"idle": "1s", "most": 0}"#).unwrap();
    assert_eq!((outer.idle.get(), outer.most), (Some(Duration::from_secs(1)), Limit::NONE));
    assert_eq!(read(r#"{"idle": "0s"}"#).unwrap().idle, OrNever::NEVER);
    assert!(matches!(Outer::KEYS[5].kind, Kind::Duration { zero: true }));
    assert!(matches!(Outer::KEYS[6].kind, Kind::Integer { min: 0, max: 9 }));
}

#[test]
fn errors_are_serdes() {
    for (json, expected) in [
        (r#"{"sise": 1}"#, "unknown field `sise`, expected one of `size`, `limit`, `color`"),
        (r#"{"size": 1, "size": 1}"#, "duplicate field `size`"),
        (r#"{"color": "green"}"#, "unknown variant `green`, expected `red` or `dark-blue`"),
        (r#"{"entries": [{}]}"#, "missing field `kind`"),
        (r#"{"limit": 3}"#, "invalid type"),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn keys_are_rows_of_the_schema() {
    let keys = Outer::KEYS;
    assert!(matches!(keys[0].kind, Kind::Integer { min: 1, max: 100 }));
    assert!(matches!(keys[1].kind, Kind::Duration { zero: true }));
    assert!(matches!(keys[2].kind, Kind::Choice(["red", "dark-blue"])));
    assert!(matches!(keys[4].kind, Kind::Secret));
    assert!(matches!(keys[9].kind, Kind::Tables(_)));
    assert!(keys.iter().all(|key| !key.required));
    assert_eq!(
        Entry::KEYS.iter().map(|key| (key.name, key.required)).collect::<Vec<_>>(),
        [("type", true), ("share", false)]
    );
}

#[test]
fn rows_have_values_and_defaults() {
    let outer = read(r#"{"size": 5, "most": 3, "password": "s3cret", "limit": "500ms"}"#).unwrap();
    let shown: Vec<String> = rows(&outer, "o")
        .iter()
        .map(|row| {
            let name = row.key.pgbouncer.unwrap_or(&row.path);
            let mark = if row.takes == Takes::AtStart { " at start" } else { "" };
            format!("{name} {:?} {:?}{mark}", row.value.as_deref(), row.default.as_deref())
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#"their_size Some("5") Some("20")"#,
            r#"o.limit Some("0.5") Some("90")"#,
            r#"o.color Some("dark-blue") Some("dark-blue")"#,
            r#"o.name Some("") Some("")"#,
            r#"o.password None None"#,
            r#"o.idle Some("0") Some("0")"#,
            r#"o.most Some("3") Some("0")"#,
            r#"o.words Some("a") Some("a")"#,
            r#"o.inner.on Some("true") Some("true") at start"#,
        ]
    );
}

#[test]
fn the_described_file_has_every_key() {
    assert_eq!(
        guide::toml(&[crate::Key::new("o", " Outer table.\n", Kind::Table(Outer::KEYS))]),
        "
# Outer table.
[o]
# Number of things,
# on two lines.
size = 20
# Time limit; `\"0s\"` means never.
limit = \"1m 30s\"
# Color of all.
color = \"dark-blue\"
# Name, if any.
#name = \"a\"
# Password.
#password = \"change-me\"
# Time limit that is never by default.
idle = \"0s\"
# Most things; 0: no limit.
most = 0
# Words.
words = [\"a\"]

# Inner table.
[o.inner]
# True if on.
on = true

# Entries.
[[o.entries]]
# Kind of entry.
type = \"x\"
# Share of it.
share = 0.5
"
    );
    assert_eq!(
        guide::markdown("o.inner", Inner::KEYS),
        "| `[o.inner]` | | default |\n|---|---|---|\n| `on` | True if on. | `true` |\n"
    );
}
