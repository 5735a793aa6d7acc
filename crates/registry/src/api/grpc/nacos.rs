//! Nacos' two gRPC services, without a package: calls at `/Request/request`, and a stream at `/BiRequestStream/requestBiStream`. Decodes and encodes
//! the envelopes; [`crate::api::nacos`] handles the messages in them.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::proto::nacos as pb;
use super::proto::nacos::bi_request_stream_server::{BiRequestStream, BiRequestStreamServer};
use super::proto::nacos::request_server::{Request as Calls, RequestServer};
use super::{Answering, Answers, Door, HttpRequest, Mounted, Who, answered};
use crate::api::credentials::Credentials;
use crate::api::nacos::{Connection, End, OutgoingMessage, Sign};
use crate::api::{Context, Front};

/// Header of the token in an envelope.
const TOKEN: &str = "accessToken";
/// Maximum number of messages queued for a client.
const OUT: usize = 16;
/// Maximum length of a message on the stream: set-up and answers are small.
const SIGN_BYTES: usize = 64 << 10;

#[derive(Clone)]
pub(super) struct Nacos(Arc<Context>);

/// Returns both services. They authenticate by the envelopes.
pub(super) fn mounted(context: &Arc<Context>) -> [Mounted; 2] {
    let calls = RequestServer::new(Nacos(Arc::clone(context)));
    let shared = Arc::clone(context);
    let call = move |request: HttpRequest| -> Answering {
        let (calls, context) = (calls.clone(), Arc::clone(&shared));
        Box::pin(async move {
            let Some(connection) = request.extensions().get::<Arc<Connection>>().cloned() else {
                return nowhere().into_http();
            };
            // Before anything of the body is read.
            let _place = connection.place().await;
            let calls = calls.max_decoding_message_size(connection.message_bytes(&context));
            answered(calls, request).await
        })
    };
    let calls = Mounted { prefix: "/Request/".into(), front: Front::Nacos, door: Door::Within, call: Box::new(call) };
    let stream = BiRequestStreamServer::new(Nacos(Arc::clone(context))).max_decoding_message_size(SIGN_BYTES);
    [calls, super::mount(Front::Nacos, Door::Within, stream)]
}

/// Returns the error of a request without a connection, which exists wherever the front is served.
fn nowhere() -> Status {
    Status::unimplemented("Nacos is not served here")
}

fn connection<T>(request: &Request<T>) -> Result<Arc<Connection>, Status> {
    request.extensions().get::<Arc<Connection>>().cloned().ok_or_else(nowhere)
}

fn payload(message: OutgoingMessage) -> pb::Payload {
    let metadata = pb::Metadata { r#type: message.kind.into(), ..Default::default() };
    let body = prost_types::Any { type_url: String::new(), value: message.json };
    pb::Payload { metadata: Some(metadata), body: Some(body) }
}

#[tonic::async_trait]
impl Calls for Nacos {
    async fn request(&self, request: Request<pb::Payload>) -> Result<Response<pb::Payload>, Status> {
        let (connection, who) = (connection(&request)?, Who::of(&request)?);
        let pb::Payload { metadata, body } = request.into_inner();
        let mut metadata = metadata.unwrap_or_default();
        let shown = Credentials { headers: who.headers, token: metadata.headers.remove(TOKEN) };
        let body = body.unwrap_or_default().value;
        let (kind, address) = (metadata.r#type, metadata.client_ip);
        Ok(Response::new(payload(connection.answer(&self.0, shown, &address, (&kind, &body)).await)))
    }
}

#[tonic::async_trait]
impl BiRequestStream for Nacos {
    type requestBiStreamStream = Answers<pb::Payload>;

    async fn request_bi_stream(
        &self,
        request: Request<Streaming<pb::Payload>>,
    ) -> Result<Response<Self::requestBiStreamStream>, Status> {
        let (context, connection, who) = (Arc::clone(&self.0), connection(&request)?, Who::of(&request)?);
        who.admitted(&context)?;
        let place = who.place(&context)?;
        // Ends at the first message that cannot be decoded, as when the client disconnects.
        let signs = request.into_inner().take_while(|message| std::future::ready(message.is_ok()));
        let signs = signs.map(|message| match message {
            Ok(pb::Payload { metadata, body }) => {
                Sign::of(&metadata.unwrap_or_default().r#type, &body.unwrap_or_default().value)
            }
            Err(_) => Sign::Alive,
        });
        let (out, told) = mpsc::channel::<OutgoingMessage>(OUT);
        let serving = async move {
            let end = connection.attend(&context, signs, &out).await;
            // Without a stream, the client can receive neither pushes nor probes.
            connection.end();
            drop((out, place));
            end
        };
        let serving = tokio::spawn(serving);
        let told = stream::unfold(told, async |mut told| told.recv().await.map(|message| (Ok(payload(message)), told)));
        // An error status: some clients do not notice a successful end.
        let end = stream::once(async move {
            Err(match serving.await {
                Ok(End::Stopping) => Status::unavailable("this node stops"),
                Ok(End::Silent) => Status::deadline_exceeded("the client says nothing"),
                Ok(End::NotAllowed) => Status::permission_denied(
                    "the token no longer allows what this connection has registered or subscribed to",
                ),
                Ok(End::Left) | Err(_) => Status::aborted("the connection is over, or was not set up"),
            })
        });
        Ok(Response::new(Box::pin(told.chain(end))))
    }
}
