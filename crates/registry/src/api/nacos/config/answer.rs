//! Forms of answers: the envelope of versions 2 and 3, entries, versions and pages.

use serde::Serialize;

use super::*;
use crate::api::time::{rfc3339, time_of};
use crate::model::Digest;

/// Returns an answer in the envelope.
pub(in crate::api::nacos) fn result(data: &impl Serialize) -> Reply {
    Reply::ok(&json!({ "code": 0, "message": "success", "data": json!(data) }))
}

/// Returns an error in the envelope.
pub(in crate::api::nacos) fn refused(error: &ApiError) -> Reply {
    let (code, message) = match (error, error.status().as_u16()) {
        (ApiError::Coded { code, message, .. }, _) => (*code, *message),
        (_, 400 | 413) => (20_002, "parameter validate error"),
        (_, 401 | 403 | 421) => (10_001, "access denied"),
        (_, 404) => (20_004, "resource not found"),
        (_, 409) => (20_005, "resource conflict"),
        (_, 429) => (30_002, "over threshold"),
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
        ("createdTime", json!(with_zone(entry.created))),
        ("lastModifiedTime", json!(with_zone(time))),
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

/// Formats a time as `2020-12-05T01:48:03.380+0000`.
fn with_zone(millis: i64) -> String {
    rfc3339(millis).replace('Z', "+0000")
}

/// Formats a time for a header: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(millis: i64) -> String {
    httpdate::fmt_http_date(time_of(millis))
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
            assert_eq!((with_zone(millis).as_str(), http_date(millis).as_str()), (text, header));
        }
    }
}
