//! Stream of a connection: the client's set-up and signs of life, and the server's pushes and probes.

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

/// Interval between checks of leases and of silence.
const LOOK: Duration = Duration::from_secs(5);
/// Time within which a stream must begin with the set-up.
const BEGIN: Duration = Duration::from_secs(10);
/// Minimum interval between two pushes of the same service.
const BETWEEN: Duration = Duration::from_millis(200);
/// Time that a watch waits before it is renewed.
const QUIET: Duration = Duration::from_secs(30);
/// Polling interval of a subscription when there are too many watches.
const POLL: Duration = Duration::from_secs(5);

/// Reason for the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum End {
    /// The client has disconnected, or has not set the connection up.
    Left,
    /// The client is silent, even after a probe.
    Silent,
    /// The client's token was removed, or no longer permits its registrations or subscriptions. The client reconnects, and is then refused what it
    /// may not do until it may again.
    NotAllowed,
    /// This node is stopping.
    Stopping,
}

/// Object of a subscription: a service, or clusters of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subscribed {
    pub(super) key: ServiceKey,
    pub(super) clusters: String,
}

/// State of a subscription.
pub(super) struct Subscription {
    namespace: NamespaceName,
    service: Service,
    seen: Revision,
    /// Digest of the last answer to the client.
    shown: Digest,
    /// Time stamp of that answer.
    time: i64,
}

impl Subscription {
    /// Returns the answer for the client, and records it.
    fn tell(&mut self, of: &Subscribed, hosts: Hosts) -> Info {
        (self.seen, self.shown) = (hosts.revision, hosts.digest);
        // Clients ignore an answer older than their last one.
        self.time = crate::registry::now_millis().max(self.time + 1);
        Info::new(&self.service, &of.clusters, hosts, self.time)
    }

    /// Returns the answer like [`Subscription::tell`], unless the last one was the same.
    fn tell_news(&mut self, of: &Subscribed, hosts: Hosts) -> Option<Info> {
        self.seen = hosts.revision;
        (hosts.digest != self.shown).then(|| self.tell(of, hosts))
    }
}

impl Connection {
    fn subscriptions(&self) -> std::sync::MutexGuard<'_, BTreeMap<Subscribed, Subscription>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the services of the client's subscriptions.
    pub(super) fn subscribed_services(&self) -> BTreeSet<ServiceKey> {
        self.subscriptions().keys().map(|subscribed| subscribed.key.clone()).collect()
    }

    /// Begins or ends a subscription. Returns the current state of the service.
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

    /// Returns the push for a subscription, if the client does not have its content.
    ///
    /// # Errors
    /// [`End::NotAllowed`]: the client may no longer read the namespace. [`End::Stopping`].
    async fn push(&self, context: &Context, of: &Subscribed, id: &mut u64) -> Result<Option<OutgoingMessage>, End> {
        let caller = self.caller(context);
        let _telling = self.telling.lock().await;
        let known = self.subscriptions().get(of).map(|it| (it.namespace.clone(), it.service.clone()));
        let Some((namespace, service)) = known else { return Ok(None) };
        if !caller.is_ok_and(|caller| caller.may_read(&of.key)) {
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

    /// Serves the stream until it ends: `signs` are the client's messages, and `out` takes the server's. Only `out` queues messages: a changed
    /// service is encoded in its current state when there is room.
    pub(in crate::api) async fn attend(
        &self,
        context: &Arc<Context>,
        mut signs: impl Stream<Item = Sign> + Unpin,
        out: &mpsc::Sender<OutgoingMessage>,
    ) -> End {
        let Ok(Some(Sign::Setup(labels))) = tokio::time::timeout(BEGIN, signs.next()).await else { return End::Left };
        // A second stream of the connection is refused below: the labels of the first stay.
        let _ = self.labels.set(labels);
        self.hear();
        let mut begun = false;
        self.state.send_if_modified(|state| {
            begun = *state == State::New;
            if begun {
                *state = State::SetUp;
            }
            begun
        });
        // A second stream of the same connection, or of one that is over.
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
                    // An aborted watch no longer belongs to a subscription.
                    if let Ok(of) = ended && self.subscriptions().contains_key(&of) {
                        due.insert(of);
                    }
                }
                room = out.reserve(), if !due.is_empty() => {
                    let (Ok(room), Some(of)) = (room, due.pop_first()) else { return End::Left };
                    match self.push(context, &of, &mut id).await {
                        Ok(Some(message)) => room.send(message),
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
                room = async {
                    self.listening.changed().await;
                    out.reserve().await
                } => {
                    let Ok(room) = room else { return End::Left };
                    if let Some(message) = self.next_push(context, &mut id) {
                        room.send(message);
                    }
                }
                end = &mut keeping => return end,
                () = &mut over => return End::Left,
                () = &mut stop => {
                    // Without an address: the client takes the next one in its list.
                    let fields = json!({ "module": "internal", "serverIp": "", "serverPort": "" });
                    let _ = out.try_send(messages::request("ConnectResetRequest", id + 1, fields));
                    return End::Stopping;
                }
            }
        }
    }

    /// Renews leases, and sends probes to a silent client. Returns when the client is lost, or when its permissions no longer suffice.
    async fn keep(&self, context: &Arc<Context>, out: &mpsc::Sender<OutgoingMessage>) -> End {
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

/// Returns when the service's revision differs from `seen`, but not before `pause` has elapsed.
async fn changed(registry: Registry, of: Subscribed, seen: Revision, pause: Duration) -> Subscribed {
    tokio::time::sleep(pause).await;
    loop {
        match registry.watch(&of.key, seen, Instant::now() + QUIET).await {
            Ok(now) if now != seen => return of,
            Ok(_) => {}
            // Too many watches, or the server is stopping.
            Err(_) => {
                tokio::time::sleep(POLL).await;
                if registry.revision_of(&of.key) != seen {
                    return of;
                }
            }
        }
    }
}
