//! The watchdog device: it resets the machine unless it is written to, and so stops a primary whose agent hangs.
//!
//! ```text
//!  server is no primary     ─▶ disarmed: a "V", and the device is closed
//!  primary, lease valid     ─▶ a byte each second
//!  primary, lease half over ─▶ nothing: within the device's timeout, less than the other half, the server is stopped, or the machine is
//! ```

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use crate::lease::{self, LeaseClock};
use crate::supervise::Lease;

/// Interval of writes.
const PACE: Duration = Duration::from_secs(1);

/// The next step with the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Feed,
    Starve,
    Disarm,
}

/// Decides the next step. `lease`: that of a primary; None for any other server.
fn step(lease: Option<Lease>) -> Step {
    match lease {
        None => Step::Disarm,
        Some(Lease::Late | Lease::Over) => Step::Starve,
        Some(Lease::Valid) => Step::Feed,
    }
}

/// Serves the device until `leases` ends; the device is disarmed then. `lease`: the length of the lease.
pub(crate) async fn run(path: PathBuf, mut leases: watch::Receiver<Option<LeaseClock>>, lease: Duration) {
    if let Some(timeout) = timeout(&path).filter(|timeout| !lease.is_zero() && *timeout > lease / 2) {
        tracing::warn!(
            "the watchdog {} resets the machine after {timeout:?}, too late for a lease of {lease:?}: set a timeout of the device that is at most \
             half of node.lease",
            path.display()
        );
    }
    let mut device: Option<File> = None;
    let mut failing = false;
    loop {
        let lease = leases.borrow_and_update().map(|lease| lease.state(lease::now()));
        let done = match step(lease) {
            Step::Feed => feed(&path, &mut device),
            Step::Starve => Ok(()),
            Step::Disarm => disarm(&mut device),
        };
        match done {
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "cannot use the watchdog {}: nothing stops a primary whose agent hangs", path.display());
            }
            Ok(()) => failing = false,
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(PACE) => {}
            changed = leases.changed() => if changed.is_err() {
                let _ = disarm(&mut device);
                return;
            },
        }
    }
}

/// Writes a byte; opens the device, which arms it.
fn feed(path: &Path, device: &mut Option<File>) -> std::io::Result<()> {
    if device.is_none() {
        *device = Some(OpenOptions::new().write(true).open(path)?);
        tracing::info!("the watchdog {} is armed", path.display());
    }
    match device {
        Some(file) => file.write_all(b"\0"),
        None => Ok(()),
    }
}

/// Closes the device with the byte that has it not reset the machine.
fn disarm(device: &mut Option<File>) -> std::io::Result<()> {
    match device.take() {
        Some(mut file) => file.write_all(b"V"),
        None => Ok(()),
    }
}

/// Returns the device's timeout, if the system tells it.
fn timeout(path: &Path) -> Option<Duration> {
    let name = match path.file_name()?.to_str()? {
        "watchdog" => "watchdog0",
        name => name,
    };
    let text = std::fs::read_to_string(format!("/sys/class/watchdog/{name}/timeout")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn steps() {
        for (lease, expected) in [
            (None, Step::Disarm),
            (Some(Lease::Valid), Step::Feed),
            (Some(Lease::Late), Step::Starve),
            (Some(Lease::Over), Step::Starve),
        ] {
            assert_eq!(step(lease), expected, "{lease:?}");
        }
    }

    #[tokio::test]
    async fn a_device_is_fed_and_disarmed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut device = None;
        feed(file.path(), &mut device).unwrap();
        feed(file.path(), &mut device).unwrap();
        disarm(&mut device).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"\0\0V");
        assert!(feed(Path::new("/nonexistent/watchdog"), &mut device).is_err());

        let (leases, seen) = watch::channel(Some(LeaseClock::new(Duration::ZERO, Duration::ZERO)));
        drop(leases);
        run(file.path().to_owned(), seen, Duration::ZERO).await;
        assert_eq!(std::fs::read(file.path()).unwrap()[..2], *b"\0V");
    }
}
