//! Computes the effect of a batch on the present rows: a pure function, the same for all stores. A store calls it with the counter row locked, so the
//! rows cannot change meanwhile; TiKV calls it on a snapshot that the commit validates.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::row::{InstanceRow, Record, ServiceRow};
use super::{Batch, Committed, Foreseen, Head};
use crate::model::{Health, Instance, InstanceId, Metadata, Patch, Registration, Revision, ServiceKey};

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// The kind of write and its arguments.
    pub kind: WriteKind,
    /// Write only if the instance has this revision; 0: only if it does not exist. Otherwise nothing is done ([`Outcome::Superseded`]).
    pub expected: Option<Revision>,
}

/// Kind and arguments of a write, already validated.
#[derive(Clone, Debug)]
pub enum WriteKind {
    /// Register an instance, or replace it.
    Register(Box<Registration>),
    /// Change single fields of an instance.
    Patch(InstanceId, Patch),
    /// Deregister an instance.
    Deregister(InstanceId),
    /// Give a service metadata; the service then exists even without instances.
    PutService(ServiceKey, Metadata),
    /// Delete the record of a service.
    DeleteService(ServiceKey),
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The row did not exist.
    Created,
    /// The row has changed.
    Updated,
    /// The row already had this content; nothing was written.
    Unchanged,
    /// The row was removed.
    Removed,
    /// The row does not exist.
    NotFound,
    /// The row no longer has the expected revision.
    Superseded,
}

/// The present rows that a batch concerns.
#[derive(Debug, Default)]
pub(crate) struct Existing {
    pub(crate) instances: BTreeMap<InstanceId, InstanceRow>,
    pub(crate) services: BTreeMap<ServiceKey, ServiceRow>,
}

impl WriteKind {
    /// Makes an unconditional write.
    pub(crate) fn always(self) -> Write {
        Write { kind: self, expected: None }
    }
}

impl Batch {
    /// Makes a batch without a prediction.
    pub fn new(number: u64, writes: Vec<Write>, now: i64) -> Batch {
        Batch { number, writes, now, foreseen: None }
    }

    /// Computes the result in advance for a store at `v` of the history `epoch`; `instances` are the present ones that the batch concerns. Not for a
    /// batch that needs a service's row: the cache does not hold removed services.
    pub(crate) fn foresee(&mut self, epoch: i64, v: Revision, instances: BTreeMap<InstanceId, InstanceRow>) {
        let existing = Existing { instances, services: BTreeMap::new() };
        if self.service_keys().is_empty() && self.services_left(&existing).is_empty() {
            let planned = plan(self, Head { v, epoch, gc_floor: Revision(0) }, &existing);
            self.foreseen = Some(Foreseen { epoch, v, planned: Mutex::new(Some(planned)) });
        }
    }

