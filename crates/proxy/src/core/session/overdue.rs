//! Error for a client whose login or wait has reached its time limit. Pure.
//!
//! A login has two parts with limits of their own. `login_timeout` counts until the client has authenticated. From then on the client waits for a
//! server, as a statement does: `wait_timeout` counts, or `no_primary_timeout`. Class 28 is for wrong credentials, never for a wait: drivers do not
//! try again after it.

use std::time::Duration;

use wire::Sqlstate;

/// The event that a client waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Awaited<'a> {
    /// The client's own start-up packet, handshake or proof.
    Client,
    /// The lookup of the user's account on a server.
    Account,
    /// The answer of an external authenticator (LDAP, PAM and others) on the client's password or token.
    Judge,
    /// The end of an operator's order, `PAUSE` or `SUSPEND`.
    Operator,
    /// A primary.
    Primary,
    /// A server connection: the pool's size, and the limit shared with other pools that is reached.
    Connection { size: usize, reached: Option<&'a str> },
    /// The server's parameters for the client's greeting.
    Greeting,
}

/// The last attempt to open a server connection, which failed while the client waited.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Attempt<'a> {
    /// The SQLSTATE, if the server sent one.
    pub code: Option<Sqlstate>,
    /// The server's text, or the reason for which it could not be reached.
    pub text: &'a str,
}

/// A wait that has reached its limit.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Overdue<'a> {
    pub awaited: Awaited<'a>,
    pub limit: Duration,
    /// The client's database and user; unused before the client has authenticated.
    pub database: &'a str,
    pub user: &'a str,
    pub attempt: Option<Attempt<'a>>,
}

impl Overdue<'_> {
    /// Returns the error's SQLSTATE and text.
    pub(in crate::core) fn error(&self) -> (Sqlstate, String) {
        let (limit, database, user) = (self.limit.as_secs_f32(), self.database, self.user);
        let (code, text) = match self.awaited {
            // PostgreSQL logs this for authentication_timeout, and closes.
            Awaited::Client => (
                Sqlstate::QUERY_CANCELED,
                format!(
                    "canceling authentication due to timeout: the client did not authenticate within {limit} s (login_timeout)"
                ),
            ),
            Awaited::Account => (
                Sqlstate::CANNOT_CONNECT_NOW,
                format!("the user could not be looked up within {limit} s (login_timeout): try again"),
            ),
            Awaited::Judge => (
                Sqlstate::CANNOT_CONNECT_NOW,
                format!("the password or token could not be verified within {limit} s (login_timeout): try again"),
            ),
            Awaited::Operator => (
                Sqlstate::CANNOT_CONNECT_NOW,
                format!("database {database:?} is paused by an operator, for longer than {limit} s (wait_timeout)"),
            ),
            Awaited::Primary => (
                Sqlstate::CANNOT_CONNECT_NOW,
                format!("no primary for database {database:?} within {limit} s (no_primary_timeout)"),
            ),
            Awaited::Connection { size, reached } => {
                let shared = reached.map(|name| format!("; {name} is reached")).unwrap_or_default();
                (
                    Sqlstate::TOO_MANY_CONNECTIONS,
                    format!(
                        "no server connection for database {database:?} and user {user:?} came free within {limit} s (wait_timeout): pool size {size}{shared}"
                    ),
                )
            }
            Awaited::Greeting => (
                Sqlstate::CANNOT_CONNECT_NOW,
                format!("the server did not report its parameters within {limit} s (wait_timeout)"),
            ),
        };
        match (self.awaited, self.attempt) {
            (Awaited::Primary | Awaited::Connection { .. }, Some(attempt)) => {
                let full = self.awaited != Awaited::Primary && attempt.code == Some(Sqlstate::TOO_MANY_CONNECTIONS);
                let code = if full { Sqlstate::TOO_MANY_CONNECTIONS } else { Sqlstate::CANNOT_CONNECT_NOW };
                (code, format!("{text}; the last attempt to open one failed: {}", attempt.text))
            }
            _ => (code, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_a_wrong_credential() {
        let attempt = |code: Option<&[u8; 5]>, text| Some(Attempt { code: code.map(|code| Sqlstate(*code)), text });
        let full = attempt(Some(b"53300"), "sorry, too many clients already");
        let starts = attempt(Some(b"57P03"), "the database system is starting up");
        let refused = attempt(None, "Connection refused");
        let pool = Awaited::Connection { size: 4, reached: None };
        let shared = Awaited::Connection { size: 4, reached: Some("max_user_connections") };
        let cases = [
            (Awaited::Client, None, "57014", "login_timeout"),
            (Awaited::Account, None, "57P03", "login_timeout"),
            (Awaited::Judge, None, "57P03", "login_timeout"),
            (Awaited::Operator, None, "57P03", "paused"),
            (Awaited::Operator, full, "57P03", "paused"),
            (Awaited::Primary, None, "57P03", "no_primary_timeout"),
            (Awaited::Primary, starts, "57P03", "starting up"),
            (Awaited::Primary, full, "57P03", "too many clients"),
            (pool, None, "53300", "pool size 4"),
            (shared, None, "53300", "max_user_connections is reached"),
            (pool, full, "53300", "sorry, too many clients already"),
            (pool, starts, "57P03", "the database system is starting up"),
            (pool, refused, "57P03", "Connection refused"),
            (Awaited::Greeting, None, "57P03", "wait_timeout"),
        ];
        for (awaited, attempt, code, part) in cases {
            let limit = Duration::from_secs(15);
            let (said, text) = Overdue { awaited, limit, database: "shop", user: "ann", attempt }.error();
            assert_eq!(said.to_string(), code, "{awaited:?} {attempt:?}");
            assert!(text.contains(part) && text.contains("15 s"), "{awaited:?}: {text}");
            assert!(!said.0.starts_with(b"28"), "{awaited:?}");
        }
    }
}
