//! Task of a stream: passes requests to the [`Exchange`], and its responses to the client when there is room.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use hyper::HeaderMap;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Status;

use super::super::auth::Caller;
use super::super::credentials::Credentials;
use super::exchange::{Asked, Exchange, LISTED, Listing, NAMES, World, XdsResponse};
use super::pb::envoy::service::discovery::v3 as discovery;
use super::watched::{Watches, wanted};
use super::{Kind, endpoints};
use crate::api::{ApiError, Context, RightsStamp};
use crate::{Encoding, NamespaceName, ServiceKey, ServiceSnapshot};

/// Key of the token in `node.metadata` of a client's bootstrap, for clients that cannot send metadata of their own.
const TOKEN: &str = "token";
/// Time within which a client without a token in the headers must send its first request.
const BEGIN: Duration = Duration::from_secs(10);
/// Interval between checks that the token is still valid.
const LOOK: Duration = Duration::from_secs(5);

/// Credentials of a client.
pub(in crate::api) struct Shown {
    /// Headers of the call, and the token in the first message.
    credentials: Credentials,
    /// Address of the client.
    pub(in crate::api) peer: IpAddr,
}

/// The registry as visible to a caller.
struct Seen<'a> {
    context: &'a Context,
    caller: &'a Caller,
}

/// Counter of an open stream.
struct Open<'a>(&'a Context);

/// A list of all services under construction.
type Making<'a> = Pin<Box<dyn Future<Output = Result<Arc<Listing>, ApiError>> + Send + 'a>>;

impl Shown {
    /// Creates the credentials of a call.
    pub(in crate::api) fn new(headers: HeaderMap, peer: IpAddr) -> Shown {
        Shown { credentials: Credentials { headers, token: None }, peer }
    }

    /// Identifies the caller.
    ///
    /// # Errors
    /// The token is missing or unknown.
    pub(in crate::api) fn identify(&self, context: &Context) -> Result<Caller, ApiError> {
        self.credentials.identify(context)
    }
}

impl World for Seen<'_> {
    fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        let may = self.caller.may_read(key);
        may.then(|| self.context.registry.snapshot(key)).flatten()
    }

    fn assignment(&self, service: &ServiceSnapshot) -> Bytes {
        service.encoded(Encoding::XdsEndpoints, |service| {
            let encoded = endpoints::encode(service);
            self.context.xds.left_out(self.context, &service.key, encoded.left_out);
            encoded.bytes
        })
    }
}

