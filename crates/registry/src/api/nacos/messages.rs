//! The JSON in the gRPC envelopes: requests and answers. Pure.
//!
//! An envelope has the name of a message (`InstanceRequest`), and its fields as JSON. Every answer has `resultCode`, `errorCode`, `success`,
//! `message` (a text; never null, which Python's client does not accept) and `requestId`.

use serde::Deserialize;
use serde_json::json;

use super::super::configs::Listened;
use super::naming::{Wanted, named};
use super::wire::{self, Info, Sent, Service};
use super::*;
use crate::NamespaceName;
use crate::configuration::{Audience, ConfigKey, Expected, NewConfig};

/// The service of a message.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct At {
    pub(super) namespace: NamespaceName,
    pub(super) service: Service,
}

/// A unary request of a client.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum Asked {
    /// A check that this is a server, which also returns the connection's name.
    ServerCheck,
    /// A check that the server knows the connection.
    HealthCheck,
    /// A registration or deregistration of one instance.
    Instance { at: At, register: bool, sent: Box<Sent> },
    /// A replacement of the connection's instances in a service.
    Batch { at: At, list: Vec<Sent> },
    /// The begin or end of a subscription.
    Subscribe { at: At, clusters: String, begin: bool },
    /// A query of a service's instances.
    Query { at: At, wanted: Wanted },
    /// A list of service names.
    List { namespace: NamespaceName, group: String, page: u64, size: u64 },
    /// A query of a configuration entry.
    ConfigQuery { namespace: NamespaceName, key: ConfigKey, tag: String },
    /// A publication.
    ConfigPublish { namespace: NamespaceName, key: ConfigKey, new: Box<NewConfig>, expected: Expected, gray: Audience },
    /// A removal.
    ConfigRemove { namespace: NamespaceName, key: ConfigKey },
    /// The begin or end of listening to entries.
    ConfigListen { begin: bool, entries: Vec<Heard> },
}

/// An entry that a client listens to.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct Heard {
    pub(super) listened: Listened,
    /// The namespace as the client wrote it.
    pub(super) tenant: String,
}

/// A message of the client on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum Sign {
    /// The set-up, with the client's labels.
    Setup(Vec<(String, String)>),
    /// Any other message, for example an answer to a push: a sign of life.
    Alive,
}

impl Sign {
    /// Classifies a message by its name, and takes the labels of a set-up.
    pub(in crate::api) fn of(kind: &str, json: &[u8]) -> Sign {
        if kind != "ConnectionSetupRequest" {
            return Sign::Alive;
        }
        let setup: SetupFields = serde_json::from_slice(json).unwrap_or_default();
        let labels = setup.labels.unwrap_or_default().into_iter();
        Sign::Setup(labels.filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// Fields of a connection's set-up.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SetupFields {
    labels: Option<BTreeMap<String, Option<String>>>,
}

/// Reason for refusing a request.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum Refusal {
    /// The connection is not set up, or is over: the client makes a new one, and registers again.
    NoConnection,
    /// An answer of the request's own type, with this code and message.
    Own(u32, String),
    /// Any other error.
    Error(ApiError),
}

impl<E: Into<ApiError>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal::Error(error.into())
    }
}

/// A message to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct OutgoingMessage {
    /// Name of the message.
    pub(in crate::api) kind: &'static str,
    /// Fields of the message.
    pub(in crate::api) json: Vec<u8>,
}

/// Fields of all messages. Clients omit empty fields or send null.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Message {
    request_id: Option<String>,
    namespace: Option<String>,
    service_name: Option<String>,
    group_name: Option<String>,
    #[serde(rename = "type")]
    action: Option<String>,
    instance: Option<InstanceFields>,
    instances: Option<Vec<InstanceFields>>,
    clusters: Option<String>,
    cluster: Option<String>,
    subscribe: Option<bool>,
    healthy_only: Option<bool>,
    health_only: Option<bool>,
    page_no: Option<u64>,
    page_size: Option<u64>,
    data_id: Option<String>,
    group: Option<String>,
    tenant: Option<String>,
    tag: Option<String>,
    content: Option<String>,
    cas_md5: Option<String>,
    addition_map: Option<BTreeMap<String, Option<String>>>,
    listen: Option<bool>,
    config_listen_contexts: Option<Vec<EntryFields>>,
}

