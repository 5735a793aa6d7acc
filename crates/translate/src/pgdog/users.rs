//! PgDog's `[[users]]`.

use wire::md5;
use wire::scram::Verifier;

use super::databases::{self, Database};
use super::keys::U;
use crate::document::{Settings, tables};
use crate::members::Member;
use crate::plan::{Line, quoted, quoted_list};
use crate::report::Report;
use config::Tree;

/// Authentication method of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Auth {
    Scram,
    Md5,
    Trust,
}

impl Auth {
    pub(super) fn of(report: &mut Report<'_>, general: &Settings) -> Auth {
        match general.get("auth_type").as_deref() {
            None | Some("scram") => Auth::Scram,
            Some("md5") => Auth::Md5,
            Some("trust") => Auth::Trust,
            Some(other) => {
                report.problem(&general.of("auth_type"), format!("found {other:?}, expected scram, md5 or trust"));
                Auth::Scram
            }
        }
    }

    /// Returns Kingpost's name of the method.
    pub(super) fn method(self) -> &'static str {
        match self {
            Auth::Scram => "scram-sha-256",
            Auth::Md5 => "md5",
            Auth::Trust => "trust",
        }
    }
}

/// Returns the users of all databases.
pub(super) fn members(
    report: &mut Report<'_>,
    general: &Settings,
    auth: Auth,
    databases: &[Database],
    tree: Option<&Tree>,
) -> Vec<Member> {
    let mut members = Vec::new();
    for (at, table) in tables(report, U, tree) {
        let user = Settings::judged(report, U, &format!("{U}.{at}"), table, &[]);
        let Some(name) = user.filled("name") else {
            report.problem(&user.of("name"), "it is missing");
            continue;
        };
        let secret = secret(report, &user);
        if secret.is_empty() && auth != Auth::Trust {
            report.leave(&format!("{} (user {name})", user.name), "it has no password: nobody can log in as it");
            continue;
        }
        let of = databases_of(report, &user, databases);
        members.extend(of.into_iter().map(|database| member(report, general, auth, &user, &name, &secret, database)));
    }
    members
}

/// Returns the databases that a user belongs to, as PgDog reads them.
fn databases_of<'d>(report: &mut Report<'_>, user: &Settings, databases: &'d [Database]) -> Vec<&'d Database> {
    if user.flag(report, "all_databases", false) {
        return databases.iter().collect();
    }
    let (key, named) = match user.filled("database") {
        Some(one) => ("database", vec![one]),
        None => ("databases", user.texts(report, "databases")),
    };
    if named.is_empty() {
        report.problem(&user.of("database"), "it is missing: the user belongs to no database");
    }
    let mut found = Vec::new();
    for name in named {
        match databases.iter().find(|database| database.name == name) {
            Some(database) => found.push(database),
            None if report.chooses() => {}
            None => report.problem(&user.of(key), format!("there is no database {name:?} in pgdog.toml")),
        }
    }
    found
}

/// Returns the keys of `proxy.users` for a user's secrets.
fn secret(report: &mut Report<'_>, user: &Settings) -> Vec<Line> {
    let mut plain: Vec<String> = user.filled("password").into_iter().collect();
    plain.extend(user.texts(report, "passwords"));
    plain.dedup();
    let mut plain = plain.into_iter();
    let mut lines: Vec<Line> = plain.next().map(|password| ("password", quoted(&password))).into_iter().collect();
    let mut further: Vec<String> = plain.collect();
    if let Some(hash) = user.filled("password_hash") {
        if Verifier::parse(&hash).is_err() && md5::Verifier::parse(&hash).is_none() {
            report.problem(&user.of("password_hash"), "expected SCRAM-SHA-256$… or md5… as in pg_authid");
        } else if lines.is_empty() {
            lines.push(("verifier", quoted(&hash)));
        } else {
            further.push(hash);
        }
    }
    if !further.is_empty() {
        lines.push(("secrets", quoted_list(&further)));
    }
    lines
}

fn member(
    report: &mut Report<'_>,
    general: &Settings,
    auth: Auth,
    user: &Settings,
    name: &str,
    secret: &[Line],
    database: &Database,
) -> Member {
    let of = &database.settings;
    let mut settings = databases::settings(report, [user, of, general]);
    if database.reads_replicas && settings.get("pooler_mode").is_some_and(|mode| *mode == quoted("session")) {
        let why = format!(
            "in session mode Kingpost sends everything to the primary, and {} has reads on replicas: say transaction, or read_write_split = \"prefer_primary\"",
            database.name
        );
        report.problem(&format!("{}.pooler_mode", user.name), why);
    }
    if let Some(time) = user.get("statement_timeout") {
        let time = report.milliseconds(&user.of("statement_timeout"), &time, true);
        settings.extend(time.map(|time| ("statement_timeout", time)));
        if of.get("statement_timeout").is_some() {
            let why = format!("{} has one, too: Kingpost would hold to both", database.name);
            report.problem(&user.of("statement_timeout"), why);
        }
    }
    if user.flag(report, "replication_mode", false) {
        settings.insert("replication_mode", "true".into());
    }
    let first = |key: &str, other: &str| of.filled(key).or_else(|| user.filled(other));
    let own = user.get("password").or_else(|| user.texts(report, "passwords").into_iter().next());
    let server_password = first("password", "server_password").or_else(|| own.clone());
    let server = match first("user", "server_user") {
        Some(other) if other != name || server_password != own => Some((other, server_password)),
        None if server_password != own => Some((name.to_owned(), server_password)),
        _ => None,
    };
    Member {
        database: database.name.clone(),
        user: name.to_owned(),
        name: user.name.clone(),
        method: auth.method(),
        secret: secret.to_vec(),
        server,
        settings,
    }
}
