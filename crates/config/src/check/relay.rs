//! Checks of `[relay]`.

use std::path::Path;

use ::archive::config::ArchiveConfig;
use ::archive::{FORMS, Location, check_credentials};
use ::relay::config::{AuthMethod, BackupConfig, RelayConfig};
use proxy::config::UserConfig;
use wire::replication::is_slot_name;

use super::check_user;
use super::findings::{Findings, Stat};
use super::password::{self, Password};
use crate::Config;
use process::address::parse_address;

pub(super) fn check(relay: &RelayConfig, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    if *relay == RelayConfig::default() {
        return;
    }
    if *relay
        == (RelayConfig { archive: relay.archive.clone(), backup: relay.backup.clone(), ..RelayConfig::default() })
    {
        // The file of a host that only fetches from the archive.
        check_backup(relay, findings);
        return check_archive(relay, stat, findings);
    }
    let upstream = &relay.upstream;
    if !upstream.address.is_empty()
        && let Err(why) = parse_address(&upstream.address, false)
    {
        findings.error("relay.upstream.address", why);
    }
    if !upstream.slot.is_empty() && !is_slot_name(&upstream.slot) {
        findings.error(
            "relay.upstream.slot",
            format!(
                "found {:?}, expected 1 to 63 lower-case letters, digits and underscores, or \"\" for none",
                upstream.slot
            ),
        );
    }
    let (in_place, file) = (upstream.password.is_some(), upstream.password_file.as_deref());
    Password { in_place, file, ..Password::default() }.check("relay.upstream", stat, findings);
    if relay.dir.as_os_str().is_empty() {
        findings.error("relay.dir", "found \"\", expected a directory");
    }
    if relay.max_bytes < relay.keep_bytes {
        findings.error(
            "relay.max_bytes",
            format!("found {}, which is less than keep_bytes ({})", relay.max_bytes, relay.keep_bytes),
        );
    }
    if let Err(error) = tls::Acceptor::new(&relay.tls) {
        findings.error(format!("relay.tls.{}", error.setting()), error.to_string());
    }
    if let Err(error) = tls::Connector::new(&upstream.tls) {
        findings.error(format!("relay.upstream.tls.{}", error.setting()), error.to_string());
    }
    check_backup(relay, findings);
    check_archive(relay, stat, findings);
    if let Some(dialect) = relay.engine.dialect() {
        return check_binlog(relay, dialect.name(), stat, findings);
    }
    if relay.server_id != 0 {
        findings.warn(
            "relay.server_id",
            "found a server_id, which only a relay with engine = \"mariadb\" or \"mysql\" has",
        );
    }
    let scram = relay.auth == AuthMethod::ScramSha256;
    for (index, address) in relay.listen.iter().enumerate() {
        let path = format!("relay.listen[{index}]");
        match parse_address(address, true) {
            _ if address.starts_with('/') => findings.error(path, "found a path, expected host:port"),
            Err(why) => findings.error(path, why),
            Ok(host) if !scram && !host.is_local() => findings.error(
                path,
                format!(
                    "found {address:?} with auth = \"trust\": anybody who reaches it could read the write-ahead log; \
                     expected a loopback address, or auth = \"scram-sha-256\""
                ),
            ),
            Ok(host) if !host.is_local() && relay.tls.mode != tls::ListenMode::Require => findings.warn(
                path,
                format!("found {address:?} and [relay.tls] whose mode is not \"require\": WAL may cross the network in clear"),
            ),
            Ok(_) => {}
        }
    }
    if scram && relay.users.is_empty() && !relay.listen.is_empty() {
        findings.error(
            "relay.users",
            "found no user, expected at least one [[relay.users]] with a password, for auth is \"scram-sha-256\"",
        );
    }
    findings.unique("relay.users", ".name", relay.users.iter().map(|user| user.name.as_str()));
    for (index, user) in relay.users.iter().enumerate() {
        let user = UserConfig {
            name: user.name.clone(),
            auth: None,
            password: user.password.clone(),
            password_file: user.password_file.clone(),
            verifier: user.verifier.clone(),
            ..UserConfig::default()
        };
        let auth = if scram { proxy::config::AuthMethod::ScramSha256 } else { proxy::config::AuthMethod::Trust };
        check_user(&user, &format!("relay.users[{index}]"), auth, false, stat, findings);
    }
}

/// Checks `[relay.backup]`.
fn check_backup(relay: &RelayConfig, findings: &mut Findings) {
    let backup = &relay.backup;
    if *backup == BackupConfig::default() {
        return;
    }
    if !relay.archive.is_on() {
        return findings.warn("relay.backup", "is not used: relay.archive.url names no archive");
    }
    if backup.schedule().is_none() {
        findings.warn("relay.backup.every", "is \"0s\": the other keys are not used");
    }
    let rate = u32::try_from(backup.max_rate / 1024).unwrap_or(u32::MAX);
    if backup.max_rate > 0 && !wire::replication::RATES.contains(&rate) {
        let found = backup.max_rate;
        findings.error(
            "relay.backup.max_rate",
            format!("found {found}, expected 0, or 32768 (32 KiB) to 1073741824 (1 GiB)"),
        );
    }
}

