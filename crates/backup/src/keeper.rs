//! The keeper of a relay's backups: a thread that looks at the archive, says what can be restored, and takes and removes backups by the schedule.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use archive::BackupId;
use config::Config;
use process::Failure;
use tokio::sync::watch;

use crate::args::{TakeArgs, WhichConfig};
use crate::catalog::{Catalog, Survey, now};
use crate::chain::Wanted;
use crate::mark::{Mark, is_dead};
use crate::say::Say;
use crate::schedule::{AGAIN, Schedule, Step, Turn, View};
use crate::window::Window;
use crate::{prune, take};

/// Label of backups by schedule.
const LABEL: &str = "schedule";
/// Longest wait until the archive has the WAL of a new backup.
const WAL_LIMIT: Duration = Duration::from_secs(600);
/// Time until the next look at an archive that the relay has not begun yet.
const SOON: Duration = Duration::from_secs(2);
/// Failure without an error of its own.
const OVERDUE: &str = "none was taken for more than twice relay.backup.every";
/// Looks at an archive without content that are not reported.
const QUIET_LOOKS: u32 = 15;

/// Status of the backups of an archive.
#[derive(Debug, Clone, Default)]
pub struct BackupStatus {
    /// The window that can be restored; None without a restorable backup.
    pub window: Option<Window>,
    /// Number of restorable backups.
    pub restorable: usize,
    /// Time of the end of the newest restorable backup, in seconds since 1970.
    pub newest: Option<u64>,
    /// True if an operator must act: a backup by schedule failed, or none was taken for twice the time.
    pub alarm: bool,
    /// Backups that this process has taken.
    pub taken: u64,
    /// Backups by schedule that failed here.
    pub failures: u64,
    /// The last failure; None after a success.
    pub failure: Option<String>,
}

/// The keeper's thread.
#[derive(Debug)]
pub struct Keeper {
    configs: watch::Sender<Arc<Config>>,
    stop: watch::Sender<bool>,
    status: Arc<Mutex<Option<BackupStatus>>>,
}

impl Keeper {
    /// Starts the thread. Without an archive it waits for a configuration that has one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(config: &Config) -> Result<Keeper, Failure> {
        let runtime = process::control_runtime()?;
        let (configs, mut changes) = watch::channel(Arc::new(config.clone()));
        let (stop, mut stopped) = watch::channel(false);
        let status = Arc::new(Mutex::default());
        let mut work =
            Work { status: Arc::clone(&status), schedule: Schedule::default(), seen: None, quiet: QUIET_LOOKS };
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work.run(&mut changes) => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            });
            // A server or a file system that hangs keeps its thread.
            runtime.shutdown_background();
        };
        let started = std::thread::Builder::new().name("relay-backup".into()).spawn(run);
        started.map_err(|error| Failure::environment(format!("cannot start a thread: {error}")))?;
        Ok(Keeper { configs, stop, status })
    }

    /// Goes on with another configuration.
    pub fn reload(&self, config: &Config) {
        self.configs.send_replace(Arc::new(config.clone()));
    }

    /// Returns the status; None without an archive, and before the first look.
    #[must_use]
    pub fn status(&self) -> Option<BackupStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

struct Work {
    status: Arc<Mutex<Option<BackupStatus>>>,
    schedule: Schedule,
    /// The newest turn whose backup has no record, and its mark when it was first seen.
    seen: Option<(u64, Option<Mark>, Instant)>,
    /// Failed looks left before one is reported.
    quiet: u32,
}

