//! `/v1/acl/…`: tokens, policies and roles.
//!
//! They belong to the namespace of the request (`?ns=`, `X-Consul-Namespace`, `Namespace` in the body, else that of the caller's token, else
//! `default`), or with `*` to all namespaces. Who may manage those of `*` may manage all. Unlike at Consul, a secret is shown only in the answer that
//! creates its token, and to its holder: the store has its hash.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use humantime_serde::re::humantime;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::session::{is_uuid, uuid};
use super::wire::Object;
use crate::WriteError;
use crate::api::acl::{
    ALL, ANONYMOUS, BUILTIN, Links, Named, PolicyRow, RoleRow, Row, Stored, TokenRow, View, bootstrapped, digest_of,
};
use crate::api::auth::{Auth, Caller, hash_of};
use crate::api::time::rfc3339;
use crate::api::{ApiError, Context, Reply, Request, namespace};
use crate::kv::{Entry, Operation};
use crate::rights::{Access, Policy, Resource};

/// Shown in place of a secret.
const HIDDEN: &str = "<hidden>";
/// Maximum number of policies, identities and roles of a token, and of policies and identities of a role.
const MOST_LINKS: usize = 256;
/// Maximum length of a name, as at Consul, and of a description.
const LONGEST_NAME: usize = 128;
const LONGEST_ROLE: usize = 256;
const LONGEST_IDENTITY: usize = 256;
const LONGEST_DESCRIPTION: usize = 1024;
/// Times after which a token may end, as at Consul.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);

/// A request about tokens and policies of a scope.
struct Managing<'a> {
    context: &'a Arc<Context>,
    request: &'a Request,
    caller: Caller,
    /// A namespace, or `*` for all.
    scope: String,
    view: Arc<View>,
}

