//! The guide's page of limits has every constant that bounds something, with its value.

use std::fs;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/limits.md");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Constants that no client meets: bounds of caches and lists whose overflow shows nowhere, of configurations (`check` says so), and of the driver.
const INTERNAL: &[(&str, &str)] = &[
    ("ident.rs", "MAX_LINES"),
    ("ident.rs", "MAX_EXPRESSIONS"),
    ("ident.rs", "MAX_REGEX"),
    ("hba.rs", "MAX_RULES"),
    ("tokens.rs", "MAX_TEXT"),
    ("tokens.rs", "MAX_ERRORS"),
    ("secrets.rs", "MOST_SECRETS"),
    ("ldap.rs", "MOST_SERVERS"),
    ("start.rs", "MOST_QUERY"),
    ("start.rs", "MOST_PARAMETERS"),
    ("traffic/rule.rs", "MOST_NAME"),
    ("traffic/limiter.rs", "MOST_BURST"),
    ("traffic/mod.rs", "MANY_LIMITERS"),
    ("driver/sys.rs", "MOST_WAITED_FOR"),
    ("driver/system.rs", "MOST_PASSWD"),
    ("pool/budget.rs", "MOST_WORKERS"),
    ("pool/mod.rs", "MANY_POOLS"),
    ("notify/listener.rs", "MOST_ON_THEIR_WAY"),
    ("observe/trace.rs", "MOST_COMMENT"),
    ("observe/statistics.rs", "MOST_TEXT"),
    ("observe/statistics.rs", "MOST_SHOWN"),
    ("observe/statistics.rs", "MOST_LOGGED"),
    ("session/journal.rs", "MOST"),
    ("session/traffic.rs", "MOST_FINGERPRINTS"),
    ("server/align.rs", "MOST_SAID"),
    ("prepared/baseline.rs", "MOST_UNTOLD"),
    ("session/client.rs", "UNIT_MAX_KEPT"),
    ("session/statements.rs", "MOST_CLOSED"),
    ("lane/mod.rs", "MANY"),
    ("lane/cost.rs", "MOST_STRIKES"),
    ("memory/buffer.rs", "MOST_KEPT"),
    ("memory/pooled_box.rs", "MOST_KEPT"),
    ("prepared/statement.rs", "MANY"),
];

fn sources(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("core/tests.rs") {
            let name = path.strip_prefix(SOURCE).expect("a file below the sources").display().to_string();
            found.push((name, fs::read_to_string(&path).expect("a source")));
        }
    }
}

/// `10_000`, `64 << 10`.
fn value(expression: &str) -> Option<u64> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    match expression.split_once("<<") {
        Some((number_, shift)) => Some(number(number_)? << number(shift)?),
        None => number(expression),
    }
}

/// The constant's file, name and value, if the line is one that bounds something.
fn constant(line: &str) -> Option<(&str, u64)> {
    let (_, rest) = line.split_once("const ")?;
    let (name, rest) = rest.split_once(": ")?;
    let words = || name.split('_');
    let (_, expression) = rest.split_once("= ")?;
    words().any(|word| ["MOST", "MAX", "MANY"].contains(&word)).then_some(())?;
    Some((name, value(expression.strip_suffix(';')?)?))
}

/// The ways in which the page writes a number.
fn written(number: u64) -> Vec<String> {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    let mut ways = vec![groups.join(",")];
    for (shift, unit) in [(10, "KiB"), (20, "MiB")] {
        if number >> shift > 0 && number.is_multiple_of(1 << shift) {
            ways.push(format!("{} {unit}", number >> shift));
        }
    }
    ways
}

#[test]
fn the_page_has_each_limit_with_its_value() {
    let page = fs::read_to_string(PAGE).expect("the page");
    let rows: Vec<Vec<&str>> =
        page.lines().filter(|line| line.starts_with('|')).map(|line| line.split('|').collect()).collect();
    let mut files = Vec::new();
    sources(Path::new(SOURCE), &mut files);
    let mut constants = Vec::new();
    for (file, text) in &files {
        constants.extend(text.lines().filter_map(constant).map(|(name, value)| (file.as_str(), name, value)));
    }
    let is = |file: &str, name: &str, (end, wanted): (&str, &str)| name == wanted && file.ends_with(end);
    let mut said = 0;
    for &(file, name, value) in &constants {
        if INTERNAL.iter().any(|&internal| is(file, name, internal)) {
            continue;
        }
        let row = rows.iter().find(|row| {
            let cell = row.get(4).copied().unwrap_or_default();
            let mut quoted = cell.split('`').skip(1).step_by(2);
            matches!((quoted.next(), quoted.next()), (Some(end), Some(wanted)) if is(file, name, (end, wanted)))
        });
        let Some(row) = row else { panic!("docs/guide/limits.md has no row for {name} of {file} ({value})") };
        let ways = written(value);
        assert!(
            ways.iter().any(|way| row[2].trim() == way),
            "{name} of {file} is {ways:?}, and the page says {:?}",
            row[2]
        );
        said += 1;
    }
    // Nothing on the page, and nothing in the list above, is of the past.
    let named = rows.iter().filter(|row| row.get(4).is_some_and(|cell| cell.contains(".rs`: `"))).count();
    assert_eq!(named, said);
    for &internal in INTERNAL {
        assert!(constants.iter().any(|&(file, name, _)| is(file, name, internal)), "{internal:?} is not there");
    }
}
