//! Settings that the clients of all services have.

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

use crate::http::Client;
use crate::location::Bucket;

/// Settings of a client.
pub(crate) struct Connection<'a> {
    pub(crate) bucket: &'a Bucket,
    /// None for the service's own address.
    pub(crate) endpoint: Option<&'a str>,
    pub(crate) region: &'a str,
    pub(crate) http: &'a Client,
    pub(crate) timeout: Duration,
}

impl Connection<'_> {
    /// Returns the rule by which failed requests are repeated.
    pub(crate) fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            max_retries: 3,
            retry_timeout: self.timeout,
        }
    }
}
