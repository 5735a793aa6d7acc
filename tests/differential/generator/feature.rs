//! Features of sessions, each of which can be excluded (`--without`) or required (`--only`).

use crate::config::{Config, Functions};
use crate::rng::Rng;

macro_rules! features {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $percent:literal,)*) => {
        /// A feature that sessions may have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Feature {
            $($(#[doc = $doc])* $variant,)*
        }

        /// Each feature with its name and its percentage of sessions.
        pub(crate) const FEATURES: &[(Feature, &str, usize)] = &[$((Feature::$variant, $name, $percent),)*];
    };
}

features! {
    /// Simple queries.
    Simple "simple" 75,
    /// Statements without a name.
    Unnamed "unnamed" 75,
    /// Prepared statements with names.
    Named "named" 75,
    /// Portals with names.
    Portals "portals" 35,
    /// Execute with a limit of rows.
    Limits "limits" 35,
    /// Describe of statements and portals.
    Describe "describe" 60,
    /// Several units in one packet.
    Pipeline "pipeline" 45,
    /// One unit in several packets.
    Split "split" 35,
    /// A simple query after messages that no Sync has ended.
    Unsynced "unsynced" 8,
    /// Several statements in one simple query.
    Multi "multi" 30,
    /// Results in binary form.
    Binary "binary" 20,
    /// Errors at every place of a unit.
    Errors "errors" 50,
    /// INSERT, UPDATE, DELETE.
    Writes "writes" 60,
    /// BEGIN, COMMIT, ROLLBACK.
    Transactions "transactions" 65,
    /// Savepoints.
    Savepoints "savepoints" 40,
    /// COMMIT AND CHAIN, ROLLBACK AND CHAIN.
    Chain "chain" 30,
    /// BEGIN READ ONLY and similar statements.
    ReadOnly "readonly" 30,
    /// Isolation levels.
    Isolation "isolation" 30,
    /// DECLARE, FETCH, MOVE, CLOSE.
    Cursors "cursors" 30,
    /// Cursors WITH HOLD.
    Hold "hold" 20,
    /// COPY FROM STDIN.
    CopyIn "copyin" 25,
    /// COPY TO STDOUT.
    CopyOut "copyout" 20,
    /// COPY FROM STDIN with its data in the same packet.
    CopyEarly "copyearly" 50,
    /// SET of a session.
    Set "set" 45,
    /// SET LOCAL.
    Local "setlocal" 35,
    /// set_config().
    SetConfig "setconfig" 35,
    /// RESET, SET TO DEFAULT.
    Reset "reset" 35,
    /// SET ROLE.
    Role "role" 25,
    /// Literals whose meaning depends on parameters, in texts that clients share.
    Literals "literals" 40,
    /// search_path, and names that depend on it.
    Path "path" 35,
    /// standard_conforming_strings.
    Strings "strings" 15,
    /// client_encoding.
    Encoding "encoding" 10,
    /// Temporary tables.
    Temp "temp" 25,
    /// Advisory locks and LOCK TABLE.
    Locks "locks" 25,
    /// PREPARE and EXECUTE by SQL.
    SqlPrepare "sqlprepare" 25,
    /// DEALLOCATE.
    Deallocate "deallocate" 30,
    /// DISCARD.
    Discard "discard" 20,
    /// LISTEN and NOTIFY.
    Listen "listen" 25,
    /// Changes of the schema by clients.
    Ddl "ddl" 25,
    /// Changes of the schema that bypass the proxy.
    Past "past" 20,
    /// Tables that change places.
    Swap "swap" 20,
    /// Functions that leave state in the session.
    Functions "functions" 60,
    /// Rows that depend on a setting.
    Rls "rls" 30,
    /// Views, including one that writes.
    Views "views" 25,
    /// Comments that direct a statement to a node.
    Hints "hints" 20,
    /// Sequences.
    Sequences "sequences" 15,
    /// Clients that leave and come back.
    Reconnect "reconnect" 25,
    /// Clients that end in the middle of something: Terminate, half-close, reset.
    Ends "ends" 25,
    /// Operations on the proxy: PAUSE, RECONNECT, RELOAD, and server connections that end.
    Operator "operator" 25,
    /// Clients of two databases.
    Databases "databases" 35,
    /// Clients of several users.
    Users "users" 40,
    /// ALTER ROLE … SET, ALTER DATABASE … SET.
    Settings "settings" 25,
    /// Start-up parameters.
    Startup "startup" 35,
    /// Several clients at the same time.
    Together "together" 35,
    /// A table of 1590 columns.
    Wide "wide" 4,
    /// Large answers.
    Large "large" 12,
    /// Newly created roles and databases.
    New "new" 8,
}

/// A set of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    set: u64,
    /// Features that occur more often than the others.
    themes: u64,
    /// True if features were required by name: each session has all of them that the configuration supports.
    all: bool,
}

