//! The credentials of a call whose caller is identified again while it is under way.

use hyper::HeaderMap;

use super::auth::Caller;
use super::{ApiError, Context, Request};

/// Credentials of a client: of an open stream, a connection or a watch. Tokens end while these go on.
#[derive(Clone, PartialEq)]
pub(super) struct Credentials {
    /// Headers of the call.
    pub(super) headers: HeaderMap,
    /// The token outside of the headers: in a message, or in the query.
    pub(super) token: Option<String>,
}

impl Credentials {
    /// Takes the credentials of a request of the native front.
    pub(super) fn of(request: &Request) -> Credentials {
        Credentials { headers: request.headers.clone(), token: request.param("token").map(str::to_owned) }
    }

    /// Identifies the caller with the present tokens.
    ///
    /// # Errors
    /// The token is missing, or not known any more.
    pub(super) fn identify(&self, context: &Context) -> Result<Caller, ApiError> {
        context.identify_by(&self.headers, self.token.as_deref())
    }
}
