//! Settings that operators change in the console (`SET key = value`), until the file is read again.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::env;
use super::schema::Kind;

/// Meaning of another program's name for a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alias {
    /// Path of the setting here.
    Path(&'static str),
    /// Reason why no setting is needed here.
    Needless(&'static str),
}

/// Look-up of such a name; `None`: the other program has no such setting, or none that is carried over.
pub type Aliases = fn(&str) -> Option<Alias>;

/// Settings over the file and the environment: values by path, in the form of variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides(BTreeMap<String, String>);

/// Keys that take effect only at the next start; each includes the keys below it.
const AT_START: [&str; 11] = [
    "proxy.listen",
    "proxy.workers",
    "proxy.driver",
    "proxy.upgrade_socket",
    "proxy.tracing.endpoint",
    "proxy.tracing.service_name",
    "proxy.tracing.ca_file",
    "proxy.tracing.cert_file",
    "proxy.tracing.key_file",
    "proxy.tracing.headers",
    "cluster.from",
];
/// Most settings that can be changed at a time.
const MOST: usize = 100;

impl Overrides {
    /// Returns these settings and one more. `key`: its path in the file, without `proxy.pool.`, `proxy.routing.` or `proxy.` if that is unambiguous,
    /// or a name that `aliases` knows.
    ///
    /// # Errors
    /// The key does not exist, or cannot be changed while the process runs. The value is checked later, with all others.
    pub fn with(&self, key: &str, value: &str, aliases: Aliases) -> Result<Overrides, String> {
        let short =
            [key.to_owned(), format!("proxy.pool.{key}"), format!("proxy.routing.{key}"), format!("proxy.{key}")];
        let alias = aliases(key);
        let translated = match alias {
            Some(Alias::Path(path)) => Some(path.to_owned()),
            _ => None,
        };
        let found = translated.into_iter().chain(short).find_map(|path| Some((env::kind_of(&path)?, path)));
        let Some((kind, path)) = found else {
            return Err(match alias {
                Some(Alias::Needless(why)) => {
                    format!("{key} is a setting of PgBouncer's that is not needed here: {why}")
                }
                _ => format!("no setting is called {key:?}: SHOW CONFIG and docs/guide/kingpost.toml list them"),
            });
        };
        let live = path.starts_with("proxy.") || path.starts_with("cluster.");
        let below = |of: &&str| path == **of || path.strip_prefix(*of).is_some_and(|rest| rest.starts_with('.'));
        if !live || AT_START.iter().any(below) {
            return Err(format!(
                "{path} can't be changed while the process runs: change it in the file and start again"
            ));
        }
        if !matches!(
            kind,
            Kind::Boolean
                | Kind::Integer { .. }
                | Kind::Share
                | Kind::Duration { .. }
                | Kind::Choice(_)
                | Kind::Durability
        ) {
            return Err(format!("{path} can't be changed here: change it in the file and say RELOAD"));
        }
        // PgBouncer's durations are numbers of seconds.
        let seconds = matches!(kind, Kind::Duration { .. }) && value.parse::<f64>().is_ok();
        let value = if seconds { format!("{value}s") } else { value.to_owned() };
        let mut new = self.clone();
        new.0.insert(path, value);
        if new.0.len() > MOST {
            return Err(format!(
                "more than {MOST} settings are changed already: write them into the file and say RELOAD"
            ));
        }
        Ok(new)
    }

    /// Returns each path with its value.
    pub fn each(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, value)| (path.as_str(), value.as_str()))
    }

    /// Returns the settings as environment variables.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        self.0.iter().map(|(path, value)| (env::variable(path).into(), value.into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(key: &str) -> Option<Alias> {
        Some(match key {
            "default_pool_size" => Alias::Path("proxy.pool.size"),
            "query_wait_timeout" => Alias::Path("proxy.pool.wait_timeout"),
            "pool_mode" => Alias::Path("proxy.pool.mode"),
            "listen_port" => Alias::Path("proxy.listen"),
            "server_login_retry" => Alias::Needless("Kingpost waits longer"),
            _ => return None,
        })
    }

    #[test]
    fn settings_are_found_by_their_names() {
        for (key, value, expected) in [
            ("proxy.pool.size", "5", Ok(("KINGPOST__PROXY__POOL__SIZE", "5"))),
            ("default_pool_size", "5", Ok(("KINGPOST__PROXY__POOL__SIZE", "5"))),
            ("wait_timeout", "5", Ok(("KINGPOST__PROXY__POOL__WAIT_TIMEOUT", "5s"))),
            ("query_wait_timeout", "1min", Ok(("KINGPOST__PROXY__POOL__WAIT_TIMEOUT", "1min"))),
            ("query_timeout", "2.5", Ok(("KINGPOST__PROXY__QUERY_TIMEOUT", "2.5s"))),
            ("primary_weight", "2", Ok(("KINGPOST__PROXY__ROUTING__PRIMARY_WEIGHT", "2"))),
            ("pool_mode", "session", Ok(("KINGPOST__PROXY__POOL__MODE", "session"))),
            ("proxy.listen", "x", Err("can't be changed while")),
            ("listen_port", "1", Err("can't be changed while")),
            ("proxy.workers", "1", Err("can't be changed while")),
            ("relay.listen", "1", Err("can't be changed while")),
            ("proxy.users", "[]", Err("say RELOAD")),
            ("proxy.hba_file", "/x", Err("say RELOAD")),
            ("nonsense", "1", Err("no setting is called")),
            ("server_login_retry", "1", Err("not needed here: Kingpost waits longer")),
        ] {
            let found = Overrides::default().with(key, value, aliases);
            match expected {
                Ok((name, value)) => assert_eq!(found.expect(key).variables(), [(name.into(), value.into())]),
                Err(text) => assert!(found.as_ref().is_err_and(|error| error.contains(text)), "{key}: {found:?}"),
            }
        }
    }
}