pub(super) async fn handle(
    context: &Arc<Context>,
    request: &Request,
    caller: Caller,
    path: &[&str],
) -> Result<Reply, ApiError> {
    if !matches!(**context.auth.load(), Auth::Acl { .. }) {
        return Ok(Reply::text(StatusCode::UNAUTHORIZED, "ACL support disabled"));
    }
    if !context.registry.has_keys() {
        return Err(ApiError::NotImplemented("tokens and policies need a store that holds keys".into()));
    }
    let body = if request.body.is_empty() { Value::Null } else { request.json()? };
    let view = context.acl.view(&context.registry);
    let scope = scope(request, &caller, &body)?;
    let call = Managing { context, request, caller, scope, view };
    let method = if request.method == Method::HEAD { "GET" } else { request.method.as_str() };
    match (method, path) {
        ("PUT", ["bootstrap"]) => call.bootstrap(&body).await,
        ("GET", ["tokens"]) => call.tokens(),
        ("PUT", ["token"]) => call.create(&body).await,
        ("GET", ["token", "self"]) => call.own(),
        ("GET", ["token", accessor]) => call.token(accessor),
        ("PUT", ["token", accessor]) => call.update(accessor, &body).await,
        ("PUT", ["token", accessor, "clone"]) => call.duplicate(accessor, &body).await,
        ("DELETE", ["token", accessor]) => call.remove(accessor).await,
        ("GET", ["policies"]) => call.policies(),
        ("PUT", ["policy"]) => call.put_policy(None, &body).await,
        ("GET", ["policy", "name", name @ ..]) if !name.is_empty() => {
            let name = name.join("/");
            call.policy(|_, known| known == name)
        }
        ("GET", ["policy", id]) => call.policy(|known, _| known == *id),
        ("PUT", ["policy", id]) => call.put_policy(Some(id), &body).await,
        ("DELETE", ["policy", id]) => call.remove_policy(id).await,
        ("GET", ["roles"]) => call.roles(),
        ("PUT", ["role"]) => call.put_role(None, &body).await,
        ("GET", ["role", "name", name]) => call.role(|row| row.name == *name),
        ("GET", ["role", id]) => call.role(|row| row.id == *id),
        ("PUT", ["role", id]) => call.put_role(Some(id), &body).await,
        ("DELETE", ["role", id]) => call.remove_role(id).await,
        // None of them exists here.
        ("GET", ["binding-rules" | "auth-methods"]) => {
            call.needs(Access::Read)?;
            Ok(Reply::ok(&[(); 0]))
        }
        (_, ["bootstrap"]) => Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        (_, ["tokens" | "policies" | "roles"]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" }),
        (_, ["token" | "policy" | "role"]) => Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        (_, ["token" | "policy" | "role", _]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, PUT, DELETE" }),
        (_, ["token", _, "clone"]) => Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        (_, [part, ..]) => Err(ApiError::NotImplemented(format!(
            "Consul's /v1/acl/{part} is not served here: tokens have policies and roles, and no logins"
        ))),
        _ => Err(ApiError::NoSuchPath(request.whole.chars().take(200).collect())),
    }
}

/// Returns the scope of a request.
fn scope(request: &Request, caller: &Caller, body: &Value) -> Result<String, ApiError> {
    let named = request.param("ns").or_else(|| request.named_header("x-consul-namespace"));
    let said = match body {
        Value::Object(_) => Object::new(body, "the body")?.text("namespace")?,
        _ => "",
    };
    match (named.filter(|named| !named.is_empty()), said) {
        (Some(named), said) if !said.is_empty() && said != named => {
            Err(ApiError::bad(format!("Namespace {said:?}: the request is about {named:?}")))
        }
        (Some(ALL), _) | (None, ALL) => Ok(ALL.to_owned()),
        (Some(named), _) => Ok(namespace(named)?.as_str().to_owned()),
        (None, "") => Ok(caller.only_namespace().unwrap_or("default").to_owned()),
        (None, said) => Ok(namespace(said)?.as_str().to_owned()),
    }
}

/// Returns the rows of a scope that `of` accepts.
fn rows<'a, R>(entries: &'a [Arc<Entry>], of: impl Fn(Row) -> Option<R> + 'a) -> impl Iterator<Item = R> + 'a {
    entries.iter().filter_map(|entry| Row::of(entry)).filter_map(of)
}

/// Returns the tokens of a scope.
fn tokens(entries: &[Arc<Entry>]) -> Vec<Stored<TokenRow>> {
    rows(entries, |row| if let Row::Token(token) = row { Some(token) } else { None }).collect()
}

/// Returns Consul's error, with its status, for a token that is not there.
fn no_such_token() -> ApiError {
    ApiError::Denied("token does not exist: ACL not found".into())
}

fn check_description(description: &str) -> Result<(), ApiError> {
    if description.len() > LONGEST_DESCRIPTION {
        return Err(ApiError::bad(format!("Description: expected at most {LONGEST_DESCRIPTION} bytes")));
    }
    Ok(())
}

fn full(what: &'static str, found: usize, limit: usize) -> ApiError {
    WriteError::Full { what, found, limit }.into()
}

impl Managing<'_> {
    fn needs(&self, access: Access) -> Result<(), ApiError> {
        self.caller.needs(access, Resource::ACL, &self.scope)
    }

    fn audit(&self, action: &str, object: &str) {
        self.context.audit(&self.caller, self.request.peer, action, &self.scope, object);
    }

    /// True if tokens and policies of `scope` are part of this request's scope, or the caller may manage them anyway.
    fn reaches(&self, access: Access, scope: &str) -> bool {
        scope == self.scope || self.caller.may(access, Resource::ACL, scope)
    }

    // --- tokens

    /// Returns a token in Consul's form.
    fn show(&self, token: &Stored<TokenRow>, secret: &str) -> Value {
        let row = &token.row;
        let role = |id: &String| self.view.role(id).map(|role| json!({ "ID": id, "Name": role.row.name }));
        let roles: Vec<Value> = row.roles.iter().filter_map(role).collect();
        let secret = if row.accessor == ANONYMOUS { "anonymous" } else { secret };
        let mut shown = json!({
            "CreateIndex": token.created.0,
            "ModifyIndex": token.modified.0,
            "AccessorID": row.accessor,
            "SecretID": secret,
            "Description": row.description,
            "Local": row.local,
            "CreateTime": rfc3339(row.created_ms),
            "Hash": hash(&[&row.description, &text_of(&row.links), &row.roles.join(" ")]),
        });
        self.show_links(&row.links, &mut shown);
        for (key, value) in [
            ("Roles", (!roles.is_empty()).then(|| roles.into())),
            ("ExpirationTime", row.expires_ms.map(|end| rfc3339(end).into())),
            ("Namespace", (row.scope != "default").then(|| row.scope.clone().into())),
        ] {
            if let Some(value) = value {
                shown[key] = value;
            }
        }
        shown
    }

    /// Adds the fields of `links` to an object in Consul's form.
    fn show_links(&self, links: &Links, shown: &mut Value) {
        let policy = |id: &String| {
            let builtin = BUILTIN.iter().find(|(known, ..)| known == id).map(|(_, name, ..)| (*name).to_owned());
            let name = builtin.or_else(|| self.view.policy(id).map(|policy| policy.row.name.clone()));
            name.map(|name| json!({ "ID": id, "Name": name }))
        };
        shown["Policies"] = links.policies.iter().filter_map(policy).collect();
        let services: Vec<Value> = links.services.iter().map(|name| json!({ "ServiceName": name })).collect();
        let node = |name: &String| json!({ "NodeName": name, "Datacenter": super::DATACENTER });
        let nodes: Vec<Value> = links.nodes.iter().map(node).collect();
        for (key, list) in [("ServiceIdentities", services), ("NodeIdentities", nodes)] {
            if !list.is_empty() {
                shown[key] = list.into();
            }
        }
    }

    /// Returns the anonymous token of the scope.
    fn anonymous(&self) -> Stored<TokenRow> {
        let stored = self.view.anonymous(&self.scope).map(|token| token.stored.clone());
        stored.unwrap_or_else(|| Stored {
            row: TokenRow {
                accessor: ANONYMOUS.to_owned(),
                scope: self.scope.clone(),
                description: "Anonymous Token".to_owned(),
                ..TokenRow::default()
            },
            created: crate::Revision(1),
            modified: crate::Revision(1),
        })
    }

    fn tokens(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        // Tokens of all namespaces count in this one.
        let with_all = self.caller.may(Access::Read, Resource::ACL, ALL);
        let mut found: Vec<Stored<TokenRow>> = vec![self.anonymous()];
        let now = crate::registry::now_millis();
        let of_scope = |row: &TokenRow| row.scope == self.scope || (with_all && row.scope == ALL);
        let listed = self.view.tokens().map(|token| &token.stored);
        found.extend(listed.filter(|it| of_scope(&it.row) && !it.row.is_expired(now)).cloned());
        if let Some(policy) = self.request.param("policy") {
            found.retain(|token| token.row.links.policies.iter().any(|id| id == policy));
        }
        if let Some(role) = self.request.param("role") {
            found.retain(|token| token.row.roles.iter().any(|id| id == role));
        }
        if let Some(service) = self.request.param("servicename") {
            found.retain(|token| token.row.links.services.iter().any(|name| name == service));
        }
        found.sort_by(|a, b| a.row.accessor.cmp(&b.row.accessor));
        Ok(Reply::ok(&found.iter().map(|token| self.show(token, HIDDEN)).collect::<Vec<_>>()))
    }

    /// Finds a token by its accessor, in the scope or wherever else the caller may manage tokens.
    fn found(&self, access: Access, accessor: &str) -> Option<Stored<TokenRow>> {
        if accessor == ANONYMOUS {
            return Some(self.anonymous());
        }
        let token = self.view.by_accessor(accessor)?;
        self.reaches(access, &token.stored.row.scope).then(|| token.stored.clone())
    }

    fn token(&self, accessor: &str) -> Result<Reply, ApiError> {
        let own = self.caller.stored().is_some_and(|caller| caller.token.is_some() && caller.accessor() == accessor);
        if !own {
            self.needs(Access::Read)?;
        }
        match self.found(Access::Read, accessor) {
            Some(token) => Ok(Reply::ok(&self.show(&token, HIDDEN))),
            None if own => self.own(),
            None => Err(no_such_token()),
        }
    }

    /// Returns the caller's own token.
    fn own(&self) -> Result<Reply, ApiError> {
        let token = self.caller.stored().and_then(|caller| caller.token.as_ref());
        let token = token.ok_or_else(no_such_token)?;
        // The holder knows the secret; some clients expect it.
        let secret = crate::api::auth::presented_by(self.request).unwrap_or_else(|| HIDDEN.to_owned());
        Ok(Reply::ok(&self.show(&token.stored, &secret)))
    }

    async fn bootstrap(&self, body: &Value) -> Result<Reply, ApiError> {
        let no_longer = |why: &str| {
            Err(ApiError::Denied(format!("Permission denied: ACL bootstrap no longer allowed (reset index: 0){why}")))
        };
        if self.context.auth.load().has_root() {
            return no_longer(": registry.tokens of the configuration has an admin token for all namespaces");
        }
        let given = if body.is_null() { "" } else { Object::new(body, "the body")?.text("bootstrapsecret")? };
        let secret = if given.is_empty() { uuid()? } else { given.to_owned() };
        if !is_uuid(&secret) {
            return Err(ApiError::bad("BootstrapSecret: expected a UUID"));
        }
        let row = TokenRow {
            accessor: uuid()?,
            scope: ALL.to_owned(),
            sha256: digest_of(&secret),
            description: "Bootstrap Token (Global Management)".to_owned(),
            links: Links { policies: vec![BUILTIN[0].0.to_owned()], ..Links::default() },
            created_ms: crate::registry::now_millis(),
            ..TokenRow::default()
        };
        let made = self.context.registry.change_acl(ALL, |entries| {
            let is_bootstrapped = rows(entries, |row| matches!(row, Row::Bootstrap).then_some(())).next().is_some();
            let operations = if is_bootstrapped { Vec::new() } else { vec![row.put(), bootstrapped()] };
            Ok::<_, ApiError>((operations, !is_bootstrapped))
        });
        if !made.await? {
            return no_longer("");
        }
        self.context.audit(&self.caller, self.request.peer, "acl/bootstrap", ALL, &row.accessor);
        let mut shown = self.written(&row, &secret);
        shown["ID"] = secret.into();
        Ok(Reply::ok(&shown))
    }

    /// Returns a token just written, with its revisions.
    fn written(&self, row: &TokenRow, secret: &str) -> Value {
        let view = self.context.acl.view(&self.context.registry);
        let call = Managing {
            context: self.context,
            request: self.request,
            caller: self.caller.clone(),
            scope: row.scope.clone(),
            view,
        };
        let stored = match row.accessor.as_str() {
            ANONYMOUS => Some(call.anonymous()),
            accessor => call.view.by_accessor(accessor).map(|token| token.stored.clone()),
        };
        let (created, modified) = (crate::Revision(0), crate::Revision(0));
        call.show(&stored.unwrap_or_else(|| Stored { row: row.clone(), created, modified }), secret)
    }

    /// Reads the fields of a token that its writer chooses. Links by name are resolved in `scope`.
    fn read(&self, body: &Value, scope: &str, before: Option<&TokenRow>) -> Result<TokenRow, ApiError> {
        let object = Object::new(body, "the body")?;
        object.refuse(&["templatedpolicies", "authmethod", "partition", "rules"])?;
        let mut row = before.cloned().unwrap_or_default();
        scope.clone_into(&mut row.scope);
        object.text("description")?.clone_into(&mut row.description);
        check_description(&row.description)?;
        row.local = object.flag("local")?;
        row.links = self.links(&object, scope)?;
        row.roles = Vec::new();
        for link in list(&object, "roles")? {
            let link = Object::new(link, "Roles")?;
            let (id, name) = (link.text("id")?, link.text("name")?);
            let mut stored = self.view.roles().map(|role| &role.row).filter(|row| row.scope == scope);
            let found = stored.find(|it| if id.is_empty() { it.name == name } else { it.id == id });
            let named = || if id.is_empty() { format!("name {name:?}") } else { format!("ID {id:?}") };
            let missing = || ApiError::bad(format!("No such ACL role with {} in the namespace {scope:?}", named()));
            let found = found.ok_or_else(missing)?;
            if !row.roles.contains(&found.id) {
                row.roles.push(found.id.clone());
            }
        }
        check_links(&row.links, row.roles.len())?;
        Ok(row)
    }

    /// Reads policies and identities. Policies by name are looked up in `scope`.
    fn links(&self, object: &Object<'_>, scope: &str) -> Result<Links, ApiError> {
        let mut row = Links::default();
        for link in list(object, "policies")? {
            let link = Object::new(link, "Policies")?;
            let (id, name) = (link.text("id")?, link.text("name")?);
            let builtin = BUILTIN.iter().find(|(known, called, ..)| *known == id || (id.is_empty() && *called == name));
            let mut stored = self.view.policies().filter(|policy| policy.row.scope == scope).map(|policy| &policy.row);
            let found = builtin.map(|(id, ..)| (*id).to_owned()).or_else(|| {
                stored.find(|it| if id.is_empty() { it.name == name } else { it.id == id }).map(|it| it.id.clone())
            });
            let missing = || match id.is_empty() {
                true => ApiError::bad(format!("No such ACL policy with name {name:?} in the namespace {scope:?}")),
                false => ApiError::bad(format!("No such ACL policy with ID {id:?} in the namespace {scope:?}")),
            };
            let found = found.ok_or_else(missing)?;
            if !row.policies.contains(&found) {
                row.policies.push(found);
            }
        }
        for identity in list(object, "serviceidentities")? {
            let identity = Object::new(identity, "ServiceIdentities")?;
            here(&identity)?;
            push_identity(&mut row.services, "ServiceName", identity.text("servicename")?)?;
        }
        for identity in list(object, "nodeidentities")? {
            let identity = Object::new(identity, "NodeIdentities")?;
            if !matches!(identity.text("datacenter")?, "" | super::DATACENTER) {
                return Err(ApiError::bad(format!("Datacenter: there is one, {}", super::DATACENTER)));
            }
            push_identity(&mut row.nodes, "NodeName", identity.text("nodename")?)?;
        }
        Ok(row)
    }

    async fn create(&self, body: &Value) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let object = Object::new(body, "the body")?;
        let mut row = self.read(body, &self.scope, None)?;
        let ids = (object.text("accessorid")?, object.text("secretid")?);
        let secret = if ids.1.is_empty() { uuid()? } else { ids.1.to_owned() };
        row.accessor = if ids.0.is_empty() { uuid()? } else { ids.0.to_ascii_lowercase() };
        for (what, id) in [("AccessorID", &row.accessor), ("SecretID", &secret)] {
            let is_reserved = id.starts_with("00000000-0000-0000-0000-0000000000");
            if !is_uuid(id) || is_reserved {
                return Err(ApiError::bad(format!("Invalid Token: {what} - expected a UUID, none that is reserved")));
            }
        }
        row.sha256 = digest_of(&secret);
        row.created_ms = crate::registry::now_millis();
        row.expires_ms = expiry(&object, row.created_ms)?;
        self.add(row, &secret, "acl/token/create").await
    }

    /// Writes a new token.
    async fn add(&self, row: TokenRow, secret: &str, action: &str) -> Result<Reply, ApiError> {
        // Tokens of other namespaces are known to this node at least since the last change; a random id meets none.
        let in_use = |what: &str| ApiError::bad(format!("Invalid Token: {what} is already in use"));
        if self.view.by_accessor(&row.accessor).is_some() {
            return Err(in_use("AccessorID"));
        }
        if self.view.by_secret(&hash_of(secret)).is_some() || self.context.auth.load().has_token(secret) {
            return Err(in_use("SecretID"));
        }
        let (limit, now) = (self.context.registry.acl_limits().tokens, crate::registry::now_millis());
        let change = self.context.registry.change_acl(&row.scope, |entries| {
            let tokens = tokens(entries);
            if tokens.iter().any(|token| token.row.accessor == row.accessor) {
                return Err(in_use("AccessorID"));
            }
            if tokens.iter().any(|token| token.row.sha256 == row.sha256) {
                return Err(in_use("SecretID"));
            }
            let (expired, tokens): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|it| it.row.is_expired(now));
            if tokens.len() >= limit {
                return Err(full("tokens of a namespace (registry.acl.tokens)", tokens.len() + 1, limit));
            }
            let ended = expired.iter().take(MOST_ENDED).map(|token| TokenRow::delete(&token.row.accessor));
            Ok((std::iter::once(row.put()).chain(ended).collect::<Vec<Operation>>(), ()))
        });
        change.await?;
        self.audit(action, &row.accessor);
        Ok(Reply::ok(&self.written(&row, secret)))
    }

    async fn update(&self, accessor: &str, body: &Value) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let object = Object::new(body, "the body")?;
        if !matches!(object.text("accessorid")?, "" | HIDDEN) && object.text("accessorid")? != accessor {
            return Err(ApiError::bad("Token Accessor ID in URL and payload do not match"));
        }
        let missing = || ApiError::Missing(format!("Cannot find token {accessor:?}"));
        let before = self.found(Access::Write, accessor).ok_or_else(missing)?;
        let scope = before.row.scope.clone();
        let row = self.read(body, &scope, Some(&before.row))?;
        let secret = object.text("secretid")?;
        let same_secret = matches!(secret, "" | HIDDEN)
            || digest_of(secret) == before.row.sha256
            || (accessor == ANONYMOUS && secret == "anonymous");
        if !same_secret {
            return Err(ApiError::bad("Changing a token's SecretID is not permitted"));
        }
        if row.local != before.row.local {
            return Err(ApiError::bad(format!("Cannot toggle local mode of {accessor}")));
        }
        let end = object.text("expirationtime")?;
        if object.text("expirationttl").is_ok_and(|ttl| !matches!(ttl, "" | "0s"))
            || (!end.is_empty() && humantime::parse_rfc3339(end).ok().map(millis) != row.expires_ms)
        {
            return Err(ApiError::bad(format!("Cannot change expiration time of {accessor}")));
        }
        let change = self.context.registry.change_acl(&scope, |entries| {
            let tokens = tokens(entries);
            // Deleted meanwhile: a write would bring it back.
            if accessor != ANONYMOUS && !tokens.iter().any(|token| token.row.accessor == row.accessor) {
                return Err(missing());
            }
            Ok((vec![row.put()], ()))
        });
        change.await?;
        self.audit("acl/token/update", accessor);
        Ok(Reply::ok(&self.written(&row, HIDDEN)))
    }

    async fn duplicate(&self, accessor: &str, body: &Value) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        if accessor == ANONYMOUS {
            return Err(ApiError::Denied("Permission denied: Cannot clone the anonymous token".into()));
        }
        let before = self.found(Access::Write, accessor).ok_or_else(no_such_token)?;
        let description = match body {
            Value::Null => "",
            body => Object::new(body, "the body")?.text("description")?,
        };
        let secret = uuid()?;
        let mut row = TokenRow {
            accessor: uuid()?,
            sha256: digest_of(&secret),
            created_ms: crate::registry::now_millis(),
            ..before.row
        };
        if !description.is_empty() {
            description.clone_into(&mut row.description);
        }
        check_description(&row.description)?;
        self.add(row, &secret, "acl/token/clone").await
    }

    async fn remove(&self, accessor: &str) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        if accessor == ANONYMOUS {
            return Err(ApiError::bad("Delete operation not permitted on the anonymous token"));
        }
        if self.caller.stored().is_some_and(|caller| caller.accessor() == accessor) {
            return Err(ApiError::bad("Deletion of the request's authorization token is not permitted"));
        }
        let missing = || ApiError::Missing("Cannot find token to delete".into());
        let before = self.found(Access::Write, accessor).ok_or_else(missing)?;
        let change = |_: &[Arc<Entry>]| Ok::<_, ApiError>((vec![TokenRow::delete(accessor)], ()));
        self.context.registry.change_acl(&before.row.scope, change).await?;
        self.audit("acl/token/delete", accessor);
        Ok(Reply::ok(&true))
    }

    // --- policies

    fn show_policy(&self, policy: &Stored<PolicyRow>, with_rules: bool) -> Value {
        let row = &policy.row;
        let mut shown = json!({
            "ID": row.id,
            "Name": row.name,
            "Description": row.description,
            "Datacenters": null,
            "Hash": hash(&[&row.name, &row.description, &row.rules]),
            "CreateIndex": policy.created.0,
            "ModifyIndex": policy.modified.0,
        });
        if with_rules {
            shown["Rules"] = row.rules.clone().into();
        }
        if row.scope != "default" {
            shown["Namespace"] = row.scope.clone().into();
        }
        shown
    }

    fn policies(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        let builtin = BUILTIN.iter().filter_map(|(id, ..)| PolicyRow::builtin(&self.scope, |known, _| known == *id));
        let mut found: Vec<Stored<PolicyRow>> = builtin.collect();
        found.extend(self.view.policies().filter(|policy| policy.row.scope == self.scope).cloned());
        found.sort_by(|a, b| a.row.id.cmp(&b.row.id));
        Ok(Reply::ok(&found.iter().map(|policy| self.show_policy(policy, false)).collect::<Vec<_>>()))
    }

    /// Returns the policy that `wanted` accepts by id and name.
    fn policy(&self, wanted: impl Fn(&str, &str) -> bool) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        let stored = || {
            let mut policies = self.view.policies().filter(|policy| policy.row.scope == self.scope);
            policies.find(|policy| wanted(&policy.row.id, &policy.row.name)).cloned()
        };
        match PolicyRow::builtin(&self.scope, &wanted).or_else(stored) {
            Some(policy) => Ok(Reply::ok(&self.show_policy(&policy, true))),
            None => Err(ApiError::Missing("Requested policy does not exist: ACL not found".into())),
        }
    }

    async fn put_policy(&self, id: Option<&str>, body: &Value) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let object = Object::new(body, "the body")?;
        object.refuse(&["partition"])?;
        here(&object)?;
        let id = id_of::<PolicyRow>(id, &object)?;
        let row = PolicyRow {
            id: id.clone().map_or_else(uuid, Ok)?,
            scope: self.scope.clone(),
            name: object.text("name")?.to_owned(),
            description: object.text("description")?.to_owned(),
            rules: object.text("rules")?.to_owned(),
        };
        if PolicyRow::builtin(ALL, |id, _| id == row.id).is_some() {
            return Err(ApiError::bad("Changing a builtin policy is not permitted"));
        }
        check_policy_name(&row.name)?;
        check_description(&row.description)?;
        let limits = self.context.registry.acl_limits();
        if row.rules.len() > limits.rules_bytes {
            let (limit, value) = ("registry.acl.rules_bytes", limits.rules_bytes as u64);
            return Err(ApiError::TooLarge { what: "the rules of the policy", limit, value });
        }
        Policy::parse(&row.rules).map_err(|error| ApiError::bad(error.to_string()))?;
        if BUILTIN.iter().any(|(_, name, ..)| *name == row.name) {
            return Err(name_taken(&row));
        }
        let written = self.store(row, id.is_none()).await?;
        Ok(Reply::ok(&self.show_policy(&written, true)))
    }

    async fn remove_policy(&self, id: &str) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        if let Some((_, name, ..)) = BUILTIN.iter().find(|(known, ..)| *known == id) {
            return Err(ApiError::bad(format!("Delete operation not permitted on the builtin {name} policy")));
        }
        self.discard::<PolicyRow>(id).await
    }

    // --- roles

    fn show_role(&self, role: &Stored<RoleRow>) -> Value {
        let row = &role.row;
        let mut shown = json!({
            "ID": row.id,
            "Name": row.name,
            "Description": row.description,
            "Hash": hash(&[&row.name, &row.description, &text_of(&row.links)]),
            "CreateIndex": role.created.0,
            "ModifyIndex": role.modified.0,
        });
        self.show_links(&row.links, &mut shown);
        if row.scope != "default" {
            shown["Namespace"] = row.scope.clone().into();
        }
        shown
    }

    fn roles(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        let policy = self.request.param("policy");
        let has = |role: &&Stored<RoleRow>| policy.is_none_or(|id| role.row.links.policies.iter().any(|it| it == id));
        let found = self.view.roles().filter(|role| role.row.scope == self.scope).filter(has);
        Ok(Reply::ok(&found.map(|role| self.show_role(role)).collect::<Vec<_>>()))
    }

    /// Returns the role that `wanted` accepts.
    fn role(&self, wanted: impl Fn(&RoleRow) -> bool) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        match self.view.roles().find(|role| role.row.scope == self.scope && wanted(&role.row)) {
            Some(role) => Ok(Reply::ok(&self.show_role(role))),
            None => Err(ApiError::Missing("Requested role does not exist: ACL not found".into())),
        }
    }

    async fn put_role(&self, id: Option<&str>, body: &Value) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let object = Object::new(body, "the body")?;
        object.refuse(&["templatedpolicies", "partition"])?;
        let id = id_of::<RoleRow>(id, &object)?;
        let row = RoleRow {
            id: id.clone().map_or_else(uuid, Ok)?,
            scope: self.scope.clone(),
            name: object.text("name")?.to_owned(),
            description: object.text("description")?.to_owned(),
            links: self.links(&object, &self.scope)?,
        };
        check_role_name(&row.name)?;
        check_description(&row.description)?;
        check_links(&row.links, 0)?;
        let written = self.store(row, id.is_none()).await?;
        Ok(Reply::ok(&self.show_role(&written)))
    }

    async fn remove_role(&self, id: &str) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        self.discard::<RoleRow>(id).await
    }

    // --- policies and roles

    /// Writes a row, whose id must not exist if `new`, else must; returns it with its revisions.
    async fn store<R: Named>(&self, row: R, new: bool) -> Result<Stored<R>, ApiError> {
        // One limit for both: a role is hardly ever worth more than a policy.
        let limit = self.context.registry.acl_limits().policies;
        let change = self.context.registry.change_acl(&self.scope, |entries| {
            let rows: Vec<Stored<R>> = rows(entries, R::of).collect();
            if rows.iter().any(|it| it.row.name() == row.name() && it.row.id() != row.id()) {
                return Err(name_taken(&row));
            }
            if !new && !rows.iter().any(|it| it.row.id() == row.id()) {
                return Err(ApiError::Missing(format!("cannot find {} {}", R::KIND, row.id())));
            }
            if new && rows.len() >= limit {
                return Err(full(R::LIMITED, rows.len() + 1, limit));
            }
            Ok((vec![row.put()], ()))
        });
        change.await?;
        self.audit(&format!("acl/{}/{}", R::KIND, if new { "create" } else { "update" }), row.name());
        let view = self.context.acl.view(&self.context.registry);
        let (created, modified) = (crate::Revision(0), crate::Revision(0));
        Ok(R::seen(&view, row.id()).cloned().unwrap_or(Stored { row, created, modified }))
    }

    /// Removes the row `id`.
    async fn discard<R: Named>(&self, id: &str) -> Result<Reply, ApiError> {
        let change = self.context.registry.change_acl(&self.scope, |entries| {
            let missing = || ApiError::Missing(format!("Cannot find {} to delete", R::KIND));
            let found = rows(entries, R::of).find(|it| it.row.id() == id).ok_or_else(missing)?;
            Ok::<_, ApiError>((vec![R::delete(id)], found.row.name().to_owned()))
        });
        let name = change.await?;
        self.audit(&format!("acl/{}/delete", R::KIND), &name);
        Ok(Reply::ok(&true))
    }
}

