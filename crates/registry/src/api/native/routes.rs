//! Table of paths and methods. A test compares it with `openapi.json`.

use hyper::Method;

use crate::api::ApiError;
use crate::rights::Access;

/// An operation of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    OpenApi,
    ListNamespaces,
    ListServices,
    GetService,
    PutService,
    DeleteService,
    Discover,
    RegisterInService,
    PutInstance,
    Watch,
    Find,
    RegisterBatch,
    GetInstance,
    PatchInstance,
    DeleteInstance,
    ReportHealth,
    Heartbeat,
    Heartbeats,
    Deregister,
    Query,
    Audit,
    ListConfigs,
    GetConfig,
    PutConfig,
    DeleteConfig,
    ConfigHistory,
    RollBackConfig,
}

/// Method, path and operation. `{ns}`, `{service}`, `{group}` and `{id}` stand for one segment each.
pub(super) const ROUTES: &[(&str, &str, Op)] = &[
    ("PUT", "v1/namespaces/{ns}/instances/{id}/heartbeat", Op::Heartbeat),
    ("POST", "v1/namespaces/{ns}/heartbeats", Op::Heartbeats),
    ("GET", "v1/namespaces/{ns}/services/{service}/instances", Op::Discover),
    ("POST", "v1/namespaces/{ns}/services/{service}/instances", Op::RegisterInService),
    ("PUT", "v1/namespaces/{ns}/services/{service}/instances/{id}", Op::PutInstance),
    ("GET", "v1/namespaces/{ns}/services/{service}/watch", Op::Watch),
    ("GET", "v1/namespaces/{ns}/services/{service}", Op::GetService),
    ("PUT", "v1/namespaces/{ns}/services/{service}", Op::PutService),
    ("DELETE", "v1/namespaces/{ns}/services/{service}", Op::DeleteService),
    ("GET", "v1/namespaces/{ns}/services", Op::ListServices),
    ("GET", "v1/namespaces/{ns}/instances", Op::Find),
    ("POST", "v1/namespaces/{ns}/instances", Op::RegisterBatch),
    ("GET", "v1/namespaces/{ns}/instances/{id}", Op::GetInstance),
    ("PATCH", "v1/namespaces/{ns}/instances/{id}", Op::PatchInstance),
    ("DELETE", "v1/namespaces/{ns}/instances/{id}", Op::DeleteInstance),
    ("PUT", "v1/namespaces/{ns}/instances/{id}/health", Op::ReportHealth),
    ("POST", "v1/namespaces/{ns}/deregistrations", Op::Deregister),
    ("POST", "v1/namespaces/{ns}/queries", Op::Query),
    ("GET", "v1/namespaces/{ns}/audit", Op::Audit),
    ("GET", "v1/namespaces/{ns}/configs", Op::ListConfigs),
    ("GET", "v1/namespaces/{ns}/configs/{group}/{id}", Op::GetConfig),
    ("PUT", "v1/namespaces/{ns}/configs/{group}/{id}", Op::PutConfig),
    ("DELETE", "v1/namespaces/{ns}/configs/{group}/{id}", Op::DeleteConfig),
    ("GET", "v1/namespaces/{ns}/configs/{group}/{id}/history", Op::ConfigHistory),
    ("POST", "v1/namespaces/{ns}/configs/{group}/{id}/rollback", Op::RollBackConfig),
    ("GET", "v1/namespaces", Op::ListNamespaces),
    ("GET", "v1/openapi.json", Op::OpenApi),
];

/// A request's operation, and the names in its path (empty if the path has none).
#[derive(Debug)]
pub(super) struct Route<'a> {
    pub(super) op: Op,
    pub(super) namespace: &'a str,
    pub(super) service: &'a str,
    pub(super) group: &'a str,
    pub(super) id: &'a str,
}

impl<'a> Route<'a> {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// There is no such path, or it does not support the method.
    pub(super) fn find(method: &Method, path: &[&'a str]) -> Result<Route<'a>, ApiError> {
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        let mut known = "";
        for (with, template, op) in ROUTES {
            if let Some(route) = fit(template, path, *op) {
                if *with == method {
                    return Ok(route);
                }
                known = template;
            }
        }
        match known {
            "" => Err(ApiError::NoSuchPath(format!("/{}", path.join("/")))),
            template => Err(ApiError::MethodNotAllowed { allow: allowed(template) }),
        }
    }
}

fn fit<'a>(template: &str, path: &[&'a str], op: Op) -> Option<Route<'a>> {
    let mut route = Route { op, namespace: "", service: "", group: "", id: "" };
    let mut given = path.iter();
    for wanted in template.split('/') {
        let found: &'a str = given.next()?;
        match wanted {
            "{ns}" => route.namespace = found,
            "{service}" => route.service = found,
            "{group}" => route.group = found,
            "{id}" => route.id = found,
            _ if wanted == found => {}
            _ => return None,
        }
    }
    given.next().is_none().then_some(route)
}

