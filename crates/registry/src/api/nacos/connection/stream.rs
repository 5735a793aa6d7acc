//! What a connection's stream carries: the client's set-up and signs of life, and the server's pushes and questions.

use std::collections::BTreeSet;

use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use super::super::messages;
use super::super::naming::{Hosts, hosts};
use super::silence::{Step, step};
use super::*;
use crate::Revision;
use crate::model::Digest;

/// From one look at leases and at silence to the next.
const LOOK: Duration = Duration::from_secs(5);
/// A stream that does not begin with the set-up within this is ended.
const BEGIN: Duration = Duration::from_secs(10);
/// From one push of a service to the next one of the same service, at least.
const BETWEEN: Duration = Duration::from_millis(200);
/// How long a watch waits before it looks again.
const QUIET: Duration = Duration::from_secs(30);
/// Where too many watch, a subscription is looked at so often.
const POLL: Duration = Duration::from_secs(5);

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum End {
    /// The client has gone, or has not set the connection up.
    Left,
    /// It says nothing, not even when asked.
    Silent,
    /// Its token is gone, or no longer allows what the connection has registered or subscribed to. The client connects anew, and is refused there
    /// what it may not do, until it may again.
    NotAllowed,
    /// This node stops.
    Stopping,
}

/// What is subscribed to: a service, or clusters of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subscribed {
    pub(super) key: ServiceKey,
    pub(super) clusters: String,
}

/// How far a subscriber is.
pub(super) struct Subscription {
    namespace: NamespaceName,
    service: Service,
    seen: Revision,
    /// What the client was shown last.
    shown: Digest,
    /// And the time that it was told with it.
    time: i64,
}

impl Subscription {
    /// What the client is told.
    fn tell(&mut self, of: &Subscribed, hosts: Hosts) -> Info {
        (self.seen, self.shown) = (hosts.revision, hosts.digest);
        // Clients drop what is older than what they have.
        self.time = crate::registry::now_millis().max(self.time + 1);
        Info::new(&self.service, &of.clusters, hosts, self.time)
    }

    /// As [`Subscription::tell`], unless it was told the same already.
    fn tell_news(&mut self, of: &Subscribed, hosts: Hosts) -> Option<Info> {
        self.seen = hosts.revision;
        (hosts.digest != self.shown).then(|| self.tell(of, hosts))
    }
}

impl Connection {
    fn subscriptions(&self) -> std::sync::MutexGuard<'_, BTreeMap<Subscribed, Subscription>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespaces of which the client hears.
    pub(super) fn subscribed_namespaces(&self) -> BTreeSet<NamespaceName> {
        self.subscriptions().values().map(|subscription| subscription.namespace.clone()).collect()
    }

    /// Begins, or ends, to tell of changes. The answer is what there is now.
    pub(super) async fn subscribe(
        &self,
        context: &Context,
        of: Subscribed,
        namespace: &NamespaceName,
        service: Service,
        begin: bool,
    ) -> Result<Info, ApiError> {
        let _telling = self.telling.lock().await;
        let found = hosts(context, &service, &of.key, &of.wanted()).await?;
        let mut subscriptions = self.subscriptions();
        if !begin {
            subscriptions.remove(&of);
            drop(subscriptions);
            self.resubscribed.notify_one();
            return Ok(Info::new(&service, &of.clusters, found, crate::registry::now_millis()));
        }
        if subscriptions.len() >= SUBSCRIPTIONS && !subscriptions.contains_key(&of) {
            return Err(ApiError::Busy {
                what: "subscriptions of one connection",
                limit: "the fixed limit",
                value: SUBSCRIPTIONS as u64,
            });
        }
        let subscription = subscriptions.entry(of.clone()).or_insert_with(|| Subscription {
            namespace: namespace.clone(),
            service,
            seen: Revision(0),
            shown: Digest::default(),
            time: 0,
        });
        let info = subscription.tell(&of, found);
        drop(subscriptions);
        self.resubscribed.notify_one();
        Ok(info)
    }

    /// What the client is pushed of a subscription, if that is news to it.
    ///
    /// # Errors
    /// [`End::NotAllowed`]: the client may not read the namespace any more. [`End::Stopping`].
    async fn push(&self, context: &Context, of: &Subscribed, id: &mut u64) -> Result<Option<Said>, End> {
        let caller = self.caller(context);
        let _telling = self.telling.lock().await;
        let known = self.subscriptions().get(of).map(|it| (it.namespace.clone(), it.service.clone()));
        let Some((namespace, service)) = known else { return Ok(None) };
        if !caller.is_ok_and(|caller| caller.may(Role::Read, namespace.as_str())) {
            return Err(self.not_allowed());
        }
        let found = hosts(context, &service, &of.key, &of.wanted()).await.map_err(|_| End::Stopping)?;
        let mut subscriptions = self.subscriptions();
        let Some(info) = subscriptions.get_mut(of).and_then(|subscription| subscription.tell_news(of, found)) else {
            return Ok(None);
        };
        *id += 1;
        let fields = json!({
            "module": "naming",
            "namespace": namespace.as_str(),
            "serviceName": service.name,
            "groupName": service.group,
        });
        Ok(Some(messages::request("NotifySubscriberRequest", *id, Content::with(fields, info))))
    }

