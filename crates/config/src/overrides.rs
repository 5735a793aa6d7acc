//! Settings that operators change in the console (`SET key = value`), until the file is read again.

use std::collections::BTreeMap;
use std::ffi::OsString;

use proxy::config::LEFT_OUT;
use settings::{Key, Kind, Takes};

use super::{env, schema};

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

/// Most settings that can be changed at a time.
const MOST: usize = 100;

impl Overrides {
    /// Returns these settings and one more. `name`: its path in the file, without `proxy.pool.`, `proxy.routing.` or `proxy.` if that is unambiguous,
    /// PgBouncer's name, or a name that `aliases` knows.
    ///
    /// # Errors
    /// The setting does not exist, or cannot be changed while the process runs. The value is checked later, with all others.
    pub fn with(&self, name: &str, value: &str, aliases: Aliases) -> Result<Overrides, String> {
        let whole = std::iter::once(name.to_owned()).chain(LEFT_OUT.iter().map(|prefix| format!("{prefix}{name}")));
        let alias = aliases(name);
        let theirs = || match alias {
            Some(Alias::Path(path)) => Some(path.to_owned()),
            _ => None,
        };
        let translated = of_pgbouncer(name, schema::ROOT, "").or_else(theirs);
        let found = translated.into_iter().chain(whole).find_map(|path| Some((env::key_at(&path)?, path)));
        let Some(((key, takes), path)) = found else {
            return Err(match alias {
                Some(Alias::Needless(why)) => {
                    format!("{name} is a setting of PgBouncer's that is not needed here: {why}")
                }
                _ => format!("no setting is called {name:?}: SHOW CONFIG and docs/guide/kingpost.toml list them"),
            });
        };
        let live = path.starts_with("proxy.") || path.starts_with("cluster.");
        if !live || takes == Takes::AtStart {
            return Err(format!(
                "{path} can't be changed while the process runs: change it in the file and start again"
            ));
        }
        if !matches!(
            key.kind,
            Kind::Boolean
                | Kind::Integer { .. }
                | Kind::Share
                | Kind::Duration { .. }
                | Kind::Choice(_)
                | Kind::Form(_)
        ) {
            return Err(format!("{path} can't be changed here: change it in the file and say RELOAD"));
        }
        // PgBouncer's durations are numbers of seconds.
        let seconds = matches!(key.kind, Kind::Duration { .. }) && value.parse::<f64>().is_ok();
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

/// Returns the path of the setting whose declaration has this name of PgBouncer's. `path`: the place of `keys`.
fn of_pgbouncer(name: &str, keys: &[Key], path: &str) -> Option<String> {
    keys.iter().find_map(|key| match key.kind {
        Kind::Table(inner) => of_pgbouncer(name, inner, &schema::join(path, key.name)),
        _ => (key.pgbouncer == Some(name)).then(|| schema::join(path, key.name)),
    })
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

    /// Every name of SHOW CONFIG leads SET to the setting of its row, PgBouncer's names included.
    #[test]
    fn the_names_of_show_config_are_those_of_set() {
        let mut rows = settings::rows(&proxy::config::ProxyConfig::default(), "proxy");
        rows.extend(settings::rows(&topology::ClusterConfig::default(), "cluster"));
        assert!(rows.len() > 100, "{}", rows.len());
        for row in rows {
            let name = proxy::config::shown_name(&row);
            match Overrides::default().with(name, "1", aliases) {
                Ok(found) => {
                    assert_eq!(found.each().map(|(path, _)| path).collect::<Vec<_>>(), [row.path.as_str()], "{name}")
                }
                Err(error) => assert!(error.starts_with(&format!("{} can't be changed", row.path)), "{name}: {error}"),
            }
        }
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
