//! Times in answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime_serde::re::humantime;

/// End of the year 9999, in milliseconds since 1970: no later time has a form.
const LATEST: i64 = 253_402_300_799_999;

/// Returns a time of `millis` since 1970, within the years that have a form.
pub(super) fn time_of(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.clamp(0, LATEST).unsigned_abs())
}

/// Formats a time, in milliseconds since 1970, as `2020-12-05T01:48:03.380Z`.
pub(super) fn rfc3339(millis: i64) -> String {
    humantime::format_rfc3339_millis(time_of(millis)).to_string()
}
