//! Name resolution for probed targets, outside of the probe's own time limit.
//!
//! A resolver that does not answer blocks a thread for ten seconds and more. So concurrent look-ups are few, each namespace has a share of them, and
//! results are cached. A target whose name cannot be looked up now, because the look-ups are taken, is not judged: its turn comes again.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of concurrent look-ups. Each holds a blocking thread, and the store needs such threads too.
const MOST: usize = 64;
/// Time after which addresses are looked up again.
const FRESH: Duration = Duration::from_secs(30);
/// Time for which the last addresses are used while the resolver does not answer.
const STALE: Duration = Duration::from_secs(600);
/// Time after which a name without an address is looked up again.
const ABSENT: Duration = Duration::from_secs(5);
/// Time limit of a look-up; after it, the look-up has failed, but its thread still counts as busy.
const LONGEST: Duration = Duration::from_secs(5);
/// Maximum number of cached names; beyond it, expired ones are removed.
const KEPT: usize = 65_536;

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The addresses.
    Addresses(Vec<SocketAddr>),
    /// No address, or the resolver does not answer.
    Failed,
    /// Not looked up: the look-ups are taken, or one of this name is under way.
    Later,
}

/// Addresses by name, and the look-ups under way.
pub(crate) struct Resolver {
    look_up: Box<dyn Fn(String) -> Looking + Send + Sync>,
    state: Arc<Mutex<State>>,
    longest: Duration,
}

/// The next step for a target.
#[derive(Debug, PartialEq, Eq)]
enum Begun {
    /// None: the result is known.
    Known(Looked),
    /// A look-up, which is counted already. `fallback`: the result if it takes too long.
    LookUp { fallback: Looked },
}

#[derive(Default)]
struct State {
    known: HashMap<String, Known>,
    busy: HashMap<String, usize>,
    all: usize,
}

#[derive(Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// Time of the look-up; `None`: never yet.
    since: Option<Instant>,
    under_way: bool,
}

impl Default for Resolver {
    /// Uses the system's resolver.
    fn default() -> Resolver {
        Resolver::new(|target| Box::pin(async { Ok(tokio::net::lookup_host(target).await?.collect()) }))
    }
}

impl Resolver {
    fn new(look_up: impl Fn(String) -> Looking + Send + Sync + 'static) -> Resolver {
        Resolver { look_up: Box::new(look_up), state: Arc::default(), longest: LONGEST }
    }

    /// Returns the addresses of `target`, `host:port`, on behalf of an instance of `namespace`.
    pub(crate) async fn resolve(&self, namespace: &str, target: &str) -> Looked {
        if let Ok(address) = target.parse() {
            return Looked::Addresses(vec![address]);
        }
        let fallback = match lock(&self.state).begin(namespace, target, Instant::now()) {
            Begun::Known(looked) => return looked,
            Begun::LookUp { fallback } => fallback,
        };
        let looking = (self.look_up)(target.to_owned());
        let (state, namespace, target) = (Arc::clone(&self.state), namespace.to_owned(), target.to_owned());
        // A task of its own: the thread stays busy even if the caller has gone.
        let task = tokio::spawn(async move {
            let found = looking.await;
            lock(&state).ended(&namespace, &target, found, Instant::now())
        });
        match tokio::time::timeout(self.longest, task).await {
            Ok(Ok(looked)) => looked,
            _ if matches!(fallback, Looked::Addresses(_)) => fallback,
            _ => Looked::Failed,
        }
    }
}

impl State {
    fn begin(&mut self, namespace: &str, target: &str, now: Instant) -> Begun {
        let mut fallback = Looked::Later;
        if let Some(known) = self.known.get(target) {
            let age = known.since.map(|since| now.saturating_duration_since(since));
            let keep = if known.addresses.is_empty() { ABSENT } else { FRESH };
            if age.is_some_and(|age| age < keep) {
                return Begun::Known(known.looked());
            }
            if age.is_some_and(|age| age < STALE) && !known.addresses.is_empty() {
                fallback = known.looked();
            }
            if known.under_way {
                return Begun::Known(fallback);
            }
        }
        let own = self.busy.get(namespace).copied().unwrap_or(0);
        // At most as many as stay free: a single namespace gets half, and the next one finds some.
        if own >= MOST.saturating_sub(self.all) {
            return Begun::Known(fallback);
        }
        if self.known.len() >= KEPT {
            let fresh = |since: Instant| now.saturating_duration_since(since) < FRESH;
            self.known.retain(|_, known| known.under_way || known.since.is_some_and(fresh));
            if self.known.len() >= KEPT {
                return Begun::Known(fallback);
            }
        }
        self.all += 1;
        *self.busy.entry(namespace.to_owned()).or_default() += 1;
        self.known.entry(target.to_owned()).or_default().under_way = true;
        Begun::LookUp { fallback }
    }

