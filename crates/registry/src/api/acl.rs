//! Tokens and policies in the store, in Consul's sense: rows, and the compiled form by which requests are decided.
//!
//! A token and its policies belong to a scope: a namespace, where alone the token has its rights, or `*` for all namespaces. Elsewhere a token has the
//! rights of the anonymous token. The rows contain only the hash of a secret.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::auth::{TokenHash, hash_of, parse_hash};
use crate::kv::{Entry, Operation, Verb};
use crate::rights::{Access, Authorizer, Kind, Policy, Resource, builtin};
use crate::{Registry, Revision};

/// Scope of all namespaces.
pub(super) const ALL: &str = "*";
/// Accessor of the token of requests without one. Each scope has its own.
pub(super) const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";
/// Policies that exist in each scope, with their ids and descriptions.
pub(super) const BUILTIN: [(&str, &str, &str, Access); 2] = [
    (
        "00000000-0000-0000-0000-000000000001",
        "global-management",
        "A built-in policy that grants read and write access to everything in the token's namespaces",
        Access::Write,
    ),
    (
        "00000000-0000-0000-0000-000000000002",
        "builtin/global-read-only",
        "A built-in policy that grants read-only access to everything in the token's namespaces",
        Access::Read,
    ),
];

/// Prefixes of the keys of rows.
const TOKEN: &str = "token/";
const POLICY: &str = "policy/";
const ROLE: &str = "role/";
/// Key of the mark that the first token was made.
const BOOTSTRAP: &str = "bootstrap";

/// The sources of rights that tokens and roles have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Links {
    /// Ids of policies.
    pub(super) policies: Vec<String>,
    /// Names of services that have the token or role.
    pub(super) services: Vec<String>,
    /// Names of nodes that have the token or role.
    pub(super) nodes: Vec<String>,
}

/// Stored form of a token.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TokenRow {
    pub(super) accessor: String,
    pub(super) scope: String,
    /// SHA-256 of the secret, in hexadecimal.
    pub(super) sha256: String,
    pub(super) description: String,
    #[serde(flatten)]
    pub(super) links: Links,
    /// Ids of roles.
    pub(super) roles: Vec<String>,
    pub(super) local: bool,
    /// Time of creation in milliseconds since 1970.
    pub(super) created_ms: i64,
    /// Time at which the token ends, in milliseconds since 1970.
    pub(super) expires_ms: Option<i64>,
}

/// Stored form of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PolicyRow {
    pub(super) id: String,
    pub(super) scope: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) rules: String,
}

/// Stored form of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RoleRow {
    pub(super) id: String,
    pub(super) scope: String,
    pub(super) name: String,
    pub(super) description: String,
    #[serde(flatten)]
    pub(super) links: Links,
}

/// A row with an id, and a name that is unique in its scope.
pub(super) trait Named: Clone + Serialize {
    /// Prefix of the keys of such rows.
    const PREFIX: &str;
    /// The word for such a row in messages.
    const KIND: &str;
    /// [`Named::KIND`] with a capital letter.
    const TITLE: &str;
    /// The words for such rows in the error of a full scope.
    const LIMITED: &'static str;

    fn id(&self) -> &str;

    fn name(&self) -> &str;

    /// Returns `row`, if it is of this kind.
    fn of(row: Row) -> Option<Stored<Self>>;

    /// Returns the row `id` of a view.
    fn seen<'a>(view: &'a View, id: &str) -> Option<&'a Stored<Self>>;

    /// Returns the operation that writes the row.
    fn put(&self) -> Operation {
        set(format!("{}{}", Self::PREFIX, self.id()), self)
    }

    /// Returns the operation that removes the row `id`.
    fn delete(id: &str) -> Operation {
        Operation { key: format!("{}{id}", Self::PREFIX).into(), verb: Verb::Delete }
    }
}

