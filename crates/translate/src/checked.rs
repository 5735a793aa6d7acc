//! Check of a translation before it is written, for tests.

/// Parses a translation. It must be a configuration without errors, except for missing certificates.
pub(super) fn checked(translation: &str) -> toml::Table {
    let checked = config::parse("text", translation, [], &|_| config::Stat::Readable { mode: 0o600, empty: false });
    let wrong = |problem: &&config::Problem| {
        problem.severity == config::Severity::Error && !problem.message.contains("No such file")
    };
    let wrong: Vec<_> = checked.problems.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{translation}");
    translation.parse().unwrap_or_else(|error| panic!("{error}\n{translation}"))
}

/// Returns a key's text.
pub(super) fn text<'t>(of: &'t toml::Value, key: &str) -> Option<&'t str> {
    of.get(key).and_then(toml::Value::as_str)
}
