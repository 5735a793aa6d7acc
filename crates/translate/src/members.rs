//! Users of programs that list them per database. Kingpost has one list of users, so rules decide who may log in to which database, and each setting
//! of a user in one database is placed in the pool, the database or the user.

use std::collections::BTreeMap;

use super::plan::{Line, Plan, quoted};
use super::prober::Login;
use super::report::Report;

/// A user of one database.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) database: String,
    pub(super) user: String,
    /// Name in errors: `pools.shop.users.0`.
    pub(super) name: String,
    /// Method of the rule that admits the user.
    pub(super) method: &'static str,
    /// Lines of `proxy.users` with its secret.
    pub(super) secret: Vec<Line>,
    /// User and password of its server logins; None: its own.
    pub(super) server: Option<(String, Option<String>)>,
    /// Settings as TOML, by their key in the other program.
    pub(super) settings: BTreeMap<&'static str, String>,
}

impl Member {
    /// Returns the server login of the member's statements; None if the file has no password for it.
    fn login(&self) -> Option<Login> {
        let own = self.secret.iter().find(|(key, _)| *key == "password").map(|(_, password)| password.clone());
        let (user, password) = match &self.server {
            Some((user, password)) => (user, password.as_deref().map(quoted)),
            None => (&self.user, own),
        };
        Some(Login::of_clients(quoted(user), password?, Some(&self.database)))
    }
}

/// Possible places of a member's setting. The first that can hold it is used: for all, for databases, for users.
#[derive(Debug)]
pub(super) struct Place {
    /// The key in the other program.
    pub(super) key: &'static str,
    /// The key in `[proxy.pool]`.
    pub(super) pool: Option<&'static str>,
    /// In `[[proxy.databases]]`.
    pub(super) database: Option<&'static str>,
    /// In `[[proxy.users]]`.
    pub(super) user: Option<&'static str>,
    /// True if a member without the setting may get another member's value.
    pub(super) shared: bool,
}

// Settings with the same names in PgCat and PgDog.
pub(super) const POOL_SIZE: Place =
    Place { key: "pool_size", pool: Some("size"), database: Some("pool_size"), user: Some("pool_size"), shared: false };
pub(super) const MIN_POOL_SIZE: Place =
    Place { key: "min_pool_size", pool: Some("min_size"), database: Some("min_pool_size"), user: None, shared: false };
pub(super) const IDLE_TIMEOUT: Place =
    Place { key: "idle_timeout", pool: Some("server_idle_timeout"), database: None, user: None, shared: false };
pub(super) const SERVER_LIFETIME: Place = Place {
    key: "server_lifetime",
    pool: Some("server_lifetime"),
    database: Some("server_lifetime"),
    user: None,
    shared: false,
};
pub(super) const STATEMENT_TIMEOUT: Place = Place {
    key: "statement_timeout",
    pool: None,
    database: Some("query_timeout"),
    user: Some("query_timeout"),
    shared: false,
};

/// Returns the places of the pool mode, which the program names `key`.
pub(super) const fn mode(key: &'static str) -> Place {
    Place { key, pool: Some("mode"), database: Some("pool_mode"), user: Some("pool_mode"), shared: false }
}

/// A user as Kingpost lists it: with the cluster, if there are several.
type Account = (Option<String>, String);

/// Writes the rules and the settings of the members. The plan already has the databases, with their clusters.
pub(super) fn settle(report: &mut Report<'_>, plan: &mut Plan, members: &[Member], places: &[Place]) {
    let account = |plan: &Plan, member: &Member| -> Account {
        let first = plan.first_cluster();
        let cluster = first.map(|first| plan.cluster_of(&member.database).unwrap_or(first));
        (cluster, member.user.clone())
    };
    let accounts: Vec<Account> = members.iter().map(|member| account(plan, member)).collect();
    let mut users: BTreeMap<Account, Vec<Line>> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        let first = accounts.iter().position(|account| *account == accounts[at]).unwrap_or(at);
        if members[first].secret != member.secret {
            let why = format!(
                "{} has another one for the same user: Kingpost has one for all databases of a cluster",
                members[first].name
            );
            report.problem(&format!("{}.password", member.name), why);
        }
        users.entry(accounts[at].clone()).or_insert_with(|| member.secret.clone());
    }
    plan.logins.extend(members.iter().filter_map(Member::login));
    admit(report, plan, members);
    towards_servers(report, plan, members);
    for place in places {
        settle_one(report, plan, members, &accounts, &mut users, place);
    }
    for ((cluster, user), mut lines) in users {
        if let Some(cluster) = cluster {
            lines.insert(0, ("cluster", cluster));
        }
        plan.users.push((user, lines));
    }
}

