//! PostgreSQL's programs: the search for them, by version.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
            let mut candidates = candidates();
            if let Some((_, bin)) = data {
                candidates.insert(0, bin.to_owned());
            }
            let found: Vec<Installation> = candidates.iter().filter_map(|bin| probe(bin).ok()).collect();
            (found, "/usr/lib/postgresql/*/bin, /usr/pgsql-*/bin, pg_config and PATH".to_owned())
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

/// Returns directories that may have the programs.
fn candidates() -> Vec<PathBuf> {
    let mut places = Vec::new();
    for (parent, prefix, suffix) in [("/usr/lib/postgresql", "", "bin"), ("/usr", "pgsql-", "bin")] {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        for entry in entries.flatten().take(256) {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                let bin = entry.path().join(suffix);
                if bin.join("postgres").is_file() {
                    places.push(bin);
                }
            }
        }
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output() {
        places.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    places.retain(|bin| bin.is_absolute() && bin.join("postgres").is_file());
    places
}

/// Returns the installation in a directory; as the error, the reason why it cannot be used.
fn probe(bin: &Path) -> Result<Installation, String> {
    let bin = std::fs::canonicalize(bin).map_err(|error| error.to_string())?;
    if let Some(missing) = PROGRAMS.iter().find(|program| !bin.join(program).is_file()) {
        return Err(format!("there is no {missing} in it"));
    }
    let output = Command::new(bin.join("postgres"))
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("postgres does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = parse_version(&text).ok_or_else(|| format!("`postgres --version` says {:?}", text.trim()))?;
    if !SUPPORTED.contains(&version) {
        return Err(format!("it is PostgreSQL {version}, and {} to {} work", SUPPORTED.start(), SUPPORTED.end()));
    }
    Ok(Installation { bin, version })
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
    fn an_explicit_directory_without_programs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(Some(dir.path()), None).unwrap_err();
        assert!(failure.what.contains(&dir.path().display().to_string()), "{failure}");
    }
}
