//! Requests to Eureka's own servers, and their answers.

use serde_json::{Value, json};

use super::backlog::{Action, Task};
use crate::Instance;
use crate::api::ApiError;
use crate::api::eureka::view::{self, Form};
use crate::api::eureka::wire::{self, Kept, Sent};

/// Most instances of another server's whole list.
const MOST_INSTANCES: usize = 1 << 20;

/// Returns a change as the original's servers send it. None if there is nothing to be told: the instance is gone, or another front's.
pub(super) fn change(task: &Task, instance: Option<&Instance>) -> Option<Value> {
    let mut change = json!({ "action": task.action, "appName": task.app, "id": task.client_id });
    if task.action == Action::Cancel {
        return Some(change);
    }
    let instance = instance?;
    let kept = Kept::of(instance).filter(Kept::registered)?;
    change["lastDirtyTimestamp"] = view::last_dirty(instance, &kept).into();
    change["status"] = kept.effective().into();
    match task.action {
        Action::Register => {
            let mut info = view::instance(instance, Form::Json);
            // The original's servers read either name, by version.
            info["overriddenstatus"] = info["overriddenStatus"].clone();
            change["instanceInfo"] = info;
        }
        Action::Heartbeat if !kept.overridden.is_empty() => change["overriddenStatus"] = kept.overridden.into(),
        _ => {}
    }
    Some(change)
}

/// Reaction to the status of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server has made the change, or has no need of it.
    Done,
    /// The server lacks the instance, or has older data: it is registered there.
    Register,
    /// The server has newer data, which come with the answer.
    Adopt,
    /// The server refuses the change.
    Refused,
}

/// Returns the reaction to the status of a change.
pub(super) fn verdict(action: Action, status: u64) -> Verdict {
    match (action, status) {
        (_, 200..=299) | (Action::Cancel, 404) => Verdict::Done,
        (Action::Heartbeat | Action::StatusUpdate | Action::DeleteStatusOverride, 404) => Verdict::Register,
        (Action::Heartbeat, 409) => Verdict::Adopt,
        _ => Verdict::Refused,
    }
}

/// Parses an instance of a server's answer.
pub(super) fn instance(value: &Value) -> Result<Sent, ApiError> {
    wire::read(&json!({ "instance": value }))
}

/// Returns the instances of a whole list: `{"applications": {"application": [{"instance": [{…}]}]}}`; old servers send a list of one as its element.
pub(super) fn instances(whole: &Value) -> impl Iterator<Item = &Value> {
    fn list(value: &Value) -> impl Iterator<Item = &Value> {
        let one = value.is_object().then_some(value);
        value.as_array().into_iter().flatten().chain(one)
    }
    let applications = list(&whole["applications"]["application"]);
    applications.flat_map(|application| list(&application["instance"])).take(MOST_INSTANCES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Instant;

    use super::*;
    use crate::api::eureka::wire::KEPT;
    use crate::api::identity::CLIENT_ID;
    use crate::{InstanceId, Metadata, NamespaceName, Registration, ServiceKey};

    #[test]
    fn changes_have_the_originals_form() {
        let namespace = NamespaceName::default();
        let id = InstanceId::new(&namespace, "eureka:a@SHOP").unwrap();
        let task = |action| Task {
            action,
            instance: id.clone(),
            app: "SHOP".into(),
            client_id: "a".into(),
            until: Instant::now(),
        };
        let mut registration =
            Registration::new(id.clone(), ServiceKey::new(&namespace, "shop").unwrap(), "10.0.0.1", 80);
        let kept = r#"{"status":"OUT_OF_SERVICE","overridden":"OUT_OF_SERVICE","lastDirty":7,"hostName":"h"}"#;
        registration.metadata = Metadata::from_pairs([(KEPT, kept), (CLIENT_ID, "a")]).unwrap();
        let instance = Instance::registered(registration.clone(), None);
        let of = |action| change(&task(action), Some(&instance)).unwrap();
        let heartbeat = json!({
            "action": "Heartbeat", "appName": "SHOP", "id": "a", "lastDirtyTimestamp": 7, "status": "OUT_OF_SERVICE",
            "overriddenStatus": "OUT_OF_SERVICE",
        });
        assert_eq!(of(Action::Heartbeat), heartbeat);
        assert_eq!(of(Action::Cancel), json!({ "action": "Cancel", "appName": "SHOP", "id": "a" }));
        assert_eq!(of(Action::StatusUpdate)["status"], "OUT_OF_SERVICE");
        let info = &of(Action::Register)["instanceInfo"];
        assert_eq!((&info["hostName"], &info["overriddenstatus"]), (&json!("h"), &json!("OUT_OF_SERVICE")));
        let sent = super::instance(info).unwrap();
        assert_eq!((sent.id.as_str(), sent.kept.last_dirty), ("a", 7));
        // Of instances that are gone only the end is told, and of another front's nothing.
        assert!(change(&task(Action::Cancel), None).is_some() && change(&task(Action::Register), None).is_none());
        registration.metadata = Metadata::default();
        let other = Instance::registered(registration, None);
        assert_eq!(change(&task(Action::Heartbeat), Some(&other)), None);
    }

    #[test]
    fn reactions_to_statuses() {
        use Action::{Cancel, DeleteStatusOverride, Heartbeat, Register, StatusUpdate};
        for (action, status, expected) in [
            (Register, 200, Verdict::Done),
            (Register, 204, Verdict::Done),
            (Register, 404, Verdict::Refused),
            (Heartbeat, 200, Verdict::Done),
            (Heartbeat, 404, Verdict::Register),
            (Heartbeat, 409, Verdict::Adopt),
            (Heartbeat, 500, Verdict::Refused),
            (Cancel, 404, Verdict::Done),
            (Cancel, 500, Verdict::Refused),
            (StatusUpdate, 404, Verdict::Register),
            (DeleteStatusOverride, 404, Verdict::Register),
            (StatusUpdate, 409, Verdict::Refused),
        ] {
            assert_eq!(verdict(action, status), expected, "{action:?} {status}");
        }
    }

    #[test]
    fn lists_of_one_and_of_many() {
        let two = json!({ "applications": { "application": [{ "instance": [{ "n": 1 }, { "n": 2 }] }, { "name": "empty" }] } });
        let one = json!({ "applications": { "application": { "instance": { "n": 3 } } } });
        for (whole, expected) in [(two, vec![1, 2]), (one, vec![3]), (json!([]), vec![]), (json!({}), vec![])] {
            let found: Vec<u64> = instances(&whole).filter_map(|instance| instance["n"].as_u64()).collect();
            assert_eq!(found, expected, "{whole}");
        }
    }
}
