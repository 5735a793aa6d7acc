//! Configuration files of other programs, which are translated: any text, as a file of each of them.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for program in ["pgbouncer", "pgcat", "pgdog", "pgpool"] {
        // The translation is TOML, and has only known keys.
        if let Ok(translated) = kingpost::translated(program, text) {
            let problems = kingpost::problems(&translated, []);
            let wrong = |problem: &String| problem.contains("unknown key") || problem.contains("not TOML");
            assert!(!problems.iter().any(wrong), "{program}: {problems:?} in\n{translated}");
        }
    }
});
