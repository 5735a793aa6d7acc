//! The end of a configuration's reload, for every part of Kingpost.

use std::path::Path;

use crate::{Config, Problem};
use process::Failure;

/// Takes over a configuration that was read and put into effect, with its warnings; or logs why the old one stays. `later` gets the old and the new
/// configuration and reports the changes that take effect at the next start.
pub fn settle(
    path: &Path,
    config: &mut Config,
    applied: Result<(Config, Vec<Problem>), Failure>,
    later: impl FnOnce(&Config, &Config),
) -> Result<(), Failure> {
    match applied {
        Ok((new, warnings)) => {
            warn(&warnings);
            later(config, &new);
            *config = new;
            tracing::info!(file = %path.display(), "reloaded");
            Ok(())
        }
        Err(failure) => {
            tracing::error!(file = %path.display(), "not reloaded, the old configuration stays: {failure}");
            Err(failure)
        }
    }
}

/// Logs the warnings of a configuration.
pub fn warn(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!(key = warning.key, origin = %warning.origin, "{}", warning.message);
    }
}
