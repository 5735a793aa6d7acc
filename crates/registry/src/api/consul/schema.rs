//! Types of the entries that filters look at, as Consul has them. A field that the registry does not show is empty.

/// Type of a value in an entry.
#[derive(Debug)]
pub(super) enum Type {
    Text,
    Number,
    Flag,
    /// A list of texts.
    Texts,
    /// A map from texts.
    Map(&'static Type),
    /// A list of objects. A selector goes on with the fields of its items, and means any of them.
    List(&'static Type),
    Object(&'static [Field]),
}

/// A field by its name.
type Field = (&'static str, &'static Type);

pub(super) static TEXT: Type = Type::Text;
pub(super) static NUMBER: Type = Type::Number;
static FLAG: Type = Type::Flag;
static TEXTS: Type = Type::Texts;
static TEXT_MAP: Type = Type::Map(&TEXT);
static ADDRESSES: Type = Type::Map(&Type::Object(&[("Address", &TEXT), ("Port", &NUMBER)]));
static WEIGHTS: Type = Type::Object(&[("Passing", &NUMBER), ("Warning", &NUMBER)]);
static LOCALITY: Type = Type::Object(&[("Region", &TEXT), ("Zone", &TEXT)]);
static CONNECT: Type = Type::Object(&[("Native", &FLAG)]);
static MODE: Type = Type::Object(&[("Mode", &TEXT)]);

/// A service's part in the mesh, which is always empty here.
static PROXY: Type = Type::Object(&[
    ("DestinationServiceName", &TEXT),
    ("DestinationServiceID", &TEXT),
    ("LocalServiceAddress", &TEXT),
    ("LocalServicePort", &NUMBER),
    ("LocalServiceSocketPath", &TEXT),
    ("Mode", &TEXT),
    ("MeshGateway", &MODE),
    (
        "Expose",
        &Type::Object(&[
            ("Checks", &FLAG),
            (
                "Paths",
                &Type::List(&Type::Object(&[
                    ("ListenerPort", &NUMBER),
                    ("Path", &TEXT),
                    ("LocalPathPort", &NUMBER),
                    ("Protocol", &TEXT),
                    ("ParsedFromCheck", &FLAG),
                ])),
            ),
        ]),
    ),
    (
        "Upstreams",
        &Type::List(&Type::Object(&[
            ("DestinationType", &TEXT),
            ("DestinationNamespace", &TEXT),
            ("DestinationName", &TEXT),
            ("Datacenter", &TEXT),
            ("LocalBindAddress", &TEXT),
            ("LocalBindPort", &NUMBER),
            ("MeshGateway", &MODE),
        ])),
    ),
]);

/// A node: `/v1/catalog/nodes`.
pub(super) static NODE: Type = Type::Object(&[
    ("ID", &TEXT),
    ("Node", &TEXT),
    ("Address", &TEXT),
    ("Datacenter", &TEXT),
    ("TaggedAddresses", &TEXT_MAP),
    ("Meta", &TEXT_MAP),
    ("PeerName", &TEXT),
    ("Locality", &LOCALITY),
]);

/// A service of an agent or a node: `/v1/agent/services`, `/v1/catalog/node`, `/v1/catalog/node-services`.
pub(super) static SERVICE: Type = Type::Object(&[
    ("Kind", &TEXT),
    ("ID", &TEXT),
    ("Service", &TEXT),
    ("Tags", &TEXTS),
    ("Address", &TEXT),
    ("TaggedAddresses", &ADDRESSES),
    ("Meta", &TEXT_MAP),
    ("Port", &NUMBER),
    ("SocketPath", &TEXT),
    ("Weights", &WEIGHTS),
    ("EnableTagOverride", &FLAG),
    ("Proxy", &PROXY),
    ("Connect", &CONNECT),
    ("PeerName", &TEXT),
    ("Locality", &LOCALITY),
]);

/// A check: `/v1/agent/checks`, `/v1/health/checks`, `/v1/health/node`, `/v1/health/state`.
pub(super) static CHECK: Type = Type::Object(&[
    ("Node", &TEXT),
    ("CheckID", &TEXT),
    ("Name", &TEXT),
    ("Status", &TEXT),
    ("Notes", &TEXT),
    ("Output", &TEXT),
    ("ServiceID", &TEXT),
    ("ServiceName", &TEXT),
    ("ServiceTags", &TEXTS),
    ("Type", &TEXT),
    ("Interval", &TEXT),
    ("Timeout", &TEXT),
    ("ExposedPort", &NUMBER),
    ("PeerName", &TEXT),
]);

/// A service with its node and checks: `/v1/health/service`.
pub(super) static ENTRY: Type =
    Type::Object(&[("Node", &NODE), ("Service", &SERVICE), ("Checks", &Type::List(&CHECK))]);

/// A service in the catalog: `/v1/catalog/service`, `/v1/catalog/services`.
pub(super) static CATALOG: Type = Type::Object(&[
    ("ID", &TEXT),
    ("Node", &TEXT),
    ("Address", &TEXT),
    ("Datacenter", &TEXT),
    ("TaggedAddresses", &TEXT_MAP),
    ("NodeMeta", &TEXT_MAP),
    ("ServiceKind", &TEXT),
    ("ServiceID", &TEXT),
    ("ServiceName", &TEXT),
    ("ServiceTags", &TEXTS),
    ("ServiceAddress", &TEXT),
    ("ServiceTaggedAddresses", &ADDRESSES),
    ("ServiceWeights", &WEIGHTS),
    ("ServiceMeta", &TEXT_MAP),
    ("ServicePort", &NUMBER),
    ("ServiceSocketPath", &TEXT),
    ("ServiceEnableTagOverride", &FLAG),
    ("ServiceProxy", &PROXY),
    ("ServiceConnect", &CONNECT),
    ("ServiceLocality", &LOCALITY),
    ("PeerName", &TEXT),
]);

/// Returns the type of a field.
pub(super) fn field(fields: &'static [Field], name: &str) -> Option<&'static Type> {
    fields.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// Returns the type of the entries at a path; `None` where a filter has no meaning, as at Consul.
pub(super) fn of_path(path: &[&str]) -> Option<&'static Type> {
    match path {
        ["v1", "agent", "services"] | ["v1", "catalog", "node" | "node-services", ..] => Some(&SERVICE),
        ["v1", "agent", "checks"] | ["v1", "health", "checks" | "node" | "state", ..] => Some(&CHECK),
        ["v1", "catalog", "nodes"] => Some(&NODE),
        ["v1", "catalog", "service" | "services" | "connect", ..] => Some(&CATALOG),
        ["v1", "health", "service" | "connect" | "ingress", ..] => Some(&ENTRY),
        _ => None,
    }
}
