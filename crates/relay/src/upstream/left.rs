//! Slots that this relay has left behind at servers that it no longer follows.
//!
//! A former primary that comes back as a standby still has the relay's slot. Nobody advances the slot, so that the standby keeps WAL without bound.
//! The relay drops the slot once the server is a standby on the relay's timeline. A primary, even a fenced one, keeps the slot: if the failover is
//! called off, the relay goes back there and needs the WAL.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::ask::{identify, show};
use crate::config::UpstreamConfig;
use crate::error::{Peer, UpstreamError};
use crate::session::{Login, Session};
use crate::shared::Shared;

/// Longest time for one step.
const STEP: Duration = Duration::from_secs(3);

/// Drops the slots that can be dropped now; others are tried again the next time. Does nothing while the relay does not stream: it may go back.
/// Blocking, a few seconds for a server that does not answer.
pub(crate) fn drop_left_slots(shared: &Shared) {
    let Some((config, _)) = shared.control.wanted() else { return };
    if shared.upstream().state != "streaming" {
        return;
    }
    for (address, slot) in shared.slots.left(&config.address, &config.slot) {
        match drop_slot(shared, &config, &address, &slot) {
            Ok(true) => {
                info!(
                    server = address,
                    slot, "dropped the slot that was left behind at a server which is a standby now"
                );
                if let Err(error) = shared.slots.gone(&address, &slot) {
                    // After the next start the slot is looked for once more.
                    debug!(%error, "that the slot is gone is not saved");
                }
            }
            Ok(false) => debug!(
                server = address,
                slot, "the slot that was left behind stays: the server is no standby of ours yet"
            ),
            Err(error) => debug!(server = address, slot, %error, "the slot that was left behind is not dropped"),
        }
    }
}

/// Drops a slot; false if it cannot be dropped yet.
fn drop_slot(shared: &Shared, config: &UpstreamConfig, address: &str, slot: &str) -> Result<bool, UpstreamError> {
    let Some(log) = shared.log() else { return Ok(false) };
    let password = super::password(config)?;
    let login = Login {
        peer: Peer::Server(address.into()),
        address,
        user: &config.user,
        password: password.as_deref(),
        application_name: &config.application_name,
        connector: tls::Connector::new(&config.tls)?.map(Arc::new),
        host_timeout: STEP,
        step: STEP,
    };
    let mut session = Session::open(&login, |_| Ok::<_, UpstreamError>(()))?;
    let remote = identify(&mut session)?;
    // PostgreSQL 14 and later; an earlier one refuses, and keeps the slot.
    let is_standby = show(&mut session, "in_hot_standby")? == "on";
    if remote.system != log.identity().system_id || !is_standby || remote.timeline < log.tail().timeline.0 {
        return Ok(false);
    }
    match session.ask(&format!("DROP_REPLICATION_SLOT \"{slot}\"")) {
        Ok(_) => Ok(true),
        // undefined_object: pg_rewind has removed it, or somebody else.
        Err(error) if error.sqlstate() == Some("42704") => Ok(true),
        Err(error) => Err(error.into()),
    }
}
