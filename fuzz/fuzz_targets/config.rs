//! The configuration: any text, under any environment.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Lines before the first empty one are environment variables.
    let (variables, text) =
        text.split_once("\n\n").filter(|(head, _)| head.starts_with("KINGPOST__")).unwrap_or(("", text));
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let problems = kingpost::problems(text, variables.map(|(name, value)| (name.into(), value.into())));
    // Each problem names a line, or a variable.
    assert!(problems.iter().all(|problem| !problem.is_empty()));
    // Without the environment, too.
    if problems.is_empty() {
        assert!(kingpost::problems(text, []).iter().all(|problem| !problem.is_empty()));
    }
});
