//! Rights: the one model by which all fronts decide if a caller may read or write something.
//!
//! A question is an [`Access`] to a [`Resource`]. The answer comes from the role of a configured token, or from the policies of a token in the store,
//! which are Consul's ([`policy`] reads them, [`Authorizer`] merges them). Policies are about names; a role is about everything in a namespace.
//!
//! Rules of policies, as at Consul: a rule for the exact name decides; else the one with the longest prefix; else the default. Where two policies of a
//! token have a rule for the same name, `deny` wins over `write`, `write` over `list`, `list` over `read`.

mod authorizer;
mod hcl;
mod policy;

pub(crate) use authorizer::Authorizer;
pub use policy::PolicyError;
pub(crate) use policy::{Policy, builtin};

/// Reads a policy, for fuzzing: any outcome is fine.
#[doc(hidden)]
pub fn read_policy(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = Policy::parse(text);
    }
}

/// Access to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Reads the resource.
    Read,
    /// Reads all keys below a key.
    List,
    /// Changes or removes the resource.
    Write,
}

/// Kind of a resource, in Consul's words, and one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Agent,
    /// Configuration entries, which Consul does not have: `GROUP/ID`.
    Config,
    Event,
    Key,
    Node,
    Query,
    Service,
    Session,
    /// Tokens and policies.
    Acl,
    Keyring,
    Operator,
    Mesh,
    Peering,
}

/// The object of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    /// One object of a kind; the name is empty for a kind without names.
    One(Kind, &'a str),
    /// Keys that begin with a text, to remove them all.
    Keys(&'a str),
    /// The own record of a service: a role needs to be `admin` to change it.
    Record(&'a str),
    /// The namespace's audit log, which only the role `admin` may read.
    Audit,
    /// Sum of all resources of the namespace.
    Everything,
}

impl Access {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::List => "list",
            Access::Write => "write",
        }
    }
}

impl Kind {
    /// Kinds whose objects have names.
    pub(crate) const NAMED: [Kind; 8] =
        [Kind::Agent, Kind::Config, Kind::Event, Kind::Key, Kind::Node, Kind::Query, Kind::Service, Kind::Session];
    /// Kinds with a single object.
    pub(crate) const UNNAMED: [Kind; 5] = [Kind::Acl, Kind::Keyring, Kind::Operator, Kind::Mesh, Kind::Peering];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Agent => "agent",
            Kind::Config => "config",
            Kind::Event => "event",
            Kind::Key => "key",
            Kind::Node => "node",
            Kind::Query => "query",
            Kind::Service => "service",
            Kind::Session => "session",
            Kind::Acl => "acl",
            Kind::Keyring => "keyring",
            Kind::Operator => "operator",
            Kind::Mesh => "mesh",
            Kind::Peering => "peering",
        }
    }
}

impl<'a> Resource<'a> {
    /// The tokens and policies.
    pub(crate) const ACL: Resource<'static> = Resource::One(Kind::Acl, "");
    /// The registry's own operation.
    pub(crate) const OPERATOR: Resource<'static> = Resource::One(Kind::Operator, "");

    pub(crate) fn service(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Service, name)
    }

    pub(crate) fn node(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Node, name)
    }

    pub(crate) fn key(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Key, name)
    }

    pub(crate) fn session(node: &'a str) -> Resource<'a> {
        Resource::One(Kind::Session, node)
    }

    pub(crate) fn event(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Event, name)
    }

    pub(crate) fn config(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Config, name)
    }

    pub(crate) fn agent(name: &'a str) -> Resource<'a> {
        Resource::One(Kind::Agent, name)
    }

    /// Returns the kind and the name by which policies decide; the kind's name as a text for messages.
    pub(crate) fn in_consul(self) -> (&'static str, &'a str) {
        match self {
            Resource::One(kind, name) => (kind.name(), name),
            Resource::Keys(prefix) => (Kind::Key.name(), prefix),
            Resource::Record(name) => (Kind::Service.name(), name),
            Resource::Audit => (Kind::Operator.name(), ""),
            Resource::Everything => ("namespace", ""),
        }
    }
}
