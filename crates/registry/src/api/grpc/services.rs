//! The gRPC services: their mounting, and the way of a request to one of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::{Door, HttpRequest, HttpResponse, Mounted, Who, mount, nacos, native, polaris, proto, ready, xds};
use crate::api::{ApiError, Context, Front};

/// Time until the first bytes of a response, in addition to the time for the request's body: the store's own limits are shorter.
const ANSWER: Duration = Duration::from_secs(60);

/// The gRPC services of a node.
pub(in crate::api) struct Services {
    context: Arc<Context>,
    mounted: Vec<Mounted>,
}

impl Services {
    pub(in crate::api) fn new(context: &Arc<Context>) -> Services {
        use proto::polaris::polaris_config_grpc_server::PolarisConfigGrpcServer;
        use proto::polaris::polaris_grpc_server::PolarisGrpcServer;
        use proto::polaris::polaris_heartbeat_grpc_server::PolarisHeartbeatGrpcServer;
        use proto::registry::registry_server::RegistryServer;
        use tonic_health::pb::health_server::HealthServer;

        let most = context.limits.body_bytes;
        let native = RegistryServer::new(native::Native(Arc::clone(context))).max_decoding_message_size(most);
        let polaris = polaris::Polaris(Arc::clone(context));
        let beats = PolarisHeartbeatGrpcServer::new(polaris.clone()).max_decoding_message_size(most);
        let configs = PolarisConfigGrpcServer::new(polaris.clone()).max_decoding_message_size(most);
        let polaris = PolarisGrpcServer::new(polaris).max_decoding_message_size(most);
        let health = HealthServer::new(ready::Ready(Arc::clone(context))).max_decoding_message_size(most);
        let mut mounted = vec![
            mount(Front::Native, Door::Token, native),
            mount(Front::Polaris, Door::Token, polaris),
            mount(Front::Polaris, Door::Token, beats),
            mount(Front::Polaris, Door::Token, configs),
            // Open like the HTTP paths for load balancers and the OpenAPI document.
            mount(Front::Native, Door::Open, health),
        ];
        mounted.extend(nacos::mounted(context));
        mounted.extend(xds::mounted(context));
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIBED)
                .register_encoded_file_descriptor_set(proto::DESCRIBED_XDS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        match (described().build_v1(), described().build_v1alpha()) {
            (Ok(v1), Ok(v1alpha)) => {
                mounted.push(mount(Front::Native, Door::Open, v1.max_decoding_message_size(most)));
                mounted.push(mount(Front::Native, Door::Open, v1alpha.max_decoding_message_size(most)));
            }
            // Our own description, which a test parses.
            (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "gRPC without reflection"),
        }
        Services { context: Arc::clone(context), mounted }
    }

    /// Answers a request, if it is for one of `fronts`. Returns the front, too.
    pub(in crate::api) async fn answer(
        &self,
        mut request: HttpRequest,
        peer: IpAddr,
        fronts: &[Front],
    ) -> (Front, HttpResponse) {
        let path = request.uri().path();
        let found = self.mounted.iter().find(|mounted| path.starts_with(&mounted.prefix));
        let Some(found) = found.filter(|mounted| fronts.contains(&mounted.front)) else {
            let speaker = fronts.first().copied().unwrap_or(Front::Native);
            return (speaker, Status::unimplemented("there is no such service here").into_http());
        };
        if let Err(error) = self.context.meant(request.uri(), request.headers()) {
            return (found.front, Status::from(error).into_http());
        }
        let who = Who { headers: request.headers().clone(), peer };
        if let Err(error) = self.let_in(found.door, &who) {
            self.context.refused(&error);
            return (found.front, Status::from(error).into_http());
        }
        request.extensions_mut().insert(who);
        let limit = self.context.limits.body_timeout + ANSWER;
        let answered = tokio::time::timeout(limit, (found.call)(request)).await;
        let response = answered.unwrap_or_else(|_| Status::deadline_exceeded("the request took too long").into_http());
        (found.front, response)
    }

    /// Authenticates and rate-limits a request before its body is read.
    fn let_in(&self, door: Door, who: &Who) -> Result<(), ApiError> {
        if door == Door::Within {
            return Ok(());
        }
        let caller = self.context.identify_by(&who.headers, None);
        self.context.admit(caller.as_ref().ok(), who.peer)?;
        if door == Door::Open { Ok(()) } else { caller.map(drop) }
    }
}
