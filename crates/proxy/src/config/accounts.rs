//! Databases, users and operators.

use std::time::Duration;

use secret::Secret;
use settings::{Limit, OrNever};

use super::{
    AuthMethod, CommitDurability, Consistency, LaneMode, OnDegraded, PoolMode, RouteTo, TransactionReads,
    UnknownFunctions,
};

/// Authentication methods of one user or operator.
const OWN_AUTH: [&str; 5] = ["scram-sha-256", "md5", "cert", "ldap", "pam"];

::settings::settings! {
    /// `[[proxy.databases]]`.
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct DatabaseConfig {
        /// Name that clients give; "*" stands for every name that is not listed.
        pub name: String, example(r#""reports""#);
        /// The cluster that has it, where there are several (`[[clusters]]`); if not given, the first one.
        pub cluster: Option<String> = None, example(r#""billing""#);
        /// Name on the servers; the same if not given.
        pub dbname: Option<String> = None, example(r#""shop""#);
        /// User of the logins to the servers for this database, in place of each client's own user: all of its clients are that user there.
        pub server_user: Option<String> = None, example(r#""shop_app""#);
        /// True if each client's sessions take its own user as their role (SET ROLE), which server_user has to be a member of.
        pub set_role: bool = false, example("true");
        /// Password of server_user. An MD5 hash as in pg_authid is as good where servers ask by MD5.
        pub server_password: Option<Secret> = None, example(r#""change-me-for-servers""#);
        /// File that holds the password in its first line.
        pub server_password_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/shop_app.password""#);
        /// Program, with its arguments, that writes the password to its standard output.
        pub server_password_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/token-of", "shop_app"]"#);
        /// Most server connections for a user of this database on one node; as in `[proxy.pool]` if not given.
        pub pool_size: Option<usize> = None, range(1, 10_000), example("5");
        /// Server connections to the primary that are kept open for a user of this database while it has clients; as in `[proxy.pool]` if not given.
        pub min_pool_size: Option<usize> = None, range(0, 10_000), example("2");
        /// Server connections beyond the pool's size, for clients that have waited for reserve_timeout; as in `[proxy.pool]` if not given.
        pub reserve_pool_size: Option<usize> = None, range(0, 10_000), example("2");
        /// Most server connections of this database to one node, for all users; 0: no limit.
        pub max_connections: Option<Limit> = None, range(0, 1_000_000), example("40");
        /// Statement that is run on each server connection before a client gets it, and again after its session was reset.
        pub connect_query: Option<String> = None, example(r#""SET app.pooled = 'yes'""#);
        /// Parameters that server connections start with, each name=value: RESET goes back to them.
        pub parameters: Vec<String> = Vec::new(), example(r#"["statement_timeout=30s", "TimeZone=UTC"]"#);
        /// Age at which a server connection of this database is closed when it is next idle; "0s" means never. As in `[proxy.pool]` if not given.
        pub server_lifetime: Option<OrNever> = None, example(r#""30m""#);
        /// Longest wait of this database's clients for a server connection; as in `[proxy.pool]` if not given.
        pub wait_timeout: Option<Duration> = None, example(r#""10s""#);
        /// Time limit of this database in place of proxy.client_idle_timeout; "0s" means never.
        pub client_idle_timeout: Option<OrNever> = None, example(r#""1h""#);
        /// Time limit of this database in place of proxy.idle_transaction_timeout; "0s" means never.
        pub idle_transaction_timeout: Option<OrNever> = None, example(r#""5m""#);
        /// Time limit of this database in place of proxy.query_timeout; "0s" means never.
        pub query_timeout: Option<OrNever> = None, example(r#""1m""#);
        /// Time limit of this database in place of proxy.transaction_timeout; "0s" means never.
        pub transaction_timeout: Option<OrNever> = None, example(r#""10m""#);
        /// True if clients may open logical replication connections (replication=database) to this database.
        pub replication: bool = false, example("true");
        /// Most clients of this database.
        pub max_clients: Option<usize> = None, range(1, 1_000_000), example("500");
        /// Pool mode of this database; as in `[proxy.pool]` if not given.
        pub pool_mode: Option<PoolMode> = None, example(r#""session""#);
        /// Treatment of unknown functions for this database; as in `[proxy.pool]` if not given.
        pub unknown_functions: Option<UnknownFunctions> = None, example(r#""pin""#);
        /// Sharing of server connections between statements for this database; as in `[proxy.pool]` if not given.
        pub lanes: Option<LaneMode> = None, example(r#""off""#);
        /// Consistency of this database's reads; as in `[proxy.routing]` if not given.
        pub consistency: Option<Consistency> = None, example(r#""eventual""#);
        /// Node for the reads of this database's transactions before their first write; as in `[proxy.routing]` if not given.
        pub transaction_reads: Option<TransactionReads> = None, example(r#""replica""#);
        /// Routing of this database's statements; as in `[proxy.routing]` if not given. An alias with route = "replica" is a read-only address.
        pub route: Option<RouteTo> = None, example(r#""replica""#);
        /// Durability of this database's commits; as in `[proxy.gate]` if not given.
        pub commit_durability: Option<CommitDurability> = None, example(r#""relay""#);
        /// Treatment of this database's commits while too few relays confirm anything; as in `[proxy.gate]` if not given.
        pub on_degraded: Option<OnDegraded> = None, example(r#""local""#);
        /// True if reads of this database on the primary are held back, too; as in `[proxy.gate]` if not given.
        pub read_barrier: Option<bool> = None, example("true");
    =>
        /// True if the password was read from a file or a command, and can be read again. Not part of the configuration: set by the code that reads the
        /// password.
        pub server_renewable: bool;
    }
}

::settings::settings! {
    /// `[[proxy.users]]`. At most one of `password`, `password_file`, `password_command` and `verifier` may be set. Without any, the user can
    /// log in only under `auth = "trust"`.
    #[derive(Clone, Default, PartialEq)]
    pub struct UserConfig {
        /// Name, for clients and on the servers.
        pub name: String, shown(r#""app""#);
        /// The cluster that this entry is for, where there are several (`[[clusters]]`): it has the user there in place of an entry for all of them.
        pub cluster: Option<String> = None, example(r#""billing""#);
        /// Authentication method of this user, never "trust"; proxy.auth if not given.
        pub auth: Option<AuthMethod> = None, only(&OWN_AUTH), example(r#""md5""#);
        /// Password, for clients and towards the servers.
        pub password: Option<String> = None, secret(), shown(r#""change-me""#);
        /// File that holds the password in its first line.
        pub password_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/app.password""#);
        /// Program, with its arguments, that writes the password to its standard output. `[passwords]` says when it is run again.
        pub password_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/token-of", "app"]"#);
        /// Verifier, SCRAM-SHA-256$… or md5… as in pg_authid: lets clients in, and with what they show the proxy logs in to servers that have the
        /// same.
        pub verifier: Option<String> = None, secret(), example(r#""SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=""#);
        /// Further secrets while a password is being changed, each a password or a verifier by its form: clients may log in with any of them, and a
        /// server that refuses one password is offered the next. SCRAM verifiers among them all have the same salt.
        pub secrets: Vec<Secret> = Vec::new(), example(r#"["change-me-old"]"#);
        /// Most server connections for this user and one database on one node; as in `[proxy.pool]` if not given.
        pub pool_size: Option<usize> = None, range(1, 10_000), example("10");
        /// Server connections beyond the pool's size, for clients of this user that have waited for reserve_timeout.
        pub reserve_pool_size: Option<usize> = None, range(0, 10_000), example("2");
        /// Most server connections of this user to one node, with all databases; 0: no limit.
        pub max_connections: Option<Limit> = None, range(0, 1_000_000), example("30");
        /// Pool mode of this user, whatever the database says.
        pub pool_mode: Option<PoolMode> = None, example(r#""session""#);
        /// Longest wait of this user's clients for a server connection, whatever the database says.
        pub wait_timeout: Option<Duration> = None, example(r#""2s""#);
        /// Time limit of this user in place of the database's client_idle_timeout; "0s" means never.
        pub client_idle_timeout: Option<OrNever> = None, example(r#""1h""#);
        /// Time limit of this user in place of the database's idle_transaction_timeout; "0s" means never.
        pub idle_transaction_timeout: Option<OrNever> = None, example(r#""1m""#);
        /// Time limit of this user in place of the database's query_timeout; "0s" means never.
        pub query_timeout: Option<OrNever> = None, example(r#""10s""#);
        /// Time limit of this user in place of the database's transaction_timeout; "0s" means never.
        pub transaction_timeout: Option<OrNever> = None, example(r#""1m""#);
        /// True if this user may open replication connections (pg_basebackup, pg_receivewal, subscriptions).
        pub replication: bool = false, example("true");
        /// Most clients of this user.
        pub max_clients: Option<usize> = None, range(1, 1_000_000), example("100");
        /// Durability of this user's commits, whatever the database says.
        pub commit_durability: Option<CommitDurability> = None, example(r#""local""#);
    =>
        /// True if the password was read from a file or a command, and can be read again. Not part of the configuration: set by the code that reads the
        /// password.
        pub renewable: bool;
    }
}

impl std::fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserConfig")
            .field("name", &self.name)
            .field("auth", &self.auth)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[[proxy.operators]]`: an account that manages the proxy and can't read data. At most one of `password`,
    /// `password_file` and `verifier`, as with users.
    #[derive(Clone, PartialEq)]
    pub struct OperatorConfig {
        /// Name that the operator logs in with.
        pub name: String, example(r#""alice""#);
        /// Authentication method of this operator, never "trust"; proxy.auth if not given.
        pub auth: Option<AuthMethod> = None, only(&OWN_AUTH), example(r#""scram-sha-256""#);
        /// Password.
        pub password: Option<String> = None, secret(), example(r#""change-me-as-well""#);
        /// File that holds the password in its first line.
        pub password_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/alice.password""#);
        /// Program, with its arguments, that writes the password to its standard output.
        pub password_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/token-of", "alice"]"#);
        /// Verifier, SCRAM-SHA-256$… or md5… as in pg_authid.
        pub verifier: Option<String> = None, secret(), example(r#""SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=""#);
        /// Further secrets while a password is being changed, as with users.
        pub secrets: Vec<Secret> = Vec::new(), example(r#"["change-me-older"]"#);
        /// Permissions: "operator" may do everything, "viewer" only SHOW.
        pub role: Access = Access::default(), example(r#""operator""#);
    }
}

impl OperatorConfig {
    /// Returns the operator's name and secrets as those of a user.
    #[must_use]
    pub fn as_user(&self) -> UserConfig {
        UserConfig {
            name: self.name.clone(),
            auth: self.auth,
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            password_command: self.password_command.clone(),
            verifier: self.verifier.clone(),
            secrets: self.secrets.clone(),
            ..UserConfig::default()
        }
    }
}

impl std::fmt::Debug for OperatorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorConfig").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

::settings::settings! {
    /// Permissions of a user of the console.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Access {
        /// Look: `SHOW`.
        Viewer = "viewer",
        /// Look and act: everything.
        #[default]
        Operator = "operator",
    }
}
