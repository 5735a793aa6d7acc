//! Forms of answers: the envelope of versions 2 and 3, entries, versions and pages.

use serde::Serialize;

use super::*;
use crate::model::Digest;

/// Returns an answer in the envelope.
pub(in crate::api::nacos) fn result(data: &impl Serialize) -> Reply {
    Reply::ok(&json!({ "code": 0, "message": "success", "data": json!(data) }))
}

/// Returns an error in the envelope.
pub(in crate::api::nacos) fn refused(error: &ApiError) -> Reply {
    let (code, message) = match error.status().as_u16() {
        400 | 413 => (20_002, "parameter validate error"),
        401 | 403 | 421 => (10_001, "access denied"),
        404 => (20_004, "resource not found"),
        409 => (20_005, "resource conflict"),
        429 => (30_002, "over threshold"),
        _ => (30_000, "server error"),
    };
    let body = json!({ "code": code, "message": message, "data": error.to_string() });
    Reply::json(error.status(), &body).with_error_headers(error)
}

/// Returns a number that stands for an entry, as a text.
fn id_of(namespace: &str, key: &ConfigKey) -> String {
    let digest = Digest::of_bytes(format!("{namespace}/{key}").as_bytes()).to_string();
    // As long as a positive number of 64 bits can be.
    u64::from_str_radix(digest.get(..15).unwrap_or_default(), 16).unwrap_or_default().to_string()
}

/// Returns the attributes of an entry.
pub(super) fn detail(entry: &ConfigEntry, namespace: &str, with_content: bool) -> Value {
    let (group, id) = (entry.key.group(), entry.key.id());
    let mut shown = json!({
        "id": id_of(namespace, &entry.key),
        "dataId": id, "group": group, "groupName": group,
        "tenant": namespace, "namespaceId": namespace,
        "md5": entry.md5, "type": entry.kind, "appName": entry.app, "desc": entry.description,
        "configTags": entry.tags.join(","), "encryptedDataKey": entry.cipher_key,
        "createTime": entry.created, "modifyTime": entry.time, "lastModified": entry.time,
        "createUser": entry.author, "createIp": "", "use": null, "effect": null, "schema": null,
    });
    if with_content {
        shown["content"] = entry.text().into();
    }
    shown
}

/// Returns a version. Its number is its id.
pub(super) fn past(entry: &ConfigEntry, namespace: &str, with_content: bool) -> Value {
    let mut shown = detail(entry, namespace, with_content);
    let kind = match (&entry.removal, entry.version) {
        (Some(_), _) => "D",
        (None, 1) => "I",
        _ => "U",
    };
    let time = entry.removal.as_ref().map_or(entry.time, |removal| removal.time);
    let user = entry.removal.as_ref().map_or(&entry.author, |removal| &removal.author);
    for (field, value) in [
        ("id", json!(entry.version.to_string())),
        ("lastId", json!(-1)),
        ("opType", json!(kind)),
        ("publishType", json!("formal")),
        ("srcUser", json!(user)),
        ("srcIp", json!("")),
        ("createdTime", json!(rfc3339(entry.created))),
        ("lastModifiedTime", json!(rfc3339(time))),
        ("modifyTime", json!(time)),
        ("restored", json!(entry.restored)),
    ] {
        shown[field] = value;
    }
    shown
}

/// Returns a page of a list.
pub(super) fn page(found: &[ConfigEntry], (number, size): (u64, u64), shown: impl Fn(&ConfigEntry) -> Value) -> Value {
    let count = found.len() as u64;
    let skip = usize::try_from((number - 1).saturating_mul(size)).unwrap_or(usize::MAX);
    let items: Vec<Value> = found.iter().skip(skip).take(size as usize).map(shown).collect();
    json!({ "totalCount": count, "pageNumber": number, "pagesAvailable": count.div_ceil(size), "pageItems": items })
}

/// Returns year, month, day, and the seconds of the day, of a time in milliseconds since 1970.
fn civil(millis: i64) -> (i64, i64, i64, i64, i64) {
    let seconds = millis.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years.
    let from = days + 719_468;
    let (era, day_of_era) = (from.div_euclid(146_097), from.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day, second, days)
}

/// Formats a time as `2020-12-05T01:48:03.380+0000`.
fn rfc3339(millis: i64) -> String {
    let (year, month, day, second, _) = civil(millis);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let milli = millis.rem_euclid(1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}+0000")
}

/// Formats a time for a header: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(millis: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day, second, days) = civil(millis);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month = MONTHS[(month - 1) as usize % 12];
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (millis, text, header) in [
            (0, "1970-01-01T00:00:00.000+0000", "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_000, "1994-11-06T08:49:37.000+0000", "Sun, 06 Nov 1994 08:49:37 GMT"),
            (1_709_164_800_999, "2024-02-29T00:00:00.999+0000", "Thu, 29 Feb 2024 00:00:00 GMT"),
        ] {
            assert_eq!((rfc3339(millis).as_str(), http_date(millis).as_str()), (text, header));
        }
    }
}
