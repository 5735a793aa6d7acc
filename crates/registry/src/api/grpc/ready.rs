//! `grpc.health.v1.Health`: readiness of this node, for load balancers and gRPC clients.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{Answers, Who, while_running};
use crate::api::Context;

/// Interval of a watch's checks.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Ready(pub(super) Arc<Context>);

fn status(context: &Context) -> i32 {
    if context.registry.status().ready { ServingStatus::Serving.into() } else { ServingStatus::NotServing.into() }
}

/// True for the server as a whole, and for the native and Polaris' services.
fn known(service: &str) -> bool {
    matches!(service, "" | "kingpost.registry.v1.Registry" | "v1.PolarisGRPC" | "v1.PolarisHeartbeatGRPC")
}

#[tonic::async_trait]
impl Health for Ready {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !known(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(HealthCheckResponse { status: status(&self.0) }))
    }

    type WatchStream = Answers<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let place = Who::of(&request)?.place(&self.0)?;
        let context = Arc::clone(&self.0);
        let known = known(&request.get_ref().service);
        let changes = stream::unfold((context, None, place), move |(context, told, place)| async move {
            loop {
                let now = if known { status(&context) } else { ServingStatus::ServiceUnknown.into() };
                if told != Some(now) {
                    return Some((Ok(HealthCheckResponse { status: now }), (context, Some(now), place)));
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(Response::new(while_running(&self.0, changes)))
    }
}
