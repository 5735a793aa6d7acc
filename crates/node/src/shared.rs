//! Settings in which a standby may not fall short of its primary. Pure.
//!
//! A server starts as a standby with the greater of its own value and the primary's, which the control file has; so a primary may be raised first.
//! A value is lowered on a standby only by a start after the primary's was.

use process::postgresql::ControlData;

/// The settings, as the server and as pg_controldata names them.
const SETTINGS: [(&str, &str); 5] = [
    ("max_connections", "max_connections setting"),
    ("max_worker_processes", "max_worker_processes setting"),
    ("max_wal_senders", "max_wal_senders setting"),
    ("max_prepared_transactions", "max_prepared_xacts setting"),
    ("max_locks_per_transaction", "max_locks_per_xact setting"),
];

/// Query of the own values, of a recovery that stands still, and of settings that wait for a restart.
pub(crate) const QUERY: &str = "SELECT concat_ws(';', \
     CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_is_wal_replay_paused() ELSE false END::text, \
     (SELECT pg_catalog.string_agg(name || '=' || setting, ',') FROM pg_catalog.pg_settings WHERE name IN ('max_connections', \
     'max_worker_processes', 'max_wal_senders', 'max_prepared_transactions', 'max_locks_per_transaction')), \
     coalesce((SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM pg_catalog.pg_settings WHERE pending_restart), ''))";

/// Settings of a running server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OwnSettings {
    /// True if the recovery stands still.
    pub(crate) recovery_paused: bool,
    values: Vec<(String, u32)>,
    /// Names of the settings that wait for a restart.
    pub(crate) pending: Vec<String>,
}

impl OwnSettings {
    /// Parses the answer to [`QUERY`].
    pub(crate) fn parse(text: &str) -> Option<OwnSettings> {
        let mut parts = text.splitn(3, ';');
        let recovery_paused = parts.next()? == "true";
        let values = parts.next()?.split(',');
        let values = values.filter_map(|pair| {
            pair.split_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        });
        let values = values.collect();
        let pending = parts.next()?.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Some(OwnSettings { recovery_paused, values, pending })
    }

    /// Makes the settings of a stopped server.
    pub(crate) fn of(values: Vec<(String, u32)>) -> OwnSettings {
        OwnSettings { values, ..OwnSettings::default() }
    }

    /// Returns the settings that fall short of the primary's, with the primary's values.
    pub(crate) fn short(&self, control: &ControlData) -> Vec<(&'static str, u32)> {
        let short = SETTINGS.iter().filter_map(|(name, field)| {
            let needed = control.field(field)?.parse().ok()?;
            let own = self.values.iter().find(|(own, _)| own == name)?.1;
            (own < needed).then_some((*name, needed))
        });
        short.collect()
    }
}

/// Returns the names of the settings.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTROL: &str = "\
max_connections setting:              200
max_worker_processes setting:         8
max_wal_senders setting:              20
max_prepared_xacts setting:           0
max_locks_per_xact setting:           64
";

    #[test]
    fn values_that_fall_short() {
        let control = ControlData::new(CONTROL.into(), true, 0);
        for (text, expected, paused, pending) in [
            (
                "false;max_connections=100,max_wal_senders=10;",
                vec![("max_connections", 200), ("max_wal_senders", 20)],
                false,
                0,
            ),
            ("true;max_connections=200,max_locks_per_transaction=65;work_mem", vec![], true, 1),
            (
                "true;max_prepared_transactions=0,max_worker_processes=7;a, b",
                vec![("max_worker_processes", 8)],
                true,
                2,
            ),
        ] {
            let own = OwnSettings::parse(text).unwrap_or_default();
            assert_eq!(own.short(&control), expected, "{text}");
            assert_eq!((own.recovery_paused, own.pending.len()), (paused, pending), "{text}");
        }
        assert_eq!(OwnSettings::parse("false"), None);
        let own = OwnSettings::of(vec![("max_connections".into(), 1)]);
        assert_eq!(
            own.short(&ControlData::new(String::new(), true, 0)),
            vec![],
            "an unknown control file raises nothing"
        );
        assert!(names().all(|name| QUERY.contains(&format!("'{name}'"))));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}") {
            if let Some(own) = OwnSettings::parse(&text) {
                own.short(&ControlData::new(text, true, 0));
            }
        }
    }
}
