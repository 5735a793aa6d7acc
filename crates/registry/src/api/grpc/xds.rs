//! The two xDS services supported: all types on one stream (ADS), and a stream for endpoints only. [`crate::api::xds`] handles their messages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::proto::xds::envoy::service::discovery::v3 as discovery;
use super::proto::xds::envoy::service::discovery::v3::aggregated_discovery_service_server as aggregated;
use super::proto::xds::envoy::service::endpoint::v3::endpoint_discovery_service_server as endpoint;
use super::{Answering, Answers, Door, HttpRequest, Mounted, Who, answered};
use crate::api::xds::{Kind, Shown, serve};
use crate::api::{Context, Front};

/// Maximum number of responses queued for a client.
const OUT: usize = 2;
/// Time that a client has to read the last one.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Maximum length of a message from a client without a valid token in the headers.
const UNKNOWN_BYTES: usize = 256 << 10;

#[derive(Clone)]
struct Xds(Arc<Context>);

/// Returns both services. They authenticate by the headers, or by the first message.
pub(super) fn mounted(context: &Arc<Context>) -> [Mounted; 2] {
    use aggregated::AggregatedDiscoveryServiceServer as Aggregated;
    use endpoint::EndpointDiscoveryServiceServer as Endpoints;

    let (all, some) = (Xds(Arc::clone(context)), Xds(Arc::clone(context)));
    let all = move |request: HttpRequest| -> Answering {
        let most = all.message_bytes(&request);
        Box::pin(answered(Aggregated::new(all.clone()).max_decoding_message_size(most), request))
    };
    let some = move |request: HttpRequest| -> Answering {
        let most = some.message_bytes(&request);
        Box::pin(answered(Endpoints::new(some.clone()).max_decoding_message_size(most), request))
    };
    let mounted =
        |name: &str, call| Mounted { prefix: format!("/{name}/"), front: Front::Xds, door: Door::Within, call };
    [mounted(aggregated::SERVICE_NAME, Box::new(all) as _), mounted(endpoint::SERVICE_NAME, Box::new(some) as _)]
}

impl Xds {
    fn message_bytes(&self, request: &HttpRequest) -> usize {
        let most = self.0.limits.body_bytes;
        let is_known = self.0.identify_by(request.headers(), None).is_ok();
        if is_known { most } else { most.min(UNKNOWN_BYTES) }
    }

    fn begin(
        &self,
        request: Request<Streaming<discovery::DiscoveryRequest>>,
        only: Option<Kind>,
    ) -> Result<Response<Answers<discovery::DiscoveryResponse>>, Status> {
        let (context, who) = (Arc::clone(&self.0), Who::of(&request)?);
        who.admitted(&context)?;
        let place = who.place(&context)?;
        let (out, told) = mpsc::channel(OUT);
        tokio::spawn(async move {
            let shown = Shown::new(who.headers, who.peer);
            let ended = serve(&context, shown, only, request.into_inner(), &out).await;
            if let Err(status) = ended {
                // A client that has disconnected, or does not read, does not receive the reason.
                let _ = tokio::time::timeout(LAST_WORDS, out.send(Err(status))).await;
            }
            drop(place);
        });
        let told = stream::unfold(told, async |mut told| told.recv().await.map(|message| (message, told)));
        Ok(Response::new(Box::pin(told)))
    }
}

#[tonic::async_trait]
impl aggregated::AggregatedDiscoveryService for Xds {
    type StreamAggregatedResourcesStream = Answers<discovery::DiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<discovery::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.begin(request, None)
    }
}

#[tonic::async_trait]
impl endpoint::EndpointDiscoveryService for Xds {
    type StreamEndpointsStream = Answers<discovery::DiscoveryResponse>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<discovery::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        self.begin(request, Some(Kind::Endpoints))
    }
}
