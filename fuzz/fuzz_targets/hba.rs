//! Rules of the HBA file.
#![cfg_attr(fuzzing, no_main)]

use std::net::IpAddr;

use kingpost_fuzz::fuzz_target;
use proxy::hba::{Attempt, Kind, Rules};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(rules) = Rules::parse(text) else { return };
    let near: IpAddr = [127, 0, 0, 1].into();
    for (address, tls) in [(None, false), (Some(near), false), (Some(near), true)] {
        let attempt = Attempt { address, tls, database: "app", user: "alice" };
        let Some(rule) = rules.first(&attempt) else { continue };
        match rule.kind {
            Kind::Local => assert!(address.is_none()),
            Kind::Host => assert!(address.is_some()),
            Kind::HostSsl => assert!(address.is_some() && tls),
            Kind::HostNoSsl => assert!(address.is_some() && !tls),
        }
    }
});
