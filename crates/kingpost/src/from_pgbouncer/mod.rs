//! `kingpost config from-pgbouncer`: a configuration made from PgBouncer's.
//!
//! ```text
//!  pgbouncer.ini, auth_file ──ini──▶ entries ──translate, by the table in keys──▶ Plan ──▶ text ──config::parse──▶ good, or why not
//! ```
//!
//! It is strict: a setting that can't be carried over is an error that names it, and nothing is written unless `--ignore` names it,
//! too. What is written is what `kingpost check` finds good.

mod ini;
mod keys;
mod plan;
#[cfg(test)]
mod tests;
mod translate;

use std::path::Path;

use crate::cli::FromPgbouncerArgs;
use crate::config::{self, Problem, Severity};
use crate::error::Failure;
use crate::out;

pub(crate) use translate::SAFE_QUERY;

/// Reads a file that the settings name.
type Read<'a> = &'a dyn Fn(&Path) -> Result<String, Failure>;

/// How to translate.
#[derive(Debug, Default)]
struct Options {
    /// Settings to leave out.
    ignored: Vec<String>,
    /// Leaves out whatever can't be carried over.
    ignore_all: bool,
    /// Databases to translate; none: all.
    databases: Vec<String>,
    /// All servers are one primary and its replicas.
    same_cluster: bool,
    /// Who watches the nodes.
    probe_user: Option<String>,
}

/// The key that a key of PgBouncer's `[pgbouncer]` becomes.
pub(crate) fn carried_to(key: &str) -> Option<&'static str> {
    match keys::find(keys::Section::Pgbouncer, key)?.fate {
        keys::Fate::Carried(to) => Some(to),
        keys::Fate::Needless | keys::Fate::Refused(_) => None,
    }
}

/// Why a key of PgBouncer's `[pgbouncer]` is not needed; `None`: it is, or there is no such key.
pub(crate) fn needless(key: &str) -> Option<&'static str> {
    let key = keys::find(keys::Section::Pgbouncer, key)?;
    matches!(key.fate, keys::Fate::Needless).then_some(key.note)
}

/// Prints the translation of a file, or writes it.
pub(crate) fn run(args: &FromPgbouncerArgs) -> Result<(), Failure> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| Failure::path("read", path, &error));
    let options = Options {
        ignored: args.ignore.clone(),
        ignore_all: false,
        databases: args.database.clone(),
        same_cluster: args.same_cluster,
        probe_user: args.probe_user.clone(),
    };
    let text = translate(&args.file, &read, &options)?;
    if let Some(about) = text.lines().find_map(|line| line.strip_prefix("# Databases on different servers")) {
        out::note(format!("kingpost: databases on different servers{about}"));
    }
    let name = args.out.as_deref().unwrap_or(Path::new("the translation"));
    let checked = config::parse(&name.display().to_string(), &text, [], &config::stat_file);
    let errors = |problem: &&Problem| problem.severity == Severity::Error;
    let errors: Vec<String> = checked.problems.iter().filter(errors).map(|problem| format!("  {problem}")).collect();
    if !errors.is_empty() && !args.no_check {
        let what =
            format!("what {} comes to is not good; nothing is written\n{}", args.file.display(), errors.join("\n"));
        return Err(Failure::config(what).advise(
            "mend it in PgBouncer's file. If the files that it names are on another machine: --no-check, and `kingpost check` there",
        ));
    }
    for problem in checked.problems {
        out::note(format!("kingpost: {problem}"));
    }
    match &args.out {
        None => out::raw(&text),
        Some(path) => {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            // It may hold passwords: for its owner alone, and nothing is overwritten.
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| Failure::path("write", path, &error))?;
        }
    }
    Ok(())
}

/// The translation of a text, without what can't be carried over; whatever it refers to is empty.
pub(crate) fn translated(text: &str) -> Result<String, Failure> {
    let file = Path::new("pgbouncer.ini");
    let options = Options { ignore_all: true, ..Options::default() };
    translate(file, &|path| Ok(if path == file { text.to_owned() } else { String::new() }), &options)
}

/// Reads `file` and what it refers to, and gives the whole configuration as text.
fn translate(file: &Path, read: Read<'_>, options: &Options) -> Result<String, Failure> {
    let entries = ini::read(file, read)?;
    Ok(translate::translate(file, &entries, read, options)?.render())
}
