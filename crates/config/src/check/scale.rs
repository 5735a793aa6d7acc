//! Checks of `[scale]`.

use super::findings::Findings;
use crate::Config;
use crate::scale::ScaleConfig;

/// Most looks within the window of the load.
const MOST_LOOKS: u128 = 1000;

pub(super) fn check(config: &Config, findings: &mut Findings) {
    let scale = &config.scale;
    if *scale == ScaleConfig::default() {
        return;
    }
    if config.cluster.from.urls.is_empty() {
        findings.error("scale", "found no cluster.from.urls, expected the registry that lists the servers");
    }
    for (key, program) in [("scale.add", &scale.add), ("scale.remove", &scale.remove)] {
        if program.first().is_none_or(String::is_empty) {
            findings.error(key, "missing, expected a program and its arguments");
        }
    }
    if scale.most < scale.least {
        let found = format!("found {}, expected at least scale.least ({})", scale.most, scale.least);
        findings.error("scale.most", found);
    }
    if scale.remove_at >= scale.add_at {
        let found = format!("found {}, expected less than scale.add_at ({})", scale.remove_at, scale.add_at);
        findings.error("scale.remove_at", found);
    }
    let prefix = &scale.prefix;
    if prefix.is_empty() || prefix.len() > 48 || !prefix.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    {
        let found = format!("found {prefix:?}, expected 1 to 48 letters, digits, hyphens, underscores or full stops");
        findings.error("scale.prefix", found);
    }
    if prefix.ends_with(|c: char| c.is_ascii_digit()) {
        findings.error("scale.prefix", format!("found {prefix:?}, expected no digit before the number of a server"));
    }
    if scale.window.as_millis() > scale.interval.as_millis() * MOST_LOOKS {
        let found = format!("found {:?}, expected at most {MOST_LOOKS} times scale.interval", scale.window);
        findings.error("scale.window", found);
    }
}
