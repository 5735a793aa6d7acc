//! Looks up users that are not configured (`proxy.auth_query`), over one session with a server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_postgres::Client;
use topology::session::Login;
use topology::{NodeId, Role, Topology};

use proxy::LookupDesk;
use proxy::accounts::Answer;
use proxy::config::AuthQueryConfig;
use proxy::settings::User;

/// Looks users up, as long as the process runs.
pub(crate) struct Lookup {
    topology: Arc<Topology>,
    desk: LookupDesk,
    /// With the password that is in `password_file`.
    config: Mutex<Arc<AuthQueryConfig>>,
    /// The session, and the configuration that it was opened by.
    session: tokio::sync::Mutex<Option<(Arc<AuthQueryConfig>, Arc<Client>)>>,
}

impl Lookup {
    /// Serves the proxy's questions from here on.
    pub(crate) fn start(
        topology: Arc<Topology>,
        desk: LookupDesk,
        config: &AuthQueryConfig,
        runtime: &Handle,
    ) -> Result<Arc<Lookup>, String> {
        let config = Mutex::new(Arc::new(resolved(config)?));
        let lookup = Arc::new(Lookup { topology, desk, config, session: tokio::sync::Mutex::new(None) });
        let (serving, runtime) = (Arc::downgrade(&lookup), runtime.clone());
        // How many are asked at a time is bounded by who asks.
        lookup.desk.serve(Box::new(move |user| {
            let Some(lookup) = serving.upgrade() else { return false };
            drop(runtime.spawn(async move { lookup.look_up(&user).await }));
            true
        }));
        Ok(lookup)
    }

    /// Takes a new configuration.
    ///
    /// # Errors
    /// Its password file cannot be read; the old one stays.
    pub(crate) fn reload(&self, config: &AuthQueryConfig) -> Result<(), String> {
        let config = Arc::new(resolved(config)?);
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    async fn look_up(&self, user: &str) {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = timeout(config.timeout, self.ask(&config, user));
        let found = found.await.unwrap_or_else(|_| Err(format!("no answer within {:?}", config.timeout)));
        let (answer, keep) = match found {
            Ok(Some(secret)) => {
                let name = user.to_owned();
                let keep = if secret.is_some() { config.cache } else { config.negative_cache };
                // A password in clear text costs milliseconds of hashing.
                let parsed = tokio::task::spawn_blocking(move || User::looked_up(&name, secret.as_deref())).await;
                match parsed {
                    Ok(Ok(account)) => (Ok(Some(Arc::new(account))), keep),
                    Ok(Err(error)) => {
                        tracing::warn!(user, %error, "what auth_query gives is no secret that a user can log in with");
                        (Ok(None), config.negative_cache)
                    }
                    Err(error) => (Err(error.to_string()), Duration::ZERO),
                }
            }
            Ok(None) => (Ok(None), config.negative_cache),
            Err(error) => {
                tracing::warn!(user, error, "a user could not be looked up");
                (Err(error), Duration::ZERO)
            }
        };
        let answer: Answer = answer;
        self.desk.answer(user, &answer, keep);
    }

    /// A user's secret, if it has one; None: there is no such user, or it may not log in.
    async fn ask(&self, config: &Arc<AuthQueryConfig>, user: &str) -> Result<Option<Option<String>>, String> {
        let client = self.client(config).await?;
        let rows = client.query(&config.query, &[&user]).await.map_err(|error| match error.as_db_error() {
            Some(said) => format!("auth_query: {} (SQLSTATE {})", said.message(), said.code().code()),
            None => format!("auth_query: {error}"),
        })?;
        match rows.as_slice() {
            [] => Ok(None),
            // A function that finds nobody may give a row of nothing.
            [row] if row.len() >= 2 && matches!(row.try_get::<_, Option<String>>(0), Ok(None)) => Ok(None),
            [row] if row.len() >= 2 => row
                .try_get::<_, Option<String>>(1)
                .map(|secret| Some(secret.filter(|secret| !secret.is_empty())))
                .map_err(|error| format!("auth_query: its second column is not a text: {error}")),
            [_] => Err("auth_query gives one column, expected two: a name and a secret".into()),
            rows => Err(format!("auth_query gives {} rows, expected at most one", rows.len())),
        }
    }

    /// The session; opened if there is none that is good.
    async fn client(&self, config: &Arc<AuthQueryConfig>) -> Result<Arc<Client>, String> {
        let mut session = self.session.lock().await;
        if let Some((of, client)) = &*session
            && Arc::ptr_eq(of, config)
            && !client.is_closed()
        {
            return Ok(client.clone());
        }
        *session = None;
        let login = Login {
            user: config.user.clone(),
            password: config.password.clone(),
            database: config.database.clone(),
            application: "kingpost auth_query".into(),
            timeout: config.timeout / 2,
        };
        let mut failed = "no server can be reached".to_owned();
        for node in self.nodes() {
            match self.topology.log_in(node, &login).await {
                Ok(client) => {
                    *session = Some((config.clone(), client.clone()));
                    return Ok(client);
                }
                Err(error) => failed = error.to_string(),
            }
        }
        Err(failed)
    }

    /// Whom to ask: the primary, else whoever has its data.
    fn nodes(&self) -> Vec<NodeId> {
        let view = self.topology.view();
        let others = view.nodes.iter().filter(|node| node.usable && node.role == Role::Replica);
        view.primary.into_iter().chain(others.map(|node| node.node.id)).collect()
    }
}

/// With the password in place of the file that it is in.
fn resolved(config: &AuthQueryConfig) -> Result<AuthQueryConfig, String> {
    let mut config = config.clone();
    if let Some(path) = &config.password_file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("proxy.auth_query: cannot read password_file {}: {error}", path.display()))?;
        config.password = Some(text.lines().next().unwrap_or_default().to_owned());
    }
    Ok(config)
}