    /// Serves the stream until it ends: by `signs` the client is heard, and `out` is what it is told. Nothing is queued but what `out` holds: a
    /// service that changed has the state that it has when there is room.
    pub(in crate::api) async fn attend(
        &self,
        context: &Arc<Context>,
        mut signs: impl Stream<Item = Sign> + Unpin,
        out: &mpsc::Sender<Said>,
    ) -> End {
        match tokio::time::timeout(BEGIN, signs.next()).await {
            Ok(Some(Sign::Setup)) => {}
            _ => return End::Left,
        }
        self.hear();
        let mut begun = false;
        self.state.send_if_modified(|state| {
            begun = *state == State::New;
            if begun {
                *state = State::SetUp;
            }
            begun
        });
        // A second stream of the same connection, or one that is over.
        if !begun {
            return End::Left;
        }
        let mut stopping = context.stopping.clone();
        let stop = async move {
            let _ = stopping.wait_for(|stop| *stop).await.is_ok();
        };
        let mut stop = std::pin::pin!(stop);
        let mut keeping = std::pin::pin!(self.keep(context, out));
        let mut over = std::pin::pin!(self.over());
        let mut watched: BTreeMap<Subscribed, AbortHandle> = BTreeMap::new();
        let mut watches: JoinSet<Subscribed> = JoinSet::new();
        let mut due: BTreeSet<Subscribed> = BTreeSet::new();
        let mut id = 0;
        loop {
            tokio::select! {
                sign = signs.next() => match sign {
                    Some(_) => self.hear(),
                    None => return End::Left,
                },
                () = self.resubscribed.notified() => {
                    let subscriptions = self.subscriptions();
                    watched.retain(|of, watch| {
                        let stays = subscriptions.contains_key(of);
                        if !stays {
                            watch.abort();
                        }
                        stays
                    });
                    for (of, subscription) in subscriptions.iter() {
                        watched.entry(of.clone()).or_insert_with(|| {
                            let seen = subscription.seen;
                            watches.spawn(changed(context.registry.clone(), of.clone(), seen, Duration::ZERO))
                        });
                    }
                }
                Some(ended) = watches.join_next() => {
                    // One that was broken off is of no subscription any more.
                    if let Ok(of) = ended && self.subscriptions().contains_key(&of) {
                        due.insert(of);
                    }
                }
                room = out.reserve(), if !due.is_empty() => {
                    let (Ok(room), Some(of)) = (room, due.pop_first()) else { return End::Left };
                    match self.push(context, &of, &mut id).await {
                        Ok(Some(said)) => room.send(said),
                        Ok(None) => {}
                        Err(end) => return end,
                    }
                    let seen = self.subscriptions().get(&of).map(|subscription| subscription.seen);
                    match seen {
                        Some(seen) => {
                            let watch = changed(context.registry.clone(), of.clone(), seen, BETWEEN);
                            watched.insert(of, watches.spawn(watch));
                        }
                        None => drop(watched.remove(&of)),
                    }
                }
                end = &mut keeping => return end,
                () = &mut over => return End::Left,
                () = &mut stop => {
                    // Without an address: the client takes the next one that it knows.
                    let fields = json!({ "module": "internal", "serverIp": "", "serverPort": "" });
                    let _ = out.try_send(messages::request("ConnectResetRequest", id + 1, fields));
                    return End::Stopping;
                }
            }
        }
    }

    /// Renews leases, and asks the client whether it is there where it says nothing. Ends when it is not, or when it may no longer do what it does.
    async fn keep(&self, context: &Arc<Context>, out: &mpsc::Sender<Said>) -> End {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.tick().await;
        let mut asked = false;
        loop {
            looks.tick().await;
            let next = step(self.silence(), asked);
            asked = next == Step::Ask;
            match next {
                Step::Nothing => {}
                Step::Ask => {
                    let _ =
                        out.try_send(messages::request("ClientDetectionRequest", 0, json!({ "module": "internal" })));
                }
                Step::Cut => return End::Silent,
            }
            if let Err(end) = self.renew(context).await {
                return end;
            }
        }
    }
}

impl Subscribed {
    fn wanted(&self) -> Wanted {
        Wanted { clusters: self.clusters.clone(), healthy: false }
    }
}

/// Returns when the service is no longer at `seen`, not before `pause` is over.
async fn changed(registry: Registry, of: Subscribed, seen: Revision, pause: Duration) -> Subscribed {
    tokio::time::sleep(pause).await;
    loop {
        match registry.watch(&of.key, seen, Instant::now() + QUIET).await {
            Ok(now) if now != seen => return of,
            Ok(_) => {}
            // Too many watch, or it stops.
            Err(_) => {
                tokio::time::sleep(POLL).await;
                if registry.revision_of(&of.key) != seen {
                    return of;
                }
            }
        }
    }
}
