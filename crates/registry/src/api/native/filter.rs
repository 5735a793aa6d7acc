//! Filters of a service's instances.

use crate::api::{ApiError, Request};
use crate::{Health, Instance};

/// The filters of a request's query: all must fit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    health: Vec<Health>,
    usable: bool,
    region: Option<String>,
    zone: Option<String>,
    version: Option<String>,
    metadata: Vec<(String, String)>,
}

impl Filter {
    pub(super) fn of(request: &Request) -> Result<Filter, ApiError> {
        let text = |name: &str| request.param(name).map(str::to_owned);
        let mut health = Vec::new();
        for value in request.params("health").flat_map(|value| value.split(',')) {
            health.push(match value {
                "passing" => Health::Passing,
                "warning" => Health::Warning,
                "critical" => Health::Critical,
                _ => {
                    return Err(ApiError::bad(format!("health={value:?}: expected passing, warning or critical")));
                }
            });
        }
        Ok(Filter {
            health,
            usable: request.flag("usable"),
            region: text("region"),
            zone: text("zone"),
            version: text("version"),
            metadata: pairs(request)?,
        })
    }

    /// Creates the filter of a query over several services.
    pub(super) fn new(usable: bool, zone: Option<String>, metadata: Vec<(String, String)>) -> Filter {
        Filter { usable, zone, metadata, ..Filter::default() }
    }

    /// True if there are no filters.
    pub(super) fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    pub(super) fn fits(&self, instance: &Instance) -> bool {
        let same = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        (self.health.is_empty() || self.health.contains(&instance.overall()))
            && (!self.usable || instance.is_usable())
            && same(&self.region, &instance.location.region)
            && same(&self.zone, &instance.location.zone)
            && same(&self.version, &instance.version)
            && self.metadata.iter().all(|(key, value)| instance.metadata.get(key) == Some(value))
    }
}

/// Parses `meta=key=value`, which may be repeated.
pub(super) fn pairs(request: &Request) -> Result<Vec<(String, String)>, ApiError> {
    request
        .params("meta")
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(ApiError::bad(format!("meta={pair:?}: expected key=value"))),
        })
        .collect()
}
