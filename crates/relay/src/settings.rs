//! The configuration, resolved.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ::archive::config::ArchiveConfig;
use wire::replication::is_slot_name;
use wire::scram::Verifier;

use crate::config::{AuthMethod, RelayConfig, ServeUpTo, UpstreamConfig, UserConfig};
use crate::error::StartError;
use crate::log::Serve;

/// Settings that downstream connections use. Immutable; a reload makes a new value.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) auth: AuthMethod,
    /// None: no TLS with downstreams.
    pub(crate) acceptor: Option<tls::Acceptor>,
    pub(crate) serve: Serve,
    pub(crate) max_downstreams: usize,
    pub(crate) login_timeout: Duration,
    pub(crate) downstream_timeout: Duration,
    pub(crate) hot_standby_feedback: bool,
    pub(crate) keep_bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) archive: ArchiveConfig,
    users: HashMap<String, Option<Verifier>>,
    operators: HashSet<String>,
}

impl Settings {
    /// Reads password files and computes verifiers.
    pub(crate) fn new(config: &RelayConfig) -> Result<Settings, StartError> {
        validate(&config.upstream).map_err(StartError::Config)?;
        // Read again for each connection; errors are better found now.
        tls::Connector::new(&config.upstream.tls)
            .map_err(|error| StartError::Config(format!("[relay.upstream.tls] {error}")))?;
        if config.archive.is_on() {
            ::archive::open(&config.archive).map_err(|error| StartError::Config(error.to_string()))?;
        }
        let mut users = HashMap::new();
        for user in &config.users {
            if users.insert(user.name.clone(), verifier(user)?).is_some() {
                return Err(StartError::Config(format!("user {:?} of the relay is configured twice", user.name)));
            }
        }
        Ok(Settings {
            auth: config.auth,
            acceptor: tls::Acceptor::new(&config.tls)
                .map_err(|error| StartError::Config(format!("[relay.tls] {error}")))?,
            serve: match config.serve {
                ServeUpTo::Flushed => Serve::Flushed,
                ServeUpTo::Written => Serve::Written,
            },
            max_downstreams: config.max_downstreams,
            login_timeout: config.login_timeout,
            downstream_timeout: config.downstream_timeout,
            hot_standby_feedback: config.hot_standby_feedback,
            keep_bytes: config.keep_bytes,
            max_bytes: config.max_bytes,
            archive: config.archive.clone(),
            users,
            operators: config.users.iter().filter(|user| user.operator).map(|user| user.name.clone()).collect(),
        })
    }

    /// Returns a user's verifier. None: there is no such user. Some(None): the user has no password.
    pub(crate) fn user(&self, name: &str) -> Option<Option<&Verifier>> {
        self.users.get(name).map(Option::as_ref)
    }

    /// True if a logged-in user may fence the relay. With `trust`, which is on the loopback only, every user may, unless users are listed.
    pub(crate) fn is_operator(&self, name: &str) -> bool {
        self.operators.contains(name) || (self.auth == AuthMethod::Trust && self.users.is_empty())
    }

    /// True if no user is listed: with `trust` every name may stream.
    pub(crate) fn any_user(&self) -> bool {
        self.users.is_empty()
    }
}

/// Checks a configuration of an upstream.
///
/// # Errors
/// The problem, with the key's name.
fn validate(config: &UpstreamConfig) -> Result<(), String> {
    if !config.slot.is_empty() && !is_slot_name(&config.slot) {
        return Err(format!(
            "relay.upstream.slot is {:?}: expected 1 to 63 lower-case letters, digits and underscores, or \"\" for none",
            config.slot
        ));
    }
    if config.password.is_some() && config.password_file.is_some() {
        return Err("relay.upstream: give at most one of password and password_file".into());
    }
    Ok(())
}

fn verifier(user: &UserConfig) -> Result<Option<Verifier>, StartError> {
    let given = [user.password.is_some(), user.password_file.is_some(), user.verifier.is_some()];
    if given.iter().filter(|given| **given).count() > 1 {
        return Err(StartError::Config(format!(
            "user {:?} of the relay: give at most one of password, password_file and verifier",
            user.name
        )));
    }
    let of = |what: &str, error: wire::scram::Error| {
        StartError::Config(format!("user {:?} of the relay: {what}: {error}", user.name))
    };
    if let Some(text) = &user.verifier {
        return Verifier::parse(text).map(Some).map_err(|error| of("verifier", error));
    }
    let password = match (&user.password, &user.password_file) {
        (Some(password), _) => password.clone(),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|source| StartError::File {
                tried: "read",
                path: path.clone(),
                source,
            })?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        (None, None) => return Ok(None),
    };
    Verifier::from_password(&password).map(Some).map_err(|error| of("password", error))
}