/// A listened entry in a message.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EntryFields {
    data_id: Option<String>,
    group: Option<String>,
    tenant: Option<String>,
    md5: Option<String>,
}

impl EntryFields {
    fn heard(self) -> Result<Heard, ApiError> {
        let tenant = self.tenant.unwrap_or_default();
        let key = config::key(&self.group.unwrap_or_default(), &self.data_id.unwrap_or_default())?;
        let listened = Listened { namespace: named(&tenant)?, key, md5: self.md5.unwrap_or_default() };
        Ok(Heard { listened, tenant })
    }
}

/// An instance in a message.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InstanceFields {
    ip: Option<String>,
    port: Option<u64>,
    weight: Option<f64>,
    enabled: Option<bool>,
    ephemeral: Option<bool>,
    cluster_name: Option<String>,
    metadata: Option<Value>,
}

impl InstanceFields {
    fn sent(self) -> Result<Sent, ApiError> {
        let port = self.port.ok_or_else(|| required("instance.port"))?;
        let metadata = self.metadata.filter(|value| !value.is_null());
        let metadata = metadata.as_ref().map(wire::texts).transpose()?.unwrap_or_default();
        let (ip, cluster) = (self.ip.unwrap_or_default(), self.cluster_name.unwrap_or_default());
        let mut sent = Sent::new(&ip, port, &cluster, self.weight.unwrap_or(1.0), metadata)?;
        sent.enabled = self.enabled.unwrap_or(true);
        sent.ephemeral = self.ephemeral.unwrap_or(true);
        Ok(sent)
    }
}

impl Message {
    fn namespace(&self) -> Result<NamespaceName, ApiError> {
        named(self.namespace.as_deref().unwrap_or_default())
    }

    /// Returns the configuration entry.
    fn entry(&self) -> Result<(NamespaceName, ConfigKey), ApiError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Ok((named(&text(&self.tenant))?, config::key(&text(&self.group), &text(&self.data_id))?))
    }

    fn publication(mut self) -> Result<Asked, ApiError> {
        let (namespace, key) = self.entry()?;
        let content = self.content.take().filter(|it| !it.trim().is_empty()).ok_or_else(|| required("content"))?;
        let more = self.addition_map.unwrap_or_default();
        let said = |name: &str| more.get(name).cloned().flatten();
        let new = NewConfig {
            content,
            kind: said("type").filter(|kind| !kind.is_empty()),
            description: said("desc"),
            app: said("appName"),
            tags: said("config_tags").map(|tags| config::list_of(&tags)),
            secret: config::is_secret(&key, &said("config_tags").unwrap_or_default()),
            cipher_key: said("encryptedDataKey"),
        };
        let expected = self.cas_md5.filter(|md5| !md5.is_empty()).map_or(Expected::Anything, Expected::Md5OrAbsent);
        let gray = config::audience(&said("betaIps").unwrap_or_default(), &said("tag").unwrap_or_default())?;
        Ok(Asked::ConfigPublish { namespace, key, new: Box::new(new), expected, gray })
    }

    fn at(&self) -> Result<At, ApiError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let service = Service::of(&text(&self.service_name), &text(&self.group_name))?;
        Ok(At { namespace: self.namespace()?, service })
    }
}

/// The name of an answer that refuses.
const ERROR: &str = "ErrorResponse";

/// The names of the supported messages.
const SERVER_CHECK: &str = "ServerCheckRequest";
const HEALTH_CHECK: &str = "HealthCheckRequest";
const INSTANCE: &str = "InstanceRequest";
const PERSISTENT: &str = "PersistentInstanceRequest";
const BATCH: &str = "BatchInstanceRequest";
const SUBSCRIBE: &str = "SubscribeServiceRequest";
const QUERY: &str = "ServiceQueryRequest";
const LIST: &str = "ServiceListRequest";
const CONFIG_QUERY: &str = "ConfigQueryRequest";
const CONFIG_PUBLISH: &str = "ConfigPublishRequest";
const CONFIG_REMOVE: &str = "ConfigRemoveRequest";
const CONFIG_LISTEN: &str = "ConfigBatchListenRequest";
const KINDS: [&str; 12] = [
    SERVER_CHECK,
    HEALTH_CHECK,
    INSTANCE,
    PERSISTENT,
    BATCH,
    SUBSCRIBE,
    QUERY,
    LIST,
    CONFIG_QUERY,
    CONFIG_PUBLISH,
    CONFIG_REMOVE,
    CONFIG_LISTEN,
];