/// A row with the revisions of its creation and of its last change.
#[derive(Debug, Clone)]
pub(super) struct Stored<R> {
    pub(super) row: R,
    pub(super) created: Revision,
    pub(super) modified: Revision,
}

impl<R: DeserializeOwned> Stored<R> {
    /// Decodes an entry.
    ///
    /// # Errors
    /// The entry is no such row.
    pub(super) fn decode(entry: &Entry) -> Result<Stored<R>, serde_json::Error> {
        let row = serde_json::from_slice(&entry.value)?;
        Ok(Stored { row, created: entry.created, modified: entry.modified })
    }
}

/// A row of a scope.
#[derive(Debug)]
pub(super) enum Row {
    Token(Stored<TokenRow>),
    Policy(Stored<PolicyRow>),
    Role(Stored<RoleRow>),
    Bootstrap,
}

/// A token with its rights.
pub(super) struct StoredToken {
    pub(super) stored: Stored<TokenRow>,
    /// The policies; `None` if one of them cannot be read, which might refuse something.
    policies: Option<Vec<Arc<Policy>>>,
    authorizer: OnceLock<Authorizer>,
}

/// Policy with its parsed rules; `None` if they cannot be read.
type ParsedPolicy = (Stored<PolicyRow>, Option<Arc<Policy>>);

/// Tokens and policies of all scopes at one time.
#[derive(Default)]
pub(super) struct View {
    /// The number of changes, by [`Registry::acl_changes`], before which the rows were read.
    changes: Option<u64>,
    by_secret: HashMap<TokenHash, Arc<StoredToken>>,
    by_accessor: HashMap<String, Arc<StoredToken>>,
    /// Anonymous tokens by scope.
    anonymous: HashMap<String, Arc<StoredToken>>,
    policies: BTreeMap<String, ParsedPolicy>,
    roles: BTreeMap<String, Stored<RoleRow>>,
    pub(super) is_bootstrapped: bool,
}

/// The compiled tokens and policies of this node.
#[derive(Default)]
pub(super) struct Acl {
    view: ArcSwap<View>,
    making: Mutex<()>,
}

impl fmt::Debug for TokenRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TokenRow");
        shown.field("accessor", &self.accessor).field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl fmt::Debug for StoredToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stored.row.fmt(f)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("tokens", &self.by_secret.len()).field("policies", &self.policies.len()).finish()
    }
}

/// Returns the hash of a secret in hexadecimal.
pub(super) fn digest_of(secret: &str) -> String {
    hash_of(secret).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Row {
    /// Decodes an entry; `None` for one of another kind. An entry that cannot be decoded is logged.
    pub(super) fn of(entry: &Entry) -> Option<Row> {
        fn decode<R: DeserializeOwned>(entry: &Entry) -> Option<Stored<R>> {
            Stored::decode(entry)
                .inspect_err(|error| {
                    tracing::error!(key = &*entry.key, %error, "a token, policy or role in the store cannot be decoded, and does not count");
                })
                .ok()
        }
        if entry.key.starts_with(TOKEN) {
            return decode(entry).map(Row::Token);
        }
        if entry.key.starts_with(POLICY) {
            return decode(entry).map(Row::Policy);
        }
        if entry.key.starts_with(ROLE) {
            return decode(entry).map(Row::Role);
        }
        (&*entry.key == BOOTSTRAP).then_some(Row::Bootstrap)
    }
}

fn set(key: String, row: &impl Serialize) -> Operation {
    Operation { key: key.into(), verb: Verb::Set(serde_json::to_vec(row).unwrap_or_default().into(), 0) }
}

impl TokenRow {
    /// Returns the operation that writes the row.
    pub(super) fn put(&self) -> Operation {
        set(format!("{TOKEN}{}", self.accessor), self)
    }

    /// Returns the operation that removes the token `accessor`.
    pub(super) fn delete(accessor: &str) -> Operation {
        Operation { key: format!("{TOKEN}{accessor}").into(), verb: Verb::Delete }
    }

    pub(super) fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|end| end <= now_ms)
    }
}

