//! A gRPC connection of a Nacos client, which is the lease of the instances that the client registers over it.
//!
//! Unary calls carry no id: the server identifies the client by the connection. Over a stream of the same connection, the client receives changes of
//! its subscriptions.
//!
//! - The connection's node renews the leases of its instances. If the node dies, they expire, and before that the client registers the instances
//!   again at another node.
//! - An instance's row names the connection that published the instance last. A connection that ends changes only rows that name it. So a connection
//!   that ends late removes nothing of a later one, on any node.
//! - When this node stops, no instance is removed: the clients connect to another node.
//! - A connection is ended, as if the client had disconnected, if its token no longer permits its registrations or subscriptions
//!   ([`End::NotAllowed`]).

mod listening;
mod silence;
mod stream;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use self::listening::Listening;
use self::stream::{Subscribed, Subscription};
use super::super::auth::Caller;
use super::super::credentials::Credentials;
use super::messages::{At, Content, OutgoingMessage, Refusal};
use super::naming::{Naming, Wanted};
use super::wire::{self, Info, Lease, Sent, Service};
use super::*;
use crate::rights::{Access, Resource};
use crate::{Beat, Edit, Health, InstanceId, NamespaceName, Patch, Registry, ServiceKey, WriteError};

pub(in crate::api) use self::stream::End;

/// Maximum number of instances of a connection.
const INSTANCES: usize = 4096;
/// Maximum number of subscriptions of a connection.
const SUBSCRIPTIONS: usize = 4096;
/// Maximum number of a connection's calls that are read at once; further ones wait.
const READING: usize = 8;
/// Maximum length of a message of a connection that has not yet sent a valid token.
const UNKNOWN_BYTES: usize = 256 << 10;
/// Time that a call waits for the connection's set-up: it may have overtaken the stream's first message.
const SETTING_UP: Duration = Duration::from_secs(3);
/// Maximum silence of a client whose missing instances are registered again.
const HEARD: Duration = Duration::from_secs(10);
/// Maximum number of concurrent writes of a call.
const WRITES: usize = 64;

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The client has not yet opened its stream.
    New,
    SetUp,
    /// The connection registers nothing any more.
    Over,
}

/// A connection, as described in the module.
pub(in crate::api) struct Connection {
    /// Name in rows and for the client; without spaces.
    name: String,
    peer: IpAddr,
    began: Instant,
    /// Time of the client's last sign of life, in milliseconds after `began`.
    heard: AtomicU64,
    state: watch::Sender<State>,
    /// The last valid credentials of the client.
    let_in: Mutex<Option<LetIn>>,
    reading: Semaphore,
    /// The published instances. Locked during the changes in the store, too.
    held: tokio::sync::Mutex<PublishedInstances>,
    /// True once the connection has published an instance.
    published: AtomicBool,
    subscriptions: Mutex<BTreeMap<Subscribed, Subscription>>,
    /// Locked from before a service is read until its answer to the client is decided: so a later answer is never older.
    telling: tokio::sync::Mutex<()>,
    /// Signals a change of `subscriptions`.
    resubscribed: Notify,
    /// The configuration entries that the client listens to.
    listening: Listening,
    /// Labels of the client's set-up.
    labels: OnceLock<Vec<(String, String)>>,
}

/// Credentials that were accepted.
#[derive(Clone)]
struct LetIn {
    /// The credentials; checked again whenever a permission depends on them.
    shown: Credentials,
    /// The caller at that time, for the audit log: the token may have been removed since.
    caller: Caller,
}

/// An instance published by a connection, which can publish it again.
#[derive(Clone)]
struct Published {
    namespace: NamespaceName,
    service: Service,
    sent: Sent,
}

/// Instances published by a connection, by service.
type PublishedInstances = BTreeMap<ServiceKey, BTreeMap<InstanceId, Published>>;