impl Work {
    async fn run(&mut self, configs: &mut watch::Receiver<Arc<Config>>) {
        loop {
            let config = Arc::clone(&configs.borrow_and_update());
            let wait = if config.relay.archive.is_on() && config.relay.engine.dialect().is_none() {
                self.look(&config).await
            } else {
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Duration::MAX
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = configs.changed() => if changed.is_err() { return },
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut BackupStatus)) {
        change(self.status.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default());
    }

    /// Looks at the archive once, and does what is due. Returns the time until the next look.
    async fn look(&mut self, config: &Arc<Config>) -> Duration {
        let every = config.relay.backup.schedule();
        let looked = async {
            let catalog = Catalog::attach(&config.relay.archive).await?;
            let survey = catalog.survey().await?;
            let view = self.view(&catalog, &survey).await?;
            Ok::<_, Failure>((survey, view))
        };
        let (survey, view) = match looked.await {
            Ok(looked) => looked,
            Err(_) if self.quiet > 0 => {
                // The relay makes the archive with its first WAL.
                self.quiet -= 1;
                return SOON;
            }
            Err(failure) => {
                let failure = failure.to_string();
                tracing::warn!(failure, "the backups in the archive cannot be looked at");
                self.note(|status| status.failure = Some(failure));
                return AGAIN;
            }
        };
        self.quiet = 0;
        let alarm = self.schedule.is_alarm(every, &view, now());
        let (restorable, has_failed) = (survey.restorable(), self.schedule.has_failed());
        self.note(|status| {
            if !has_failed {
                status.failure = alarm.then(|| OVERDUE.into());
                if alarm && !status.alarm {
                    tracing::error!("backups by schedule: {OVERDUE}");
                }
            }
            status.window = survey.window.clone();
            status.restorable = restorable.len();
            status.newest = restorable.iter().map(|record| record.ended).max();
            status.alarm = alarm;
        });
        match self.schedule.next(every, &view, now()) {
            Step::Wait(wait) => wait,
            Step::Take(turn) => self.take(config, turn).await,
        }
    }

    /// Returns the state of the archive for the schedule.
    async fn view(&mut self, catalog: &Catalog, survey: &Survey) -> Result<View, Failure> {
        let newest = survey.records.iter().map(|(record, _)| record.started).max();
        let Some(number) = catalog.turns().await?.last().copied() else { return Ok(View { newest, turn: None }) };
        let is_open = match catalog.turn(number).await? {
            Some(id) => !survey.has(&id) && self.may_live(catalog, number, &id).await?,
            None => false,
        };
        Ok(View { newest, turn: Some(Turn { number, is_open }) })
    }

    /// True unless the process of a turn is dead.
    async fn may_live(&mut self, catalog: &Catalog, number: u64, id: &BackupId) -> Result<bool, Failure> {
        let mark = catalog.mark(id).await?;
        match &self.seen {
            Some((of, first, since)) if *of == number && *first == mark => {
                Ok(!is_dead(first.as_ref(), mark.as_ref(), since.elapsed(), now()))
            }
            _ => {
                let is_dead = is_dead(mark.as_ref(), mark.as_ref(), Duration::ZERO, now());
                self.seen = Some((number, mark, Instant::now()));
                Ok(!is_dead)
            }
        }
    }

    /// Takes a turn, a backup, and removes what the window does not need. Returns the time until the next look.
    async fn take(&mut self, config: &Arc<Config>, turn: u64) -> Duration {
        match backup(config, turn).await {
            Ok(true) => {
                self.schedule.succeeded();
                self.note(|status| (status.taken, status.failure) = (status.taken + 1, None));
            }
            // Another process was faster.
            Ok(false) => {}
            Err(failure) => {
                self.schedule.failed(now());
                let failure = failure.to_string();
                tracing::error!(failure, "the backup by schedule failed");
                self.note(|status| {
                    (status.alarm, status.failures, status.failure) = (true, status.failures + 1, Some(failure))
                });
            }
        }
        Duration::ZERO
    }
}

/// Takes a backup in a turn, and removes earlier ones. False: another process has the turn.
async fn backup(config: &Arc<Config>, turn: u64) -> Result<bool, Failure> {
    let settings = &config.relay.backup;
    let args = TakeArgs {
        config: WhichConfig { config: PathBuf::new() },
        from: Some(settings.from.clone()).filter(|from| !from.is_empty()),
        incremental: false,
        label: LABEL.into(),
        max_rate: u32::try_from(settings.max_rate / 1024).ok().filter(|rate| *rate > 0),
        spread: settings.spread,
        wait: WAL_LIMIT,
        json: false,
    };
    // Asked anew for each backup: nodes come and go.
    let config = &take::with_nodes(config).await?;
    let (of, from) = (config.clone(), args.from.clone());
    let server = tokio::task::spawn_blocking(move || take::connect(&of, from.as_deref())).await;
    let server = server.map_err(|error| Failure::runtime(error.to_string()))??;
    let wanted = match settings.full_every.is_zero() {
        true => Wanted::Full,
        false => Wanted::FullEvery(settings.full_every),
    };
    if !take::run(config, &args, wanted, server, Some(turn), Say::Log).await? {
        return Ok(false);
    }
    if !settings.keep.is_zero() {
        let catalog = Catalog::attach(&config.relay.archive).await?;
        let pruning = prune::Pruning::plan(&catalog, now().saturating_sub(settings.keep.as_secs())).await?;
        pruning.carry_out(&catalog).await?;
        tracing::info!("removed {pruning}");
    }
    Ok(true)
}