impl Named for RoleRow {
    const PREFIX: &str = ROLE;
    const KIND: &str = "role";
    const TITLE: &str = "Role";
    const LIMITED: &str = "roles of a namespace (registry.acl.policies)";

    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn of(row: Row) -> Option<Stored<RoleRow>> {
        if let Row::Role(role) = row { Some(role) } else { None }
    }

    fn seen<'a>(view: &'a View, id: &str) -> Option<&'a Stored<RoleRow>> {
        view.role(id)
    }
}

impl Named for PolicyRow {
    const PREFIX: &str = POLICY;
    const KIND: &str = "policy";
    const TITLE: &str = "Policy";
    const LIMITED: &str = "policies of a namespace (registry.acl.policies)";

    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn of(row: Row) -> Option<Stored<PolicyRow>> {
        if let Row::Policy(policy) = row { Some(policy) } else { None }
    }

    fn seen<'a>(view: &'a View, id: &str) -> Option<&'a Stored<PolicyRow>> {
        view.policy(id)
    }
}

impl PolicyRow {
    /// Returns a policy that always exists.
    pub(super) fn builtin(scope: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<Stored<PolicyRow>> {
        let (id, name, description, access) = BUILTIN.into_iter().find(|(id, name, ..)| wanted(id, name))?;
        let row = PolicyRow {
            id: id.to_owned(),
            scope: scope.to_owned(),
            name: name.to_owned(),
            description: description.to_owned(),
            rules: builtin::everything(access),
        };
        Some(Stored { row, created: Revision(1), modified: Revision(1) })
    }
}

/// Returns the operation that records that the first token was made.
pub(super) fn bootstrapped() -> Operation {
    Operation { key: BOOTSTRAP.into(), verb: Verb::Set(Bytes::from_static(b"1"), 0) }
}

impl StoredToken {
    /// Compiles a token: its rights are those of its own links and of its roles', as if it had all policies itself.
    fn new(
        stored: Stored<TokenRow>,
        policies: &BTreeMap<String, ParsedPolicy>,
        roles: &BTreeMap<String, Stored<RoleRow>>,
    ) -> StoredToken {
        let row = &stored.row;
        // A role that was deleted since, or of another scope, is without effect.
        let roles = row.roles.iter().filter_map(|id| roles.get(id)).filter(|role| role.row.scope == row.scope);
        let links: Vec<&Links> = std::iter::once(&row.links).chain(roles.map(|role| &role.row.links)).collect();
        let mut linked: Option<Vec<Arc<Policy>>> = Some(Vec::new());
        let mut take = |policy: Option<Arc<Policy>>| match (&mut linked, policy) {
            (Some(linked), Some(policy)) => linked.push(policy),
            _ => linked = None,
        };
        for id in links.iter().flat_map(|links| &links.policies) {
            match (policies.get(id), BUILTIN.iter().find(|(builtin, ..)| builtin == id)) {
                (_, Some((.., access))) => take(Policy::parse(&builtin::everything(*access)).ok().map(Arc::new)),
                (Some((policy, parsed)), None) if policy.row.scope == row.scope => take(parsed.clone()),
                // Deleted since: at Consul such a link is without effect, too.
                _ => {}
            }
        }
        let services = links.iter().flat_map(|links| &links.services).map(|name| builtin::of_service(name));
        let nodes = links.iter().flat_map(|links| &links.nodes).map(|name| builtin::of_node(name));
        for rules in services.chain(nodes) {
            take(Policy::parse(&rules).ok().map(Arc::new));
        }
        StoredToken { stored, policies: linked, authorizer: OnceLock::new() }
    }

    /// True if the token has its rights in a namespace.
    fn covers(&self, namespace: &str) -> bool {
        self.stored.row.scope == ALL || self.stored.row.scope == namespace
    }

