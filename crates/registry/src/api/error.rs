//! How a request fails: the same for all fronts; each shows it in its own form.

use hyper::StatusCode;

/// Why a request was not carried out. The text of each says what was wrong with what, and never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request makes no sense as it is.
    #[error("{0}")]
    BadRequest(String),
    /// There is no such path.
    #[error("there is nothing at {0}")]
    NoSuchPath(String),
    /// The path does not know the method.
    #[error("this path takes {allow}")]
    MethodNotAllowed {
        /// What it knows, for the `Allow` header.
        allow: &'static str,
    },
    /// The request is for somebody else, by the name that it was sent to.
    #[error(
        "the host {host:?} is not known: with registry.auth = \"none\" only names and addresses of this machine are answered, and those of \
         registry.hosts; add it there, or use tokens"
    )]
    Misdirected {
        /// The name.
        host: String,
    },
    /// The body is not what it is said, or has, to be.
    #[error("the body is {found:?}, expected {expected}")]
    UnsupportedMediaType {
        /// The content type.
        found: String,
        /// What is read.
        expected: &'static str,
    },
    /// The thing asked for is not there.
    #[error("no {what} {name:?}")]
    NotFound {
        /// instance, service …
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The core knows no such thing.
    #[error("{0}")]
    Missing(String),
    /// No token, or one that is not known.
    #[error("a token is needed that the registry knows: Authorization: Bearer TOKEN, or X-Consul-Token: TOKEN")]
    Unauthorized,
    /// The token's role does not reach so far.
    #[error("the token {token:?} may not {act} in the namespace {namespace:?}")]
    Forbidden {
        /// The token's name in the configuration.
        token: String,
        /// What it would have to be allowed to.
        act: &'static str,
        /// Where.
        namespace: String,
    },
    /// Something is larger than allowed.
    #[error("{what} is larger than {limit} = {value}")]
    TooLarge {
        /// the body, the list of instances …
        what: &'static str,
        /// The key of the limit.
        limit: &'static str,
        /// Its value.
        value: u64,
    },
    /// A part of another registry's API that this one does not have.
    #[error("{0}")]
    NotImplemented(String),
    /// The body did not arrive in time.
    #[error("the body did not arrive within {limit} = {value} ms")]
    BodyTimeout {
        /// The key of the limit.
        limit: &'static str,
        /// Its value in milliseconds.
        value: u64,
    },
    /// Too much is under way.
    #[error("{what}: more than {limit} = {value}; try again")]
    Busy {
        /// What there is too much of.
        what: &'static str,
        /// The key of the limit.
        limit: &'static str,
        /// Its value.
        value: u64,
    },
    /// The registry's core refused a value.
    #[error("{0}")]
    Invalid(String),
    /// A thing is in the way: it changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The store does not answer, or the core has too much to do.
    #[error("{0}")]
    Unavailable(String),
    /// Whether the change was carried out is not known.
    #[error("{0}")]
    Undetermined(String),
}

impl ApiError {
    /// A request that makes no sense.
    pub fn bad(message: impl Into<String>) -> ApiError {
        ApiError::BadRequest(message.into())
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::BadRequest(_) | ApiError::Invalid(_) => StatusCode::BAD_REQUEST,
            ApiError::NoSuchPath(_) | ApiError::NotFound { .. } | ApiError::Missing(_) => StatusCode::NOT_FOUND,
            ApiError::Misdirected { .. } => StatusCode::MISDIRECTED_REQUEST,
            ApiError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::UnsupportedMediaType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ApiError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ApiError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            ApiError::Unavailable(_) | ApiError::Undetermined(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// A short name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ApiError::BadRequest(_) => "bad_request",
            ApiError::NoSuchPath(_) => "no_such_path",
            ApiError::Misdirected { .. } => "misdirected",
            ApiError::MethodNotAllowed { .. } => "method_not_allowed",
            ApiError::UnsupportedMediaType { .. } => "unsupported_media_type",
            ApiError::NotFound { .. } | ApiError::Missing(_) => "not_found",
            ApiError::Unauthorized => "unauthorized",
            ApiError::Forbidden { .. } => "forbidden",
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

    /// The limit that was in the way: its key and value.
    pub fn limit(&self) -> Option<(&'static str, u64)> {
        match self {
            ApiError::TooLarge { limit, value, .. }
            | ApiError::BodyTimeout { limit, value }
            | ApiError::Busy { limit, value, .. } => Some((limit, *value)),
            _ => None,
        }
    }
}
