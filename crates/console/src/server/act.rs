//! Operators' actions.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde_json::json;

use super::ANSWER;
use super::request::{Failed, parse};
use super::response::{Body, json_of};
use crate::auth::Session;
use crate::hub::{Hub, Wake};
use crate::parts::{Action, Refusal};

/// Carries out an operator's action.
pub(super) async fn act(body: Bytes, session: &Session, hub: &Arc<Hub>, wake: &Wake) -> Result<Response<Body>, Failed> {
    let action: Action = parse(&body)?;
    let what = action.describe();
    let cluster = hub.parts.cluster.as_ref().filter(|_| !action.is_of_the_registry()).map(|part| part.look().name);
    // A task of its own: an action goes on even if the browser disconnects.
    let doing = {
        let hub = Arc::clone(hub);
        tokio::spawn(async move {
            let parts = &hub.parts;
            match (action.is_of_the_registry(), &parts.registry, &parts.proxy) {
                (true, Some(registry), _) => registry.act(&action).await,
                (true, None, _) => Err(Refusal::NotHere("no registry runs in it")),
                (false, _, Some(proxy)) => {
                    let proxy = Arc::clone(proxy);
                    let done = tokio::task::spawn_blocking(move || proxy.act(&action)).await;
                    done.unwrap_or_else(|error| Err(Refusal::Refused(error.to_string())))
                }
                (false, _, None) => Err(Refusal::NotHere("no proxy runs in it")),
            }
        })
    };
    let done = match tokio::time::timeout(ANSWER, doing).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(Refusal::Refused(error.to_string())),
        Err(_) => {
            tracing::warn!(token = session.name, cluster, action = what, "an action in the console takes long");
            let why = "not done yet: it goes on, look whether it happens".to_owned();
            return Err(Failed::Status(StatusCode::GATEWAY_TIMEOUT, why));
        }
    };
    wake.wake();
    match done {
        Ok(said) => {
            tracing::info!(token = session.name, cluster, action = what, "an action in the console");
            Ok(json_of(StatusCode::OK, &json!({ "done": said })))
        }
        Err(refusal) => {
            tracing::info!(token = session.name, cluster, action = what, %refusal, "an action in the console was refused");
            let status = match refusal {
                Refusal::NotHere(_) | Refusal::NotFound(_) => StatusCode::NOT_FOUND,
                Refusal::Refused(_) => StatusCode::CONFLICT,
            };
            Err(Failed::Status(status, refusal.to_string()))
        }
    }
}
