//! `kingpost config from-pgbouncer`, `from-pgcat`, `from-pgdog`, `from-pgpool`: a configuration made from another program's.
//!
//! ```text
//!  pgbouncer.ini, auth_file ──────▶ pgbouncer ─┐
//!  pgcat.toml ────────────────────▶ pgcat      ├─ each by its table of keys ─▶ Report ─▶ Plan ─▶ text ─config::parse─▶ good, or why not
//!  pgdog.toml, users.toml ────────▶ pgdog      │                              (what is    (what is
//!  pgpool.conf, hba, pool_passwd ─▶ pgpool ────┘                               lost)       written)
//! ```
//!
//! The translation is strict: a setting that cannot be carried over is an error that names it, and nothing is written unless `--ignore` names it,
//! too. The output always passes `kingpost check`. `prober` chooses the login by which the written configuration watches the servers.

mod args;
#[cfg(test)]
mod checked;
mod document;
mod keys;
mod lookup;
mod members;
mod options;
mod pgbouncer;
mod pgcat;
mod pgdog;
mod pgpool;
mod plan;
mod prober;
mod report;
mod server;

use std::path::{Path, PathBuf};

use args::{Translation, WhichDatabases};
use config::{self, Problem, Severity};
use options::{Options, Read};
use plan::Plan;
use process::{Failure, terminal};

pub use args::{FromDatabasesArgs, FromPgdogArgs, FromPgpoolArgs};
pub use pgbouncer::alias;

/// Size limit of a file, in bytes.
const LONGEST: u64 = 16 << 20;

/// The files of a program.
#[derive(Debug)]
enum Source {
    Pgbouncer { file: PathBuf },
    Pgcat { file: PathBuf },
    Pgdog { file: PathBuf, users: PathBuf },
    Pgpool(pgpool::Files),
}

impl Source {
    /// Returns the main file, which names the others.
    fn file(&self) -> &Path {
        match self {
            Source::Pgbouncer { file } | Source::Pgcat { file } | Source::Pgdog { file, .. } => file,
            Source::Pgpool(files) => &files.conf,
        }
    }

    /// Reads the files, and returns the configuration to write.
    fn translate(&self, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
        let mut plan = match self {
            Source::Pgbouncer { file } => pgbouncer::plan(file, read, options)?,
            Source::Pgcat { file } => pgcat::plan(file, read, options)?,
            Source::Pgdog { file, users } => pgdog::plan(file, users, read, options)?,
            Source::Pgpool(files) => pgpool::plan(files, read, options)?,
        };
        plan.watch(options);
        Ok(plan)
    }
}

/// Prints the translation of PgBouncer's file, or writes it.
///
/// # Errors
/// A file cannot be used, or a setting cannot be carried over.
pub fn from_pgbouncer(args: &FromDatabasesArgs) -> Result<(), Failure> {
    run(&Source::Pgbouncer { file: args.file.clone() }, &args.how, Some(&args.which))
}

/// Prints the translation of PgCat's file, or writes it.
///
/// # Errors
/// A file cannot be used, or a setting cannot be carried over.
pub fn from_pgcat(args: &FromDatabasesArgs) -> Result<(), Failure> {
    run(&Source::Pgcat { file: args.file.clone() }, &args.how, Some(&args.which))
}

/// Prints the translation of PgDog's files, or writes it.
///
/// # Errors
/// A file cannot be used, or a setting cannot be carried over.
pub fn from_pgdog(args: &FromPgdogArgs) -> Result<(), Failure> {
    let users = args.users.clone().unwrap_or_else(|| args.file.with_file_name("users.toml"));
    run(&Source::Pgdog { file: args.file.clone(), users }, &args.how, Some(&args.which))
}

/// Prints the translation of pgpool-II's files, or writes it.
///
/// # Errors
/// A file cannot be used, or a setting cannot be carried over.
pub fn from_pgpool(args: &FromPgpoolArgs) -> Result<(), Failure> {
    let (hba, passwords) = (args.hba.clone(), args.passwords.clone());
    run(&Source::Pgpool(pgpool::Files { conf: args.file.clone(), hba, passwords }), &args.how, None)
}

fn run(source: &Source, how: &Translation, which: Option<&WhichDatabases>) -> Result<(), Failure> {
    let options = Options {
        ignored: how.ignore.clone(),
        ignore_all: false,
        databases: which.map(|which| which.database.clone()).unwrap_or_default(),
        same_cluster: which.is_none_or(|which| which.same_cluster),
        probe_user: how.probe_user.clone(),
    };
    let plan = source.translate(&read_file, &options)?;
    let text = plan.render();
    for note in plan.notes() {
        terminal::note(format!("kingpost: {note}"));
    }
    let name = how.out.as_deref().unwrap_or(Path::new("the translation"));
    let checked = config::parse(&name.display().to_string(), &text, [], &config::stat_file);
    let errors = |problem: &&Problem| problem.severity == Severity::Error;
    let errors: Vec<String> = checked.problems.iter().filter(errors).map(|problem| format!("  {problem}")).collect();
    if !errors.is_empty() && !how.no_check {
        let file = source.file().display();
        let what = format!("what {file} comes to is not good; nothing is written\n{}", errors.join("\n"));
        return Err(Failure::config(what).advise(
            "mend it in that file. If the files that it names are on another machine: --no-check, and `kingpost check` there",
        ));
    }
    for problem in checked.problems {
        terminal::note(format!("kingpost: {problem}"));
    }
    match &how.out {
        None => terminal::raw(&text),
        Some(path) => {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            // The file may hold passwords: only its owner can read it, and no file is overwritten.
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| Failure::path("write", path, &error))?;
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
    match read.map_err(|error| Failure::path("read", path, &error))? as u64 {
        0..=LONGEST => Ok(text),
        _ => Err(Failure::config(format!("{}: found more than {LONGEST} bytes", path.display()))),
    }
}

/// Translates a text without the settings that cannot be carried over; files that it names are empty.
pub fn translated(program: &str, text: &str) -> Result<String, Failure> {
    let file = PathBuf::from("text");
    let options = Options { ignore_all: true, ..Options::default() };
    let read = |path: &Path| Ok(if path == Path::new("text") { text.to_owned() } else { String::new() });
    let source = match program {
        "pgbouncer" => Source::Pgbouncer { file },
        "pgcat" => Source::Pgcat { file },
        // One text for both files: each finds its own tables in it.
        "pgdog" => Source::Pgdog { users: file.clone(), file },
        "pgpool" => Source::Pgpool(pgpool::Files { conf: file, hba: None, passwords: None }),
        _ => {
            return Err(Failure::config(format!(
                "found the program {program:?}, expected one whose files are translated"
            )));
        }
    };
    Ok(source.translate(&read, &options)?.render())
}
