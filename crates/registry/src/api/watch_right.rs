//! The right of an open stream to read its service.

use hyper::HeaderMap;

use super::{ApiError, Context, Request};
use crate::ServiceKey;
use crate::rights::{Access, Resource};

/// Credentials of an open stream about one service. Its right is decided again before each event, for tokens end while streams are open.
pub(super) struct WatchRight {
    headers: HeaderMap,
    /// Token in the query.
    parameter: Option<String>,
    service: ServiceKey,
}

impl WatchRight {
    /// Takes the credentials of a call.
    pub(super) fn new(headers: HeaderMap, service: ServiceKey) -> WatchRight {
        WatchRight { headers, parameter: None, service }
    }

    /// Takes the credentials of a request of the native front.
    pub(super) fn of(request: &Request, service: ServiceKey) -> WatchRight {
        let parameter = request.param("token").map(str::to_owned);
        WatchRight { headers: request.headers.clone(), parameter, service }
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
        let caller = context.identify_by(&self.headers, self.parameter.as_deref())?;
        caller.needs(Access::Read, Resource::service(self.service.name()), self.service.namespace())
    }
}
