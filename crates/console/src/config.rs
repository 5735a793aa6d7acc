//! Configuration section `[console]`.

use crate::auth::{Role, Token, parse_hash};
use crate::guard::Site;

::settings::settings! {
    /// Configuration section `[console]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ConsoleConfig: Default {
        /// Address of the console, host:port, "127.0.0.1:7632" for example; "" means none.
        pub listen: String = String::new();
        /// URL under which browsers reach the console, if it is not the listening address: that of a reverse proxy with TLS.
        pub public_url: String = String::new();
        /// True if a client without a token may look. Must be false where other machines reach the address.
        pub anonymous_view: bool = true;
        /// Most pages that are open at the same time; more are told so.
        pub viewers: usize = 32, range(1, 10_000);
        /// Tokens and their roles; `kingpost console token NAME` makes one.
        pub tokens: Vec<TokenConfig> = Vec::new(), shown_table();
    }
}

::settings::settings! {
    /// Configuration section `[[console.tokens]]`.
    #[derive(Clone, PartialEq, Eq)]
    pub struct TokenConfig {
        /// Name, for logs.
        pub name: String, shown(r#""dba""#);
        /// SHA-256 of the token, in hexadecimal.
        pub sha256: String, hidden(), shown(r#""0000000000000000000000000000000000000000000000000000000000000000""#);
        /// Role of the token: "viewer" looks, "operator" also acts: pause, resume, reconnect, close clients; isolate, weigh, deregister instances.
        pub role: RoleName, shown(r#""operator""#);
    }
}

::settings::settings! {
    /// Role of a token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RoleName {
        /// May view.
        Viewer = "viewer",
        /// May also act.
        Operator = "operator",
    }
}

/// Error in a `[console]` section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The key: `public_url`, `tokens[1].sha256`.
    pub key: String,
    /// The value found, and the value expected.
    pub message: String,
}

// The hash is not shown.
impl std::fmt::Debug for TokenConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenConfig").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

impl ConsoleConfig {
    /// Returns all errors, except in the form of `listen`; `local` is true if only this machine can reach the console.
    #[must_use]
    pub fn check(&self, local: bool) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut error = |key: String, message: String| errors.push(ConfigError { key, message });
        if !self.public_url.is_empty() && Site::parse(&self.public_url).is_none() {
            error(
                "public_url".into(),
                format!("found {:?}, expected http://host or https://host, perhaps with a port", self.public_url),
            );
        }
        if !self.listen.is_empty() && !local && self.anonymous_view {
            error(
                "anonymous_view".into(),
                format!(
                    "is true and {:?} can be reached from other machines: anybody could look; expected \
                     anonymous_view = false and [[console.tokens]], or a loopback address",
                    self.listen
                ),
            );
        }
        if !self.listen.is_empty() && !self.anonymous_view && self.tokens.is_empty() {
            error("tokens".into(), "found none, and anonymous_view is false: nobody could look".into());
        }
        for (index, token) in self.tokens.iter().enumerate() {
            if token.name.is_empty() {
                error(format!("tokens[{index}].name"), "found \"\", expected a name".into());
            }
            if parse_hash(&token.sha256).is_none() {
                error(
                    format!("tokens[{index}].sha256"),
                    "expected the SHA-256 of a token, 64 hexadecimal digits; `kingpost console token NAME` makes one"
                        .into(),
                );
            }
        }
        errors
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        let tokens = self.tokens.iter().filter_map(|token| {
            let role = match token.role {
                RoleName::Viewer => Role::Viewer,
                RoleName::Operator => Role::Operator,
            };
            Some(Token { name: token.name.clone(), hash: parse_hash(&token.sha256)?, role })
        });
        tokens.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        let token = || TokenConfig { name: "a".into(), sha256: "0".repeat(64), role: RoleName::Viewer };
        let base = ConsoleConfig { listen: "x:1".into(), ..ConsoleConfig::default() };
        for (config, local, keys) in [
            (ConsoleConfig::default(), false, &[][..]),
            (base.clone(), true, &[]),
            (base.clone(), false, &["anonymous_view"]),
            (ConsoleConfig { anonymous_view: false, ..base.clone() }, false, &["tokens"]),
            (ConsoleConfig { anonymous_view: false, tokens: vec![token()], ..base.clone() }, false, &[]),
            (ConsoleConfig { public_url: "https://a.b".into(), ..base.clone() }, true, &[]),
            (ConsoleConfig { public_url: "a.b".into(), ..base.clone() }, true, &["public_url"]),
            (
                ConsoleConfig { tokens: vec![token(), TokenConfig { sha256: "z".repeat(64), ..token() }], ..base },
                true,
                &["tokens[1].sha256"],
            ),
        ] {
            let found: Vec<String> = config.check(local).into_iter().map(|error| error.key).collect();
            assert_eq!(found, keys, "{config:?}");
        }
        assert!(!format!("{:?}", token()).contains("00"), "the hash is not shown");
    }
}
