//! `kingpost backup list`, `show`, `verify` and `prune`.

use std::collections::BTreeMap;
use std::fmt;

use config::Config;
use process::{Failure, terminal};
use serde_json::json;
use watermark::Lsn;

use crate::branch::show_time;
use crate::catalog::{Catalog, Survey, now};
use crate::chain::Chains;
use crate::mark::{Mark, State};
use crate::record::Record;
use crate::restore::{read_all, readers};
use crate::retention::{Kept, needs_wal, superfluous};
use crate::window::Window;
use crate::{size, take};

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Formats a time in seconds since 1970.
fn shown(seconds: u64) -> String {
    show_time(i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000)).replace(".000000", "")
}

fn kind(record: &Record) -> &'static str {
    if record.parent.is_some() { "incremental" } else { "full" }
}

/// Lists the backups.
pub(crate) async fn list(config: &Config, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let Survey { records, window } = catalog.survey().await?;
    let unfinished = catalog.unfinished().await?;
    let system = catalog.system();
    let primary = match take::with_nodes(config).await {
        Ok(of) => {
            let primary = tokio::task::spawn_blocking(move || take::primary(&of, system)).await;
            primary.map_err(|error| Failure::runtime(error.to_string()))??
        }
        // The archive is listed all the same.
        Err(failure) => {
            terminal::note(failure.to_string());
            None
        }
    };
    let behind = window.as_ref().zip(primary).map(|(window, (name, end))| (name, end.0.saturating_sub(window.to().0)));
    if as_json {
        let backups: Vec<serde_json::Value> = records
            .iter()
            .map(|(record, restorable)| {
                let mut value = json!(record);
                value["restorable"] = json!(restorable);
                value
            })
            .collect();
        let window = window.as_ref().map(Window::json);
        let unfinished: Vec<String> = unfinished.iter().map(ToString::to_string).collect();
        let behind = behind.map(|(name, bytes)| json!({ "node": name, "bytes": bytes }));
        let value = json!({ "backups": backups, "window": window, "behind": behind, "unfinished": unfinished });
        terminal::line(format_args!("{value:#}"));
        return Ok(());
    }
    if records.is_empty() {
        terminal::line(format_args!("no backup in {}", catalog.name()));
    }
    let chains = Chains::new(records.iter().map(|(record, _)| record));
    for (record, restorable) in &records {
        let state = match chains.of(record) {
            Err(_) => "chain broken",
            Ok(_) if *restorable => "restorable",
            // A pruning has left it to later ones.
            Ok(_) if chains.is_parent(&record.id) => "of a chain",
            Ok(_) => "WAL missing",
        };
        terminal::line(format_args!(
            "{}  {:<11}  ended {}  {:>9}  to {:<24}  {state}  {}",
            record.id,
            kind(record),
            shown(record.ended),
            size(record.stored),
            record.end.to_string(),
            record.label
        ));
    }
    if let Some(window) = window {
        terminal::line(format_args!("any moment can be restored from {window}"));
    }
    if let Some((name, bytes)) = behind {
        terminal::line(format_args!("the archive is {} behind {name}", size(bytes)));
    }
    for id in unfinished {
        terminal::line(format_args!("{id}  is being made, or was killed: the next backup removes what is dead"));
    }
    Ok(())
}

/// Shows a backup.
pub(crate) async fn show(config: &Config, name: &str, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let chain = catalog.find(name).await?;
    let (Some(record), chain_bytes) = (chain.last(), chain.iter().map(|record| record.stored).sum()) else {
        return Ok(());
    };
    let reach = catalog.reach(record.end.timeline, record.start.lsn, Lsn(u64::MAX)).await?;
    let restorable = reach >= record.end.lsn;
    if as_json {
        let mut value = json!(record);
        value["restorable"] = json!(restorable);
        terminal::line(format_args!("{value:#}"));
        return Ok(());
    }
    let role = if record.standby { "standby" } else { "primary" };
    let kind = match &record.parent {
        None => "full".to_owned(),
        Some(parent) => {
            format!("incremental to {parent}; a restore reads {} backups, {}", chain.len(), size(chain_bytes))
        }
    };
    for (name, value) in [
        ("backup", record.id.clone()),
        ("kind", kind),
        ("label", record.label.clone()),
        ("from", format!("{} ({role}), PostgreSQL {}", record.node, record.server_version)),
        ("started", shown(record.started)),
        ("ended", shown(record.ended)),
        ("WAL from", record.start.to_string()),
        ("WAL to", record.end.to_string()),
        ("archived to", format!("{reach}{}", if restorable { "" } else { ": not restorable yet" })),
        ("size", format!("{}, {} in the archive", size(record.bytes()), size(record.stored))),
    ] {
        terminal::line(format_args!("{name:<12} {value}"));
    }
    for stream in &record.streams {
        if let (Some(oid), Some(location)) = (stream.oid, &stream.location) {
            terminal::line(format_args!("{:<12} {oid} in {location}, {}", "tablespace", size(stream.bytes)));
        }
    }
    Ok(())
}