    fn authorizer(&self) -> &Authorizer {
        self.authorizer.get_or_init(|| Authorizer::merged(self.policies.iter().flatten().map(|policy| &**policy)))
    }

    fn decide(&self, ask: impl Fn(&Authorizer) -> Option<bool>) -> Option<bool> {
        if self.policies.is_none() {
            return Some(false);
        }
        ask(self.authorizer())
    }
}

impl View {
    fn of(registry: &Registry, before: &View) -> View {
        // Read before the rows: a change in between is taken over at the next request.
        let mut view = View { changes: Some(registry.acl_changes()), ..View::default() };
        let mut tokens = Vec::new();
        for row in registry.acl_rows().iter().filter_map(|entry| Row::of(entry)) {
            match row {
                Row::Bootstrap => view.is_bootstrapped = true,
                Row::Token(token) => tokens.push(token),
                Row::Role(role) => drop(view.roles.insert(role.row.id.clone(), role)),
                Row::Policy(policy) => {
                    let known = before.policies.get(&policy.row.id).filter(|(known, _)| known.row == policy.row);
                    let parsed = match known {
                        Some((_, parsed)) => parsed.clone(),
                        None => match Policy::parse(&policy.row.rules) {
                            Ok(parsed) => Some(Arc::new(parsed)),
                            Err(error) => {
                                let (id, name) = (&policy.row.id, &policy.row.name);
                                tracing::error!(id, name, %error, "a policy in the store cannot be read; its tokens may do nothing");
                                None
                            }
                        },
                    };
                    view.policies.insert(policy.row.id.clone(), (policy, parsed));
                }
            }
        }
        for token in tokens {
            let token = Arc::new(StoredToken::new(token, &view.policies, &view.roles));
            let row = &token.stored.row;
            if row.accessor == ANONYMOUS {
                view.anonymous.insert(row.scope.clone(), token);
                continue;
            }
            let Some(hash) = parse_hash(&row.sha256) else { continue };
            view.by_accessor.insert(row.accessor.clone(), Arc::clone(&token));
            view.by_secret.insert(hash, token);
        }
        view
    }

    /// Returns the token with a secret.
    pub(super) fn by_secret(&self, hash: &TokenHash) -> Option<&Arc<StoredToken>> {
        self.by_secret.get(hash).filter(|token| !token.stored.row.is_expired(crate::registry::now_millis()))
    }

    /// Returns the token `accessor`, which is not an anonymous one.
    pub(super) fn by_accessor(&self, accessor: &str) -> Option<&Arc<StoredToken>> {
        let found = self.by_accessor.get(accessor);
        found.filter(|token| !token.stored.row.is_expired(crate::registry::now_millis()))
    }

    /// Returns the row of the anonymous token of a scope, if it was ever written.
    pub(super) fn anonymous(&self, scope: &str) -> Option<&Arc<StoredToken>> {
        self.anonymous.get(scope)
    }

    /// Iterates over all tokens but the anonymous ones.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &Arc<StoredToken>> {
        self.by_accessor.values()
    }

    /// Returns the policy `id`, which is not a built-in one.
    pub(super) fn policy(&self, id: &str) -> Option<&Stored<PolicyRow>> {
        self.policies.get(id).map(|(policy, _)| policy)
    }

    /// Iterates over all policies but the built-in ones.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Stored<PolicyRow>> {
        self.policies.values().map(|(policy, _)| policy)
    }

    /// Returns the role `id`.
    pub(super) fn role(&self, id: &str) -> Option<&Stored<RoleRow>> {
        self.roles.get(id)
    }

    /// Iterates over all roles.
    pub(super) fn roles(&self) -> impl Iterator<Item = &Stored<RoleRow>> {
        self.roles.values()
    }

    /// Decides by the anonymous tokens of a namespace and of all namespaces.
    fn decide_anonymous(&self, namespace: &str, ask: impl Fn(&Authorizer) -> Option<bool>) -> Option<bool> {
        let mut scopes = [namespace, ALL].into_iter().filter_map(|scope| self.anonymous.get(scope));
        scopes.find_map(|token| token.decide(&ask))
    }
}

