//! Resources that a client needs to find a service, made of the service's name alone: a Listener names a RouteConfiguration, which names a Cluster,
//! which names a ClusterLoadAssignment. All four have the name that the client asked for. Pure.

use bytes::Bytes;
use prost::Message;

use super::pb::envoy::config::cluster::v3 as cluster;
use super::pb::envoy::config::core::v3 as core;
use super::pb::envoy::config::listener::v3 as listener;
use super::pb::envoy::config::route::v3 as route;
use super::pb::envoy::extensions::filters::http::router::v3::Router;
use super::pb::envoy::extensions::filters::network::http_connection_manager::v3 as http;
use crate::{NamespaceName, ServiceKey};

/// Supported types of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::api) enum Kind {
    /// CDS.
    Cluster,
    /// EDS.
    Endpoints,
    /// LDS.
    Listener,
    /// RDS.
    Route,
}

/// `google.protobuf.Any`, with bytes shared by many streams. The wire format is the same.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::api) struct Resource {
    /// Type of [`Resource::value`].
    #[prost(string, tag = "1")]
    pub(in crate::api) type_url: String,
    /// An encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub(in crate::api) value: Bytes,
}

impl Kind {
    /// All types in the preferred order of responses: a cluster and its endpoints before the routes that lead to it.
    pub(in crate::api) const ALL: [Kind; 4] = [Kind::Cluster, Kind::Endpoints, Kind::Listener, Kind::Route];

    /// Returns the type's URL.
    pub(in crate::api) fn type_url(self) -> &'static str {
        match self {
            Kind::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Kind::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Kind::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Kind::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// Parses a type's URL.
    pub(in crate::api) fn of(type_url: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// True if a response has all existing resources of the type that the client wants, so that a missing one has been removed.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Kind::Cluster | Kind::Listener)
    }
}

/// Returns the service with this name: `namespace/service`, or a service of the namespace `default`. `None` if no service can have the name.
pub(super) fn key(name: &str) -> Option<ServiceKey> {
    match name.contains('/') {
        true => ServiceKey::parse(name).ok(),
        false => ServiceKey::new(&NamespaceName::default(), name).ok(),
    }
}

/// Returns the resource of this type and name; for endpoints, an empty one.
pub(super) fn fixed(kind: Kind, name: &str) -> Bytes {
    match kind {
        Kind::Cluster => cluster(name).encode_to_vec().into(),
        Kind::Listener => listener(name).encode_to_vec().into(),
        Kind::Route => route(name).encode_to_vec().into(),
        Kind::Endpoints => super::endpoints::none(name),
    }
}

/// Returns a source of configuration: the client's ADS stream.
fn by_ads() -> Option<core::ConfigSource> {
    let ads = core::config_source::ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {});
    Some(core::ConfigSource { config_source_specifier: Some(ads), resource_api_version: core::ApiVersion::V3.into() })
}

fn cluster(name: &str) -> cluster::Cluster {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy};
    cluster::Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: by_ads(), service_name: name.to_owned() }),
        lb_policy: LbPolicy::RoundRobin.into(),
    }
}

fn listener(name: &str) -> listener::Listener {
    let router = Resource {
        type_url: "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router".into(),
        value: Router {}.encode_to_vec().into(),
    };
    // gRPC rejects a listener without a router.
    let filter = http::HttpFilter {
        name: "router".into(),
        config_type: Some(http::http_filter::ConfigType::TypedConfig(router)),
    };
    let rds = http::Rds { config_source: by_ads(), route_config_name: name.to_owned() };
    let manager = http::HttpConnectionManager {
        stat_prefix: name.to_owned(),
        route_specifier: Some(http::http_connection_manager::RouteSpecifier::Rds(rds)),
        http_filters: vec![filter],
    };
    let manager = Resource {
        type_url:
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
                .into(),
        value: manager.encode_to_vec().into(),
    };
    let api_listener = listener::ApiListener { api_listener: Some(manager) };
    listener::Listener { name: name.to_owned(), api_listener: Some(api_listener) }
}

fn route(name: &str) -> route::RouteConfiguration {
    use route::route::Action;
    let to = route::route_action::ClusterSpecifier::Cluster(name.to_owned());
    let everything = route::route_match::PathSpecifier::Prefix(String::new());
    let all = route::Route {
        r#match: Some(route::RouteMatch { path_specifier: Some(everything) }),
        action: Some(Action::Route(route::RouteAction { cluster_specifier: Some(to) })),
    };
    let host = route::VirtualHost { name: name.to_owned(), domains: vec!["*".into()], routes: vec![all] };
    route::RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_service_a_name_means() {
        for (name, expected) in [
            ("shop", Some("default/shop")),
            ("tenant/shop", Some("tenant/shop")),
            ("tenant/shop/v2", Some("tenant/shop/v2")),
            ("/shop", None),
            ("a b/shop", None),
            ("tenant/", None),
            ("", None),
        ] {
            assert_eq!(key(name).as_ref().map(ServiceKey::as_str), expected, "{name:?}");
        }
    }

    #[test]
    fn types_are_found_by_their_names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.type_url()), Some(kind));
        }
        assert_eq!(Kind::of(""), None);
        assert_eq!(Kind::of("type.googleapis.com/envoy.service.runtime.v3.Runtime"), None);
    }
}
