//! Return of a former primary, down or stale after a failover or a switchover, as a replica.

use std::collections::HashMap;
use std::time::Duration;

use topology::{NodeId, Role, View};

use super::cluster::Cluster;
use daemon::Running;
use process::terminal;

/// Interval between two looks.
const PACE: Duration = Duration::from_secs(1);
/// Consecutive looks at which a node must be down or stale: a view may be out of date.
const LOOKS: u32 = 3;
/// Most attempts for one node; after them an operator has to act.
const ATTEMPTS: u32 = 3;

/// Brings former primaries back, one after the other. Never returns.
pub(super) async fn former_primaries(cluster: &mut Cluster, running: &Running) {
    let mut first = running.view().primary.and_then(|id| name_of(&running.view(), id));
    let mut former: HashMap<String, (u32, u32)> = HashMap::new();
    loop {
        tokio::time::sleep(PACE).await;
        let view = running.view();
        let Some(primary) = view.primary.and_then(|id| name_of(&view, id)) else { continue };
        if let Some(before) = first.replace(primary.clone())
            && before != primary
        {
            former.entry(before).or_default();
        }
        former.remove(&primary);
        for (name, (looks, attempts)) in &mut former {
            let role = view.nodes.iter().find(|node| node.node.name == *name).map(|node| node.role);
            match role {
                Some(Role::Stale | Role::Unknown) => *looks += 1,
                Some(Role::Primary | Role::Replica) | None => *looks = 0,
            }
            if *looks < LOOKS || *attempts >= ATTEMPTS {
                continue;
            }
            (*looks, *attempts) = (0, *attempts + 1);
            terminal::line(format_args!("{name} was the primary before {primary}: it becomes a replica"));
            let step = |text: &str| terminal::line(format_args!("  {text}"));
            match cluster.rejoin(name, &primary, &step).await {
                Ok(()) => terminal::line(format_args!("{name} follows {primary}")),
                Err(failure) => terminal::line(format_args!("{name} cannot follow {primary}: {failure}")),
            }
        }
    }
}

fn name_of(view: &View, id: NodeId) -> Option<String> {
    Some(view.node(id)?.node.name.clone())
}