impl<'a> Open<'a> {
    fn new(context: &'a Context) -> Open<'a> {
        context.stats.xds.streams.fetch_add(1, Ordering::Relaxed);
        Open(context)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.stats.xds.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the namespaces in which the caller may see services; `None` for all.
fn places(caller: &Caller) -> Option<Vec<NamespaceName>> {
    let names = caller.namespaces()?;
    Some(names.iter().filter_map(|name| NamespaceName::new(name).ok()).collect())
}

/// Takes the token out of the first message, so that nothing later can reveal it.
fn token(request: &mut discovery::DiscoveryRequest) -> Option<String> {
    let metadata = request.node.as_mut()?.metadata.take()?;
    match metadata.fields.get(TOKEN)?.kind.as_ref()? {
        prost_types::value::Kind::StringValue(token) => Some(token.clone()),
        _ => None,
    }
}

/// Serves a stream until it ends. `only` is the stream's single type; with `None`, each request has its own.
///
/// # Errors
/// The reason of the end, for the client; `Ok` if the client has ended the stream.
pub(in crate::api) async fn serve(
    context: &Context,
    mut shown: Shown,
    only: Option<Kind>,
    mut requests: impl Stream<Item = Result<discovery::DiscoveryRequest, Status>> + Unpin,
    out: &mpsc::Sender<Result<discovery::DiscoveryResponse, Status>>,
) -> Result<(), Status> {
    let _open = Open::new(context);
    let mut stopping = context.stopping.clone();
    let stop = async move {
        let _ = stopping.wait_for(|stop| *stop).await.is_ok();
    };
    let mut stop = std::pin::pin!(stop);
    let begin = tokio::time::sleep(BEGIN);
    let mut begin = std::pin::pin!(begin);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: Option<(RightsStamp, Caller)> = None;
    let mut node = String::new();
    let mut exchange = Exchange::default();
    let mut watches = Watches::new(&context.registry);
    // `behind`: the client may lack something that it asked for. `relist`: the list of all services may be outdated.
    let (mut behind, mut relist) = (false, false);
    let mut listing: Option<Making<'_>> = None;
    loop {
        if relist
            && listing.is_none()
            && let Some((_, caller)) = &known
        {
            relist = false;
            listing = Some(Box::pin(context.xds.list(context, places(caller))));
        }
        tokio::select! {
            request = requests.next() => {
                let Some(request) = request else { return Ok(()) };
                let mut request = request?;
                if let Some(sent) = &mut request.node && known.is_none() {
                    node = sent.id.chars().take(64).collect();
                    shown.credentials.token = token(&mut request);
                }
                let caller = shown.identify(context);
                context.admit(caller.as_ref().ok(), shown.peer)?;
                let caller = caller.inspect_err(|error| context.refused(error))?;
                let kind = match (Kind::of(&request.type_url), only) {
                    (Some(kind), Some(only)) if kind != only => return Err(only_endpoints()),
                    (Some(kind), _) => kind,
                    (None, Some(only)) if request.type_url.is_empty() => only,
                    (None, Some(_)) => return Err(only_endpoints()),
                    (None, None) if request.type_url.is_empty() => {
                        return Err(Status::invalid_argument("type_url: found nothing, expected a type of resources"));
                    }
                    // Secrets, runtimes and other types that do not exist here: ignored, and the stream continues.
                    (None, None) => continue,
                };
                let why = request.error_detail.map(|status| status.message);
                let asked = Asked {
                    kind,
                    names: request.resource_names,
                    nonce: request.response_nonce,
                    refused: why.clone(),
                };
                let noted = exchange.request(asked).map_err(|_| too_many("names of one stream", NAMES))?;
                if noted.refused {
                    context.xds.refused(context, kind, &node, &why.unwrap_or_default());
                }
                if noted.names {
                    watch(&mut watches, &exchange, &caller);
                    (behind, relist) = (true, relist || exchange.wants_all());
                }
                known = Some((context.rights_stamp(), caller));
            }
            _ = watches.next() => (behind, relist) = (true, relist || exchange.wants_all()),
            room = out.reserve(), if behind => {
                let (Ok(room), Some((_, caller))) = (room, &known) else { return Ok(()) };
                match exchange.next(&Seen { context, caller }) {
                    Some(next) => {
                        context.stats.xds.responses.fetch_add(1, Ordering::Relaxed);
                        room.send(Ok(response(next)));
                    }
                    None => behind = false,
                }
            }
            list = async { match &mut listing { Some(listing) => listing.await, None => std::future::pending().await } } => {
                listing = None;
                let list = list?;
                if list.len() > LISTED {
                    return Err(too_many("services for a client that asks for all", LISTED));
                }
                exchange.list(list);
                behind = true;
            }
            _ = looks.tick() => {
                let stamp = context.rights_stamp();
                let is_stored = known.as_ref().is_some_and(|(_, caller)| caller.stored().is_some());
                if is_stored {
                    // It may have expired.
                    shown.identify(context)?;
                }
                if known.as_ref().is_some_and(|(before, _)| *before != stamp) {
                    // Other tokens: the client may see more or less.
                    let caller = shown.identify(context)?;
                    watch(&mut watches, &exchange, &caller);
                    (behind, relist) = (true, exchange.wants_all());
                    known = Some((stamp, caller));
                }
            }
            () = &mut begin, if known.is_none() && !begin.is_elapsed() => {
                // A client with a valid token in the headers may take longer.
                shown.identify(context)?;
            }
            () = out.closed() => return Ok(()),
            () = &mut stop => return Err(Status::unavailable("this node stops")),
        }
    }
}

/// Watches the services that the client asked for, as far as it may see them.
fn watch(watches: &mut Watches, exchange: &Exchange, caller: &Caller) {
    let keys = exchange.keys().filter(|key| caller.may_read(key));
    let listed = exchange.wants_all().then(|| places(caller));
    watches.set(wanted(keys.collect::<BTreeSet<_>>().into_iter(), listed));
}

fn response(response: XdsResponse) -> discovery::DiscoveryResponse {
    discovery::DiscoveryResponse {
        version_info: response.version,
        resources: response.resources,
        type_url: response.kind.type_url().to_owned(),
        nonce: response.nonce,
    }
}

fn only_endpoints() -> Status {
    Status::invalid_argument("type_url: this stream is about endpoints; the others are at AggregatedDiscoveryService")
}

fn too_many(what: &'static str, most: usize) -> Status {
    ApiError::Busy { what, limit: "the fixed limit", value: most as u64 }.into()
}