impl Asked {
    /// Parses a message: the name, and its fields as JSON. Also returns the id to be repeated in the answer, if it can be read.
    ///
    /// # Errors
    /// The name is unknown, or the fields are invalid.
    pub(in crate::api) fn read(kind: &str, json: &[u8]) -> (String, Result<Asked, ApiError>) {
        if !KINDS.contains(&kind) {
            let kind: String = kind.chars().take(100).collect();
            return (String::new(), Err(ApiError::NotImplemented(format!("{kind:?} is not served here"))));
        }
        // Some clients send no JSON for a message without fields.
        let json = if json.is_empty() { b"{}" } else { json };
        match serde_json::from_slice::<Message>(json) {
            Ok(mut message) => (message.request_id.take().unwrap_or_default(), Asked::of(kind, message)),
            Err(error) => (String::new(), Err(ApiError::bad(format!("{kind}: {error}")))),
        }
    }

    fn of(kind: &str, message: Message) -> Result<Asked, ApiError> {
        Ok(match kind {
            SERVER_CHECK => Asked::ServerCheck,
            HEALTH_CHECK => Asked::HealthCheck,
            INSTANCE | PERSISTENT => {
                let at = message.at()?;
                let register = match message.action.as_deref() {
                    Some("registerInstance") => true,
                    Some("deregisterInstance") => false,
                    other => {
                        return Err(ApiError::bad(format!(
                            "type: found {other:?}, expected registerInstance or deregisterInstance"
                        )));
                    }
                };
                let fields = message.instance.ok_or_else(|| required("instance"))?;
                let mut sent = Box::new(fields.sent()?);
                sent.ephemeral &= kind == INSTANCE;
                Asked::Instance { at, register, sent }
            }
            BATCH => {
                let at = message.at()?;
                let list = message.instances.unwrap_or_default().into_iter().map(InstanceFields::sent);
                let list: Vec<Sent> = list.collect::<Result<_, _>>()?;
                if list.iter().any(|sent| !sent.ephemeral) {
                    return Err(ApiError::bad("instances: all of a batch have to be ephemeral"));
                }
                Asked::Batch { at, list }
            }
            SUBSCRIBE => Asked::Subscribe {
                at: message.at()?,
                clusters: message.clusters.unwrap_or_default(),
                begin: message.subscribe.unwrap_or(true),
            },
            QUERY => Asked::Query {
                at: message.at()?,
                wanted: Wanted {
                    healthy: message.healthy_only.or(message.health_only).unwrap_or(false),
                    clusters: message.cluster.or(message.clusters).unwrap_or_default(),
                },
            },
            CONFIG_QUERY => {
                let (namespace, key) = message.entry()?;
                Asked::ConfigQuery { namespace, key, tag: message.tag.unwrap_or_default() }
            }
            CONFIG_PUBLISH => message.publication()?,
            CONFIG_REMOVE => {
                let (namespace, key) = message.entry()?;
                Asked::ConfigRemove { namespace, key }
            }
            CONFIG_LISTEN => {
                let entries = message.config_listen_contexts.unwrap_or_default().into_iter();
                Asked::ConfigListen {
                    begin: message.listen.unwrap_or(true),
                    entries: entries.map(EntryFields::heard).collect::<Result<_, _>>()?,
                }
            }
            _ => Asked::List {
                namespace: message.namespace()?,
                group: message.group_name.unwrap_or_default(),
                page: message.page_no.unwrap_or(1),
                size: message.page_size.unwrap_or(20),
            },
        })
    }

    /// True for a request about configuration entries.
    pub(super) fn is_about_configuration(&self) -> bool {
        use Asked::*;
        matches!(self, ConfigQuery { .. } | ConfigPublish { .. } | ConfigRemove { .. } | ConfigListen { .. })
    }