/// An open connection; dropped when it is closed.
pub(in crate::api) struct Opened {
    /// The connection.
    pub(in crate::api) connection: Arc<Connection>,
    context: Arc<Context>,
}

impl Opened {
    /// Creates a connection of a client at `peer`.
    ///
    /// # Errors
    /// The system has no random numbers for its name.
    pub(in crate::api) fn new(context: &Arc<Context>, peer: IpAddr) -> std::io::Result<Opened> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
        let connection = Connection {
            name: format!("{:016x}", u64::from_be_bytes(random)),
            peer,
            began: Instant::now(),
            heard: AtomicU64::new(0),
            state: watch::Sender::new(State::New),
            let_in: Mutex::default(),
            reading: Semaphore::new(READING),
            held: tokio::sync::Mutex::default(),
            published: AtomicBool::new(false),
            subscriptions: Mutex::default(),
            telling: tokio::sync::Mutex::default(),
            resubscribed: Notify::new(),
            listening: Listening::new(&context.registry),
            labels: OnceLock::new(),
        };
        Ok(Opened { connection: Arc::new(connection), context: Arc::clone(context) })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.connection.end();
        let stopping = *self.context.stopping.borrow();
        if stopping || !self.connection.published.load(Ordering::Acquire) {
            return;
        }
        let (connection, context) = (Arc::clone(&self.connection), Arc::clone(&self.context));
        tokio::spawn(async move { connection.withdraw_all(&context).await });
    }
}