/// Checks that backups by schedule can be taken from the named server. A registry may name further ones.
pub(super) fn check_backup_source(config: &Config, findings: &mut Findings) {
    let (backup, from) = (&config.relay.backup, &config.relay.backup.from);
    let is_used = config.relay.archive.is_on() && backup.schedule().is_some() && config.cluster.from.urls.is_empty();
    let sources = config.backup_sources();
    if from.is_empty() || !is_used || sources.iter().any(|(name, _)| name == from) {
        return;
    }
    let names: Vec<&str> = sources.iter().map(|(name, _)| *name).collect();
    let expected = match names[..] {
        [] => "servers in [[cluster.nodes]] or [cluster.from], or one in relay.upstream.address".to_owned(),
        _ => format!("one of {}", names.join(", ")),
    };
    findings
        .warn("relay.backup.from", format!("names no server: found {from:?}, expected {expected}; no backup is taken"));
}

/// Checks `[relay.archive]`.
fn check_archive(relay: &RelayConfig, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let archive = &relay.archive;
    if *archive == ArchiveConfig::default() {
        return;
    }
    if relay.engine.dialect().is_some() {
        return findings
            .error("relay.archive", "found an archive, which only a relay with engine = \"postgresql\" has");
    }
    let url = &archive.url;
    if !archive.is_on() {
        return findings.warn("relay.archive.url", "is \"\": the other keys are not used");
    }
    if archive.alarm_after <= archive.interval {
        findings.error(
            "relay.archive.alarm_after",
            format!(
                "found {:?}, expected more than interval ({:?}): the archive is behind for as long",
                archive.alarm_after, archive.interval
            ),
        );
    }
    let location = archive.location();
    if location.is_none() {
        findings.error("relay.archive.url", format!("found {url:?}, expected {FORMS}"));
    }
    let given = Password {
        in_place: archive.credentials.is_some(),
        file: archive.credentials_file.as_deref(),
        command: &archive.credentials_command,
        named: "credentials",
        ..Password::default()
    };
    given.check("relay.archive", stat, findings);
    let keys = Password { file: archive.key_file.as_deref(), named: "key", ..Password::default() };
    keys.check("relay.archive", stat, findings);
    if let Some(Location::Bucket(bucket)) = &location {
        match (given.is_given(), archive.host_identity) {
            (false, false) => findings.error(
                "relay.archive",
                "found no credentials, expected one of credentials, credentials_file and credentials_command, or host_identity = true",
            ),
            (true, true) => findings.error("relay.archive.host_identity", "found true, and credentials: expected one of them"),
            _ => {}
        }
        if let Some(Err(expected)) =
            archive.credentials.as_deref().map(|text| check_credentials(bucket.service(), text))
        {
            findings.error("relay.archive.credentials", expected);
        }
    }
    let endpoint = archive.endpoint.as_str();
    match endpoint.strip_prefix("http://") {
        _ if endpoint.is_empty() || endpoint.starts_with("https://") => {}
        Some(address) if process::address::is_loopback(address.split('/').next().unwrap_or_default()) => {}
        Some(_) => {
            findings.warn("relay.archive.endpoint", format!("found {endpoint:?}: WAL crosses the network in clear"))
        }
        None => findings.error("relay.archive.endpoint", format!("found {endpoint:?}, expected https://host:port")),
    }
}

/// Checks the settings that a relay of a binary log needs, and those that it must not have.
fn check_binlog(relay: &RelayConfig, family: &str, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    if relay.server_id == 0 {
        findings.error(
            "relay.server_id",
            "found none, expected a number from 1 to 4294967295 that no server of the cluster has as its server_id",
        );
    }
    if relay.upstream.address.is_empty() {
        findings.error("relay.upstream.address", "found \"\", expected the host:port of the source");
    }
    if relay.auth == AuthMethod::Trust {
        findings.error(
            "relay.auth",
            format!("found \"trust\": replicas of {family} log in with a password; leave auth out"),
        );
    }
    for (index, address) in relay.listen.iter().enumerate() {
        let path = format!("relay.listen[{index}]");
        match parse_address(address, true) {
            _ if address.starts_with('/') => findings.error(path, "found a path, expected host:port"),
            Err(why) => findings.error(path, why),
            Ok(host) if !host.is_local() && relay.tls.mode != tls::ListenMode::Require => findings.warn(
                path,
                format!("found {address:?} and [relay.tls] whose mode is not \"require\": events may cross the network in clear"),
            ),
            Ok(_) => {}
        }
    }
    if relay.users.is_empty() && !relay.listen.is_empty() {
        findings
            .error("relay.users", "found no user, expected at least one [[relay.users]] with a password for replicas");
    }
    findings.unique("relay.users", ".name", relay.users.iter().map(|user| user.name.as_str()));
    for (index, user) in relay.users.iter().enumerate() {
        let path = format!("relay.users[{index}]");
        match (&user.password, &user.password_file) {
            (Some(password), None) if !password.is_empty() => {}
            (None, Some(file)) => password::check_file(file, format!("{path}.password_file"), stat, findings),
            _ => findings.error(&path, "found no password, or two, expected one of password and password_file"),
        }
        if user.verifier.is_some() {
            findings.error(
                format!("{path}.verifier"),
                format!("found a verifier, which a replica of {family} cannot log in with"),
            );
        }
    }
}
