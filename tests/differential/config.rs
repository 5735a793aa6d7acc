//! The configurations of the proxy under which sessions run.

use toml::Value;

/// State that functions may leave in a session, by `unknown_functions` of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Functions {
    /// Sessions call no such function.
    None,
    /// State left by a function belongs to the client, as with a direct connection (`pin`, and session mode).
    Kept,
    /// The state may be lost (`reset`): no other client may see it.
    Lost,
}

/// One configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// Name of the configuration.
    pub(crate) name: &'static str,
    /// Subject of the configuration.
    pub(crate) what: &'static str,
    /// Keys and values, the values in TOML.
    settings: &'static [(&'static str, &'static str)],
    /// True if there is a replica, and reads may go there.
    pub(crate) replica: bool,
    /// True if the replica has replayed everything before the next step.
    pub(crate) waits: bool,
    /// True if the replica replays nothing during a session: one client alone, which must see its own commits.
    pub(crate) late: bool,
    /// True if commits wait for a relay.
    pub(crate) relay: bool,
    /// True if a client keeps its server connection for as long as it stays.
    pub(crate) session_mode: bool,
    /// Treatment of the state that functions leave.
    pub(crate) functions: Functions,
    /// True if sessions are of [`POOLED`](crate::world::POOLED), with the client's user as their role.
    pub(crate) takes_role: bool,
    /// True if clients often read at the same time.
    pub(crate) crowded: bool,
    /// True if it is part of `make test`.
    pub(crate) usual: bool,
    /// Counters of the proxy (`kingpost_…_total`) that grow when sessions exercise the configuration's subject.
    pub(crate) proof: &'static [&'static str],
}

/// Servers that configurations need.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    pub(crate) replica: bool,
    pub(crate) relay: bool,
}

const PLAIN: Config = Config {
    name: "",
    what: "",
    settings: &[],
    replica: false,
    waits: false,
    late: false,
    relay: false,
    session_mode: false,
    functions: Functions::None,
    takes_role: false,
    crowded: false,
    usual: false,
    proof: &[],
};

/// The configurations.
pub(crate) const CONFIGS: [Config; 16] = [
    Config {
        name: "one",
        what: "one worker",
        settings: &[("proxy.workers", "1")],
        usual: true,
        proof: &["begins_put_off", "parses_local", "describes_local", "parameters_tracked", "listens_shared"],
        ..PLAIN
    },
    Config {
        name: "three",
        what: "three workers",
        settings: &[("proxy.workers", "3")],
        usual: true,
        proof: &["begins_put_off", "parses_local"],
        ..PLAIN
    },
    Config {
        name: "session",
        what: "session mode",
        settings: &[("proxy.pool.mode", "'session'")],
        session_mode: true,
        functions: Functions::Kept,
        ..PLAIN
    },
    Config {
        name: "unnamed",
        what: "statements without a name are shared",
        settings: &[("proxy.workers", "1"), ("proxy.pool.unnamed", "'shared'")],
        proof: &["unnamed_shared"],
        ..PLAIN
    },
    Config {
        name: "begin",
        what: "each BEGIN is sent at once",
        settings: &[("proxy.workers", "1"), ("proxy.pool.defer_begin", "false")],
        ..PLAIN
    },
    Config {
        name: "lanes",
        what: "quick reads share connections",
        settings: &[
            ("proxy.workers", "1"),
            ("proxy.pool.lane_width", "1"),
            ("proxy.pool.lane_stall", "'1s'"),
            ("proxy.pool.unnamed", "'shared'"),
        ],
        crowded: true,
        proof: &["lane_statements"],
        ..PLAIN
    },
    Config { name: "io_uring", what: "the io_uring driver", settings: &[("proxy.driver", "'io_uring'")], ..PLAIN },
    Config {
        name: "gate",
        what: "commits wait for a relay",
        settings: &[("proxy.gate.commit_durability", "'relay'"), ("proxy.gate.degraded_after", "'1h'")],
        relay: true,
        proof: &["gated"],
        ..PLAIN
    },
    Config {
        name: "strong",
        what: "a replica, consistency strong",
        settings: &[("proxy.workers", "1"), ("proxy.routing.consistency", "'strong'")],
        replica: true,
        usual: true,
        proof: &["strong_reads", "statements_replica"],
        ..PLAIN
    },
    Config {
        name: "replica",
        what: "a replica that has replayed everything before each step",
        settings: &[("proxy.workers", "1")],
        replica: true,
        waits: true,
        proof: &["statements_replica"],
        ..PLAIN
    },
    Config {
        name: "early",
        what: "transactions read on a replica before their first write",
        settings: &[("proxy.workers", "1"), ("proxy.routing.transaction_reads", "'replica'")],
        replica: true,
        waits: true,
        usual: true,
        proof: &["early_reads"],
        ..PLAIN
    },
    Config {
        name: "late",
        what: "a replica that replays nothing, one client",
        settings: &[("proxy.workers", "1")],
        replica: true,
        late: true,
        proof: &["statements_replica", "consistency_primary"],
        ..PLAIN
    },
    Config {
        name: "role",
        what: "one user towards the servers, and the client's as the role of its sessions",
        settings: &[
            ("proxy.workers", "1"),
            ("proxy.databases", "[{ name = '*', server_user = 'pooled', set_role = true }]"),
        ],
        takes_role: true,
        ..PLAIN
    },
    Config {
        name: "traffic",
        what: "a traffic rule that lets as many clients pass as there are, unless one that is done still counts",
        settings: &[
            ("proxy.workers", "3"),
            ("proxy.traffic", "[{ name = 'all', concurrency = 6 }, { name = 'fast', rate = '1000000/s' }]"),
        ],
        ..PLAIN
    },
    Config {
        name: "functions",
        what: "functions that leave something, as configured by default: nobody else sees it",
        settings: &[("proxy.workers", "1")],
        functions: Functions::Lost,
        usual: true,
        ..PLAIN
    },
    Config {
        name: "pin",
        what: "functions that leave something, unknown_functions = \"pin\"",
        settings: &[("proxy.workers", "1"), ("proxy.databases", "[{ name = '*', unknown_functions = 'pin' }]")],
        functions: Functions::Kept,
        ..PLAIN
    },
];

impl Config {
    /// Returns the configuration of this name.
    pub(crate) fn of(name: &str) -> Option<&'static Config> {
        CONFIGS.iter().find(|config| config.name == name)
    }

    /// Returns keys and values for the proxy's file.
    pub(crate) fn settings(&self) -> Vec<(String, Value)> {
        let value = |text: &str| {
            let table: toml::Table = toml::from_str(&format!("v = {text}")).expect("the table above is TOML");
            table["v"].clone()
        };
        self.settings.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect()
    }

    /// Returns the servers that it needs.
    pub(crate) fn needs(&self) -> Needs {
        Needs { replica: self.replica, relay: self.relay }
    }
}

impl Needs {
    /// Returns the servers that either needs.
    pub(crate) fn and(self, other: Needs) -> Needs {
        Needs { replica: self.replica || other.replica, relay: self.relay || other.relay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_settings_are_toml() {
        for (index, config) in CONFIGS.iter().enumerate() {
            assert!(CONFIGS[..index].iter().all(|other| other.name != config.name), "{}", config.name);
            assert_eq!(config.settings().len(), config.settings.len());
            assert!(!config.what.is_empty() && (config.replica || !config.waits && !config.late));
        }
    }
}