/// Returns the id of the row that a request changes, which the body may repeat; `None` if it creates one.
fn id_of<R: Named>(id: Option<&str>, body: &Object<'_>) -> Result<Option<String>, ApiError> {
    match (id, body.text("id")?) {
        (None, said) if !said.is_empty() => {
            Err(ApiError::bad(format!("Cannot specify the ID when creating a new {}", R::KIND)))
        }
        (Some(id), said) if !said.is_empty() && said != id => {
            Err(ApiError::bad(format!("{} ID in URL and payload do not match", R::TITLE)))
        }
        (id, _) => Ok(id.map(str::to_owned)),
    }
}

fn name_taken<R: Named>(row: &R) -> ApiError {
    let name = row.name();
    ApiError::bad(format!("Invalid {0}: A {0} with Name {name:?} already exists", R::TITLE))
}

/// Number of expired tokens that one write removes.
const MOST_ENDED: usize = 32;

fn list<'a>(object: &Object<'a>, key: &str) -> Result<&'a [Value], ApiError> {
    match object.get(key) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(ApiError::bad(format!("{key}: expected a list"))),
    }
}

/// Rejects an object that is valid in other datacenters only.
fn here(object: &Object<'_>) -> Result<(), ApiError> {
    let list = list(object, "datacenters")?;
    if list.is_empty() || list.iter().any(|dc| dc == super::DATACENTER) {
        return Ok(());
    }
    Err(ApiError::bad(format!("Datacenters: there is one, {}", super::DATACENTER)))
}