impl Features {
    /// The set of all features.
    pub(crate) const ALL: Features = Features { set: u64::MAX, themes: 0, all: false };
    /// The empty set.
    pub(crate) const NONE: Features = Features { set: 0, themes: 0, all: false };

    /// True if the set has the feature.
    pub(crate) fn has(self, feature: Feature) -> bool {
        self.set & (1 << feature as u64) != 0
    }

    /// Returns the weight of a feature's statements among the others: 0 if it is not in the set.
    pub(crate) fn weight(self, feature: Feature) -> usize {
        match (self.has(feature), self.themes & (1 << feature as u64) != 0) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 5,
        }
    }

    /// Returns the set as one that each session has in full.
    #[must_use]
    pub(crate) fn all(self) -> Features {
        Features { all: true, ..self }
    }

    /// Returns the set with one more feature.
    #[must_use]
    pub(crate) fn with(self, feature: Feature) -> Features {
        Features { set: self.set | 1 << feature as u64, ..self }
    }

    /// Returns the set without one feature.
    #[must_use]
    pub(crate) fn without(self, feature: Feature) -> Features {
        Features { set: self.set & !(1 << feature as u64), ..self }
    }

    /// Returns the set without the features of another.
    #[must_use]
    pub(crate) fn minus(self, other: Features) -> Features {
        Features { set: self.set & !other.set, ..self }
    }

    /// Parses names, separated by commas.
    ///
    /// # Errors
    /// An unknown name, with the list of all names.
    pub(crate) fn of(names: &str) -> Result<Features, String> {
        let mut set = Features::NONE;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let found = FEATURES.iter().find(|(_, known, _)| *known == name);
            let all = || FEATURES.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
            set = set.with(found.ok_or_else(|| format!("{name}: no such feature; there are: {}", all()))?.0);
        }
        Ok(set)
    }

    /// Draws the features of one session: each by its chance, among those that are allowed and that the configuration supports. Small sets are more
    /// frequent than large ones.
    pub(crate) fn swarm(rng: &mut Rng, allowed: Features, config: &Config) -> Features {
        let mut set = Features::NONE;
        for &(feature, _, percent) in FEATURES {
            // Drawn in any case: the rest of a session should not depend on an excluded feature.
            let drawn = rng.chance(percent) || allowed.all;
            if drawn && allowed.has(feature) {
                set = set.with(feature);
            }
            set.themes |= u64::from(rng.chance(10)) << feature as u64;
        }
        if config.crowded && allowed.has(Feature::Together) {
            set = set.with(Feature::Together);
        }
        let roads = [Feature::Simple, Feature::Unnamed, Feature::Named];
        if !roads.iter().any(|road| set.has(*road)) {
            set = set.with(*roads.iter().find(|road| allowed.has(**road)).unwrap_or(&Feature::Simple));
        }
        let mut out: Vec<Feature> = Vec::new();
        if config.late {
            out.extend([Feature::Past, Feature::Reconnect, Feature::Ends, Feature::Together, Feature::Databases]);
        }
        if config.takes_role {
            // The server's user is not a member of a role that is created later.
            out.push(Feature::New);
        }
        match config.functions {
            Functions::None => out.push(Feature::Functions),
            Functions::Kept => {}
            // Lost state must not change what others find in the databases.
            Functions::Lost => {
                set = if allowed.has(Feature::Functions) { set.with(Feature::Functions) } else { set };
                out.extend([Feature::Writes, Feature::Ddl, Feature::Past, Feature::Swap, Feature::CopyIn]);
                out.extend([Feature::Locks, Feature::Views, Feature::Listen, Feature::New, Feature::Sequences]);
            }
        }
        out.into_iter().fold(set, Features::without)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CONFIGS;

    #[test]
    fn features_fit_into_the_set_and_have_names_of_their_own() {
        assert!(FEATURES.len() <= 64);
        for (index, (feature, name, _)) in FEATURES.iter().enumerate() {
            assert!(FEATURES[..index].iter().all(|(_, other, _)| other != name));
            assert_eq!(Features::of(name).unwrap(), Features::NONE.with(*feature));
        }
        assert!(Features::of("simple, nosuch").unwrap_err().starts_with("nosuch: no such feature"));
    }

    #[test]
    fn what_is_left_out_is_in_no_session() {
        let allowed = Features::ALL.without(Feature::Named).without(Feature::Ddl);
        for seed in 0..200 {
            let set = Features::swarm(&mut Rng::new(seed), allowed, &CONFIGS[0]);
            assert!(!set.has(Feature::Named) && !set.has(Feature::Ddl) && !set.has(Feature::Functions));
            assert!(set.has(Feature::Simple) || set.has(Feature::Unnamed));
        }
    }
}