/// Writes rules by which each database admits its members and nobody else.
fn admit(report: &mut Report<'_>, plan: &mut Plan, members: &[Member]) {
    let databases: Vec<String> = plan.databases.iter().map(|(name, _)| name.clone()).collect();
    for database in databases {
        let mut methods: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for member in members.iter().filter(|member| member.database == database) {
            match in_rule(&member.user) {
                Some(user) => methods.entry(member.method).or_default().push(user),
                None => report.insist(&member.name, "the user's name has a line break or a NUL"),
            }
        }
        if methods.is_empty() {
            report.leave(&format!("users of {database}"), "there are none: nobody can log in to it");
        }
        match in_rule(&database) {
            Some(database) => {
                plan.rules
                    .extend(methods.iter().map(|(method, users)| rule("host", &database, &users.join(","), method)));
            }
            None => report.insist(&database, "the database's name has a line break or a NUL"),
        }
    }
}

/// Returns a rule for clients from any address.
pub(super) fn rule(kind: &str, database: &str, user: &str, method: &str) -> Vec<Line> {
    vec![
        ("type", quoted(kind)),
        ("database", quoted(database)),
        ("user", quoted(user)),
        ("address", quoted("all")),
        ("method", quoted(method)),
    ]
}

/// Quotes a name as a word of a rule, so that it is not read as a keyword or a list.
fn in_rule(name: &str) -> Option<String> {
    if name.contains(['\n', '\r', '\0']) || name.is_empty() {
        return None;
    }
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let keyword = ["all", "sameuser", "samerole", "samegroup", "replication"].contains(&name);
    Some(if plain && !keyword { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) })
}

/// Sets the server login of each database, which must be one for all of its users.
fn towards_servers(report: &mut Report<'_>, plan: &mut Plan, members: &[Member]) {
    for (database, lines) in &mut plan.databases {
        let mut of = members.iter().filter(|member| member.database == *database);
        let Some(first) = of.next() else { continue };
        if let Some(other) = of.find(|other| other.server != first.server) {
            let why = format!("{} has another one: Kingpost has one for all users of a database", first.name);
            report.problem(&format!("{}.server_user", other.name), why);
            continue;
        }
        if let Some((user, password)) = &first.server {
            lines.push(("server_user", quoted(user)));
            lines.extend(password.as_ref().map(|password| ("server_password", quoted(password))));
        }
    }
}

fn settle_one(
    report: &mut Report<'_>,
    plan: &mut Plan,
    members: &[Member],
    accounts: &[Account],
    users: &mut BTreeMap<Account, Vec<Line>>,
    place: &Place,
) {
    let value = |at: usize| members[at].settings.get(place.key);
    let all = 0..members.len();
    // Members whose value differs from that of the first member that they share the place with.
    let differ = |one: usize, other: usize| match (value(one), value(other)) {
        (None, _) | (_, None) if place.shared => false,
        (one, other) => one != other,
    };
    let apart = |same: &dyn Fn(usize, usize) -> bool| -> Option<usize> {
        all.clone().find(|at| (0..*at).any(|other| same(other, *at) && differ(other, *at)))
    };
    let for_all = apart(&|_, _| true);
    if let (None, Some(key)) = (for_all, place.pool) {
        plan.pool.extend(all.clone().find_map(value).map(|value| (key, value.clone())));
        return;
    }
    let for_databases = apart(&|one, other| members[one].database == members[other].database);
    if let (None, Some(key)) = (for_databases, place.database) {
        for (database, lines) in &mut plan.databases {
            let of = all.clone().find(|at| members[*at].database == *database);
            lines.extend(of.and_then(value).map(|value| (key, value.clone())));
        }
        return;
    }
    let for_users = apart(&|one, other| accounts[one] == accounts[other]);
    if let (None, Some(key)) = (for_users, place.user) {
        for (account, lines) in users {
            let of = accounts.iter().position(|other| other == account);
            lines.extend(of.and_then(value).map(|value| (key, value.clone())));
        }
        return;
    }
    let differs = if place.user.is_some() {
        for_users
    } else if place.database.is_some() {
        for_databases
    } else {
        for_all
    };
    let why = match (place.database, place.user) {
        (None, None) => "it is not the same everywhere: Kingpost has one for all",
        (Some(_), None) => "it is not the same for all users of the database: Kingpost has one for a database",
        (None, Some(_)) => "it is not the same in all databases of the user: Kingpost has one for a user",
        (Some(_), Some(_)) => {
            "it is not the same for all users of a database, nor in all databases of a user: Kingpost has one for a database or for a user"
        }
    };
    if let Some(at) = differs {
        report.problem(&format!("{}.{}", members[at].name, place.key), why);
    }
}