/// Adds a name of an identity, which becomes part of rules.
fn push_identity(names: &mut Vec<String>, what: &str, name: &str) -> Result<(), ApiError> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let outer = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    if bytes.len() > LONGEST_IDENTITY
        || !bytes.iter().all(|byte| inner(*byte))
        || !outer(bytes.first())
        || !outer(bytes.last())
    {
        return Err(ApiError::bad(format!(
            "{what} {name:?}: expected up to {LONGEST_IDENTITY} lower-case letters, digits, '-' and '_', beginning and ending with a letter or digit"
        )));
    }
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
    Ok(())
}

/// Refuses more links than a token or role may have.
fn check_links(links: &Links, roles: usize) -> Result<(), ApiError> {
    let found = links.policies.len() + links.services.len() + links.nodes.len() + roles;
    if found > MOST_LINKS {
        return Err(ApiError::bad(format!("found {found} policies, identities and roles, the most is {MOST_LINKS}")));
    }
    Ok(())
}

/// Returns the content of `links`, for a hash.
fn text_of(links: &Links) -> String {
    [&links.policies, &links.services, &links.nodes].map(|list| list.join(" ")).join("\0")
}

fn check_role_name(name: &str) -> Result<(), ApiError> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=LONGEST_ROLE).contains(&name.len()) && name.bytes().all(is_known) {
        return Ok(());
    }
    Err(ApiError::bad(format!(
        "Invalid Role: invalid Name. Expected 1 to {LONGEST_ROLE} alphanumeric characters, '-' and '_'"
    )))
}

