//! `/v1/txn`: several operations on keys, all or none.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::wire::Object;
use super::{Call, configuration, kv};
use crate::Revision;
use crate::api::{ApiError, Reply};
use crate::kv::{Entry, Given, MOST_OPERATIONS, Operation, Verb};
use crate::rights::{Access, Resource};

pub(super) async fn handle(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.is(&hyper::Method::PUT)?;
    let body: Value = call.request.json()?;
    let list = body.as_array().ok_or_else(|| ApiError::bad("the body: expected a list of operations"))?;
    if list.len() > MOST_OPERATIONS {
        let text = format!("Transaction contains too many operations ({} > {MOST_OPERATIONS})", list.len());
        return Ok(Reply::text(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    let mut operations = Vec::with_capacity(list.len());
    let mut refused: Vec<Value> = Vec::new();
    for (index, one) in list.iter().enumerate() {
        let operation = operation(call, one)?;
        refused.extend(operation.as_ref().err().map(|what| json!({ "OpIndex": index, "What": what })));
        operations.extend(operation);
    }
    if !refused.is_empty() {
        return Ok(Reply::json(StatusCode::CONFLICT, &json!({ "Results": null, "Errors": refused })));
    }
    let writes = operations.iter().any(|operation| operation.verb.writes());
    call.caller.enters(if writes { Access::Write } else { Access::Read }, call.namespace.as_str())?;
    let refused = operations.iter().enumerate().filter_map(|(index, operation)| {
        let refused = allowed(call, operation).err()?;
        Some(json!({ "OpIndex": index, "What": refused.to_string() }))
    });
    let refused: Vec<Value> = refused.collect();
    if !refused.is_empty() {
        return Ok(Reply::json(StatusCode::CONFLICT, &json!({ "Results": null, "Errors": refused })));
    }
    let keys: Vec<_> =
        operations.iter().filter(|operation| operation.verb.writes()).map(|one| one.key.to_string()).collect();
    match call.context.registry.kv_apply(&call.namespace, operations).await? {
        Ok(given) => {
            if writes {
                call.audit("txn", &keys.join(" "));
            }
            let entry = |entry: &Arc<Entry>, with_value| json!({ "KV": kv::show(entry, with_value) });
            let mut results = Vec::new();
            for given in &given {
                match given {
                    Given::Entry { entry: found, with_value } => {
                        let found = call.readable(vec![Arc::clone(found)]);
                        results.extend(found.iter().map(|found| entry(found, *with_value)));
                    }
                    Given::Tree(found) => {
                        results.extend(call.readable(found.clone()).iter().map(|found| entry(found, true)));
                    }
                    Given::Nothing => {}
                }
            }
            Ok(Reply::ok(&json!({ "Results": results, "Errors": null })))
        }
        Err(refused) => {
            let errors: Vec<Value> = refused
                .iter()
                .map(|(index, refusal)| json!({ "OpIndex": index, "What": refusal.to_string() }))
                .collect();
            Ok(Reply::json(StatusCode::CONFLICT, &json!({ "Results": null, "Errors": errors })))
        }
    }
}

/// Checks the caller's right to an operation. What is read is looked through afterwards, as at Consul.
fn allowed(call: &Call<'_>, operation: &Operation) -> Result<(), ApiError> {
    if configuration::name_of(call, &operation.key).is_some() {
        return Err(ApiError::bad(format!("{}: a configuration entry is in no transaction", operation.key)));
    }
    let key = Resource::key(&operation.key);
    match &operation.verb {
        Verb::Get | Verb::GetOrEmpty | Verb::GetTree => Ok(()),
        Verb::CheckIndex(_) | Verb::CheckSession(_) | Verb::CheckNotExists => call.needs(Access::Read, key),
        Verb::DeleteTree => call.needs(Access::Write, Resource::Keys(&operation.key)),
        _ => call.needs(Access::Write, key),
    }
}

/// Reads an operation. The inner error is one that the answer gives with the operation's place, in Consul's words.
fn operation(call: &Call<'_>, value: &Value) -> Result<Result<Operation, String>, ApiError> {
    let outer = Object::new(value, "an operation")?;
    let Some(inner) = outer.get("kv") else {
        return Err(ApiError::NotImplemented(
            "a transaction here is about keys (KV): nodes, services and checks are not in it".into(),
        ));
    };
    call.same_namespace(inner)?;
    let object = Object::new(inner, "KV")?;
    let value = match object.text("value")? {
        "" => Bytes::new(),
        text => STANDARD.decode(text).map_err(|_| ApiError::bad("KV.Value: expected base64"))?.into(),
    };
    let flags = object.number("flags")?.unwrap_or(0);
    let index = Revision(object.number("index")?.unwrap_or(0));
    let session = || -> Result<std::sync::Arc<str>, ApiError> { Ok(object.text("session")?.into()) };
    let limit = call.context.registry.kv_limits().value_bytes;
    if value.len() > limit {
        return Err(ApiError::TooLarge { what: "the value", limit: "registry.kv.value_bytes", value: limit as u64 });
    }
    let verb = match object.text("verb")? {
        "set" => Verb::Set(value, flags),
        "cas" => Verb::SetIf(value, flags, index),
        "lock" => Verb::Lock(value, flags, session()?),
        "unlock" => Verb::Unlock(value, flags, session()?),
        "get" => Verb::Get,
        "get-or-empty" => Verb::GetOrEmpty,
        "get-tree" => Verb::GetTree,
        "check-index" => Verb::CheckIndex(index),
        "check-session" => Verb::CheckSession(session()?),
        "check-not-exists" => Verb::CheckNotExists,
        "delete" => Verb::Delete,
        "delete-tree" => Verb::DeleteTree,
        "delete-cas" => Verb::DeleteIf(index),
        other => return Ok(Err(format!("unknown KV verb {other:?}"))),
    };
    Ok(match object.text("key")? {
        "" if !matches!(verb, Verb::GetTree | Verb::DeleteTree) => Err("Must provide key".to_owned()),
        key => Ok(Operation { key: key.into(), verb }),
    })
}