impl Acl {
    /// Returns the tokens and policies as of now: those of the last call, if nothing has changed.
    pub(super) fn view(&self, registry: &Registry) -> Arc<View> {
        let is_current = |view: &View| view.changes == Some(registry.acl_changes());
        let view = self.view.load_full();
        if is_current(&view) {
            return view;
        }
        let _one_at_a_time = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.view.load_full();
        if is_current(&view) {
            return view;
        }
        let view = Arc::new(View::of(registry, &view));
        self.view.store(Arc::clone(&view));
        view
    }
}

/// A caller with a token of the store, or without any.
#[derive(Debug, Clone)]
pub(super) struct AclCaller {
    /// The token; `None` for the anonymous one.
    pub(super) token: Option<Arc<StoredToken>>,
    pub(super) view: Arc<View>,
    /// True if what no rule decides is allowed, but for tokens and policies.
    pub(super) default_allow: bool,
}

impl AclCaller {
    pub(super) fn accessor(&self) -> &str {
        self.token.as_ref().map_or(ANONYMOUS, |token| &token.stored.row.accessor)
    }

    /// Returns the namespace of the token; `None` for all.
    pub(super) fn namespace(&self) -> Option<&String> {
        self.token.as_ref().map(|token| &token.stored.row.scope).filter(|scope| *scope != ALL)
    }

    fn decide(&self, namespace: &str, ask: impl Fn(&Authorizer) -> Option<bool>) -> Option<bool> {
        match self.token.as_ref().filter(|token| token.covers(namespace)) {
            Some(token) => token.decide(ask),
            None => self.view.decide_anonymous(namespace, ask),
        }
    }

    /// True if the caller has an access in a namespace.
    pub(super) fn may(&self, access: Access, resource: Resource<'_>, namespace: &str) -> bool {
        let by_default = self.default_allow && resource != Resource::ACL;
        self.decide(namespace, |authorizer| authorizer.decide(access, resource)).unwrap_or(by_default)
    }

    /// True if the caller may read all services and nodes of a namespace.
    pub(super) fn sees_all(&self, namespace: &str) -> bool {
        [Kind::Service, Kind::Node].into_iter().all(|kind| self.sees_all_of(kind, namespace))
    }

    /// True if the caller may read everything of a kind in a namespace.
    pub(super) fn sees_all_of(&self, kind: Kind, namespace: &str) -> bool {
        let decision = self.decide(namespace, |authorizer| authorizer.decide_all(Access::Read, kind));
        decision.unwrap_or(self.default_allow)
    }

    /// True if the caller may do anything in a namespace.
    pub(super) fn may_any(&self, namespace: &str) -> bool {
        self.default_allow
            || self.decide(namespace, |authorizer| authorizer.allows_any().then_some(true)).unwrap_or(false)
    }

