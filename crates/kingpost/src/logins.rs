//! Logins of `kingpost check`: a warning about probes without credentials, and with `--online` an attempt at every node.

use std::time::Duration;

use futures_util::future::join_all;
use topology::{ClusterConfig, NodeConfig};
use wire::control::{CHECK, Settings};
use wire::md5;

use config::Config;
use process::{Failure, control_runtime};

/// Time limit of one attempt.
const LIMIT: Duration = Duration::from_secs(5);

/// A login in the configuration, for every node of a cluster.
struct Login {
    /// Configuration key of its user.
    key: String,
    /// The cluster, with the login's user, password and database as those of its probes.
    cluster: ClusterConfig,
}

/// Returns a warning for each cluster with a node over TCP whose probes have neither a password nor a certificate.
pub(crate) fn doubts(config: &Config) -> Vec<String> {
    let doubt = |(path, cluster): (String, &ClusterConfig)| {
        let given = cluster.password.is_some()
            || cluster.password_file.is_some()
            || !cluster.password_command.is_empty()
            || cluster.tls.cert_file.is_some();
        let node = cluster.nodes.iter().find(|node| !node.address.starts_with('/')).filter(|_| !given)?;
        Some(format!(
            "warning: {path}.password: missing: probes of {:?} log in as {:?} only if its pg_hba.conf asks for no password; `kingpost check --online` tries it",
            node.address, cluster.user
        ))
    };
    config.all_clusters().into_iter().filter_map(doubt).collect()
}

/// Logs in to every listed node: as the probes, as the lookup of users, and as `server_user` of each database.
///
/// # Errors
/// The logins that failed, each with the server's message.
pub(crate) fn attempt(config: &Config) -> Result<(), Failure> {
    let filled = auth::filled(config)?;
    let paths: Vec<String> = filled.all_clusters().into_iter().map(|(path, _)| path).collect();
    let of_each = filled.of_each_cluster();
    let logins: Vec<Login> = paths.iter().zip(&of_each).flat_map(|(path, config)| logins_of(path, config)).collect();
    let failed: Vec<String> = control_runtime()?.block_on(async {
        let mut failed = Vec::new();
        for login in &logins {
            failed
                .extend(join_all(login.cluster.nodes.iter().map(|node| login.fails(node))).await.into_iter().flatten());
        }
        failed
    });
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::config(format!("logins at the servers failed\n{}", failed.join("\n")))
        .advise("pg_hba.conf of the server says whom it lets in; `CREATE ROLE … LOGIN PASSWORD …` makes a user, GRANT pg_monitor lets probes see more"))
}

/// Returns the logins of one cluster. A password that is an MD5 hash is not tried: probes cannot use it.
fn logins_of(path: &str, config: &Config) -> Vec<Login> {
    let cluster = &config.cluster;
    let mut logins = vec![Login { key: format!("{path}.user"), cluster: cluster.clone() }];
    let lookup = &config.proxy.auth_query;
    if !lookup.query.is_empty() {
        let mut cluster = cluster.clone();
        if let Some(user) = &lookup.user {
            (cluster.user, cluster.password) = (user.clone(), lookup.password.clone());
        }
        cluster.database = lookup.database.clone().unwrap_or(cluster.database);
        logins.push(Login { key: "proxy.auth_query.user".into(), cluster });
    }
    for database in &config.proxy.databases {
        let Some(user) = &database.server_user else { continue };
        let password = database.server_password.as_ref().map(|password| password.expose().to_owned());
        let hashed = password.as_ref().is_some_and(|password| md5::Verifier::parse(password).is_some());
        if database.name == "*" || hashed {
            continue;
        }
        let target = database.dbname.as_ref().unwrap_or(&database.name).clone();
        let cluster = ClusterConfig { user: user.clone(), password, database: target, ..cluster.clone() };
        logins.push(Login { key: format!("server_user of proxy.databases {:?}", database.name), cluster });
    }
    logins
}

impl Login {
    /// Tries the login at a node; returns the line about its failure.
    async fn fails(&self, node: &NodeConfig) -> Option<String> {
        let ClusterConfig { user, database, .. } = &self.cluster;
        let why = topology::connect(&self.cluster, node, CHECK, Some(&Settings::own_names()), LIMIT).await.err()?;
        Some(format!("  {} {user:?} at {} ({}), database {database:?}: {why}", self.key, node.name, node.address))
    }
}
