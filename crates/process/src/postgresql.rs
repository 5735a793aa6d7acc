//! PostgreSQL's programs: the search for them, by version.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Failure;

/// Supported major versions.
const SUPPORTED: std::ops::RangeInclusive<u32> = 13..=19;
/// Programs that have to be there.
const PROGRAMS: [&str; 5] = ["postgres", "initdb", "pg_ctl", "pg_basebackup", "pg_controldata"];

/// PostgreSQL's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Directory of the programs.
    pub bin: PathBuf,
    /// Major version.
    pub version: u32,
}

impl Installation {
    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// Places that are searched, for messages.
const PLACES: &str = "/usr/lib/postgresql/*/bin, /usr/pgsql-*/bin, pg_config and PATH";
/// Longest time for pg_controldata.
const LOOK: Duration = Duration::from_secs(30);

/// Control data of a stopped server: pg_controldata's output, and what the files beside it add.
#[derive(Debug, Clone)]
pub struct ControlData {
    text: String,
    standby: bool,
    histories: u32,
}

impl ControlData {
    /// Makes the control data of `text`, pg_controldata's output. `histories` is the highest timeline with a history file.
    pub fn new(text: String, standby: bool, histories: u32) -> ControlData {
        ControlData { text, standby, histories }
    }

    /// Reads a data directory; `None` without complete data. `command`: pg_controldata, without arguments.
    ///
    /// # Errors
    /// The program cannot be started, or takes too long.
    pub async fn read(mut command: tokio::process::Command, data: &Path) -> Result<Option<ControlData>, Failure> {
        if !data.join("global/pg_control").is_file() {
            return Ok(None);
        }
        command.arg("-D").arg(data).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LOOK, command.output())
            .await
            .map_err(|_| {
                Failure::runtime(format!("pg_controldata of {} took longer than {} s", data.display(), LOOK.as_secs()))
            })?
            .map_err(|error| Failure::environment(format!("cannot start pg_controldata: {error}")))?;
        let histories = std::fs::read_dir(data.join("pg_wal")).map_or(0, |entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| history_timeline(&name.to_string_lossy())).max().unwrap_or(0)
        });
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Some(ControlData::new(text, data.join("standby.signal").exists(), histories)))
    }

    /// Returns the value of a line.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    /// True if the server would start in recovery.
    pub fn is_standby(&self) -> bool {
        self.standby
    }

    /// Returns the system identifier.
    pub fn system(&self) -> Option<u64> {
        self.field("Database system identifier")?.parse().ok()
    }

    /// Returns the highest timeline that the server has been on. A primary that died right after its promotion may lack its first checkpoint, but
    /// has the history file; a standby may have the file of a timeline that it never reached.
    pub fn timeline(&self) -> Option<u32> {
        let checkpoint: u32 = self.field("Latest checkpoint's TimeLineID")?.parse().ok()?;
        let recovery: u32 = self.field("Min recovery ending loc's timeline")?.parse().ok()?;
        Some(checkpoint.max(recovery).max(if self.standby { 0 } else { self.histories }))
    }
}

/// Reads the timeline from the name of a history file such as `00000002.history`.
pub fn history_timeline(name: &str) -> Option<u32> {
    u32::from_str_radix(name.strip_suffix(".history").filter(|hex| hex.len() == 8)?, 16).ok()
}

/// Finds the programs: only in `explicit` if given, else the newest. `data`: the version that existing data need, and the last directory of its
/// programs.
///
/// # Errors
/// No programs found, or none of the version that is needed.
pub fn find(explicit: Option<&Path>, data: Option<(u32, &Path)>) -> Result<Installation, Failure> {
    let (places, tried) = match explicit {
        Some(bin) => {
            let found = probe(bin).map_err(|why| {
                Failure::environment(format!("cannot use PostgreSQL's programs in {}: {why}", bin.display()))
                    .advise("--pg-bin (or KINGPOST_PG_BIN) names the directory with postgres and initdb, such as /usr/lib/postgresql/15/bin")
            })?;
            (vec![found], bin.display().to_string())
        }
        None => {
            let mut candidates = candidates("postgres");
            if let Some((_, bin)) = data {
                candidates.insert(0, bin.to_owned());
            }
            let found: Vec<Installation> = candidates.iter().filter_map(|bin| probe(bin).ok()).collect();
            (found, PLACES.to_owned())
        }
    };
    choose(&places, data.map(|(version, _)| version)).cloned().map_err(|found| match data {
        Some((version, _)) if !found.is_empty() => Failure::environment(format!(
            "the data were made by PostgreSQL {version}, and only {} was found (in {tried})",
            found.join(", ")
        ))
        .advise(format!("install PostgreSQL {version}, name its programs with --pg-bin, or use another --dir")),
        _ => {
            Failure::environment(format!("no PostgreSQL {} to {} found in {tried}", SUPPORTED.start(), SUPPORTED.end()))
                .advise(
                    "install it (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server),\n\
                 or name the directory of its programs with --pg-bin or KINGPOST_PG_BIN",
                )
        }
    })
}

