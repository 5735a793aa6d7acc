//! `kingpost backup` and `kingpost restore`: base backups in the archive of the WAL, and the way back to any moment.
//!
//! ```text
//!  take:    server ─BASE_BACKUP─▶ pieces of 16 MiB ─▶ archive; the record, which makes it a backup, last
//!  restore: branch (pure): moment ─▶ timeline, backup ─▶ chain (pure) ─▶ unpack: paths and manifest checked ─▶ join, of a chain
//!           ─▶ recovery settings ─▶ pg_control gets its name
//!           ─▶ server: recovery, a query, pg_amcheck
//!  prune:   retention (pure): window ─▶ backups, WAL
//!  keeper:  a relay's thread: schedule (pure) ─▶ a turn in the archive ─▶ take, prune
//! ```
//!
//! # Invariants
//!
//! - A backup without a record is not there; its record is written after every other object.
//! - A restored directory has a control file only after every file was compared with the manifest and made durable.
//! - Nothing is written outside the directories that the user names.
//! - Memory is bounded by a few pieces, and by the manifest, whatever the size of the cluster.

mod args;
mod branch;
mod catalog;
mod chain;
mod join;
mod keeper;
mod manifest;
mod mark;
mod prune;
mod record;
mod recovery;
mod restore;
mod retention;
mod say;
mod schedule;
mod server;
mod take;
mod timelines;
mod unpack;
mod window;

use std::path::Path;

pub use args::{BackupArgs, RestoreArgs};
use args::{BackupCommand, WhichConfig};
use config::Config;
pub use keeper::{BackupStatus, Keeper};
use process::{Failure, LogConfig, LogFlags, logging};
pub use window::Window;

/// Takes a backup, or lists, shows, verifies or removes backups.
pub fn backup(args: &BackupArgs, log: &LogFlags) -> Result<(), Failure> {
    logging::start(&log.over(&LogConfig { level: "warn".into(), ..LogConfig::default() }), None)?;
    match &args.command {
        None => take::take(&read(&args.take.config)?, &args.take),
        Some(BackupCommand::List { config, json }) => run(prune::list(&read(config)?, *json)),
        Some(BackupCommand::Show { config, backup, json }) => run(prune::show(&read(config)?, backup, *json)),
        Some(BackupCommand::Verify { config, backup }) => run(prune::verify(&read(config)?, backup)),
        Some(BackupCommand::Prune { config, keep, dry_run, json }) => {
            run(prune::prune(&read(config)?, *keep, *dry_run, *json))
        }
    }
}

/// Makes a data directory from a backup and the archived WAL.
pub fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    restore::restore(&read(&args.config)?, args)
}

fn read(which: &WhichConfig) -> Result<Config, Failure> {
    let path: &Path = &which.config;
    let (config, _) = config::load(path)?.accept(path)?;
    if !config.relay.archive.is_on() {
        return Err(Failure::config(format!("{} has no [relay.archive] with a url", path.display()))
            .advise("backups are kept beside the WAL that a relay archives: docs/guide/archive.md"));
    }
    Ok(config)
}

fn run(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = process::control_runtime()?;
    let done = runtime.block_on(work);
    // A file system that hangs keeps its thread.
    runtime.shutdown_background();
    done
}

/// Formats a number of bytes.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (bytes as f64, 0);
    while number >= 1024.0 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{number:.1} {}", units[unit]) }
}

/// For the fuzzer: reads everything of this crate that comes from outside.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = branch::Target::parse(&text);
    let _ = timelines::Timelines::default().add_history(5, bytes);
    let _ = record::Record::parse(bytes, &archive::BackupId::new(0, 0));
    let mut manifest = manifest::Manifest::parse(bytes).unwrap_or_default();
    let _ = unpack::unpack(bytes, "", None, &mut manifest);
}