    fn ended(&mut self, namespace: &str, target: &str, found: io::Result<Vec<SocketAddr>>, now: Instant) -> Looked {
        self.all -= 1;
        if let Some(busy) = self.busy.get_mut(namespace) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(namespace);
            }
        }
        let known = self.known.entry(target.to_owned()).or_default();
        (known.addresses, known.since, known.under_way) = (found.unwrap_or_default(), Some(now), false);
        known.looked()
    }
}

impl Known {
    fn looked(&self) -> Looked {
        if self.addresses.is_empty() { Looked::Failed } else { Looked::Addresses(self.addresses.clone()) }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn address() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }

    /// Makes a resolver that never answers names that begin with "dead".
    fn resolver() -> Arc<Resolver> {
        let resolver = Resolver::new(move |target| {
            Box::pin(async move {
                if target.starts_with("dead") {
                    std::future::pending::<()>().await;
                }
                Ok(vec![address()])
            })
        });
        Arc::new(Resolver { longest: Duration::from_millis(100), ..resolver })
    }

    #[tokio::test]
    async fn dead_names_of_one_namespace_leave_look_ups_for_the_others() {
        let resolver = resolver();
        let mut dead = tokio::task::JoinSet::new();
        for n in 0..200 {
            let resolver = Arc::clone(&resolver);
            dead.spawn(async move { resolver.resolve("other", &format!("dead-{n}:80")).await });
        }
        let mut looked = Vec::new();
        while let Some(result) = dead.join_next().await {
            looked.push(result.unwrap());
        }
        let later = looked.iter().filter(|looked| **looked == Looked::Later).count();
        assert_eq!((later, looked.len() - later), (200 - MOST / 2, MOST / 2), "the rest is not judged");
        assert!(!looked.contains(&Looked::Addresses(vec![address()])));
        // The threads of those look-ups are still busy.
        let busy = || {
            let state = lock(&resolver.state);
            (state.all, state.busy["other"])
        };
        assert_eq!(busy(), (MOST / 2, MOST / 2));
        let mut good = tokio::task::JoinSet::new();
        for n in 0..MOST / 4 {
            let resolver = Arc::clone(&resolver);
            good.spawn(async move { (n, resolver.resolve("good", &format!("good-{n}:80")).await) });
        }
        while let Some(result) = good.join_next().await {
            let (n, found) = result.unwrap();
            // On a busy machine an answer may come too late, which has nothing to do with shares.
            assert_ne!(found, Looked::Later, "name {n} found no look-up");
        }
    }

    #[test]
    fn what_was_found_is_kept_for_a_while() {
        let found = || Looked::Addresses(vec![address()]);
        let mut state = State::default();
        let start = Instant::now();
        for (second, target, begun, answer) in [
            (0, "good", Begun::LookUp { fallback: Looked::Later }, Some(true)),
            (29, "good", Begun::Known(found()), None),
            (31, "good", Begun::LookUp { fallback: found() }, None),
            // That look-up is still under way: the previous result is used, but not for ever.
            (32, "good", Begun::Known(found()), None),
            (700, "good", Begun::Known(Looked::Later), None),
            (0, "none", Begun::LookUp { fallback: Looked::Later }, Some(false)),
            (4, "none", Begun::Known(Looked::Failed), None),
            (6, "none", Begun::LookUp { fallback: Looked::Later }, Some(true)),
            (7, "none", Begun::Known(found()), None),
        ] {
            let now = start + Duration::from_secs(second);
            assert_eq!(state.begin("default", target, now), begun, "{target} after {second} s");
            if let Some(good) = answer {
                let answer = if good { Ok(vec![address()]) } else { Err(io::Error::other("no such name")) };
                state.ended("default", target, answer, now);
            }
        }
        assert_eq!((state.all, state.busy.len()), (1, 1), "one look-up is under way");
    }
}
