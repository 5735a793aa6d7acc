//! Files that make a data directory recover: settings, the map of tablespaces. Pure.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::branch::{Target, show_time};
use crate::record::Record;
use process::settings_file;
use watermark::Lsn;
use wire::replication::position;

/// Settings of an earlier recovery, which a restore replaces.
const REPLACED: [&str; 12] = [
    "restore_command",
    "archive_cleanup_command",
    "recovery_end_command",
    "recovery_target",
    "recovery_target_time",
    "recovery_target_lsn",
    "recovery_target_xid",
    "recovery_target_name",
    "recovery_target_inclusive",
    "recovery_target_timeline",
    "recovery_target_action",
    "recovery_min_apply_delay",
];

/// Returns the settings of a recovery. `before`: it ends just before the moment.
pub(crate) fn settings(
    target: &Target,
    timeline: u32,
    before: bool,
    action: &str,
    restore_command: &str,
) -> Vec<(&'static str, String)> {
    let mut settings =
        vec![("restore_command", restore_command.to_owned()), ("recovery_target_timeline", timeline.to_string())];
    match target {
        Target::Latest => return settings,
        Target::Time(micros, _) => settings.push(("recovery_target_time", show_time(*micros))),
        Target::Lsn(lsn) => settings.push(("recovery_target_lsn", position(lsn.0))),
        Target::Name(name) => settings.push(("recovery_target_name", name.clone())),
    }
    // A position is a moment between records: the one that begins there is not part of it.
    let is_inclusive = !before && !matches!(target, Target::Lsn(_));
    settings.push(("recovery_target_inclusive", if is_inclusive { "on" } else { "off" }.into()));
    settings.push(("recovery_target_action", action.to_owned()));
    settings
}

/// Replaces the target by the last record of the archived WAL, which is replayed: a server that finds no record behind a position says that it did not
/// reach it.
pub(crate) fn end_with(settings: &mut [(&'static str, String)], last_record: Lsn) {
    for (name, value) in settings {
        match *name {
            "recovery_target_lsn" => *value = position(last_record.0),
            "recovery_target_inclusive" => *value = "on".into(),
            _ => {}
        }
    }
}

/// Returns the settings of a standby, which follows the newest timeline.
pub(crate) fn standby_settings(restore_command: &str) -> Vec<(&'static str, String)> {
    vec![("restore_command", restore_command.to_owned()), ("recovery_target_timeline", "latest".into())]
}

/// Returns the text of `postgresql.auto.conf`: that of the backup, with these settings in place of those of an earlier recovery.
pub(crate) fn auto_conf(text: &str, settings: &[(&'static str, String)]) -> String {
    let mut out = settings_file::without(text, |name, _| REPLACED.contains(&name));
    for (name, value) in settings {
        out.push_str(&settings_file::setting(name, value));
    }
    out
}

/// Returns the `restore_command` that reads the archive of a configuration file. After an error a recovery stops, where it would end early; a standby
/// tries again.
pub(crate) fn restore_command(program: &Path, config: &Path, is_standby: bool) -> String {
    let word = |path: &Path| {
        let text = path.display().to_string();
        // For the shell, and then for the server, which replaces %.
        format!("'{}'", text.replace('\'', r"'\''")).replace('%', "%%")
    };
    // No directory of a relay on this host: it may be another cluster's.
    let stop = if is_standby { "" } else { " --stop-recovery" };
    format!("{} relay fetch %f %p --dir /nonexistent --archive {}{stop}", word(program), word(config))
}

/// Returns the directory of a tablespace: as given, else below the data directory.
pub(crate) fn tablespace(data: &Path, oid: u32, location: &str, given: &[(String, PathBuf)]) -> PathBuf {
    let mapped = given.iter().find(|(old, _)| old.trim_end_matches('/') == location.trim_end_matches('/'));
    mapped.map_or_else(|| data.join("tablespaces").join(oid.to_string()), |(_, new)| new.clone())
}

/// Returns the text of `tablespace_map`.
pub(crate) fn tablespace_map(places: &[(u32, PathBuf)]) -> String {
    // A backslash escapes a line feed, since 14.
    places.iter().map(|(oid, path)| format!("{oid} {}\n", path.display().to_string().replace('\\', r"\\"))).collect()
}

/// Returns a `postgresql.conf` for a directory whose server had it elsewhere.
pub(crate) fn minimal_conf(record: &Record) -> String {
    let mut out =
        "# Made by kingpost restore: the server of the backup had its configuration outside the data directory.\n"
            .to_owned();
    for (name, value) in &record.settings {
        let _ = writeln!(out, "{name} = {value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (target, before, expected) in [
            (Target::Latest, false, "restore_command = 'c'\nrecovery_target_timeline = '3'\n"),
            (
                Target::Lsn(Lsn(0x500_0028)),
                true,
                "restore_command = 'c'\nrecovery_target_timeline = '3'\nrecovery_target_lsn = '0/5000028'\n\
                 recovery_target_inclusive = 'off'\nrecovery_target_action = 'promote'\n",
            ),
            (
                Target::Name("it's".into()),
                false,
                "restore_command = 'c'\nrecovery_target_timeline = '3'\nrecovery_target_name = 'it''s'\n\
                 recovery_target_inclusive = 'on'\nrecovery_target_action = 'promote'\n",
            ),
        ] {
            assert_eq!(auto_conf("", &settings(&target, 3, before, "promote", "c")), expected);
        }
        let mut at_end = settings(&Target::Lsn(Lsn(0x500_0028)), 3, false, "promote", "c");
        assert!(at_end.contains(&("recovery_target_inclusive", "off".into())), "{at_end:?}");
        end_with(&mut at_end, Lsn(0x500_0000));
        assert_eq!(
            at_end[2..4],
            [("recovery_target_lsn", "0/5000000".into()), ("recovery_target_inclusive", "on".into())]
        );
        let time = settings(&Target::Time(1_795_884_277_500_000, false), 1, false, "pause", "c");
        assert!(time.contains(&("recovery_target_time", "2026-11-28 16:44:37.500000+00".into())), "{time:?}");
    }

    #[test]
    fn settings_of_an_earlier_recovery_go() {
        let before =
            "# Do not edit this file manually!\nwork_mem = '8MB'\nrecovery_target_lsn = '0/1'\n  Restore_Command='x'\n";
        let text = auto_conf(before, &[("restore_command", r"a\b".into())]);
        assert_eq!(text, "# Do not edit this file manually!\nwork_mem = '8MB'\nrestore_command = 'a\\\\b'\n");
    }

    #[test]
    fn a_command_for_any_path() {
        let command = restore_command(Path::new("/opt/it's/kingpost"), Path::new("/etc/100%.toml"), false);
        assert!(command.starts_with(r"'/opt/it'\''s/kingpost' relay fetch %f %p "), "{command}");
        assert!(command.contains("--archive '/etc/100%%.toml' --stop-recovery"), "{command}");
        assert!(restore_command(Path::new("/k"), Path::new("/c"), true).ends_with("--archive '/c'"));
    }

    #[test]
    fn tablespaces() {
        let data = Path::new("/data");
        let given = [("/srv/fast/".to_owned(), PathBuf::from("/new/fast"))];
        assert_eq!(tablespace(data, 5, "/srv/fast", &given), Path::new("/new/fast"));
        assert_eq!(tablespace(data, 6, "/srv/slow", &given), Path::new("/data/tablespaces/6"));
        assert_eq!(tablespace_map(&[(5, "/a b".into()), (6, "/c".into())]), "5 /a b\n6 /c\n");
    }
}
