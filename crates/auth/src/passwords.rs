//! Passwords from files and commands: put into the configuration, and read again when they may have changed.
//!
//! The parts of the process see passwords only. [`Passwords::fill`] replaces the files and commands of a configuration by passwords; a task reads
//! them again when a file has changed, when their interval is over, and when a server has refused one. Changed passwords reach the parts like a
//! reload.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use proxy::renewals::WakeFn;
use secret::{Renewed, Secret, Source, Store, Which};
use tokio::sync::{Notify, mpsc, watch};

use config::{Config, PasswordsConfig};
use process::Failure;

/// Requests to read passwords again at the start of a reading, by cluster: the last ticket of its proxy, and the number of passwords that its servers
/// have refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedAgain(pub Vec<(String, u64, u64)>);

/// Interval between two checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two readings after a server has refused a password: commands may be costly, and refusals come in storms.
const REFUSED_EVERY: Duration = Duration::from_secs(1);
/// Longest wait of an `auth_query` for passwords to be read again.
const RENEWED_WITHIN: Duration = Duration::from_secs(30);

/// The passwords of the configuration in force.
pub struct Passwords {
    /// The known passwords, replaced as a whole by a reload.
    store: RwLock<Arc<Store>>,
    times: RwLock<PasswordsConfig>,
    /// Tickets of probes and lookups, which have no desk of their own.
    asked: AtomicU64,
    bell: Notify,
    /// The last of these tickets that is answered: passwords were read, and the parts have them.
    answered: watch::Sender<u64>,
}

/// A reading of the passwords: the owner of the configuration reloads it if one has changed, and then calls [`Passwords::applied`].
pub struct Reading {
    /// True if a password has changed.
    pub changed: bool,
    /// The requests that the reading answers: those of the clusters, and the tickets of probes and lookups.
    asked: (AskedAgain, u64),
}

impl Reading {
    /// Returns the requests of the clusters.
    pub fn asked(&self) -> &AskedAgain {
        &self.asked.0
    }
}

impl Passwords {
    /// Makes the collection without any password.
    pub fn new() -> Arc<Passwords> {
        Arc::new(Passwords {
            store: RwLock::default(),
            times: RwLock::default(),
            asked: AtomicU64::new(0),
            bell: Notify::new(),
            answered: watch::Sender::new(0),
        })
    }

    fn store(&self) -> Arc<Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn times(&self) -> PasswordsConfig {
        self.times.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces files and commands of a configuration by their passwords, as last read. Reads those that were never read, which blocks.
    ///
    /// # Errors
    /// A password cannot be read.
    pub fn fill(&self, config: &Config) -> Result<Config, Failure> {
        fill(config, &self.store())
    }

    /// As [`Passwords::fill`], with all passwords read anew: for a configuration that may come into force by [`Passwords::adopt`].
    ///
    /// # Errors
    /// A password cannot be read.
    pub fn fill_anew(config: &Config) -> Result<(Config, Store), Failure> {
        let store = Store::default();
        Ok((fill(config, &store)?, store))
    }

    /// Takes over the passwords of a configuration that is now in force.
    pub fn adopt(&self, config: &Config, store: Store) {
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        *self.times.write().unwrap_or_else(PoisonError::into_inner) = config.passwords.clone();
    }

    /// Returns the bell of a request to read passwords again.
    pub fn bell(self: &Arc<Self>) -> WakeFn {
        let bell = Arc::downgrade(self);
        Box::new(move || {
            if let Some(passwords) = bell.upgrade() {
                passwords.bell.notify_one();
            }
        })
    }

    /// Reads passwords again and again, until the receiver is dropped. `asked` returns the clusters' requests so far.
    pub fn watch(self: &Arc<Self>, asked: impl Fn() -> AskedAgain + Send + 'static) -> mpsc::Receiver<Reading> {
        let (sender, readings) = mpsc::channel(1);
        let passwords = Arc::clone(self);
        tokio::spawn(async move {
            let mut known = (asked(), 0);
            loop {
                tokio::select! {
                    () = passwords.bell.notified() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                }
                // Taken before anything is read.
                let now = (asked(), passwords.asked.load(Ordering::SeqCst));
                let refused = known != now;
                known.clone_from(&now);
                let Renewed { changed, errors } = passwords.read(refused).await;
                for error in errors {
                    tracing::warn!(%error, "a password cannot be read again, the last one stays");
                }
                if (changed || refused) && sender.send(Reading { changed, asked: now }).await.is_err() {
                    return;
                }
                if refused {
                    tokio::time::sleep(REFUSED_EVERY).await;
                }
            }
        });
        readings
    }

    /// Reads off the runtime, because a file system or a command may take its time.
    async fn read(&self, refused: bool) -> Renewed {
        let (store, times) = (self.store(), self.times());
        let which =
            if refused { Which::All } else { Which::Due((!times.interval.is_zero()).then_some(times.interval)) };
        tokio::task::spawn_blocking(move || store.renew(which, times.timeout)).await.unwrap_or_default()
    }

    /// Tells that the parts have the passwords of this reading.
    pub fn applied(&self, reading: &Reading) {
        self.answered.send_replace(reading.asked.1);
    }

    /// Has passwords read again, and waits until the parts have them; at most `RENEWED_WITHIN`.
    pub async fn renew(&self) {
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.bell.notify_one();
        let mut answered = self.answered.subscribe();
        // After a timeout the caller tries again with the known passwords.
        let _ = tokio::time::timeout(RENEWED_WITHIN, answered.wait_for(|answered| *answered >= ticket)).await;
    }
}

/// The places of a password in the configuration.
struct Place<'a> {
    /// Name of the owner in an error.
    of: String,
    password: &'a mut Option<String>,
    file: &'a mut Option<PathBuf>,
    command: &'a mut Vec<String>,
}