    /// Returns the prediction if it holds for a store at `head`, whose counter is locked. Only once: a further attempt reads the rows.
    pub(crate) fn foreseen_at(&self, head: Head) -> Option<Committed> {
        let foreseen = self.foreseen.as_ref().filter(|f| f.epoch == head.epoch && f.v == head.v)?;
        foreseen.planned.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// True if there is a prediction.
    pub(crate) fn is_foreseen(&self) -> bool {
        self.foreseen.is_some()
    }

    /// Returns the distinct ids of the instances concerned, sorted: rows are locked and written in this order.
    pub(crate) fn instance_ids(&self) -> Vec<&InstanceId> {
        let mut ids: Vec<&InstanceId> = self
            .writes
            .iter()
            .filter_map(|write| match &write.kind {
                WriteKind::Register(registration) => Some(&registration.id),
                WriteKind::Patch(id, _) | WriteKind::Deregister(id) => Some(id),
                WriteKind::PutService(..) | WriteKind::DeleteService(_) => None,
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the distinct keys of the services whose records the batch writes, sorted.
    pub(crate) fn service_keys(&self) -> Vec<&ServiceKey> {
        let mut keys: Vec<&ServiceKey> = self
            .writes
            .iter()
            .filter_map(|write| match &write.kind {
                WriteKind::PutService(key, _) | WriteKind::DeleteService(key) => Some(key),
                _ => None,
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the services that instances leave for another one, sorted: their rows are needed, too.
    pub(crate) fn services_left(&self, existing: &Existing) -> Vec<ServiceKey> {
        let mut keys: Vec<ServiceKey> = self
            .writes
            .iter()
            .filter_map(|write| {
                let WriteKind::Register(registration) = &write.kind else { return None };
                let row = existing.instances.get(&registration.id).filter(|row| !row.deleted)?;
                (row.instance.service != registration.service).then(|| row.instance.service.clone())
            })
            .filter(|key| !existing.services.contains_key(key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Applies `batch` to `existing`. The result's records are the rows to write, sorted by key, all with the revision after `head.v`; without records
/// that revision is not used.
pub(crate) fn plan(batch: &Batch, head: Head, existing: &Existing) -> Committed {
    let next = Revision(head.v.0 + 1);
    let mut instances: BTreeMap<InstanceId, (Option<InstanceRow>, InstanceRow)> = BTreeMap::new();
    let mut services: BTreeMap<ServiceKey, (Option<ServiceRow>, ServiceRow)> = BTreeMap::new();
    let mut outcomes = Vec::with_capacity(batch.writes.len());
    for write in &batch.writes {
        outcomes.push(match &write.kind {
            WriteKind::PutService(key, metadata) => {
                let before = services.get(key).map(|(_, now)| now).or_else(|| existing.services.get(key));
                let (outcome, after) = put_service(key, metadata, before, next, batch.now);
                let revision = after.revision;
                services.insert(key.clone(), (existing.services.get(key).cloned(), after));
                (outcome, revision)
            }
            WriteKind::DeleteService(key) => {
                let before = services.get(key).map(|(_, now)| now).or_else(|| existing.services.get(key));
                match before.filter(|row| !row.deleted) {
                    None => (Outcome::NotFound, head.v),
                    Some(row) => {
                        let mut after = row.clone();
                        (after.deleted, after.revision, after.mtime) = (true, next, batch.now);
                        after.metadata = Metadata::default();
                        services.insert(key.clone(), (existing.services.get(key).cloned(), after));
                        (Outcome::Removed, next)
                    }
                }
            }
            WriteKind::Register(_) | WriteKind::Patch(..) | WriteKind::Deregister(_) => {
                let id = match &write.kind {
                    WriteKind::Register(registration) => &registration.id,
                    WriteKind::Patch(id, _) | WriteKind::Deregister(id) => id,
                    _ => unreachable!("services are above"),
                };
                let before = instances.get(id).map(|(_, now)| now).or_else(|| existing.instances.get(id));
                let (outcome, after) = write_instance(write, before, next, batch.now);
                let revision = after.as_ref().or(before).map_or(head.v, |row| row.instance.revision);
                if let Some(after) = after {
                    instances.insert(id.clone(), (existing.instances.get(id).cloned(), after));
                }
                (outcome, revision)
            }
        });
    }
    // A row that the batch changed back and forth is unchanged: it is not written.
    let mut records: Vec<Record> = Vec::with_capacity(instances.len() + services.len());
    // An instance's row does not name the service that it has left: that service's own row is written instead, so that its revision is the same for
    // nodes that saw the move and for nodes that read everything later.
    let mut left: Vec<ServiceKey> = instances
        .values()
        .filter_map(|(before, after)| {
            let before = before.as_ref().filter(|b| !b.deleted && b.instance.service != after.instance.service)?;
            Some(before.instance.service.clone())
        })
        .collect();
    left.sort_unstable();
    left.dedup();
    records.extend(instances.into_values().filter_map(|(before, after)| {
        let same = before.is_some_and(|b| b.deleted == after.deleted && b.instance.digest == after.instance.digest);
        (!same).then_some(Record::Instance(after))
    }));
    for key in left {
        let row = services.remove(&key).map(|(_, row)| row).or_else(|| existing.services.get(&key).cloned());
        let row = row.unwrap_or_else(|| ServiceRow {
            key: key.clone(),
            metadata: Metadata::default(),
            revision: next,
            deleted: true,
            ctime: batch.now,
            mtime: batch.now,
        });
        services.insert(key, (None, ServiceRow { revision: next, mtime: batch.now, ..row }));
    }
    records.extend(services.into_values().filter_map(|(before, after)| {
        let same = before.is_some_and(|b| b.deleted == after.deleted && b.metadata == after.metadata);
        (!same).then_some(Record::Service(after))
    }));
    let wrote = !records.is_empty();
    let revision = if wrote { next } else { head.v };
    for (_, row_revision) in &mut outcomes {
        *row_revision = (*row_revision).min(revision);
    }
    Committed { revision, wrote, epoch: head.epoch, outcomes, records }
}

fn put_service(
    key: &ServiceKey,
    metadata: &Metadata,
    before: Option<&ServiceRow>,
    next: Revision,
    now: i64,
) -> (Outcome, ServiceRow) {
    let alive = before.filter(|row| !row.deleted);
    if let Some(row) = alive.filter(|row| row.metadata == *metadata) {
        return (Outcome::Unchanged, row.clone());
    }
    let ctime = alive.map_or(now, |row| row.ctime);
    let row =
        ServiceRow { key: key.clone(), metadata: metadata.clone(), revision: next, deleted: false, ctime, mtime: now };
    (if alive.is_some() { Outcome::Updated } else { Outcome::Created }, row)
}

/// Applies `write` to `before`; `None` if nothing changes.
fn write_instance(
    write: &Write,
    before: Option<&InstanceRow>,
    next: Revision,
    now: i64,
) -> (Outcome, Option<InstanceRow>) {
    let alive = before.filter(|row| !row.deleted).map(|row| &row.instance);
    if let Some(expected) = write.expected
        && alive.map_or(Revision(0), |instance| instance.revision) != expected
    {
        return (Outcome::Superseded, None);
    }
    let mut after = match &write.kind {
        WriteKind::Register(registration) => Instance::registered((**registration).clone(), alive),
        WriteKind::Patch(_, patch) => match alive {
            Some(instance) => instance.patched(patch),
            None => return (Outcome::NotFound, None),
        },
        WriteKind::Deregister(_) => {
            let Some(instance) = alive else { return (Outcome::NotFound, None) };
            // A tombstone needs only id, service and times.
            let mut gone = instance.clone();
            (gone.metadata, gone.check, gone.health) = (Metadata::default(), None, Health::Critical);
            (gone.revision, gone.mtime) = (next, now);
            gone.digest = gone.content_digest();
            return (Outcome::Removed, Some(InstanceRow { instance: gone, deleted: true }));
        }
        WriteKind::PutService(..) | WriteKind::DeleteService(_) => return (Outcome::NotFound, None),
    };
    after.digest = after.content_digest();
    if alive.is_some_and(|instance| instance.digest == after.digest) {
        return (Outcome::Unchanged, None);
    }
    (after.revision, after.mtime) = (next, now);
    if alive.is_none() {
        after.ctime = now;
    }
    let outcome = if alive.is_some() { Outcome::Updated } else { Outcome::Created };
    (outcome, Some(InstanceRow { instance: after, deleted: false }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn id() -> InstanceId {
        InstanceId::parse("default/i").unwrap()
    }

    fn register(port: u16) -> Write {
        let service = ServiceKey::parse("default/s").unwrap();
        WriteKind::Register(Box::new(Registration::new(id(), service, "h", port))).always()
    }

    fn weight(weight: u16) -> Write {
        WriteKind::Patch(id(), Patch { weight: Some(weight), ..Patch::default() }).always()
    }

    fn deregister() -> Write {
        WriteKind::Deregister(id()).always()
    }

    /// Runs batches in order on one instance. Returns the outcomes of the last batch, and the number of rows it wrote.
    fn run(batches: Vec<Vec<Write>>) -> (Vec<Outcome>, usize) {
        let mut row: Option<InstanceRow> = None;
        let mut v = 0;
        let mut last = None;
        for writes in batches {
            let existing =
                Existing { instances: row.iter().map(|r| (id(), r.clone())).collect(), ..Existing::default() };
            let head = Head { v: Revision(v), ..Head::default() };
            let committed = plan(&Batch::new(1, writes, 1), head, &existing);
            v = committed.revision.0;
            for record in &committed.records {
                if let Record::Instance(written) = record {
                    assert_eq!(written.instance.revision.0, v, "all rows of a batch have its revision");
                    row = Some(written.clone());
                }
            }
            last = Some((committed.outcomes.iter().map(|o| o.0).collect(), committed.records.len()));
        }
        last.unwrap()
    }

    #[test]
    fn outcomes() {
        use Outcome::*;
        let stale = || Write { expected: Some(Revision(9)), ..deregister() };
        let fresh = || Write { expected: Some(Revision(1)), ..deregister() };
        let first = || Write { expected: Some(Revision(0)), ..register(2) };
        for (batches, outcomes, written) in [
            (vec![vec![register(1)]], vec![Created], 1),
            (vec![vec![register(1)], vec![register(1)]], vec![Unchanged], 0),
            (vec![vec![register(1)], vec![register(2)]], vec![Updated], 1),
            (vec![vec![register(1), register(1), register(2)]], vec![Created, Unchanged, Updated], 1),
            (vec![vec![register(1)], vec![deregister()]], vec![Removed], 1),
            (vec![vec![deregister()]], vec![NotFound], 0),
            (vec![vec![register(1)], vec![deregister()], vec![deregister()]], vec![NotFound], 0),
            (vec![vec![register(1)], vec![deregister()], vec![register(1)]], vec![Created], 1),
            (vec![vec![register(1)], vec![deregister(), register(1)]], vec![Removed, Created], 0),
            (vec![vec![register(1)], vec![register(2), register(1)]], vec![Updated, Updated], 0),
            (vec![vec![weight(3)]], vec![NotFound], 0),
            (vec![vec![register(1)], vec![weight(3), weight(3)]], vec![Updated, Unchanged], 1),
            (vec![vec![register(1)], vec![stale()]], vec![Superseded], 0),
            (vec![vec![register(1)], vec![fresh()]], vec![Removed], 1),
            (vec![vec![stale()]], vec![Superseded], 0),
            // Revision 0: only if there is none.
            (vec![vec![first()]], vec![Created], 1),
            (vec![vec![register(1)], vec![first()]], vec![Superseded], 0),
            (vec![vec![register(1)], vec![deregister()], vec![first()]], vec![Created], 1),
            (vec![vec![first(), first()]], vec![Created, Superseded], 1),
        ] {
            let shown = format!("{batches:?}");
            assert_eq!(run(batches), (outcomes, written), "{shown}");
        }
    }

    #[test]
    fn a_service_that_an_instance_leaves_has_a_trace_of_it() {
        let (old, new) = (ServiceKey::parse("default/s").unwrap(), ServiceKey::parse("default/t").unwrap());
        let moves = || WriteKind::Register(Box::new(Registration::new(id(), new.clone(), "h", 1))).always();
        let put = |value| WriteKind::PutService(old.clone(), Metadata::from_pairs([("a", value)]).unwrap()).always();
        let first = plan(&Batch::new(1, vec![register(1), put("1")], 1), Head::default(), &Existing::default());
        let mut rows = Existing::default();
        for record in first.records {
            match record {
                Record::Instance(row) => drop(rows.instances.insert(id(), row)),
                Record::Service(row) => drop(rows.services.insert(row.key.clone(), row)),
            }
        }
        // Each case: whether the service has a row of its own, and other writes to it in the batch.
        for (has_row, writes, trace) in [
            (false, vec![moves()], Some(true)),
            (true, vec![moves()], Some(false)),
            (true, vec![moves(), put("1")], Some(false)),
            (true, vec![moves(), put("2")], Some(false)),
            (false, vec![moves(), deregister()], Some(true)),
            (false, vec![moves(), register(1)], None),
        ] {
            let shown = format!("{has_row} {writes:?}");
            let instances = rows.instances.clone();
            let services = if has_row { rows.services.clone() } else { BTreeMap::new() };
            let existing = Existing { instances, services };
            let batch = Batch::new(2, writes, 2);
            assert_eq!(batch.services_left(&existing).len(), usize::from(!has_row), "{shown}");
            let committed = plan(&batch, Head { v: Revision(1), ..Head::default() }, &existing);
            let found = committed.records.iter().find_map(|record| match record {
                Record::Service(row) => Some((row.deleted, row.revision)),
                Record::Instance(_) => None,
            });
            assert_eq!(found, trace.map(|deleted| (deleted, Revision(2))), "{shown}");
        }
    }

    #[test]
    fn services_exist_by_themselves() {
        let key = ServiceKey::parse("default/s").unwrap();
        let put = |value| WriteKind::PutService(key.clone(), Metadata::from_pairs([("a", value)]).unwrap()).always();
        let writes = vec![put("1"), put("1"), put("2"), WriteKind::DeleteService(key.clone()).always()];
        let committed = plan(&Batch::new(1, writes, 1), Head::default(), &Existing::default());
        let outcomes: Vec<Outcome> = committed.outcomes.iter().map(|o| o.0).collect();
        assert_eq!(outcomes, [Outcome::Created, Outcome::Unchanged, Outcome::Updated, Outcome::Removed]);
    }
}