impl Connection {
    fn hear(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns the time since the client's last sign of life.
    fn silence(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.heard.load(Ordering::Relaxed)))
    }

    /// True if a call with a valid token has come over the connection.
    pub(in crate::api) fn is_known(&self) -> bool {
        self.let_in().is_some()
    }

    /// Returns the maximum length of a message.
    pub(in crate::api) fn message_bytes(&self, context: &Context) -> usize {
        let most = context.limits.body_bytes;
        if self.is_known() { most } else { most.min(UNKNOWN_BYTES) }
    }

    /// Waits for a slot to read a call.
    pub(in crate::api) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.reading.acquire().await.ok()
    }

    /// Ends the connection: it registers nothing from now on.
    pub(in crate::api) fn end(&self) {
        self.state.send_replace(State::Over);
    }

    fn is_over(&self) -> bool {
        *self.state.borrow() == State::Over
    }

    /// Returns once the connection must be closed.
    pub(in crate::api) async fn over(&self) {
        let mut state = self.state.subscribe();
        // The value of the wait holds a lock, which must not live across an await.
        let _ = state.wait_for(|state| *state == State::Over).await.is_ok();
    }

    /// Waits up to [`SETTING_UP`] for the connection's set-up.
    async fn set_up(&self) -> Result<(), Refusal> {
        let mut state = self.state.subscribe();
        let wait = async { state.wait_for(|state| *state != State::New).await.is_ok() };
        let _ = tokio::time::timeout(SETTING_UP, wait).await;
        if *self.state.borrow() == State::SetUp { Ok(()) } else { Err(Refusal::NoConnection) }
    }

    /// Returns the labels of the client's set-up.
    fn labels(&self) -> Vec<(String, String)> {
        self.labels.get().cloned().unwrap_or_default()
    }

    fn let_in(&self) -> Option<LetIn> {
        self.let_in.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the client's current identity, by its last accepted credentials.
    ///
    /// # Errors
    /// No credentials were accepted yet, or the token is no longer valid.
    fn caller(&self, context: &Context) -> Result<Caller, ApiError> {
        self.let_in().ok_or(ApiError::Unauthorized)?.shown.identify(context)
    }

    /// Logs why the connection ends.
    fn not_allowed(&self) -> End {
        let let_in = self.let_in();
        let token = let_in.as_ref().map_or("-", |let_in| let_in.caller.name());
        tracing::info!(
            peer = %self.peer,
            token,
            "the connection of a client of Nacos is ended: the client's token no longer allows what the connection has registered or subscribed to"
        );
        End::NotAllowed
    }

    fn remember(&self, shown: Credentials, caller: Caller) {
        *self.let_in.lock().unwrap_or_else(PoisonError::into_inner) = Some(LetIn { shown, caller });
    }

    /// Answers a call, given as the name of a message and its fields as JSON.
    pub(in crate::api) async fn answer(
        &self,
        context: &Arc<Context>,
        shown: Credentials,
        address: &str,
        (kind, json): (&str, &[u8]),
    ) -> OutgoingMessage {
        self.hear();
        let (request, asked) = Asked::read(kind, json);
        let name = asked.as_ref().map_or("ErrorResponse", Asked::answer);
        let answer = match asked {
            Ok(asked) => self.carry_out(context, shown, address, asked).await,
            Err(error) => Err(Refusal::Error(error)),
        };
        if let Err(Refusal::Error(error)) = &answer {
            context.refused(error);
        }
        message(name, &request, answer)
    }

    async fn carry_out(
        &self,
        context: &Arc<Context>,
        shown: Credentials,
        address: &str,
        asked: Asked,
    ) -> Result<Content, Refusal> {
        let caller = shown.identify(context);
        context.admit(caller.as_ref().ok(), self.peer)?;
        if asked.is_about_configuration() {
            let caller = caller?;
            let answer = self.configuration(context, &caller, address, asked).await?;
            self.remember(shown, caller);
            return Ok(answer);
        }
        let naming = |namespace: NamespaceName, access: Access, service: Option<&Service>| {
            let naming = Naming { context, caller: caller.clone()?, peer: self.peer, namespace };
            naming.enters(access)?;
            service.map_or(Ok(()), |service| naming.needs(access, service))?;
            self.remember(shown.clone(), naming.caller.clone());
            Ok::<_, ApiError>(naming)
        };
        match asked {
            Asked::ServerCheck => Ok(json!({ "connectionId": self.name, "supportAbilityNegotiation": false }).into()),
            Asked::HealthCheck => {
                self.set_up().await?;
                Ok(json!({}).into())
            }
            Asked::Instance { at: At { namespace, service }, register, sent } => {
                let naming = naming(namespace, Access::Write, Some(&service))?;
                self.set_up().await?;
                match (sent.ephemeral, register) {
                    (true, true) => self.publish(&naming, &service, vec![*sent]).await?,
                    (true, false) => self.withdraw(&naming, &service, &sent).await?,
                    (false, true) => drop(naming.put(&service, &sent, Lease::Beats).await?),
                    (false, false) => naming.remove(&service, &sent).await?,
                }
                Ok(json!({ "type": if register { "registerInstance" } else { "deregisterInstance" } }).into())
            }
            Asked::Batch { at: At { namespace, service }, list } => {
                let naming = naming(namespace, Access::Write, Some(&service))?;
                self.set_up().await?;
                context.batch("the list of instances", list.len())?;
                self.publish(&naming, &service, list).await?;
                Ok(json!({ "type": "batchRegisterInstance" }).into())
            }
            Asked::Subscribe { at: At { namespace, service }, clusters, begin } => {
                let naming = naming(namespace, Access::Read, Some(&service))?;
                self.set_up().await?;
                let subscribed = Subscribed { key: naming.key(&service)?, clusters };
                Ok(self.subscribe(context, subscribed, &naming.namespace, service, begin).await?.into())
            }
            Asked::Query { at: At { namespace, service }, wanted } => {
                let naming = naming(namespace, Access::Read, Some(&service))?;
                let hosts = naming.hosts(&service, &wanted).await?;
                Ok(Info::new(&service, &wanted.clusters, hosts, crate::registry::now_millis()).into())
            }
            Asked::List { namespace, group, page, size } => {
                let (names, count) = naming(namespace, Access::Read, None)?.services(&group, page, size, true).await?;
                Ok(json!({ "count": count, "serviceNames": names }).into())
            }
            Asked::ConfigQuery { .. }
            | Asked::ConfigPublish { .. }
            | Asked::ConfigRemove { .. }
            | Asked::ConfigListen { .. } => Err(ApiError::NotImplemented("not a request about services".into()).into()),
        }
    }

    /// Replaces the instances of this connection in a service. If one of them cannot be written, the others are, and the previous instances are kept.
    async fn publish(&self, naming: &Naming<'_>, service: &Service, list: Vec<Sent>) -> Result<(), Refusal> {
        let key = naming.key(service)?;
        let mut wanted = BTreeMap::new();
        for sent in list {
            let published = Published { namespace: naming.namespace.clone(), service: service.clone(), sent };
            wanted.insert(naming.id(service, &published.sent)?, published);
        }
        let mut held = self.held.lock().await;
        if self.is_over() {
            return Err(Refusal::NoConnection);
        }
        let before = held.get(&key).cloned().unwrap_or_default();
        let others = held.values().map(BTreeMap::len).sum::<usize>() - before.len();
        if others + wanted.len() > INSTANCES {
            let error = ApiError::Busy {
                what: "instances of one connection",
                limit: "the fixed limit",
                value: INSTANCES as u64,
            };
            return Err(error.into());
        }
        // Set before the first write: if the call is aborted, everything is removed at the connection's end.
        self.published.store(true, Ordering::Release);
        let now = held.entry(key.clone()).or_default();
        now.extend(wanted.clone());
        let mut failed = None;
        let list: Vec<(&InstanceId, &Published)> = wanted.iter().collect();
        for some in list.chunks(WRITES) {
            let written = join_all(some.iter().map(|(_, one)| naming.put(service, &one.sent, self.lease()))).await;
            for ((id, _), written) in some.iter().zip(written) {
                let Err(error) = written else { continue };
                match before.get(*id) {
                    Some(old) => drop(now.insert((*id).clone(), old.clone())),
                    None => drop(now.remove(*id)),
                }
                failed.get_or_insert(error);
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        let gone: Vec<InstanceId> = before.into_keys().filter(|id| !wanted.contains_key(id)).collect();
        let removed = self.release(&naming.context.registry, &gone, false).await?;
        naming.audit_several("deregister", &removed);
        match wanted.is_empty() {
            true => drop(held.remove(&key)),
            false => drop(held.insert(key, wanted)),
        }
        Ok(())
    }

    fn lease(&self) -> Lease<'_> {
        Lease::Connection(&self.name)
    }

    /// Removes an instance of this connection, or one that depends on no connection. An instance of another connection is kept, as in Nacos.
    async fn withdraw(&self, naming: &Naming<'_>, service: &Service, sent: &Sent) -> Result<(), Refusal> {
        let (key, id) = (naming.key(service)?, naming.id(service, sent)?);
        let mut held = self.held.lock().await;
        let own = held.get_mut(&key).is_some_and(|ids| ids.remove(&id).is_some());
        held.retain(|_, ids| !ids.is_empty());
        if own {
            let removed = self.release(&naming.context.registry, &[id], false).await?;
            naming.audit_several("deregister", &removed);
            return Ok(());
        }
        match naming.found(service, sent).await? {
            Some(instance) if wire::connection(&instance).is_none() => Ok(naming.remove_found(&instance).await?),
            _ => Ok(()),
        }
    }

    /// Removes those of `ids` that this connection published last. Returns the removed ones. `lost`: the connection has ended without a word about
    /// them. Then those with overrides stay, critical, until they are removed by their check's `deregister_after`: the client may connect again, and
    /// the overrides must be there.
    async fn release(
        &self,
        registry: &Registry,
        ids: &[InstanceId],
        lost: bool,
    ) -> Result<Vec<InstanceId>, WriteError> {
        let mut removed = Vec::new();
        for some in ids.chunks(WRITES) {
            let written = join_all(some.iter().map(|id| self.release_one(registry, id, lost))).await;
            for (id, written) in some.iter().zip(written) {
                if written? {
                    removed.push(id.clone());
                }
            }
        }
        Ok(removed)
    }

    async fn release_one(&self, registry: &Registry, id: &InstanceId, lost: bool) -> Result<bool, WriteError> {
        let own = |row: &&Arc<Instance>| wire::connection(row) == Some(&self.name);
        let written = registry.change(id, |row| {
            Ok::<_, WriteError>(match row.filter(own) {
                None => Edit::Nothing,
                Some(row) if lost && row.is_overridden() => {
                    Edit::Patch(Patch { health: Some(Health::Critical), ..Patch::default() })
                }
                Some(_) => Edit::Deregister,
            })
        });
        Ok(written.await?.changed())
    }

    /// Removes all instances at the connection's end. An instance that cannot be removed now expires with its lease.
    async fn withdraw_all(&self, context: &Arc<Context>) {
        let held = std::mem::take(&mut *self.held.lock().await);
        let let_in = self.let_in();
        for (key, ids) in held {
            let ids: Vec<InstanceId> = ids.into_keys().collect();
            match (self.release(&context.registry, &ids, true).await, &let_in) {
                (Ok(removed), Some(LetIn { caller, .. })) if !removed.is_empty() => {
                    let namespace = NamespaceName::of(&key);
                    let object = super::super::several(&removed);
                    context.audit(caller, self.peer, "connection lost", namespace.as_str(), &object);
                }
                (Ok(_), _) => {}
                (Err(error), _) => {
                    tracing::warn!(service = key.as_str(), %error, "instances of a client of Nacos that is gone stay until their leases end");
                }
            }
        }
    }

    /// Renews the leases of the published instances. Forgets instances that another connection has published since. Registers missing instances
    /// again, if the client was heard within [`HEARD`].
    ///
    /// # Errors
    /// [`End::NotAllowed`]: the client may no longer write where it has published, or no longer read where it has subscribed. Then nothing is
    /// renewed.
    async fn renew(&self, context: &Arc<Context>) -> Result<(), End> {
        let mut held = self.held.lock().await;
        if self.is_over() {
            return Ok(());
        }
        let registry = &context.registry;
        let taken_over = |id: &InstanceId| {
            registry.instance(id).is_some_and(|row| wire::connection(&row).is_some_and(|name| name != self.name))
        };
        for ids in held.values_mut() {
            ids.retain(|id, _| !taken_over(id));
        }
        held.retain(|_, ids| !ids.is_empty());
        let read = self.subscribed_services();
        if held.is_empty() && read.is_empty() {
            return Ok(());
        }
        let is_allowed = |caller: &Caller| {
            let may_write =
                |key: &ServiceKey| caller.may(Access::Write, Resource::service(key.name()), key.namespace());
            held.keys().all(may_write) && read.iter().all(|key| caller.may_read(key))
        };
        let caller = self.caller(context).ok().filter(is_allowed).ok_or_else(|| self.not_allowed())?;
        let own: Vec<(&InstanceId, &Published)> = held.values().flatten().collect();
        for some in own.chunks(registry.limits().call_rows) {
            let ids: Vec<InstanceId> = some.iter().map(|(id, _)| (*id).clone()).collect();
            let beats = registry.heartbeat(&ids).await;
            let missing = some.iter().zip(&beats).filter(|(_, beat)| **beat == Beat::Unknown);
            for ((_, published), _) in missing {
                if self.is_over() || self.silence() > HEARD {
                    return Ok(());
                }
                let Published { namespace, service, sent } = published;
                let (caller, namespace) = (caller.clone(), namespace.clone());
                let naming = Naming { context, caller, peer: self.peer, namespace };
                if let Err(error) = naming.put(service, sent, self.lease()).await {
                    tracing::warn!(%error, "an instance that a client of Nacos has registered, and that is missing, could not be registered again");
                }
            }
        }
        Ok(())
    }
}
