//! Errors of requests, common to all fronts; each front encodes them in its own form.

use hyper::StatusCode;

use crate::configuration::ConfigError;
use crate::{Invalid, WatchError, WriteError};

/// An error of a request. Its text says what was wrong with what, and never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// An invalid request.
    #[error("{0}")]
    BadRequest(String),
    /// An invalid request that has a code of its own in the protocol of its front.
    #[error("{text}")]
    Coded {
        /// The code.
        code: u32,
        /// The protocol's text for the code.
        message: &'static str,
        /// The error.
        text: String,
    },
    /// An unknown path.
    #[error("there is nothing at {0}")]
    NoSuchPath(String),
    /// A method that the path does not support.
    #[error("this path takes {allow}")]
    MethodNotAllowed {
        /// The supported methods, for the `Allow` header.
        allow: &'static str,
    },
    /// A request for a host name that is not this registry's.
    #[error(
        "the host {host:?} is not known: with registry.auth = \"none\" only names and addresses of this machine are answered, and those of \
         registry.hosts; add it there, or use tokens"
    )]
    Misdirected {
        /// The host name.
        host: String,
    },
    /// A body of an unsupported content type.
    #[error("the body is {found:?}, expected {expected}")]
    UnsupportedMediaType {
        /// The content type.
        found: String,
        /// The supported types.
        expected: &'static str,
    },
    /// A missing object.
    #[error("no {what} {name:?}")]
    NotFound {
        /// Kind of the object: instance, service …
        what: &'static str,
        /// Name of the object.
        name: String,
    },
    /// A missing object, reported by the core.
    #[error("{0}")]
    Missing(String),
    /// A missing or unknown token.
    #[error("a token is needed that the registry knows: Authorization: Bearer TOKEN, or X-Consul-Token: TOKEN")]
    Unauthorized,
    /// A token that neither the configuration nor the store has, in Consul's words.
    #[error("ACL not found")]
    NoSuchToken,
    /// A token whose policies do not give the right.
    #[error("{0}")]
    Denied(String),
    /// A token whose role is not sufficient.
    #[error("the token {token:?} may not {act} in the namespace {namespace:?}")]
    Forbidden {
        /// Name of the token in the configuration.
        token: String,
        /// The denied action.
        act: &'static str,
        /// The namespace.
        namespace: String,
    },
    /// An object larger than its limit.
    #[error("{what} is larger than {limit} = {value}")]
    TooLarge {
        /// The object: the body, the list of instances …
        what: &'static str,
        /// Configuration key of the limit.
        limit: &'static str,
        /// Value of the limit.
        value: u64,
    },
    /// A part of another registry's API that is not implemented.
    #[error("{0}")]
    NotImplemented(String),
    /// A body that did not arrive in time.
    #[error("the body did not arrive within {limit} = {value} ms")]
    BodyTimeout {
        /// Configuration key of the limit.
        limit: &'static str,
        /// Value of the limit in milliseconds.
        value: u64,
    },
    /// Too many concurrent requests, or too many per second.
    #[error("{what}: more than {limit} = {value}; try again")]
    Busy {
        /// The exhausted resource.
        what: &'static str,
        /// Configuration key of the limit.
        limit: &'static str,
        /// Value of the limit.
        value: u64,
    },
    /// A value rejected by the registry's core.
    #[error("{0}")]
    Invalid(String),
    /// A conflict with another change.
    #[error("{0}")]
    Conflict(String),
    /// A store that does not answer, or an overloaded core.
    #[error("{0}")]
    Unavailable(String),
    /// A change whose outcome is unknown.
    #[error("{0}")]
    Undetermined(String),
}

impl ApiError {
    /// Returns an error about an invalid request.
    pub fn bad(message: impl Into<String>) -> ApiError {
        ApiError::BadRequest(message.into())
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::BadRequest(_) | ApiError::Coded { .. } | ApiError::Invalid(_) => StatusCode::BAD_REQUEST,
            ApiError::NoSuchPath(_) | ApiError::NotFound { .. } | ApiError::Missing(_) => StatusCode::NOT_FOUND,
            ApiError::Misdirected { .. } => StatusCode::MISDIRECTED_REQUEST,
            ApiError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::UnsupportedMediaType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::NoSuchToken | ApiError::Denied(_) | ApiError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ApiError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ApiError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            ApiError::Unavailable(_) | ApiError::Undetermined(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns a short name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ApiError::BadRequest(_) | ApiError::Coded { .. } => "bad_request",
            ApiError::NoSuchPath(_) => "no_such_path",
            ApiError::Misdirected { .. } => "misdirected",
            ApiError::MethodNotAllowed { .. } => "method_not_allowed",
            ApiError::UnsupportedMediaType { .. } => "unsupported_media_type",
            ApiError::NotFound { .. } | ApiError::Missing(_) => "not_found",
            ApiError::Unauthorized | ApiError::NoSuchToken => "unauthorized",
            ApiError::Denied(_) | ApiError::Forbidden { .. } => "forbidden",
            ApiError::TooLarge { .. } => "too_large",
            ApiError::BodyTimeout { .. } => "body_timeout",
            ApiError::Busy { .. } => "busy",
            ApiError::Invalid(_) => "invalid",
            ApiError::Conflict(_) => "conflict",
            ApiError::NotImplemented(_) => "not_implemented",
            ApiError::Unavailable(_) => "unavailable",
            ApiError::Undetermined(_) => "undetermined",
        }
    }

    /// Returns key and value of the exceeded limit.
    pub fn limit(&self) -> Option<(&'static str, u64)> {
        match self {
            ApiError::TooLarge { limit, value, .. }
            | ApiError::BodyTimeout { limit, value }
            | ApiError::Busy { limit, value, .. } => Some((limit, *value)),
            _ => None,
        }
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> ApiError {
        ApiError::Invalid(invalid.to_string())
    }
}

impl From<WatchError> for ApiError {
    fn from(error: WatchError) -> ApiError {
        ApiError::Unavailable(error.to_string())
    }
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> ApiError {
        match error {
            ConfigError::Write(error) => error.into(),
            ConfigError::Changed { .. } | ConfigError::Stale { .. } | ConfigError::Exists { .. } => {
                ApiError::Conflict(error.to_string())
            }
            ConfigError::NoVersion { .. } | ConfigError::Absent { .. } => ApiError::Missing(error.to_string()),
        }
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> ApiError {
        let text = error.to_string();
        match error {
            WriteError::Invalid(_) | WriteError::Full { .. } => ApiError::Invalid(text),
            WriteError::NotFound { .. } => ApiError::Missing(text),
            WriteError::NotEmpty { .. } => ApiError::Conflict(text),
            WriteError::Undetermined { .. } => ApiError::Undetermined(text),
            WriteError::Overloaded { .. }
            | WriteError::Contended { .. }
            | WriteError::Unavailable { .. }
            | WriteError::Stopped => ApiError::Unavailable(text),
        }
    }
}
