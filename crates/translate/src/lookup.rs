//! The query by which users are looked up.

use config::SAFE_QUERY;

use super::report::Report;

/// Queries that do, without white space around `=`.
const UNSAFE: [&str; 3] = [
    "select usename, passwd from pg_shadow where usename=$1",
    "select usename, passwd from pg_catalog.pg_shadow where usename=$1",
    "select rolname, rolpassword from pg_authid where rolname=$1",
];

/// The query to write in place of this one.
pub(super) fn safe(report: &mut Report<'_>, name: &str, query: String) -> String {
    let plain = query.trim_end_matches(';').to_ascii_lowercase();
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ").replace(" = ", "=");
    if !UNSAFE.contains(&plain.as_str()) {
        return query;
    }
    let why = "it lets in roles that have expired (CVE-2025-2291): PgBouncer's default since 1.24.1 is in its place";
    report.leave(&format!("{name} = {query}"), why);
    SAFE_QUERY.to_owned()
}
