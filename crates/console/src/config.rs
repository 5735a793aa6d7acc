//! Configuration section `[console]`.

use serde::{Deserialize, Serialize};

use crate::auth::{Role, Token, parse_hash};
use crate::guard::Site;

/// Configuration section `[console]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleConfig {
    /// Address to listen on, `host:port`; empty: no console.
    pub listen: String,
    /// URL under which browsers reach the console, if it is not the listening address: `https://console.example.com` for a reverse proxy.
    pub public_url: String,
    /// True if a client without a token may view.
    pub anonymous_view: bool,
    /// Maximum number of browsers that receive updates at the same time.
    pub viewers: usize,
    /// Tokens and their roles.
    pub tokens: Vec<TokenConfig>,
}

/// Configuration section `[[console.tokens]]`.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name for logs.
    pub name: String,
    /// SHA-256 of the token's text, as 64 hexadecimal digits.
    pub sha256: String,
    /// Role of the token.
    pub role: RoleName,
}

/// Role of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoleName {
    /// May view.
    Viewer,
    /// May also act.
    Operator,
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

impl Default for ConsoleConfig {
    fn default() -> Self {
        ConsoleConfig {
            listen: String::new(),
            public_url: String::new(),
            anonymous_view: true,
            viewers: 32,
            tokens: Vec::new(),
        }
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
