//! Choice of the port of a server of `kingpost up`: its last one, unless that has been taken meanwhile.

use std::net::TcpListener;

use process::Failure;

/// Most ports that are tried.
const MOST: u32 = 4;

/// The attempts to start one server.
#[derive(Default)]
pub(super) struct Attempts(u32);

impl Attempts {
    /// Chooses the port of the next attempt: the given one if it is free, else a free one; 0 stands for none.
    ///
    /// # Errors
    /// The system has no free port.
    pub(super) fn choose(&mut self, port: &mut u16) -> Result<(), Failure> {
        self.0 += 1;
        if *port == 0 || TcpListener::bind(("127.0.0.1", *port)).is_err() {
            *port = free_port()?;
        }
        Ok(())
    }

    /// True if the attempt failed because its port was taken meanwhile, and another port may be tried.
    pub(super) fn may_try_another(&self, failure: &Failure) -> bool {
        self.0 < MOST && failure.to_string().contains("Address already in use")
    }
}

/// Returns a free port, chosen by the system.
fn free_port() -> Result<u16, Failure> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Failure::environment(format!("cannot get a free port on 127.0.0.1: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_a_few_times() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().map(|address| (taken, address.port())).unwrap();
        let in_use = Failure::environment("bind: Address already in use");
        let mut attempts = Attempts::default();
        for attempt in 1..=MOST {
            let mut port = if attempt == 1 { taken.1 } else { 0 };
            attempts.choose(&mut port).unwrap();
            assert!(port != 0 && port != taken.1);
            assert!(!attempts.may_try_another(&Failure::environment("out of memory")));
            assert_eq!(attempts.may_try_another(&in_use), attempt < MOST);
        }
    }
}
