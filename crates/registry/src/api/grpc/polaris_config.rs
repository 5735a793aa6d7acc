//! Polaris' gRPC service for configuration files.

use futures_util::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::polaris::{Polaris, asking};
use super::proto::polaris as pb;
use super::proto::polaris::polaris_config_grpc_server::PolarisConfigGrpc;
use super::{Answers, Who, while_running};
use crate::api::credentials::Credentials;

type Answer = Result<Response<pb::ConfigClientResponse>, Status>;

#[tonic::async_trait]
impl PolarisConfigGrpc for Polaris {
    async fn get_config_file(&self, request: Request<pb::ClientConfigFileInfo>) -> Answer {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.config_file(request.get_ref())))
    }

    async fn create_config_file(&self, request: Request<pb::ConfigFile>) -> Answer {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.draft_config_file(request.into_inner(), true).await))
    }

    async fn update_config_file(&self, request: Request<pb::ConfigFile>) -> Answer {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.draft_config_file(request.into_inner(), false).await))
    }

    async fn publish_config_file(&self, request: Request<pb::ConfigFileRelease>) -> Answer {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.release_config_file(request.get_ref()).await))
    }

    async fn upsert_and_publish_config_file(&self, request: Request<pb::ConfigFilePublishInfo>) -> Answer {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.publish_config_file(request.into_inner()).await))
    }

    async fn watch_config_files(&self, request: Request<pb::ClientWatchConfigFileRequest>) -> Answer {
        let who = Who::of(&request)?;
        let credentials = Credentials { headers: who.headers.clone(), token: None };
        Ok(Response::new(asking(&self.0, &who)?.watch_config_files(request.get_ref(), credentials).await))
    }

    async fn get_config_file_metadata_list(
        &self,
        request: Request<pb::ConfigFileGroupRequest>,
    ) -> Result<Response<pb::ConfigClientListResponse>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(asking(&self.0, &who)?.list_config_files(request.get_ref()).await))
    }

    type DiscoverStream = Answers<pb::ConfigDiscoverResponse>;

    async fn discover(
        &self,
        request: Request<Streaming<pb::ConfigDiscoverRequest>>,
    ) -> Result<Response<Self::DiscoverStream>, Status> {
        let (context, who) = (std::sync::Arc::clone(&self.0), Who::of(&request)?);
        let place = who.place(&context)?;
        let asked = std::sync::Arc::new((context, who, place));
        let answers = request.into_inner().then(move |message| {
            let asked = std::sync::Arc::clone(&asked);
            async move {
                let (context, who, _place) = &*asked;
                who.admitted(context)?;
                Ok(asking(context, who)?.discover_config(&message?).await)
            }
        });
        Ok(Response::new(while_running(&self.0, answers)))
    }
}
