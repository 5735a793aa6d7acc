//! The user that watches the servers of a cluster: a login from the other program's files, with its password.

use super::options::Options;
use super::plan::quoted;

/// Statement for the operator to run on the primary if the files give no login.
const CREATE: &str = "CREATE ROLE kingpost LOGIN PASSWORD '…'; GRANT pg_monitor TO kingpost";

/// A login at the servers that the files describe. Values are TOML.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Option<String>,
    /// The database on the servers; None: any of the cluster.
    pub(super) database: Option<String>,
    /// The entry of `proxy.databases` through which the program uses the login; None: all of them.
    pub(super) entry: Option<String>,
    /// True if the files name the user for checks or lookups; users of clients are the others.
    pub(super) named: bool,
}

/// An entry of `proxy.databases` that leads to a cluster.
pub(super) struct Entry {
    pub(super) name: String,
    /// The database on the servers as TOML; None: the one that the client names.
    pub(super) database: Option<String>,
}

/// The user, password and database of a cluster's probes. Values are TOML.
pub(super) struct Prober {
    user: String,
    password: Option<String>,
    database: Option<String>,
    /// True if the user is a user of clients.
    borrowed: bool,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("user", &self.user).field("database", &self.database).finish_non_exhaustive()
    }
}

impl Login {
    /// Creates the login of a user that the files name for checks or lookups in all databases.
    pub(super) fn named(user: &str, password: Option<&str>, database: Option<&str>) -> Login {
        let [password, database] = [password, database].map(|value| value.map(quoted));
        Login { user: quoted(user), password, database, entry: None, named: true }
    }

    /// Creates the login of a user of clients, in one entry of `proxy.databases` or in all of them.
    pub(super) fn of_clients(user: String, password: String, entry: Option<&str>) -> Login {
        Login { user, password: Some(password), database: None, entry: entry.map(str::to_owned), named: false }
    }
}

impl Prober {
    /// Chooses the best of the logins that reach the cluster. A login with a password comes before one without: servers that require none admit both.
    /// `databases`: the entries that lead to the cluster.
    pub(super) fn choose(options: &Options, logins: &[Login], databases: &[Entry]) -> Prober {
        let reaches =
            |login: &&Login| login.entry.as_ref().is_none_or(|of| databases.iter().any(|entry| entry.name == *of));
        let asked = options.probe_user.as_deref().map(quoted);
        let wanted = |login: &&Login| asked.as_ref().is_none_or(|user| *user == login.user);
        let mut here = logins.iter().filter(reaches).filter(wanted);
        let first = here.clone().next();
        let Some(login) = here.find(|login| login.password.is_some()).or(first) else {
            let user = asked.unwrap_or_else(|| quoted("postgres"));
            return Prober { user, password: None, database: None, borrowed: false };
        };
        let mut used = databases.iter().filter(|entry| login.entry.as_ref().is_none_or(|of| entry.name == *of));
        let database = login.database.clone().or_else(|| used.find_map(|entry| entry.database.clone()));
        let (user, password) = (login.user.clone(), login.password.clone());
        Prober { user, password, database, borrowed: !login.named && asked.is_none() }
    }

    /// Returns the lines of `[cluster]`.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("user", self.user.clone())];
        lines.extend(self.password.clone().map(|password| ("password", password)));
        lines.extend(self.database.clone().map(|database| ("database", database)));
        lines
    }

    /// Returns the comment above the lines.
    pub(super) fn comment(&self) -> String {
        let begin =
            "Probes log in to each node as this user: CONNECT is enough, pg_monitor gives a prompt view of failovers.";
        match (&self.password, self.borrowed) {
            (None, _) => format!("{begin}\n# No password is known. {}", self.remedy()),
            (Some(_), true) => format!("{begin}\n# It is a user of clients. Better is one of its own: {CREATE}"),
            (Some(_), false) => begin.to_owned(),
        }
    }

    /// Returns advice for a login without a password; None if it has one.
    pub(super) fn missing(&self, program: &str, table: &str) -> Option<String> {
        if self.password.is_some() {
            return None;
        }
        let user = &self.user;
        Some(format!(
            "{table}: {program}'s files have no password in clear text with which probes could log in as {user}. {}",
            self.remedy()
        ))
    }

    fn remedy(&self) -> String {
        let instead = if self.user == quoted("kingpost") { "" } else { "user = \"kingpost\" and " };
        format!(
            "Servers that ask for a password refuse the probes, and then clients, too. Run on the primary: {CREATE}; write {instead}password_file here; `kingpost check --online` tries it."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(options: &Options, logins: &[Login], databases: &[(&str, &str)]) -> String {
        let entry = |(name, database): &(&str, &str)| Entry {
            name: (*name).to_owned(),
            database: (!database.is_empty()).then(|| quoted(database)),
        };
        let databases: Vec<Entry> = databases.iter().map(entry).collect();
        let prober = Prober::choose(options, logins, &databases);
        let lines: Vec<String> = prober.lines().into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        assert_eq!(prober.missing("PgCat", "[cluster]").is_none(), prober.password.is_some());
        lines.join(", ")
    }

    #[test]
    fn a_login_with_a_password_that_reaches_the_cluster_is_chosen() {
        let client = |user: &str, entry| Login::of_clients(quoted(user), quoted("secret"), entry);
        let finder = Login::named("finder", Some("found"), None);
        let silent = Login::named("silent", None, Some("postgres"));
        let (shop, none) = (&[("shop", "shop_live")][..], Options::default());
        for (logins, databases, expected) in [
            (vec![], shop, "user = \"postgres\""),
            (vec![silent.clone()], shop, "user = \"silent\", database = \"postgres\""),
            (
                vec![silent.clone(), client("ann", None)],
                shop,
                "user = \"ann\", password = \"secret\", database = \"shop_live\"",
            ),
            (
                vec![finder.clone(), client("ann", None)],
                shop,
                "user = \"finder\", password = \"found\", database = \"shop_live\"",
            ),
            (
                vec![client("ann", Some("books")), client("bob", Some("shop"))],
                shop,
                "user = \"bob\", password = \"secret\", database = \"shop_live\"",
            ),
            (vec![client("ann", Some("books"))], shop, "user = \"postgres\""),
            (vec![client("ann", Some("*"))], &[("*", "")][..], "user = \"ann\", password = \"secret\""),
            (
                vec![finder.clone()],
                &[("*", ""), ("shop", "live")][..],
                "user = \"finder\", password = \"found\", database = \"live\"",
            ),
            (vec![finder.clone()], &[][..], "user = \"finder\", password = \"found\""),
        ] {
            assert_eq!(chosen(&none, &logins, databases), expected, "{logins:?}");
        }
        let asked = |user: &str| Options { probe_user: Some(user.to_owned()), ..Options::default() };
        let logins = [finder, client("ann", None)];
        let ann = "user = \"ann\", password = \"secret\", database = \"shop_live\"";
        assert_eq!(chosen(&asked("ann"), &logins, shop), ann);
        assert_eq!(chosen(&asked("monitor"), &logins, shop), "user = \"monitor\"");
    }
}
