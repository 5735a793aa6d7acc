//! Polaris' HTTP API: `POST /v1/{RegisterInstance,DeregisterInstance,Heartbeat,Discover,ReportClient}` with the gRPC messages as JSON: wrapped values
//! are bare, names in either spelling. `/naming/…` is in `rules::admin`.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use prost::Message as _;

use super::{Asking, code, code_of, console, pb, response, rules};
use crate::api::{ApiError, Context, Reply, Request};

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Instance {
    id: Option<String>,
    service: Option<String>,
    namespace: Option<String>,
    host: Option<String>,
    port: Option<u32>,
    protocol: Option<String>,
    version: Option<String>,
    priority: Option<u32>,
    weight: Option<u32>,
    #[serde(alias = "enable_health_check")]
    enable_health_check: Option<bool>,
    #[serde(alias = "health_check")]
    health_check: Option<HealthCheck>,
    healthy: Option<bool>,
    isolate: Option<bool>,
    location: Option<Location>,
    metadata: HashMap<String, String>,
    revision: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct HealthCheck {
    r#type: Value,
    heartbeat: Option<Heartbeat>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Heartbeat {
    ttl: Option<u32>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Location {
    region: Option<String>,
    zone: Option<String>,
    campus: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Service {
    name: Option<String>,
    namespace: Option<String>,
    metadata: HashMap<String, String>,
    revision: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Discover {
    r#type: Value,
    service: Option<Service>,
}

/// Names and numbers of the types of discovery.
const KINDS: [(&str, i32); 14] = [
    ("INSTANCE", 1),
    ("CLUSTER", 2),
    ("ROUTING", 3),
    ("RATE_LIMIT", 4),
    ("CIRCUIT_BREAKER", 5),
    ("SERVICES", 6),
    ("NAMESPACES", 12),
    ("FAULT_DETECTOR", 13),
    ("LANE", 100),
    ("CUSTOM_ROUTE_RULE", 101),
    ("NEARBY_ROUTE_RULE", 102),
    ("LOSSLESS", 103),
    ("BLOCK_ALLOW_RULE", 104),
    ("UNKNOWN", 0),
];

/// Returns the HTTP status of a code.
pub(super) fn status(code: u32) -> StatusCode {
    StatusCode::from_u16(u16::try_from(code / 1000).unwrap_or(500)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Encodes an error in this front's form.
pub(in super::super) fn show(error: &ApiError) -> Reply {
    Reply::json(error.status(), &json!({ "code": code_of(error), "info": error.to_string() }))
}

pub(in super::super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let caller = context.identify(request)?;
    let asking = Asking { context, caller, peer: request.peer };
    if console::is_path(&request.path()) {
        return console::handle(&asking, request).await;
    }
    if request.segments.first().is_some_and(|first| first == "naming") {
        return rules::admin::handle(context, &asking.caller, request).await;
    }
    if request.method != Method::POST {
        return Err(ApiError::MethodNotAllowed { allow: "POST" });
    }
    match request.path().as_slice() {
        ["v1", "RegisterInstance"] => Ok(told(asking.register(request.json::<Instance>()?.into()).await)),
        ["v1", "DeregisterInstance"] => Ok(told(asking.deregister(request.json::<Instance>()?.into()).await)),
        ["v1", "Heartbeat"] => Ok(told(asking.heartbeat(&request.json::<Instance>()?.into()).await)),
        ["v1", "ReportClient"] => Ok(told(response(code::OK, "execute success"))),
        ["v1", "Discover"] => {
            let asked: Discover = request.json()?;
            let kind = match &asked.r#type {
                Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
                Value::String(name) => KINDS.iter().find(|(known, _)| known == name).map(|(_, number)| *number),
                _ => None,
            };
            let kind =
                kind.ok_or_else(|| ApiError::bad(format!("type = {}: expected INSTANCE, SERVICES …", asked.r#type)))?;
            let service = asked.service.map(|service| pb::Service {
                name: service.name,
                namespace: service.namespace,
                metadata: HashMap::new(),
                revision: service.revision,
            });
            let found = asking.discover(&pb::DiscoverRequest { r#type: kind, service, filter: None }).await;
            let reply = Reply::json(status(found.code.unwrap_or(code::FAILED)), &discovered(found));
            Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
        }
        _ => Err(ApiError::NoSuchPath(format!("/{}", request.segments.join("/")))),
    }
}

fn told(response: pb::Response) -> Reply {
    let code = response.code.unwrap_or(code::FAILED);
    Reply::json(status(code), &told_fields(&response))
}

/// Encodes an answer.
pub(super) fn told_fields(response: &pb::Response) -> Value {
    let code = response.code.unwrap_or(code::FAILED);
    let mut body = Map::new();
    body.insert("code".into(), code.into());
    body.insert("info".into(), response.info.clone().into());
    if let Some(instance) = &response.instance {
        body.insert("instance".into(), json!(Instance::from(instance.clone())));
    }
    body.into()
}

fn discovered(found: pb::DiscoverResponse) -> Value {
    let kind = KINDS.iter().find(|(_, number)| *number == found.r#type).map_or("UNKNOWN", |(name, _)| *name);
    let mut shown = json!({
        "code": found.code,
        "info": found.info,
        "type": kind,
        "service": found.service.map(Service::from),
        "instances": found.instances.into_iter().map(Instance::from).collect::<Vec<_>>(),
        "services": found.services.into_iter().map(Service::from).collect::<Vec<_>>(),
        "namespaces": found.namespaces.into_iter().map(|it| json!({ "name": it.name })).collect::<Vec<_>>(),
    });
    let list = |rules: &[pb::RouteRule]| {
        let shown = rules.iter().map(|rule| rules::shown("v1.RouteRule", &rule.encode_to_vec()).unwrap_or_default());
        (!rules.is_empty()).then(|| Value::Array(shown.collect()))
    };
    let one = |name: &str, bytes: Option<Vec<u8>>| bytes.and_then(|bytes| rules::shown(name, &bytes).ok());
    let rules = [
        ("routing", one("v1.Routing", found.routing.map(|it| it.encode_to_vec()))),
        ("rateLimit", one("v1.RateLimit", found.rate_limit.map(|it| it.encode_to_vec()))),
        ("circuitBreaker", one("v1.CircuitBreaker", found.circuit_breaker.map(|it| it.encode_to_vec()))),
        ("faultDetector", one("v1.FaultDetector", found.fault_detector.map(|it| it.encode_to_vec()))),
        ("customRouteRules", list(&found.custom_route_rules)),
        ("nearbyRouteRules", list(&found.nearby_route_rules)),
    ];
    if let Some(fields) = shown.as_object_mut() {
        fields.extend(rules.into_iter().filter_map(|(name, rules)| Some((name.to_owned(), rules?))));
    }
    shown
}

impl From<Instance> for pb::Instance {
    fn from(sent: Instance) -> pb::Instance {
        let check = sent.health_check.map(|check| pb::HealthCheck {
            r#type: super::HEARTBEAT,
            heartbeat: check.heartbeat.map(|beat| pb::HeartbeatHealthCheck { ttl: beat.ttl }),
        });
        pb::Instance {
            id: sent.id,
            service: sent.service,
            namespace: sent.namespace,
            host: sent.host,
            port: sent.port,
            protocol: sent.protocol,
            version: sent.version,
            priority: sent.priority,
            weight: sent.weight,
            health_check: check,
            healthy: sent.healthy,
            isolate: sent.isolate,
            location: sent.location.map(|it| pb::Location { region: it.region, zone: it.zone, campus: it.campus }),
            metadata: sent.metadata,
            revision: None,
            service_token: None,
            enable_health_check: sent.enable_health_check,
        }
    }
}

impl From<pb::Instance> for Instance {
    fn from(known: pb::Instance) -> Instance {
        Instance {
            id: known.id,
            service: known.service,
            namespace: known.namespace,
            host: known.host,
            port: known.port,
            protocol: known.protocol,
            version: known.version,
            priority: known.priority,
            weight: known.weight,
            enable_health_check: known.enable_health_check,
            health_check: known.health_check.map(|check| HealthCheck {
                r#type: "HEARTBEAT".into(),
                heartbeat: check.heartbeat.map(|beat| Heartbeat { ttl: beat.ttl }),
            }),
            healthy: known.healthy,
            isolate: known.isolate,
            location: known.location.map(|it| Location { region: it.region, zone: it.zone, campus: it.campus }),
            metadata: known.metadata,
            revision: known.revision,
        }
    }
}

impl From<pb::Service> for Service {
    fn from(known: pb::Service) -> Service {
        Service { name: known.name, namespace: known.namespace, metadata: known.metadata, revision: known.revision }
    }
}