    /// Returns Consul's text for a refusal.
    pub(super) fn refusal(&self, access: Access, resource: Resource<'_>) -> String {
        let (kind, name) = resource.in_consul();
        let on = if name.is_empty() { String::new() } else { format!(" on {name:?}") };
        let lacks = format!("lacks permission '{kind}:{}'{on}", access.name());
        match &self.token {
            Some(token) => {
                format!("Permission denied: token with AccessorID '{}' {lacks}", token.stored.row.accessor)
            }
            None => format!(
                "Permission denied: anonymous token {lacks}. The anonymous token is used implicitly when a request does not specify a token."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn linked(policies: &[&str]) -> Links {
        Links { policies: policies.iter().map(|id| (*id).to_owned()).collect(), ..Links::default() }
    }

    fn token(accessor: &str, scope: &str, policies: &[&str]) -> Stored<TokenRow> {
        let row = TokenRow {
            accessor: accessor.into(),
            scope: scope.into(),
            sha256: digest_of(&format!("secret of {accessor} in {scope}")),
            links: linked(policies),
            ..TokenRow::default()
        };
        Stored { row, created: Revision(1), modified: Revision(1) }
    }

    fn view(tokens: Vec<Stored<TokenRow>>, policies: &[(&str, &str, &str)]) -> View {
        view_with(tokens, policies, Vec::new())
    }

    fn view_with(tokens: Vec<Stored<TokenRow>>, policies: &[(&str, &str, &str)], roles: Vec<RoleRow>) -> View {
        let mut view = View::default();
        for row in roles {
            let (created, modified) = (Revision(1), Revision(1));
            view.roles.insert(row.id.clone(), Stored { row, created, modified });
        }
        for (id, scope, rules) in policies {
            let (id, scope, rules) = ((*id).to_owned(), (*scope).to_owned(), (*rules).to_owned());
            let parsed = Policy::parse(&rules).ok().map(Arc::new);
            let row = PolicyRow { id: id.clone(), scope, rules, ..PolicyRow::default() };
            view.policies.insert(id, (Stored { row, created: Revision(1), modified: Revision(1) }, parsed));
        }
        for stored in tokens {
            let token = Arc::new(StoredToken::new(stored, &view.policies, &view.roles));
            let (accessor, scope) = (token.stored.row.accessor.clone(), token.stored.row.scope.clone());
            match accessor.as_str() {
                ANONYMOUS => drop(view.anonymous.insert(scope, token)),
                _ => drop(view.by_accessor.insert(accessor, token)),
            }
        }
        view
    }

    #[test]
    fn a_token_has_its_rights_in_its_own_namespaces_only() {
        let tokens = vec![
            token("shop", "shop", &["p"]),
            token("foreign", "default", &["p"]),
            token("root", ALL, &[BUILTIN[0].0]),
            token("of-all", ALL, &["all"]),
            token("broken", "shop", &["p", "unreadable"]),
            token("gone", "shop", &["deleted"]),
            token("own-root", "shop", &[BUILTIN[0].0]),
            token(ANONYMOUS, "default", &["anonymous"]),
        ];
        let policies = [
            ("p", "shop", r#"service_prefix "" { policy = "write" }"#),
            ("all", ALL, r#"service "web" { policy = "read" }"#),
            ("unreadable", "shop", "servce"),
            ("anonymous", "default", r#"service "web" { policy = "read" }"#),
        ];
        let view = Arc::new(view(tokens, &policies));
        let web = Resource::service("web");
        for (accessor, access, resource, namespace, expected) in [
            ("shop", Access::Write, web, "shop", true),
            ("shop", Access::Write, web, "default", false),
            // As anybody else there.
            ("shop", Access::Read, web, "default", true),
            ("shop", Access::Read, web, ALL, false),
            ("foreign", Access::Read, web, "default", false),
            ("foreign", Access::Read, web, "shop", false),
            ("root", Access::Write, web, "shop", true),
            ("root", Access::Write, Resource::ACL, "shop", true),
            ("root", Access::Write, Resource::ACL, ALL, true),
            ("own-root", Access::Write, Resource::ACL, "shop", true),
            ("own-root", Access::Write, Resource::ACL, ALL, false),
            ("own-root", Access::Write, Resource::ACL, "default", false),
            ("of-all", Access::Read, web, "shop", true),
            ("of-all", Access::Write, web, "shop", false),
            ("broken", Access::Read, web, "shop", false),
            ("gone", Access::Read, web, "shop", false),
            ("", Access::Read, web, "default", true),
            ("", Access::Read, web, "shop", false),
            ("", Access::Read, Resource::node("n"), "default", false),
        ] {
            let caller = |default_allow| AclCaller {
                token: view.by_accessor(accessor).cloned(),
                view: Arc::clone(&view),
                default_allow,
            };
            assert_eq!(caller(false).may(access, resource, namespace), expected, "{accessor} {access:?} {namespace}");
        }
        let open = AclCaller { token: None, view: Arc::clone(&view), default_allow: true };
        assert!(open.may(Access::Write, Resource::One(Kind::Key, "a"), "shop"));
        assert!(!open.may(Access::Read, Resource::ACL, "shop"), "the default gives no right on tokens");
        let shown = format!("{open:?} {:?}", view.by_accessor("shop"));
        assert!(!shown.contains(&digest_of("secret of shop in shop")), "{shown}");
    }

    #[test]
    fn a_role_gives_its_rights_to_its_tokens() {
        let role = |id: &str, scope: &str, links: Links| RoleRow {
            id: id.into(),
            scope: scope.into(),
            links,
            ..RoleRow::default()
        };
        let of_web = Links { services: vec!["web".into()], nodes: vec!["n".into()], ..Links::default() };
        let roles = vec![
            role("writer", "shop", linked(&["write"])),
            role("denier", "shop", linked(&["deny"])),
            role("unreadable", "shop", linked(&["unreadable"])),
            role("identity", "shop", of_web),
            role("foreign", "default", linked(&["write"])),
        ];
        let policies = [
            ("read", "shop", r#"service_prefix "" { policy = "read" }"#),
            ("write", "shop", r#"service_prefix "" { policy = "write" }"#),
            ("deny", "shop", r#"service_prefix "" { policy = "deny" }"#),
            ("unreadable", "shop", "servce"),
        ];
        // Tokens: policies of their own, roles, and rights on services `web` and `db`, and to write the node `n`.
        for (own, of_token, web, db, node) in [
            (&["read"][..], &[][..], "r", "r", false),
            (&[], &["writer"], "rw", "rw", false),
            (&["read"], &["writer"], "rw", "rw", false),
            (&["read"], &["writer", "denier"], "", "", false),
            (&["deny"], &["writer"], "", "", false),
            (&["read"], &["identity"], "rw", "r", true),
            (&["read"], &["unreadable"], "", "", false),
            (&["read"], &["foreign", "deleted"], "r", "r", false),
        ] {
            let mut stored = token("t", "shop", own);
            stored.row.roles = of_token.iter().map(|id| (*id).to_owned()).collect();
            let json = serde_json::to_string(&stored.row).unwrap();
            assert!(serde_json::from_str::<TokenRow>(&json).unwrap() == stored.row, "{json}");
            let view = Arc::new(view_with(vec![stored], &policies, roles.clone()));
            let caller = AclCaller { token: view.by_accessor("t").cloned(), view, default_allow: false };
            for (name, expected) in [("web", web), ("db", db)] {
                let may = |access| caller.may(access, Resource::service(name), "shop");
                let found = (may(Access::Read), may(Access::Write));
                assert_eq!(found, (expected.contains('r'), expected.contains('w')), "{name}: {own:?} {of_token:?}");
            }
            assert_eq!(caller.may(Access::Write, Resource::node("n"), "shop"), node, "{own:?} {of_token:?}");
        }
    }

    #[test]
    fn refusals_are_worded_as_at_consul() {
        let view = Arc::new(view(vec![token("a", "default", &[])], &[]));
        let caller = |accessor: &str| AclCaller {
            token: view.by_accessor(accessor).cloned(),
            view: Arc::clone(&view),
            default_allow: false,
        };
        assert_eq!(
            caller("a").refusal(Access::Write, Resource::service("web")),
            "Permission denied: token with AccessorID 'a' lacks permission 'service:write' on \"web\""
        );
        assert_eq!(
            caller("").refusal(Access::Read, Resource::ACL),
            "Permission denied: anonymous token lacks permission 'acl:read'. The anonymous token is used implicitly when a request does not specify a token."
        );
    }
}