/// Reads a whole backup, and compares it with the server's manifest.
pub(crate) async fn verify(config: &Config, name: &str) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let chain = catalog.find(name).await?;
    let mut files = 0;
    for record in &chain {
        let readers = readers(&catalog, record)?;
        let read = tokio::task::spawn_blocking(move || read_all(readers, |_| None)).await;
        let read = read.map_err(|error| Failure::runtime(error.to_string()))?;
        files += read.map_err(|why| Failure::runtime(format!("the backup {} is damaged: {why}", record.id)))?.1;
    }
    let Some(record) = chain.last() else { return Ok(()) };
    let reach = catalog.reach(record.end.timeline, record.start.lsn, record.end.lsn).await?;
    if reach < record.end.lsn {
        return Err(Failure::runtime(format!(
            "the backup {} is undamaged and not restorable: it needs WAL up to {}, and the archive has it up to {reach}",
            record.id, record.end
        )));
    }
    let of = if chain.len() > 1 { format!(" of a chain of {} backups", chain.len()) } else { String::new() };
    terminal::line(format_args!(
        "backup {}: {files} files{of} are as in the server's manifest; its WAL is in the archive",
        record.id
    ));
    Ok(())
}

/// Removes backups and WAL that a window of `days` does not need.
pub(crate) async fn prune(config: &Config, days: u32, dry_run: bool, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let pruning = Pruning::plan(&catalog, now().saturating_sub(u64::from(days) * DAY)).await?;
    if as_json {
        terminal::line(format_args!("{:#}", pruning.json(dry_run)));
    } else {
        let verb = if dry_run { "would remove" } else { "removes" };
        for id in &pruning.removed {
            terminal::line(format_args!("{verb} the backup {id}"));
        }
        terminal::line(format_args!("{verb} {pruning}"));
        if !pruning.has_anchor {
            terminal::note("no restorable backup ended before that moment: nothing can go yet");
        }
    }
    if dry_run { Ok(()) } else { pruning.carry_out(&catalog).await }
}

/// Backups and WAL that a window does not need.
pub(crate) struct Pruning {
    /// Start of the window, in seconds since 1970.
    since: u64,
    /// Names of the backups to remove, in this order.
    removed: Vec<String>,
    staying: Vec<String>,
    wal: BTreeMap<String, u64>,
    /// True if a restorable backup ended before the window. Without one, no WAL is known to be superfluous.
    has_anchor: bool,
}

impl Pruning {
    /// Finds what can go.
    pub(crate) async fn plan(catalog: &Catalog, since: u64) -> Result<Pruning, Failure> {
        let kept = |(record, is_restorable)| {
            let Record { id, parent, ended, start, end, .. } = record;
            Kept { id, parent, ended, start, end, is_restorable }
        };
        let mut backups: Vec<Kept> = catalog.judged().await?.into_iter().map(kept).collect();
        // An incremental backup goes before the one that it follows.
        backups.sort_by_key(|backup| std::cmp::Reverse(backup.start.lsn));
        let superfluous = superfluous(&backups, since);
        let timelines = catalog.timelines().await?;
        let (removed, staying): (Vec<&Kept>, Vec<&Kept>) =
            backups.iter().partition(|backup| superfluous.removed.contains(backup.id.as_str()));
        let is_by_itself = |backup: &&Kept| !superfluous.for_chains.contains(backup.id.as_str());
        let with_wal: Vec<&Kept> = staying.iter().copied().filter(is_by_itself).collect();
        // A backup that is being made has its start behind the last that ended.
        let has_anchor = with_wal.iter().any(|backup| backup.is_restorable && backup.ended <= since);
        let wal = match has_anchor {
            true => catalog.wal_not_needed(|timeline, end| needs_wal(&with_wal, &timelines, timeline, end)).await?,
            false => BTreeMap::new(),
        };
        let names = |backups: Vec<&Kept>| backups.into_iter().map(|backup| backup.id.clone()).collect();
        Ok(Pruning { since, removed: names(removed), staying: names(staying), wal, has_anchor })
    }

    /// Removes it: records first, then data, then WAL.
    pub(crate) async fn carry_out(&self, catalog: &Catalog) -> Result<(), Failure> {
        for id in self.removed.iter().filter_map(|id| archive::BackupId::parse(id)) {
            catalog.put_mark(&id, &Mark::here(State::Removing, 0, now())).await?;
            catalog.remove_record(&id).await?;
            catalog.remove_data(&id).await?;
        }
        for path in self.wal.keys() {
            catalog.remove(path).await?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.wal.values().sum()
    }

    fn json(&self, dry_run: bool) -> serde_json::Value {
        json!({
            "dry_run": dry_run, "since": self.since, "keep": self.staying, "remove": self.removed, "wal_objects": self.wal.len(),
            "wal_bytes": self.bytes(),
        })
    }
}

impl fmt::Display for Pruning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} backups and {} objects of WAL ({}); keeps {} backups, for any moment since {}",
            self.removed.len(),
            self.wal.len(),
            size(self.bytes()),
            self.staying.len(),
            shown(self.since)
        )
    }
}
