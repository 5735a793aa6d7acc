//! Translation of the keys of another program's configuration: one table for each program, with every key in its documentation. The guide's tables
//! are generated from these.

/// Translation of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// Carried over to this key of Kingpost.
    Carried(&'static str),
    /// Left out with a comment that gives the reason: nothing that a client, a login or an operator relies on is lost.
    Needless,
    /// An error, unless it has one of these values: with them the program does what Kingpost always does.
    Refused(&'static [&'static str]),
}

/// A key of another program.
#[derive(Debug)]
pub(super) struct Key {
    /// Section of the file.
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) fate: Fate,
    /// Note on the translation, or the reason why there is none.
    pub(super) note: &'static str,
}

/// Every key of a program.
#[derive(Debug)]
pub(super) struct Table {
    /// The program, with the version whose documentation was read.
    pub(super) program: &'static str,
    /// The sections, in the order of the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "the guide's tables have it"))]
    pub(super) sections: &'static [&'static str],
    pub(super) keys: &'static [Key],
}

impl Table {
    /// Returns the key of this name; None: the program documents no such key.
    pub(super) fn find(&self, section: &str, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.section == section && key.name == name)
    }
}

pub(super) const fn carried(section: &'static str, name: &'static str, to: &'static str, note: &'static str) -> Key {
    Key { section, name, fate: Fate::Carried(to), note }
}

pub(super) const fn needless(section: &'static str, name: &'static str, note: &'static str) -> Key {
    Key { section, name, fate: Fate::Needless, note }
}

pub(super) const fn refused(
    section: &'static str,
    name: &'static str,
    harmless: &'static [&'static str],
    note: &'static str,
) -> Key {
    Key { section, name, fate: Fate::Refused(harmless), note }
}

// Reasons shared by several programs.
pub(super) const STANDARD_ERROR: &str = "Kingpost logs to standard error, which the service manager keeps";
pub(super) const PROBED: &str = "Kingpost probes every node";
pub(super) const RESOLVED: &str = "host names are resolved by the system, anew for each connection";
pub(super) const CIPHERS: &str = "Kingpost offers the safe cipher suites of TLS 1.2 and 1.3, and has no list of them";
pub(super) const KEEP_ALIVE: &str = "connections have keep-alives, with the system's times";

/// File with the system's CAs, on Debian and its derivatives: for programs that have such a list built in.
pub(super) const SYSTEM_CAS: &str = "/etc/ssl/certs/ca-certificates.crt";

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the rows of the guide's table for a section.
    fn rows(table: &Table, section: &str) -> Vec<String> {
        let mut rows = Vec::new();
        for key in table.keys.iter().filter(|key| key.section == section) {
            let (becomes, note) = match key.fate {
                Fate::Carried(to) => {
                    let to: Vec<String> = to.split(", ").map(|key| format!("`{key}`")).collect();
                    (to.join(", "), key.note)
                }
                Fate::Needless => ("not needed".to_owned(), key.note),
                Fate::Refused([]) => ("an error".to_owned(), key.note),
                Fate::Refused(harmless) => {
                    let named = |value: &&str| if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") };
                    let harmless: Vec<String> = harmless.iter().map(named).collect();
                    (format!("an error, unless {}", harmless.join(" or ")), key.note)
                }
            };
            rows.push(format!("| `{}` | {becomes} | {note} |", key.name));
        }
        rows
    }

    /// Checks that the guide's page has exactly this table, section by section, and each key only once.
    pub(in super::super) fn the_guide_has(table: &Table, page: &str) {
        let path = format!("{}/../../docs/guide/{page}", env!("CARGO_MANIFEST_DIR"));
        let guide = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let begin = format!("## Every key of {}\n", table.program);
        let guide = guide.split(&begin).nth(1).unwrap_or_else(|| panic!("{path} has no heading {begin:?}"));
        let guide = guide.split("\n## ").next().unwrap_or_default();
        for section in table.sections {
            let begin = format!("### `[{section}]`\n");
            let part = guide.split(&begin).nth(1).unwrap_or_else(|| panic!("{path} has no heading {begin:?}"));
            let part = part.split("\n#").next().unwrap_or_default();
            let found: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
            let rows = rows(table, section);
            assert_eq!(found, rows, "[{section}]: the table should be\n{}", rows.join("\n"));
        }
        for (index, key) in table.keys.iter().enumerate() {
            assert!(table.sections.contains(&key.section), "[{}] {}: no such section", key.section, key.name);
            let twice =
                table.keys[index + 1..].iter().any(|other| (other.section, other.name) == (key.section, key.name));
            assert!(!twice, "[{}] {}", key.section, key.name);
            assert!(!key.note.is_empty() || matches!(key.fate, Fate::Carried(_)), "{}: no reason", key.name);
            // The target of a key is a key of Kingpost.
            if let Fate::Carried(to) = key.fate {
                for to in to.split(", ") {
                    assert!(config::is_key(to), "{}: Kingpost has no key {to}", key.name);
                }
            }
        }
    }

    /// Checks that the code reads every key that is carried over, and none that the table does not have. `sources`: all of the code but the table.
    pub(in super::super) fn the_code_reads(table: &Table, sources: &[&str]) {
        let code = sources.concat();
        for key in table.keys.iter().filter(|key| matches!(key.fate, Fate::Carried(_))) {
            let stem = key.name.strip_suffix('N').unwrap_or(key.name);
            let read = code.contains(&format!("\"{stem}\"")) || code.contains(&format!("\"{stem}{{"));
            assert!(read, "[{}] {}: nothing reads it", key.section, key.name);
        }
        for call in [
            ".get(",
            ".filled(",
            ".flag(report, ",
            ".texts(report, ",
            ".value(",
            ".time(report, ",
            ".number(report, ",
            ".of(",
        ] {
            let arguments = code.split(call).skip(1).filter_map(|rest| rest.strip_prefix('"')?.split_once('"'));
            for (key, _) in arguments {
                let known = |of: &Key| of.name == key || of.name.strip_suffix('N') == Some(key);
                assert!(
                    table.keys.iter().any(known) || ELSEWHERE.contains(&key),
                    "{key}: the code reads it, and no table has it"
                );
            }
        }
    }

    /// Names of tables, and keys below keys.
    const ELSEWHERE: [&str; 8] = ["users", "shards", "plugins", "pools", "databases", "enabled", "queries", "general"];
}
