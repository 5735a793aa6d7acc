//! The right of an open stream to read its service.

use hyper::HeaderMap;

use super::credentials::Credentials;
use super::{ApiError, Context, Request};
use crate::ServiceKey;
use crate::rights::{Access, Resource};

/// Credentials of an open stream about one service. Its right is decided again before each event, for tokens end while streams are open.
pub(super) struct WatchRight {
    credentials: Credentials,
    service: ServiceKey,
}

impl WatchRight {
    /// Takes the credentials of a call.
    pub(super) fn new(headers: HeaderMap, service: ServiceKey) -> WatchRight {
        WatchRight { credentials: Credentials { headers, token: None }, service }
    }

    /// Takes the credentials of a request of the native front.
    pub(super) fn of(request: &Request, service: ServiceKey) -> WatchRight {
        WatchRight { credentials: Credentials::of(request), service }
    }

    /// Returns the service.
    pub(super) fn service(&self) -> &ServiceKey {
        &self.service
    }

    /// Decides with the present tokens and policies.
    ///
    /// # Errors
    /// The token is not known any more, or may not read the service.
    pub(super) fn check(&self, context: &Context) -> Result<(), ApiError> {
        let caller = self.credentials.identify(context)?;
        caller.needs(Access::Read, Resource::service(self.service.name()), self.service.namespace())
    }
}
