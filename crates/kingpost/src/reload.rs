//! How the reload of a configuration ends, whatever part of Kingpost runs by it.

use std::path::Path;

use crate::config::{Config, Problem};
use crate::error::Failure;
use crate::serve::warn;

/// Takes in what was read and put into effect, with its warnings; or says why the old configuration stays. `later` is given what has run so far and
/// what was read, and says what of it takes effect at the next start.
pub(crate) fn settle(
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
