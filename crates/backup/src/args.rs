//! Arguments of `kingpost backup` and `kingpost restore`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use process::EXIT_CODES;

use crate::branch::Target;

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    #[command(flatten)]
    pub take: TakeArgs,
}

#[derive(Debug, Args)]
pub struct TakeArgs {
    #[command(flatten)]
    pub config: WhichConfig,
    /// The node to take the backup from; the default is a standby that answers, else the primary
    #[arg(long, value_name = "NODE")]
    pub from: Option<String>,
    /// Takes the blocks alone that changed since the newest backup: PostgreSQL 17 and later, with summarize_wal = on
    #[arg(long)]
    pub incremental: bool,
    /// Label, kept with the backup
    #[arg(long, default_value = "kingpost", value_name = "TEXT")]
    pub label: String,
    /// Most bytes that the server sends in a second, such as 20M: from 32k to 1G
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub max_rate: Option<u32>,
    /// Spreads the writes of the server's checkpoint, which takes minutes, instead of writing at once
    #[arg(long)]
    pub spread: bool,
    /// Longest time to wait until the archive has the WAL that the backup needs
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub wait: Duration,
    /// Prints the record of the backup as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Lists the backups in the archive, and the window that can be restored
    #[command(after_help = EXIT_CODES)]
    List {
        #[command(flatten)]
        config: WhichConfig,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows a backup
    #[command(after_help = EXIT_CODES)]
    Show {
        #[command(flatten)]
        config: WhichConfig,
        /// Name of the backup, or latest
        backup: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Reads a whole backup, and compares it with the server's manifest
    #[command(after_help = EXIT_CODES)]
    Verify {
        #[command(flatten)]
        config: WhichConfig,
        /// Name of the backup, or latest
        #[arg(default_value = "latest")]
        backup: String,
    },
    /// Removes backups that a window of so many days does not need, and WAL before the first that stays
    #[command(after_help = EXIT_CODES)]
    Prune {
        #[command(flatten)]
        config: WhichConfig,
        /// Days back to which a restore stays possible
        #[arg(long, value_name = "DAYS")]
        keep: u32,
        /// Says what would be removed, and removes nothing
        #[arg(long)]
        dry_run: bool,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub config: WhichConfig,
    /// The moment to restore: latest, a time with its zone (2026-11-28 16:44:37+01), a position (0/5000028), or the name of a restore point
    #[arg(long, default_value = "latest", value_name = "MOMENT", value_parser = Target::parse)]
    pub at: Target,
    /// The data directory to make: empty, or not there
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Stops just before the moment, where a commit has exactly that time
    #[arg(long)]
    pub before: bool,
    /// Timeline to restore along, where several have the moment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeline: Option<u32>,
    /// The backup to begin with; the default is the newest that ended before the moment
    #[arg(long, value_name = "NAME")]
    pub backup: Option<String>,
    /// Directory for a tablespace, by its location in the backup; the default is tablespaces/OID in the data directory
    #[arg(long = "tablespace", value_name = "OLD=NEW", value_parser = mapping)]
    pub tablespaces: Vec<(String, PathBuf)>,
    /// State of the server at the moment: promote, pause (it can be queried first, with hot_standby), or shutdown
    #[arg(long, default_value = "promote", value_name = "ACTION", value_parser = ["promote", "pause", "shutdown"])]
    pub then: String,
    /// Makes a standby, which goes on with WAL behind the end of the archive by streaming: set primary_conninfo before its start
    #[arg(long, conflicts_with_all = ["at", "before", "then", "verify"])]
    pub standby: bool,
    /// Starts the server on a socket of its own, waits for the end of recovery, runs a query and, where it is installed, pg_amcheck, and stops it
    #[arg(long, conflicts_with = "then")]
    pub verify: bool,
    /// Superuser that --verify logs in as
    #[arg(long, default_value = "postgres", value_name = "NAME")]
    pub user: String,
    /// Longest time of the recovery with --verify
    #[arg(long, default_value = "1d", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub limit: Duration,
    /// Directory of PostgreSQL's programs, for --verify and for incremental backups; the default is that of the backup's version below /usr
    #[arg(long, env = "KINGPOST_PG_BIN", value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct WhichConfig {
    /// Configuration file, with [relay.archive]
    #[arg(long, short, env = "KINGPOST_CONFIG", default_value = "kingpost.toml", value_name = "FILE")]
    pub config: PathBuf,
}

/// Parses a rate in bytes, with a suffix k, M or G, to kB/s.
fn rate(text: &str) -> Result<u32, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        other => return Err(format!("{other:?} is none of k, M and G")),
    };
    let bytes = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let rate = bytes.and_then(|bytes| u32::try_from(bytes / 1024).ok());
    rate.filter(|rate| wire::replication::RATES.contains(rate)).ok_or_else(|| "servers accept 32k to 1G".into())
}

/// Parses OLD=NEW.
fn mapping(text: &str) -> Result<(String, PathBuf), String> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW")?;
    if !old.starts_with('/') || !new.starts_with('/') || new.contains(['\n', '\r']) {
        return Err("both are absolute paths".into());
    }
    Ok((old.into(), new.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("32k", Some(32)),
            ("20M", Some(20_480)),
            ("1G", Some(1_048_576)),
            ("31k", None),
            ("2G", None),
            ("x", None),
        ] {
            assert_eq!(rate(text).ok(), expected, "{text}");
        }
    }
}
