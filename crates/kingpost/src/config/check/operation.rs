//! Traces, and how a process is taken over.

use std::path::Path;

use proxy::config::ProxyConfig;

use super::{Findings, Host, SOCKET_PATH_LIMIT, parse_address};

pub(super) fn check(proxy: &ProxyConfig, findings: &mut Findings) {
    check_tracing(proxy, findings);
    if let Some(path) = &proxy.upgrade_socket {
        check_upgrade_socket(path, proxy, findings);
    }
}

fn check_upgrade_socket(path: &Path, proxy: &ProxyConfig, findings: &mut Findings) {
    let key = "proxy.upgrade_socket";
    if !path.is_absolute() || path.as_os_str().len() > SOCKET_PATH_LIMIT {
        let expected = format!("expected an absolute path of at most {SOCKET_PATH_LIMIT} bytes");
        findings.error(key, format!("found {path:?}, {expected}"));
    }
    if let Some(index) = proxy.listen.iter().position(|listen| Path::new(&listen.address) == path) {
        findings.error(key, format!("found {path:?}, which is proxy.listen[{index}]; expected a path of its own"));
    }
}

fn check_tracing(proxy: &ProxyConfig, findings: &mut Findings) {
    let Some(endpoint) = &proxy.tracing.endpoint else {
        if proxy.tracing.ratio.is_some() {
            findings.warn("proxy.tracing.ratio", "traces nothing without proxy.tracing.endpoint");
        }
        return;
    };
    const EXPECTED: &str = "expected http://host:port of a collector that takes OTLP over gRPC";
    let address = endpoint.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    match address.map(|address| parse_address(address, false)) {
        Some(Ok(Host::Unix)) | None => {
            findings.error("proxy.tracing.endpoint", format!("found {endpoint:?}, {EXPECTED}"))
        }
        Some(Err(why)) => findings.error("proxy.tracing.endpoint", format!("{why}; {EXPECTED}")),
        Some(Ok(host)) if !host.is_local() => findings.warn(
            "proxy.tracing.endpoint",
            "is on another machine: texts of statements, without their literals, cross the network in clear",
        ),
        Some(Ok(_)) => {}
    }
}