    /// Returns the name of the answer.
    pub(in crate::api) fn answer(&self) -> &'static str {
        match self {
            Asked::ServerCheck => "ServerCheckResponse",
            Asked::HealthCheck => "HealthCheckResponse",
            Asked::Instance { .. } => "InstanceResponse",
            Asked::Batch { .. } => "BatchInstanceResponse",
            Asked::Subscribe { .. } => "SubscribeServiceResponse",
            Asked::Query { .. } => "QueryServiceResponse",
            Asked::List { .. } => "ServiceListResponse",
            Asked::ConfigQuery { .. } => "ConfigQueryResponse",
            Asked::ConfigPublish { .. } => "ConfigPublishResponse",
            Asked::ConfigRemove { .. } => "ConfigRemoveResponse",
            Asked::ConfigListen { .. } => "ConfigChangeBatchListenResponse",
        }
    }
}

/// Fields of a message: an object, and a service if the message contains one.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct Content {
    plain: Value,
    service: Option<Info>,
}

impl From<Value> for Content {
    fn from(plain: Value) -> Content {
        Content { plain, service: None }
    }
}

impl From<Info> for Content {
    fn from(info: Info) -> Content {
        Content { plain: json!({}), service: Some(info) }
    }
}

impl Content {
    pub(super) fn with(plain: Value, service: Info) -> Content {
        Content { plain, service: Some(service) }
    }

    /// Returns the JSON. There is always at least one plain field.
    fn json(&self) -> Vec<u8> {
        let mut json = self.plain.to_string().into_bytes();
        if let Some(service) = &self.service {
            // Removes the closing brace of the object.
            json.pop();
            json.extend_from_slice(b",\"serviceInfo\":");
            service.write(&mut json);
            json.push(b'}');
        }
        json
    }
}

/// Returns an answer: the fields of `kind` together with those of every answer; or the refusal.
pub(in crate::api) fn message(kind: &'static str, request: &str, answer: Result<Content, Refusal>) -> OutgoingMessage {
    match answer {
        Ok(mut fields) => {
            for (key, value) in [
                ("resultCode", json!(200)),
                ("errorCode", json!(0)),
                ("success", json!(true)),
                ("message", json!("")),
                ("requestId", json!(request)),
            ] {
                fields.plain[key] = value;
            }
            OutgoingMessage { kind, json: fields.json() }
        }
        Err(refusal) => {
            let (kind, code, message) = match &refusal {
                Refusal::NoConnection => (ERROR, 301, "the connection is not registered".to_owned()),
                Refusal::Own(code, message) => (kind, *code, message.clone()),
                Refusal::Error(error) => (ERROR, code(error), error.to_string()),
            };
            let fields = json!({
                "resultCode": 500, "errorCode": code, "success": false, "message": message, "requestId": request,
            });
            OutgoingMessage { kind, json: fields.to_string().into_bytes() }
        }
    }
}

/// Returns the code that clients check: 403 makes them log in again.
fn code(error: &ApiError) -> u32 {
    match error {
        ApiError::Unauthorized
        | ApiError::NoSuchToken
        | ApiError::Denied(_)
        | ApiError::Forbidden { .. }
        | ApiError::Misdirected { .. } => 403,
        ApiError::NotImplemented(_) | ApiError::NoSuchPath(_) | ApiError::MethodNotAllowed { .. } => 302,
        ApiError::NotFound { .. } | ApiError::Missing(_) => 404,
        ApiError::Busy { .. } => 503,
        ApiError::Unavailable(_) | ApiError::Undetermined(_) => 500,
        _ => 400,
    }
}