/// Returns the `Allow` header of a path.
fn allowed(template: &str) -> &'static str {
    let methods: Vec<&str> = ROUTES.iter().filter(|(_, path, _)| *path == template).map(|(with, _, _)| *with).collect();
    match methods.as_slice() {
        ["GET"] => "GET, HEAD",
        ["PUT"] => "PUT",
        ["POST"] => "POST",
        ["GET", "POST"] => "GET, HEAD, POST",
        ["GET", "PUT", "DELETE"] => "GET, HEAD, PUT, DELETE",
        ["GET", "PATCH", "DELETE"] => "GET, HEAD, PATCH, DELETE",
        _ => "GET, HEAD, POST, PUT, PATCH, DELETE",
    }
}

impl Op {
    /// True for an operation on configuration entries.
    pub(super) fn is_about_configuration(self) -> bool {
        use Op::*;
        matches!(self, ListConfigs | GetConfig | PutConfig | DeleteConfig | ConfigHistory | RollBackConfig)
    }

    /// Returns the access that the operation needs, to the resource that it is about.
    pub(super) fn access(self) -> Access {
        match self {
            Op::OpenApi
            | Op::ListNamespaces
            | Op::ListServices
            | Op::GetService
            | Op::Discover
            | Op::Watch
            | Op::Find
            | Op::GetInstance
            | Op::Query
            | Op::Audit
            | Op::ListConfigs
            | Op::GetConfig
            | Op::ConfigHistory => Access::Read,
            Op::RegisterInService
            | Op::PutInstance
            | Op::RegisterBatch
            | Op::PatchInstance
            | Op::DeleteInstance
            | Op::ReportHealth
            | Op::Heartbeat
            | Op::Heartbeats
            | Op::Deregister
            | Op::PutService
            | Op::DeleteService
            | Op::PutConfig
            | Op::DeleteConfig
            | Op::RollBackConfig => Access::Write,
        }
    }

    /// Returns the `operationId` of the description, which is also the action in the audit log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::OpenApi => "getDescription",
            Op::ListNamespaces => "listNamespaces",
            Op::ListServices => "listServices",
            Op::GetService => "getService",
            Op::PutService => "putService",
            Op::DeleteService => "deleteService",
            Op::Discover => "listInstances",
            Op::RegisterInService => "registerInService",
            Op::PutInstance => "putInstance",
            Op::Watch => "watchService",
            Op::Find => "findInstances",
            Op::RegisterBatch => "registerInstances",
            Op::GetInstance => "getInstance",
            Op::PatchInstance => "patchInstance",
            Op::DeleteInstance => "deleteInstance",
            Op::ReportHealth => "reportHealth",
            Op::Heartbeat => "heartbeat",
            Op::Heartbeats => "heartbeats",
            Op::Deregister => "deregisterInstances",
            Op::Query => "queryServices",
            Op::Audit => "listChanges",
            Op::ListConfigs => "listConfigs",
            Op::GetConfig => "getConfig",
            Op::PutConfig => "putConfig",
            Op::DeleteConfig => "deleteConfig",
            Op::ConfigHistory => "listConfigVersions",
            Op::RollBackConfig => "rollBackConfig",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn paths_and_methods() {
        for (method, path, expected) in [
            ("GET", "v1/namespaces/a/services/b/instances", Ok((Op::Discover, "a", "b", ""))),
            ("HEAD", "v1/namespaces/a/services/b/instances", Ok((Op::Discover, "a", "b", ""))),
            ("PUT", "v1/namespaces/a/services/b/instances/c", Ok((Op::PutInstance, "a", "b", "c"))),
            ("DELETE", "v1/namespaces/a/instances/c", Ok((Op::DeleteInstance, "a", "", "c"))),
            ("PUT", "v1/namespaces/a/instances/c", Err(405)),
            ("DELETE", "v1/namespaces/a/services", Err(405)),
            ("GET", "v1/namespaces/a/nothing", Err(404)),
            ("GET", "v1/namespaces/a/services/b/instances/c/d", Err(404)),
            ("GET", "v1", Err(404)),
        ] {
            let path: Vec<&str> = path.split('/').collect();
            let found = Route::find(&method.parse().unwrap(), &path)
                .map(|route| (route.op, route.namespace, route.service, route.id))
                .map_err(|error| error.status().as_u16());
            assert_eq!(found, expected, "{method} {path:?}");
        }
    }

    #[test]
    fn the_allow_header_names_each_method_of_the_table() {
        for (method, path, _) in ROUTES {
            assert!(allowed(path).split(", ").any(|allowed| allowed == *method), "{method} {path}");
            assert!(allowed(path) != "GET, HEAD, POST, PUT, PATCH, DELETE", "{path} is not in the table of headers");
        }
    }

    #[test]
    fn the_description_has_every_route_and_no_other() {
        let description: serde_json::Value = serde_json::from_str(super::super::OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, item) in description["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
                let name = operation["operationId"].as_str().unwrap().to_owned();
                described.insert((method.to_uppercase(), path.trim_start_matches('/').to_owned(), name));
            }
        }
        let routed: BTreeSet<_> = ROUTES
            .iter()
            .map(|(method, path, op)| ((*method).to_owned(), (*path).to_owned(), op.name().to_owned()))
            .collect();
        assert_eq!(described, routed);
    }
}
