//! `POST /eureka/peerreplication/batch`: changes that another Eureka server's clients made there.
//!
//! ```text
//!  {"replicationList": [{"action": "Heartbeat", "appName": "SHOP", "id": "a", "lastDirtyTimestamp": 7, "instanceInfo": …}, …]}
//!  {"responseList": [{"statusCode": 404}, {"statusCode": 409, "responseEntity": {the instance as it is here}}, …]}
//! ```
//!
//! Each change has a status of its own, in the order of the changes: that of the same request alone with the header `x-netflix-discovery-replication`.
//! The changes of one instance are made in their order, those of several at the same time.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::servers::Action;
use super::view::{self, Form};
use super::{Call, Origin, app_name, wire};
use crate::api::{ApiError, Reply};

/// The body of a request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Batch {
    replication_list: Vec<Value>,
}

/// A change of an instance.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replicated {
    action: Action,
    app_name: String,
    id: String,
    #[serde(default)]
    last_dirty_timestamp: Option<i64>,
    #[serde(default)]
    overridden_status: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    instance_info: Option<Value>,
}

/// Makes the changes of a batch.
pub(super) async fn batch(call: &Call<'_>) -> Result<Reply, ApiError> {
    let Batch { replication_list } = call.request.json()?;
    call.context.batch("the list of replicated changes", replication_list.len())?;
    let call =
        Call { caller: call.caller.clone(), namespace: call.namespace.clone(), origin: Origin::Replica, ..*call };
    let mut of_instances: BTreeMap<(String, String), Vec<(usize, Replicated)>> = BTreeMap::new();
    let mut answers: Vec<Value> = Vec::with_capacity(replication_list.len());
    for (number, change) in replication_list.into_iter().enumerate() {
        match Replicated::deserialize(change) {
            Ok(change) => {
                let instance = (app_name(&change.app_name), change.id.clone());
                of_instances.entry(instance).or_default().push((number, change));
                answers.push(Value::Null);
            }
            Err(_) => answers.push(json!({ "statusCode": StatusCode::BAD_REQUEST.as_u16() })),
        }
    }
    let made = join_all(of_instances.into_values().map(|changes| one_by_one(&call, changes))).await;
    for (number, answer) in made.into_iter().flatten() {
        if let Some(place) = answers.get_mut(number) {
            *place = answer;
        }
    }
    Ok(Reply::json(StatusCode::OK, &json!({ "responseList": answers })))
}

/// Makes the changes of one instance; returns their answers with their numbers.
async fn one_by_one(call: &Call<'_>, changes: Vec<(usize, Replicated)>) -> Vec<(usize, Value)> {
    let mut answers = Vec::with_capacity(changes.len());
    for (number, change) in changes {
        let answer = match make(call, change).await {
            Ok(None) => json!({ "statusCode": StatusCode::OK.as_u16() }),
            Ok(Some(newer)) => json!({ "statusCode": StatusCode::CONFLICT.as_u16(), "responseEntity": newer }),
            Err(error) => json!({ "statusCode": error.status().as_u16() }),
        };
        answers.push((number, answer));
    }
    answers
}

/// Makes a change. Returns the instance as it is here if the sender has older data of it.
async fn make(call: &Call<'_>, change: Replicated) -> Result<Option<Value>, ApiError> {
    let Replicated { action, app_name: app, id, last_dirty_timestamp: dirty, overridden_status, status, instance_info } =
        change;
    match action {
        Action::Register => {
            let info = instance_info.ok_or_else(|| ApiError::bad("instanceInfo is missing"))?;
            call.put(&app, &wire::read(&json!({ "instance": info }))?).await?;
        }
        Action::Heartbeat => {
            let newer = call.renew(&app, &id, dirty, overridden_status.as_deref()).await?;
            return Ok(newer.map(|newer| view::instance(&newer, Form::Json)));
        }
        Action::Cancel => call.cancel(&app, &id).await?,
        Action::StatusUpdate => call.overrides(&app, &id, true, status.as_deref(), dirty).await?,
        Action::DeleteStatusOverride => call.overrides(&app, &id, false, status.as_deref(), dirty).await?,
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn changes_as_the_original_sends_them() {
        let body = r#"{"replicationList":[
            {"appName":"SHOP","id":"h:1","lastDirtyTimestamp":1700000000000,"overriddenStatus":null,"status":"UP","instanceInfo":null,"action":"Heartbeat"},
            {"appName":"SHOP","id":"h:1","action":"Cancel"}]}"#;
        let batch: Batch = serde_json::from_str(body).unwrap();
        let changes: Vec<Replicated> =
            batch.replication_list.into_iter().map(|change| Replicated::deserialize(change).unwrap()).collect();
        assert_eq!(changes[0].last_dirty_timestamp, Some(1_700_000_000_000));
        assert_eq!((changes[0].action, changes[1].action), (Action::Heartbeat, Action::Cancel));
        for wrong in [r#"{"appName":"A","action":"Cancel"}"#, r#"{"appName":"A","id":"b","action":"Explode"}"#] {
            assert!(serde_json::from_str::<Replicated>(wrong).is_err(), "{wrong}");
        }
    }
}