/// Returns a request of the server, with `fields` besides those of every request.
pub(super) fn request(kind: &'static str, id: u64, fields: impl Into<Content>) -> OutgoingMessage {
    let mut fields = fields.into();
    fields.plain["requestId"] = json!(id.to_string());
    fields.plain["headers"] = json!({});
    OutgoingMessage { kind, json: fields.json() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn read(kind: &str, json: &Value) -> Result<Asked, ApiError> {
        Asked::read(kind, json.to_string().as_bytes()).1
    }

    #[test]
    fn what_real_clients_send() {
        let python = json!({
            "headers": {}, "requestId": "", "module": "naming", "namespace": "tenant-a", "serviceName": "shop",
            "groupName": "DEFAULT_GROUP", "type": "registerInstance",
            "instance": {
                "instanceId": "", "ip": "10.0.0.1", "port": 80, "weight": 2.5, "healthy": true, "enabled": false,
                "ephemeral": true, "clusterName": "c1", "serviceName": "", "metadata": {"a": "b", "n": 1},
            },
        });
        let Asked::Instance { at, register, sent } = read(INSTANCE, &python).unwrap() else { panic!() };
        assert_eq!((at.namespace.as_str(), at.service.known_as().as_str(), register), ("tenant-a", "shop", true));
        assert_eq!((sent.ip.as_str(), sent.port, sent.cluster.as_str()), ("10.0.0.1", 80, "c1"));
        assert_eq!((sent.weight, sent.enabled, sent.ephemeral), (250, false, true));
        let Asked::Instance { sent, .. } = read(PERSISTENT, &python).unwrap() else { panic!() };
        assert!(!sent.ephemeral, "whatever it says of itself");
        let nulls = json!({
            "namespace": null, "serviceName": "g@@shop", "groupName": null, "type": "batchRegisterInstance",
            "instances": [{"ip": "h", "port": 1, "metadata": null, "clusterName": null, "weight": null}], "requestId": null,
        });
        let Asked::Batch { at, list } = read(BATCH, &nulls).unwrap() else { panic!() };
        assert_eq!((at.namespace.as_str(), at.service.full().as_str()), ("public", "g@@shop"));
        assert_eq!((list.len(), list[0].cluster.as_str(), list[0].weight), (1, "DEFAULT", 100));
        let asked = |healthy: &str| json!({"serviceName": "s", "cluster": "a,b", healthy: true, "udpPort": 0});
        for healthy in ["healthyOnly", "healthOnly"] {
            let Asked::Query { wanted, .. } = read(QUERY, &asked(healthy)).unwrap() else { panic!() };
            assert_eq!(wanted, Wanted { clusters: "a,b".into(), healthy: true });
        }
        assert_eq!(Asked::read(SERVER_CHECK, b"").1, Ok(Asked::ServerCheck));
        let (id, asked) = Asked::read(HEALTH_CHECK, br#"{"requestId":"7"}"#);
        assert_eq!((id.as_str(), asked), ("7", Ok(Asked::HealthCheck)));
    }

    #[test]
    fn entries_of_real_clients() {
        let go = json!({
            "requestId": "3", "module": "config", "dataId": "app.yaml", "group": "", "tenant": "tenant-a", "content": "a: 1",
            "casMd5": "", "additionMap": {"type": "yaml", "appName": null, "betaIps": "10.0.0.1, 10.0.0.2", "tag": "blue", "config_tags": "secret"},
        });
        let Asked::ConfigPublish { namespace, key, new, expected, gray } = read(CONFIG_PUBLISH, &go).unwrap() else {
            panic!()
        };
        assert_eq!((namespace.as_str(), key.to_string().as_str()), ("tenant-a", "DEFAULT_GROUP/app.yaml"));
        assert_eq!((new.kind.as_deref(), &new.app, new.secret), (Some("yaml"), &None, Some(true)));
        assert_eq!((expected, gray.addresses()), (Expected::Anything, &["10.0.0.1".into(), "10.0.0.2".into()][..]));
        assert_eq!(gray.labels(), ["Vipserver-Tag=blue"]);
        assert!(!format!("{new:?}").contains("a: 1"), "a content is in no log");
        let listen =
            json!({"listen": true, "configListenContexts": [{"dataId": "a", "group": "g", "md5": null, "tenant": ""}]});
        let Asked::ConfigListen { begin: true, entries } = read(CONFIG_LISTEN, &listen).unwrap() else { panic!() };
        assert_eq!((entries[0].listened.namespace.as_str(), entries[0].tenant.as_str()), ("public", ""));
        let own = message("ConfigQueryResponse", "1", Err(Refusal::Own(300, "config data not exist".into())));
        let fields: Value = serde_json::from_slice(&own.json).unwrap();
        assert_eq!(
            (own.kind, &fields["errorCode"], &fields["success"]),
            ("ConfigQueryResponse", &json!(300), &json!(false))
        );
    }

    #[test]
    fn what_is_refused() {
        let of = |more: Value| {
            let mut message =
                json!({"serviceName": "s", "type": "registerInstance", "instance": {"ip": "h", "port": 1}});
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(INSTANCE, &message)
        };
        assert!(of(json!({})).is_ok());
        for wrong in [
            json!({"type": "perhaps"}),
            json!({"type": null}),
            json!({"instance": null}),
            json!({"serviceName": ""}),
            json!({"namespace": "a/b"}),
            json!({"instance": {"ip": "h"}}),
            json!({"instance": {"ip": "", "port": 1}}),
            json!({"instance": {"ip": "h", "port": 65536}}),
            json!({"instance": {"ip": "h", "port": -1}}),
            json!({"instance": {"ip": "h", "port": 1, "weight": 1e9}}),
            json!({"instance": {"ip": "h", "port": 1, "metadata": {"kingpost.nacos": "true@x c"}}}),
            json!({"instance": {"ip": "h", "port": 1, "metadata": []}}),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
        let batch = json!({"serviceName": "s", "instances": [{"ip": "h", "port": 1, "ephemeral": false}]});
        assert!(read(BATCH, &batch).is_err());
        assert!(matches!(read("ConfigFuzzyWatchRequest", &json!({})), Err(ApiError::NotImplemented(_))));
        assert!(read(CONFIG_QUERY, &json!({})).is_err() && read(CONFIG_PUBLISH, &json!({"dataId": "a"})).is_err());
        for not_json in [&b"{"[..], b"[]", b"\xff\xfe", b"{\"port\":}"] {
            assert!(Asked::read(INSTANCE, not_json).1.is_err());
        }
    }

    #[test]
    fn every_answer_has_what_clients_need() {
        let fields = |message: &OutgoingMessage| serde_json::from_slice::<Value>(&message.json).unwrap();
        let good = message("InstanceResponse", "7", Ok(json!({"type": "registerInstance"}).into()));
        assert_eq!((good.kind, &fields(&good)["requestId"]), ("InstanceResponse", &json!("7")));
        for (refusal, code) in [
            (Refusal::NoConnection, 301),
            (ApiError::Unauthorized.into(), 403),
            (ApiError::bad("x").into(), 400),
            (ApiError::NotImplemented("x".into()).into(), 302),
            (ApiError::Unavailable("x".into()).into(), 500),
        ] {
            let bad = message("InstanceResponse", "", Err(refusal));
            let fields = fields(&bad);
            assert_eq!(
                (bad.kind, &fields["errorCode"], &fields["success"]),
                ("ErrorResponse", &json!(code), &json!(false))
            );
            assert!(fields["message"].is_string());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..512), kind in 0..13_usize) {
            let _ = Asked::read(KINDS.get(kind).unwrap_or(&"\u{202e}x"), &bytes);
            // The envelope around it, too.
            let _ = <crate::api::grpc::proto::nacos::Payload as prost::Message>::decode(&bytes[..]);
        }

        #[test]
        fn what_is_read_is_within_bounds(
            ip in "[ -~]{0,20}", port in any::<i64>(), weight in any::<f64>(), cluster in "\\PC{0,8}", group in "\\PC{0,8}",
            name in "\\PC{0,8}", kind in 0..3_usize,
        ) {
            let instance = json!({"ip": ip, "port": port, "weight": weight, "clusterName": cluster});
            let message = json!({
                "serviceName": name, "groupName": group, "type": "registerInstance", "instance": instance,
                "instances": [instance],
            });
            let sent = match read([INSTANCE, PERSISTENT, BATCH][kind], &message) {
                Ok(Asked::Instance { sent, .. }) => Some(*sent),
                Ok(Asked::Batch { mut list, .. }) => list.pop(),
                Ok(other) => panic!("{other:?}"),
                Err(_) => None,
            };
            if let Some(sent) = sent {
                prop_assert!(!sent.ip.is_empty() && sent.weight <= 65_500 && !sent.cluster.is_empty());
                prop_assert_eq!(i64::from(sent.port), port);
            }
        }
    }
}
