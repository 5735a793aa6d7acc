//! Polaris' gRPC services for services and instances.

use std::sync::Arc;

use futures_util::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::proto::polaris as pb;
use super::proto::polaris::polaris_grpc_server::PolarisGrpc;
use super::proto::polaris::polaris_heartbeat_grpc_server::PolarisHeartbeatGrpc;
use super::{Answers, Who, while_running};
use crate::api::polaris::{Asking, code, response};
use crate::api::{ApiError, Context};

#[derive(Clone)]
pub(super) struct Polaris(pub(super) Arc<Context>);

/// Returns the request's context for [`crate::api::polaris`].
pub(super) fn asking<'a>(context: &'a Context, who: &Who) -> Result<Asking<'a>, ApiError> {
    Ok(Asking { context, caller: context.identify_by(&who.headers, None)?, peer: who.peer })
}

#[tonic::async_trait]
impl PolarisGrpc for Polaris {
    async fn report_client(&self, request: Request<pb::Client>) -> Result<Response<pb::Response>, Status> {
        // Returns the client's location as sent, if it was sent.
        let client = Some(request.into_inner());
        Ok(Response::new(pb::Response { client, ..response(code::OK, "execute success") }))
    }

    async fn register_instance(&self, request: Request<pb::Instance>) -> Result<Response<pb::Response>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.register(request.into_inner()).await))
    }

    async fn deregister_instance(&self, request: Request<pb::Instance>) -> Result<Response<pb::Response>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.deregister(request.into_inner()).await))
    }

    async fn heartbeat(&self, request: Request<pb::Instance>) -> Result<Response<pb::Response>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.heartbeat(request.get_ref()).await))
    }

    type DiscoverStream = Answers<pb::DiscoverResponse>;

    async fn discover(
        &self,
        request: Request<Streaming<pb::DiscoverRequest>>,
    ) -> Result<Response<Self::DiscoverStream>, Status> {
        let (context, who) = (Arc::clone(&self.0), Who::of(&request)?);
        let place = who.place(&context)?;
        let asked = Arc::new((context, who, place));
        let answers = request.into_inner().then(move |message| {
            let asked = Arc::clone(&asked);
            async move {
                let (context, who, _place) = &*asked;
                who.admitted(context)?;
                Ok(asking(context, who)?.discover(&message?).await)
            }
        });
        Ok(Response::new(while_running(&self.0, answers)))
    }
}

#[tonic::async_trait]
impl PolarisHeartbeatGrpc for Polaris {
    type BatchHeartbeatStream = Answers<pb::HeartbeatsResponse>;

    async fn batch_heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatsRequest>>,
    ) -> Result<Response<Self::BatchHeartbeatStream>, Status> {
        let (context, who) = (Arc::clone(&self.0), Who::of(&request)?);
        let place = who.place(&context)?;
        let asked = Arc::new((Arc::clone(&context), who, place));
        let answers = request.into_inner().then(move |message| {
            let asked = Arc::clone(&asked);
            async move {
                let (context, who, _place) = &*asked;
                who.admitted(context)?;
                asking(context, who)?.heartbeats(&message?.heartbeats).await?;
                Ok(pb::HeartbeatsResponse {})
            }
        });
        Ok(Response::new(while_running(&self.0, answers)))
    }
}
