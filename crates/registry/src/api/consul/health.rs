//! `/v1/health/…`: services with their checks.

use bytes::Bytes;
use hyper::StatusCode;

use super::Call;
use super::entry::{self, Check, ServiceEntry};
use super::wire::{Kept, health, status};
use crate::api::reply::JSON;
use crate::api::{ApiError, Reply};
use crate::{Encoding, Health, ServiceSnapshot};

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    call.reads()?;
    match path {
        ["service", name] => service(call, name).await,
        ["checks", name] => {
            let key = call.service(name)?;
            let blocked = call.blocked(Some(&key)).await?;
            let snapshot = call.context.registry.snapshot(&key);
            let list = snapshot.iter().flat_map(|snapshot| snapshot.instances.iter());
            let checks: Vec<Check> = list.flat_map(|instance| checks(call, instance)).collect();
            Ok(blocked.show(Reply::ok(&checks)))
        }
        ["state", state] => {
            let wanted = match *state {
                "any" => None,
                state => Some(health(state).ok_or_else(|| {
                    ApiError::bad(format!("state {state:?}: expected any, passing, warning or critical"))
                })?),
            };
            let blocked = call.blocked(None).await?;
            let fits = |check: &Check| wanted.is_none_or(|wanted| check.is(status(wanted)));
            let all = call.instances();
            let checks: Vec<Check> =
                all.iter().flat_map(|instance| checks(call, instance)).filter(|check| fits(check)).collect();
            Ok(blocked.show(Reply::ok(&checks)))
        }
        ["node", node] => {
            let blocked = call.blocked(None).await?;
            let all = call.instances();
            let own = &call.context.node;
            let checks: Vec<Check> = all
                .iter()
                .filter(|instance| entry::node_name(&Kept::of(instance), own) == *node)
                .flat_map(|instance| checks(call, instance))
                .collect();
            Ok(blocked.show(Reply::ok(&checks)))
        }
        // The mesh: nothing is in it.
        ["connect" | "ingress", _] => Ok(call.blocked(None).await?.show(Reply::bytes(StatusCode::OK, JSON, "[]"))),
        _ => Err(call.no_such_path()),
    }
}

fn checks(call: &Call<'_>, instance: &crate::Instance) -> Vec<Check> {
    let mut checks = entry::checks(instance, &Kept::of(instance), &call.context.node);
    checks.retain(|check| call.fits(check));
    checks
}

async fn service(call: &Call<'_>, name: &str) -> Result<Reply, ApiError> {
    let key = call.service(name)?;
    let blocked = call.blocked(Some(&key)).await?;
    let passing = call.request.flag("passing");
    let plain = call.filter.is_none() && call.request.param("tag").is_none();
    let own = call.context.node.as_str();
    let reply = match call.context.registry.snapshot(&key) {
        None => Reply::bytes(StatusCode::OK, JSON, "[]"),
        // What nearly everybody asks is written once a revision.
        Some(snapshot) if plain => {
            let slot = if passing { Encoding::ConsulPassing } else { Encoding::ConsulHealth };
            let bytes = snapshot.encoded(slot, |snapshot| encode(snapshot, passing, own));
            Reply::bytes(StatusCode::OK, JSON, bytes)
        }
        Some(snapshot) => {
            let entries: Vec<ServiceEntry> = snapshot
                .instances
                .iter()
                .filter(|instance| !passing || entry::worst(instance) == Health::Passing)
                .filter(|instance| call.has_tags(&Kept::of(instance).tags))
                .map(|instance| ServiceEntry::new(instance, own))
                .filter(|entry| call.fits(entry))
                .collect();
            Reply::ok(&entries)
        }
    };
    let reply = if call.request.accepts_gzip() { reply.gzip() } else { reply };
    Ok(blocked.show(reply))
}

fn encode(snapshot: &ServiceSnapshot, passing: bool, own: &str) -> Bytes {
    let wanted = snapshot.instances.iter().filter(|instance| !passing || entry::worst(instance) == Health::Passing);
    let entries: Vec<ServiceEntry> = wanted.map(|instance| ServiceEntry::new(instance, own)).collect();
    serde_json::to_vec(&entries).unwrap_or_default().into()
}
