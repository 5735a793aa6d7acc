//! `kingpost backup list`, `show`, `verify` and `prune`.

use std::collections::BTreeSet;

use config::Config;
use process::{Failure, terminal};
use serde_json::json;

use crate::branch::show_time;
use crate::catalog::{Catalog, now};
use crate::mark::{Mark, State};
use crate::record::Record;
use crate::restore::{read_all, readers};
use crate::retention::{Kept, needs_wal, to_remove};
use crate::size;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Formats a time in seconds since 1970.
fn shown(seconds: u64) -> String {
    show_time(i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000)).replace(".000000", "")
}

async fn is_restorable(catalog: &Catalog, record: &Record) -> Result<bool, Failure> {
    Ok(catalog.reach(record.end.timeline, record.start.lsn).await? >= record.end.lsn)
}

/// Lists the backups.
pub(crate) async fn list(config: &Config, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let records = catalog.records().await?;
    let mut listed = Vec::new();
    for record in &records {
        listed.push((record, is_restorable(&catalog, record).await?));
    }
    let timelines = catalog.timelines().await?;
    // The window begins with the first backup from which WAL reaches the newest timeline's end.
    let mut window = None;
    if let Some(newest) = timelines.newest() {
        for (record, _) in listed.iter().filter(|(_, restorable)| *restorable) {
            if timelines.passes(newest, record.end.timeline, record.end.lsn) {
                let (reach, on) = catalog.reach_along(&timelines, record.start, newest).await?;
                if on == newest || reach > record.end.lsn {
                    window = Some((*record, reach, on));
                    break;
                }
            }
        }
    }
    if as_json {
        let backups: Vec<serde_json::Value> = listed
            .iter()
            .map(|(record, restorable)| {
                let mut value = json!(record);
                value["restorable"] = json!(restorable);
                value
            })
            .collect();
        let window = window.map(|(record, reach, on)| {
            json!({ "from": record.ended, "from_lsn": record.end.lsn.to_string(), "to_lsn": reach.to_string(), "timeline": on })
        });
        let unfinished: Vec<String> = catalog.unfinished().await?.iter().map(ToString::to_string).collect();
        terminal::line(format_args!("{:#}", json!({ "backups": backups, "window": window, "unfinished": unfinished })));
        return Ok(());
    }
    if listed.is_empty() {
        terminal::line(format_args!("no backup in {}", catalog.name()));
    }
    for (record, restorable) in listed {
        terminal::line(format_args!(
            "{}  ended {}  {:>9}  to {:<24}  {}  {}",
            record.id,
            shown(record.ended),
            size(record.stored),
            record.end.to_string(),
            if restorable { "restorable" } else { "WAL missing" },
            record.label
        ));
    }
    if let Some((record, reach, on)) = window {
        terminal::line(format_args!(
            "any moment can be restored from {} ({}) to {reach} on timeline {on}",
            record.end,
            shown(record.ended)
        ));
    }
    for id in catalog.unfinished().await? {
        terminal::line(format_args!("{id}  is being made, or was killed: the next backup removes what is dead"));
    }
    Ok(())
}

/// Shows a backup.
pub(crate) async fn show(config: &Config, name: &str, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let record = catalog.find(name).await?;
    let reach = catalog.reach(record.end.timeline, record.start.lsn).await?;
    let restorable = reach >= record.end.lsn;
    if as_json {
        let mut value = json!(record);
        value["restorable"] = json!(restorable);
        terminal::line(format_args!("{value:#}"));
        return Ok(());
    }
    let role = if record.standby { "standby" } else { "primary" };
    for (name, value) in [
        ("backup", record.id.clone()),
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
    let record = catalog.find(name).await?;
    let readers = readers(&catalog, &record)?;
    let read = tokio::task::spawn_blocking(move || read_all(readers, |_| None)).await;
    let read = read.map_err(|error| Failure::runtime(error.to_string()))?;
    let (_, files) = read.map_err(|why| Failure::runtime(format!("the backup {} is damaged: {why}", record.id)))?;
    let reach = catalog.reach(record.end.timeline, record.start.lsn).await?;
    if reach < record.end.lsn {
        return Err(Failure::runtime(format!(
            "the backup {} is undamaged and not restorable: it needs WAL up to {}, and the archive has it up to {reach}",
            record.id, record.end
        )));
    }
    terminal::line(format_args!(
        "backup {}: {files} files are as in the server's manifest; its WAL is in the archive",
        record.id
    ));
    Ok(())
}

/// Removes backups and WAL that a window of `days` does not need.
pub(crate) async fn prune(config: &Config, days: u32, dry_run: bool, as_json: bool) -> Result<(), Failure> {
    let catalog = Catalog::attach(&config.relay.archive).await?;
    let mut kept = Vec::new();
    for record in catalog.records().await? {
        let is_restorable = is_restorable(&catalog, &record).await?;
        let Record { id, ended, start, end, .. } = record;
        kept.push(Kept { id, ended, start, end, is_restorable });
    }
    let since = now().saturating_sub(u64::from(days) * DAY);
    let removed: BTreeSet<String> = to_remove(&kept, since).into_iter().map(str::to_owned).collect();
    let timelines = catalog.timelines().await?;
    let staying: Vec<&Kept> = kept.iter().filter(|backup| !removed.contains(&backup.id)).collect();
    // Without a backup that stays, no WAL is known to be superfluous; one that is being made has its start behind the last that ended.
    let has_anchor = staying.iter().any(|backup| backup.is_restorable && backup.ended <= since);
    let wal = match has_anchor {
        true => catalog.wal_not_needed(|timeline, end| needs_wal(&staying, &timelines, timeline, end)).await?,
        false => std::collections::BTreeMap::new(),
    };
    let bytes: u64 = wal.values().sum();
    if as_json {
        let staying: Vec<&str> = staying.iter().map(|backup| backup.id.as_str()).collect();
        let value = json!({
            "dry_run": dry_run, "since": since, "keep": staying, "remove": removed, "wal_objects": wal.len(), "wal_bytes": bytes,
        });
        terminal::line(format_args!("{value:#}"));
    } else {
        let verb = if dry_run { "would remove" } else { "removes" };
        for id in &removed {
            terminal::line(format_args!("{verb} the backup {id}"));
        }
        terminal::line(format_args!(
            "{verb} {} backups and {} objects of WAL ({}); keeps {} backups, for any moment since {}",
            removed.len(),
            wal.len(),
            size(bytes),
            staying.len(),
            shown(since)
        ));
        if !has_anchor {
            terminal::note("no restorable backup ended before that moment: nothing can go yet");
        }
    }
    if dry_run {
        return Ok(());
    }
    for id in removed.iter().filter_map(|id| archive::BackupId::parse(id)) {
        catalog.put_mark(&id, &Mark::here(State::Removing, 0, now())).await?;
        catalog.remove_record(&id).await?;
        catalog.remove_data(&id).await?;
    }
    for path in wal.keys() {
        catalog.remove(path).await?;
    }
    Ok(())
}