fn check_policy_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(ApiError::bad(format!(
            "Invalid Policy: invalid Name. Length must be greater than 0 and less than {LONGEST_NAME}"
        )));
    }
    if name.starts_with('/') || name.starts_with("builtin/") {
        return Err(ApiError::bad("Invalid Policy: invalid Name. Names cannot be prefixed with '/' or 'builtin/'"));
    }
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/');
    if !name.bytes().all(is_known) || name.matches('/').count() > 1 {
        return Err(ApiError::bad(
            "Invalid Policy: invalid Name. Only alphanumeric characters, a single '/', '-' and '_' are allowed",
        ));
    }
    Ok(())
}

fn millis(time: std::time::SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time at which a new token ends.
fn expiry(object: &Object<'_>, now_ms: i64) -> Result<Option<i64>, ApiError> {
    let ttl = object.duration("expirationttl")?.filter(|ttl| !ttl.is_zero());
    let end = object.text("expirationtime")?;
    let end = match (ttl, end) {
        (None, "") => return Ok(None),
        (Some(_), end) if !end.is_empty() => {
            return Err(ApiError::bad("Token Expiration TTL and Expiration Time cannot both be set"));
        }
        (Some(ttl), _) => now_ms.saturating_add(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        (None, end) => humantime::parse_rfc3339(end)
            .map(millis)
            .map_err(|_| ApiError::bad("ExpirationTime: expected a time such as 2030-01-01T00:00:00Z"))?,
    };
    let life = Duration::from_millis(u64::try_from(end.saturating_sub(now_ms)).unwrap_or(0));
    if (SHORTEST_LIFE..=LONGEST_LIFE).contains(&life) {
        return Ok(Some(end));
    }
    Err(ApiError::bad(format!(
        "ExpirationTime: expected a time from {SHORTEST_LIFE:?} to {LONGEST_LIFE:?} from now (was {life:?})"
    )))
}

/// Returns a hash of the content, in base64 as at Consul.
fn hash(parts: &[&str]) -> String {
    STANDARD.encode(hash_of(&parts.join("\0")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_as_at_consul() {
        for (name, good) in [
            ("web-1_A", true),
            ("team/web", true),
            ("a/b/c", false),
            ("", false),
            ("/a", false),
            ("builtin/a", false),
            ("ä", false),
        ] {
            assert_eq!(check_policy_name(name).is_ok(), good, "{name}");
        }
        assert!(check_policy_name(&"a".repeat(129)).is_err());
        for (name, good) in [("web-1_A", true), ("a/b", false), ("", false), ("ä", false)] {
            assert_eq!(check_role_name(name).is_ok(), good, "{name}");
        }
        assert!(check_role_name(&"a".repeat(257)).is_err());
        for (name, good) in
            [("web-1", true), ("a", true), ("Web", false), ("-a", false), ("a_", false), ("", false), ("a\"b", false)]
        {
            assert_eq!(push_identity(&mut Vec::new(), "ServiceName", name).is_ok(), good, "{name}");
        }
        assert!(
            is_uuid("b54fe110-7af5-cafc-d1fb-afc8ba432b1c")
                && !is_uuid("b54fe110-7af5-cafc-d1fb-afc8ba432b1")
                && !is_uuid("")
        );
    }

    #[test]
    fn when_a_token_ends() {
        let now = 1_700_000_000_000;
        for (body, expected) in [
            (json!({}), Some(None)),
            (json!({ "ExpirationTTL": "1h" }), Some(Some(now + 3_600_000))),
            (json!({ "ExpirationTTL": 3_600_000_000_000_u64 }), Some(Some(now + 3_600_000))),
            (json!({ "ExpirationTime": "2023-11-14T23:13:20Z" }), Some(Some(now + 3_600_000))),
            (json!({ "ExpirationTTL": "1h", "ExpirationTime": "2023-11-14T23:13:20Z" }), None),
            (json!({ "ExpirationTTL": "30s" }), None),
            (json!({ "ExpirationTTL": "25h" }), None),
            (json!({ "ExpirationTime": "2023-11-14T00:00:00Z" }), None),
            (json!({ "ExpirationTime": "soon" }), None),
        ] {
            assert_eq!(expiry(&Object::new(&body, "the body").unwrap(), now).ok(), expected, "{body}");
        }
    }
}