/// Puts passwords into a configuration, in place of files and commands.
///
/// # Errors
/// A password cannot be read.
pub(crate) fn fill(config: &Config, store: &Store) -> Result<Config, Failure> {
    let mut filled = config.clone();
    let limit = config.passwords.timeout;
    let mut used = HashSet::new();
    // True if there was a file or command to read.
    let mut put = |place: Place<'_>| -> Result<bool, Failure> {
        let source = Source::of(place.file.take().as_deref(), &std::mem::take(place.command));
        let Some(source) = source.filter(|_| place.password.is_none()) else { return Ok(false) };
        let password = store
            .get(&source, limit)
            .map_err(|error| Failure::environment(format!("the password of {}: {error}", place.of)))?;
        *place.password = Some(password.expose().to_owned());
        used.insert(source);
        Ok(true)
    };
    for user in &mut filled.proxy.users {
        user.renewable = put(Place {
            of: format!("user {:?}", user.name),
            password: &mut user.password,
            file: &mut user.password_file,
            command: &mut user.password_command,
        })?;
    }
    for operator in &mut filled.proxy.operators {
        put(Place {
            of: format!("operator {:?}", operator.name),
            password: &mut operator.password,
            file: &mut operator.password_file,
            command: &mut operator.password_command,
        })?;
    }
    for database in &mut filled.proxy.databases {
        let mut password = database.server_password.as_ref().map(|password| password.expose().to_owned());
        database.server_renewable = put(Place {
            of: format!("database {:?} (server_password)", database.name),
            password: &mut password,
            file: &mut database.server_password_file,
            command: &mut database.server_password_command,
        })?;
        database.server_password = password.map(Secret::new);
    }
    let query = &mut filled.proxy.auth_query;
    put(Place {
        of: "[proxy.auth_query]".into(),
        password: &mut query.password,
        file: &mut query.password_file,
        command: &mut query.password_command,
    })?;
    for cluster in std::iter::once(&mut filled.cluster).chain(&mut filled.clusters) {
        put(Place {
            of: format!("the cluster {:?}", cluster.name),
            password: &mut cluster.password,
            file: &mut cluster.password_file,
            command: &mut cluster.password_command,
        })?;
    }
    store.retain(|source| used.contains(source));
    Ok(filled)
}

/// Replaces files and commands by their passwords, for a command that runs once.
///
/// # Errors
/// A password cannot be read.
pub fn filled(config: &Config) -> Result<Config, Failure> {
    fill(config, &Store::default())
}