/// Returns the installation of the needed version, or else the newest; the versions found as the error.
fn choose(found: &[Installation], version: Option<u32>) -> Result<&Installation, Vec<String>> {
    match version {
        Some(version) => found.iter().find(|installation| installation.version == version),
        // The first of equals: candidates are in order of preference.
        None => found.iter().rev().max_by_key(|installation| installation.version),
    }
    .ok_or_else(|| found.iter().map(|installation| format!("PostgreSQL {}", installation.version)).collect())
}

/// Finds one program of a major version, perhaps without a server beside it: only in `explicit` if given, else in every place.
///
/// # Errors
/// No such program found, or only of other versions.
pub fn find_program(explicit: Option<&Path>, version: u32, program: &str) -> Result<Installation, Failure> {
    let (places, tried) = match explicit {
        Some(bin) => (vec![bin.to_owned()], bin.display().to_string()),
        None => (candidates(program), PLACES.to_owned()),
    };
    let mut others = Vec::new();
    for bin in places {
        match version_of(&bin.join(program)) {
            Ok(found) if found == version => return Ok(Installation { bin, version }),
            Ok(found) => others.push(format!("{} has that of PostgreSQL {found}", bin.display())),
            Err(_) => {}
        }
    }
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    Err(Failure::environment(format!("no {program} of PostgreSQL {version} in {tried}{others}"))
        .advise(format!("--pg-bin names the directory with the programs of PostgreSQL {version}")))
}

/// Returns directories that have a program.
fn candidates(program: &str) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for (parent, prefix, suffix) in [("/usr/lib/postgresql", "", "bin"), ("/usr", "pgsql-", "bin")] {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        for entry in entries.flatten().take(256) {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                let bin = entry.path().join(suffix);
                if bin.join(program).is_file() {
                    places.push(bin);
                }
            }
        }
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output() {
        places.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    places.retain(|bin| bin.is_absolute() && bin.join(program).is_file());
    places
}

/// Returns the installation in a directory; as the error, the reason why it cannot be used.
fn probe(bin: &Path) -> Result<Installation, String> {
    let bin = std::fs::canonicalize(bin).map_err(|error| error.to_string())?;
    if let Some(missing) = PROGRAMS.iter().find(|program| !bin.join(program).is_file()) {
        return Err(format!("there is no {missing} in it"));
    }
    let version = version_of(&bin.join("postgres"))?;
    if !SUPPORTED.contains(&version) {
        return Err(format!("it is PostgreSQL {version}, and {} to {} work", SUPPORTED.start(), SUPPORTED.end()));
    }
    Ok(Installation { bin, version })
}

/// Returns the major version of a program; as the error, the reason why it cannot be told.
fn version_of(program: &Path) -> Result<u32, String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_version(&text).ok_or_else(|| format!("`{name} --version` says {:?}", text.trim()))
}

/// Reads the major version from `postgres (PostgreSQL) 15.6 (Debian 15.6-1)`.
fn parse_version(text: &str) -> Option<u32> {
    let number = text.split_once("(PostgreSQL) ")?.1;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions() {
        for (text, expected) in [
            ("postgres (PostgreSQL) 15.6 (Debian 15.6-0+deb12u1)", Some(15)),
            ("postgres (PostgreSQL) 18beta2\n", Some(18)),
            ("postgres (PostgreSQL) 9.6.24", Some(9)),
            ("postgres", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), expected, "{text}");
        }
    }

    #[test]
    fn choice() {
        let installation = |bin: &str, version| Installation { bin: bin.into(), version };
        let found = [installation("/a", 14), installation("/b", 16), installation("/c", 16)];
        assert_eq!(choose(&found, None).unwrap().bin, Path::new("/b"));
        assert_eq!(choose(&found, Some(14)).unwrap().bin, Path::new("/a"));
        assert_eq!(choose(&found, Some(15)).unwrap_err().len(), 3);
        assert!(choose(&[], None).is_err());
    }

    #[test]
    fn a_program_is_of_the_version_that_is_needed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("pg_combinebackup");
        std::fs::write(&program, "#!/bin/sh\necho 'pg_combinebackup (PostgreSQL) 17.6'\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let find = |version, program| find_program(Some(dir.path()), version, program);
        assert_eq!(find(17, "pg_combinebackup").unwrap(), Installation { bin: dir.path().into(), version: 17 });
        let other = find(18, "pg_combinebackup").unwrap_err().what;
        assert!(
            other.contains("no pg_combinebackup of PostgreSQL 18") && other.contains("of PostgreSQL 17"),
            "{other}"
        );
        assert!(find(17, "postgres").is_err());
    }

    #[test]
    fn an_explicit_directory_without_programs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(Some(dir.path()), None).unwrap_err();
        assert!(failure.what.contains(&dir.path().display().to_string()), "{failure}");
    }
}
