#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Cache, Memory};
use super::*;
use crate::model::{Health, Patch, Registration};
use crate::store::{Batch, Committed, Write, WriteKind};

/// An in-memory store: the rows, and the writes of each commit.
#[derive(Clone, Default)]
struct Model {
    head: Head,
    rows: BTreeMap<InstanceId, InstanceRow>,
    services: BTreeMap<ServiceKey, ServiceRow>,
}

impl Model {
    fn commit(&mut self, writes: Vec<Write>) -> Committed {
        let existing = crate::store::Existing { instances: self.rows.clone(), services: self.services.clone() };
        let committed = crate::store::plan(&Batch::new(1, writes, 7), self.head, &existing);
        self.head.v = committed.revision;
        for record in &committed.records {
            match record.clone() {
                Record::Instance(row) => {
                    self.rows.insert(row.instance.id.clone(), row);
                }
                Record::Service(row) => {
                    self.services.insert(row.key.clone(), row);
                }
            }
        }
        committed
    }

    /// Does the same as [`crate::store::Store::read`].
    fn read(&self, sink: &mut dyn Sink) {
        let after = sink.begin(self.head);
        self.rows
            .values()
            .filter(|r| r.instance.revision > after)
            .for_each(|r| sink.record(Record::Instance(r.clone())));
        self.services.values().filter(|r| r.revision > after).for_each(|r| sink.record(Record::Service(r.clone())));
    }

    fn collect(&mut self, up_to: Revision) {
        self.rows.retain(|_, row| !(row.deleted && row.instance.revision <= up_to));
        self.services.retain(|_, row| !(row.deleted && row.revision <= up_to));
        self.head.gc_floor = self.head.gc_floor.max(up_to);
    }
}

fn row(instance: &Arc<Instance>) -> InstanceRow {
    InstanceRow { instance: Instance { machines: Machines::default(), ..Instance::clone(instance) }, deleted: false }
}

fn alive(record: &Record) -> Option<&Instance> {
    match record {
        Record::Instance(row) if !row.deleted => Some(&row.instance),
        _ => None,
    }
}

struct Node {
    cache: Cache,
    applier: Applier,
    /// A read that the store has answered, and that is not applied yet.
    reading: Option<Load>,
}

impl Node {
    fn new() -> Node {
        Node {
            cache: Cache::new(Memory { service_changes: 8, changes: 16 }),
            applier: Applier::default(),
            reading: None,
        }
    }

    fn read(&mut self, model: &Model) {
        self.begin(model);
        self.end();
    }

    /// Begins a read, and ends the previous one.
    fn begin(&mut self, model: &Model) {
        self.end();
        let mut load = self.applier.load();
        model.read(&mut load);
        self.reading = Some(load);
    }

    /// Returns true if the read was applied.
    fn end(&mut self) -> bool {
        let Some(load) = self.reading.take() else { return false };
        self.applier.take(load, &self.cache, Instant::now()).is_some()
    }

    /// Returns true if the commit and all before it have been applied.
    fn offer(&mut self, committed: &Committed) -> bool {
        let records = committed.records.clone();
        self.applier.offer(&self.cache, committed.epoch, committed.revision, records);
        self.applier.has(committed.epoch, committed.revision)
    }

    fn revisions(&self) -> Vec<(ServiceKey, Revision)> {
        self.cache.services(None).iter().map(|service| (service.key.clone(), service.revision)).collect()
    }

    /// Returns services with their digests and metadata; checks that index and snapshots agree.
    fn content(&self) -> Vec<(ServiceKey, crate::model::Digest, usize, Option<Metadata>)> {
        let services = self.cache.services(None);
        let total: usize = services.iter().map(|s| s.instances.len()).sum();
        assert_eq!(total, self.cache.instances(), "index and snapshots hold the same");
        for service in &services {
            assert!(service.instances.iter().is_sorted_by(|a, b| a.id < b.id));
            for instance in &service.instances {
                assert_eq!(self.cache.instance(&instance.id).as_ref(), Some(instance));
                let names: Vec<&str> = instance.machine_names().collect();
                let expected = names.iter().filter_map(|name| {
                    let id = machine_id(&NamespaceName::default(), name).unwrap();
                    self.cache.instance(&id).filter(|_| !service.key.is_of_machines())
                });
                assert!(instance.machines.iter().cloned().eq(expected), "{instance:?} is on {names:?}");
            }
        }
        services.iter().map(|s| (s.key.clone(), s.digest, s.instances.len(), s.metadata.clone())).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Op>),
    /// A commit of this node, applied directly if it follows.
    Own(usize, Vec<Op>),
    Read(usize),
    /// A slow read: the next steps come before it is applied.
    Begin(usize),
    End(usize),
    /// A push of one of the last commits: late, repeated, out of order.
    Told(usize, usize),
    /// A read of a replica that lags by this many commits.
    Lagging(usize, usize),
    Collect,
    /// A replacement of the store: another one, or an older copy.
    Epoch,
}

#[derive(Clone, Debug)]
enum Op {
    Register(u8, u8, u16),
    Weight(u8, u16),
    Deregister(u8),
    Service(u8, bool),
    /// A machine, with a health; or its removal.
    Machine(u8, Option<Health>),
}

fn write(op: &Op) -> Write {
    let id = |n| InstanceId::parse(&format!("default/{n}")).unwrap();
    let service = |n| ServiceKey::parse(&format!("default/s{n}")).unwrap();
    match *op {
        Op::Register(i, s, port) => {
            let mut registration = Registration::new(id(i), service(s), "h", port);
            // On no machine, on one, on two.
            let on: &[_] = match port {
                0 => &[],
                1 => &[(crate::model::ON, "m0")],
                _ => &[(crate::model::ON, "m1"), (crate::model::AGENT, "m0")],
            };
            registration.metadata = Metadata::from_pairs(on.iter().copied()).unwrap();
            WriteKind::Register(Box::new(registration))
        }
        Op::Machine(m, health) => {
            let (namespace, name) = (NamespaceName::default(), format!("m{m}"));
            let id = machine_id(&namespace, &name).unwrap();
            match health {
                None => WriteKind::Deregister(id),
                Some(_) => WriteKind::Register(Box::new(Registration {
                    health,
                    metadata: Metadata::from_pairs([(crate::model::ON, &name)]).unwrap(),
                    ..Registration::new(id, crate::model::machines(&namespace), "h", 0)
                })),
            }
        }
        Op::Weight(i, weight) => WriteKind::Patch(id(i), Patch { weight: Some(weight), ..Patch::default() }),
        Op::Deregister(i) => WriteKind::Deregister(id(i)),
        Op::Service(s, true) => WriteKind::PutService(service(s), Metadata::from_pairs([("a", "b")]).unwrap()),
        Op::Service(s, false) => WriteKind::DeleteService(service(s)),
    }
    .always()
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..6, 0u8..3, 0u16..3).prop_map(|(i, s, p)| Op::Register(i, s, p)),
        2 => (0u8..6, 0u16..3).prop_map(|(i, w)| Op::Weight(i, w)),
        2 => (0u8..6).prop_map(Op::Deregister),
        1 => (0u8..3, any::<bool>()).prop_map(|(s, put)| Op::Service(s, put)),
        2 => (0u8..2, 0u8..4).prop_map(|(m, health)| {
            Op::Machine(m, [None, Some(Health::Passing), Some(Health::Warning), Some(Health::Critical)][health as usize])
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let ops = || proptest::collection::vec(op(), 1..4);
    prop_oneof![
        4 => ops().prop_map(Step::Commit),
        4 => (0usize..2, ops()).prop_map(|(n, ops)| Step::Own(n, ops)),
        4 => (0usize..2).prop_map(Step::Read),
        4 => (0usize..2).prop_map(Step::Begin),
        4 => (0usize..2).prop_map(Step::End),
        8 => (0usize..2, 0usize..5).prop_map(|(n, back)| Step::Told(n, back)),
        2 => (0usize..2, 1usize..5).prop_map(|(n, back)| Step::Lagging(n, back)),
        1 => Just(Step::Collect),
        1 => Just(Step::Epoch),
    ]
}

proptest! {
    /// In any order of commits, reads (also of a lagging replica), own commits, pushed commits and collections, no node goes back, and a node that
    /// then reads once has the same content as a new node.
    #[test]
    fn deltas_equal_a_full_load(steps in proptest::collection::vec(step(), 1..40)) {
        let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
        let mut nodes = [Node::new(), Node::new()];
        let mut seen = Revision(0);
        let (mut commits, mut models) = (Vec::new(), Vec::new());
        for step in steps {
            let before = [nodes[0].applier.cursor(), nodes[1].applier.cursor()];
            let epoch = model.head.epoch;
            match step {
                Step::Commit(ops) => {
                    models.push(model.clone());
                    commits.push(model.commit(ops.iter().map(write).collect()));
                }
                Step::Told(n, back) => if let Some(committed) = commits.iter().rev().nth(back).filter(|c| c.wrote) {
                    nodes[n].offer(committed);
                },
                Step::Lagging(n, back) => if let Some(old) = models.iter().rev().nth(back) {
                    nodes[n].read(old);
                },
                Step::Own(n, ops) => {
                    models.push(model.clone());
                    let node = &mut nodes[n];
                    let mut batch = Batch::new(1, ops.iter().map(write).collect(), 7);
                    let (epoch, v, known) = node.cache.recall(&batch.instance_ids());
                    batch.foresee(epoch, v, known.iter().map(|i| (i.id.clone(), row(i))).collect());
                    let foreseen = batch.foreseen_at(model.head);
                    let committed = model.commit(batch.writes);
                    if let Some(foreseen) = foreseen {
                        // A tombstone that exists already may be written again.
                        let alive = |c: &Committed| c.records.iter().filter_map(alive).cloned().collect::<Vec<_>>();
                        prop_assert_eq!(alive(&foreseen), alive(&committed));
                        let outcomes = |c: &Committed| c.outcomes.iter().map(|o| o.0).collect::<Vec<_>>();
                        prop_assert_eq!(outcomes(&foreseen), outcomes(&committed));
                        prop_assert!(foreseen.records.len() >= committed.records.len());
                    }
                    commits.push(committed.clone());
                    let direct = committed.wrote && node.offer(&committed);
                    if !direct {
                        node.read(&model);
                    }
                    prop_assert!(node.cache.revision() >= committed.revision);
                }
                Step::Read(n) => nodes[n].read(&model),
                Step::Begin(n) => nodes[n].begin(&model),
                Step::End(n) => drop(nodes[n].end()),
                Step::Collect => model.collect(model.head.v),
                Step::Epoch => {
                    model = Model { head: Head { epoch: model.head.epoch + 1, ..Head::default() }, ..Model::default() };
                    seen = Revision(0);
                    // A replica of another history is not tested here.
                    models.clear();
                }
            }
            for (node, before) in nodes.iter().zip(before) {
                let same = epoch == model.head.epoch && node.applier.epoch() == epoch;
                prop_assert!(!same || node.applier.cursor() >= before || before == Revision(0) || node.applier.loads > 1);
            }
            prop_assert!(model.head.v >= seen);
            seen = model.head.v;
        }
        let mut fresh = Node::new();
        fresh.read(&model);
        for node in &mut nodes {
            node.read(&model);
            prop_assert_eq!(node.cache.revision(), model.head.v);
            prop_assert_eq!(node.content(), fresh.content());
            // A node that followed knows of every change that a later node finds. The collected tombstone may have been the last trace of one.
            let known = node.revisions().into_iter().zip(fresh.revisions()).all(|(known, found)| known >= found);
            prop_assert!(known || model.head.gc_floor > Revision(0), "{:?} {:?}", node.revisions(), fresh.revisions());
        }
    }

    /// A reader that follows the changes of a service, and takes the snapshot if they do not reach back far enough, ends with the snapshot.
    #[test]
    fn following_changes_gives_the_snapshot(
        commits in proptest::collection::vec((proptest::collection::vec(op(), 1..4), any::<bool>()), 1..30),
    ) {
        let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
        let mut node = Node::new();
        let key = ServiceKey::parse("default/s1").unwrap();
        let (mut at, mut followed) = (Revision(0), BTreeMap::new());
        for (ops, look) in commits {
            model.commit(ops.iter().map(write).collect());
            node.read(&model);
            if !look {
                continue;
            }
            let snapshot = node.cache.snapshot(&key);
            match node.cache.changes(&key, at) {
                Some(changes) => for change in changes {
                    match change {
                        Change::Put { instance, .. } => drop(followed.insert(instance.id.clone(), instance)),
                        Change::Removed { last, .. } => drop(followed.remove(&last.id)),
                        Change::Service { .. } => {}
                    }
                },
                None => {
                    followed = snapshot.iter().flat_map(|s| s.instances.iter().map(|i| (i.id.clone(), Arc::clone(i)))).collect();
                }
            }
            at = node.cache.revision();
            let there: Vec<_> = snapshot.map(|s| s.instances.iter().cloned().collect()).unwrap_or_default();
            prop_assert_eq!(followed.values().cloned().collect::<Vec<_>>(), there);
        }
    }
}

#[test]
fn a_failed_read_moves_nothing() {
    let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
    let mut node = Node::new();
    node.read(&model);
    model.commit(vec![write(&Op::Register(1, 1, 1))]);
    let mut load = node.applier.load();
    Sink::begin(&mut load, model.head);
    drop(load);
    assert_eq!((node.cache.revision(), node.cache.instances()), (Revision(0), 0));
    node.read(&model);
    assert_eq!((node.cache.revision(), node.cache.instances()), (Revision(1), 1));
}

/// A slow read returns an older state than the commits pushed meanwhile, and does not undo them.
#[test]
fn what_was_told_while_the_store_was_read_stays() {
    let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
    let mut node = Node::new();
    node.read(&model);
    let first = model.commit(vec![write(&Op::Register(1, 1, 1))]);
    node.begin(&model);
    let second = model.commit(vec![write(&Op::Register(2, 1, 1)), write(&Op::Deregister(1))]);
    assert!(node.offer(&first) && node.offer(&second));
    assert!(node.end());
    assert_eq!((node.cache.revision(), node.cache.instances()), (Revision(2), 1));
    assert!(node.cache.instance(&InstanceId::parse("default/2").unwrap()).is_some());
}

/// A read that began before the node found out that its history is not the store's is discarded.
#[test]
fn what_was_read_before_the_history_was_distrusted_is_read_again() {
    let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
    let mut node = Node::new();
    node.read(&model);
    model.commit(vec![write(&Op::Register(1, 1, 1))]);
    node.begin(&model);
    node.applier.distrust();
    assert!(!node.end());
    assert_eq!(node.cache.instances(), 0);
    node.read(&model);
    assert_eq!((node.cache.revision(), node.cache.instances()), (Revision(1), 1));
    assert_eq!(node.applier.loads, 2, "everything anew");
}

/// A service that appears wakes those who wait for it by another spelling, and no spelling is kept longer than its entry.
#[test]
fn spellings_wake_each_other_and_are_forgotten() {
    let mut model = Model { head: Head { epoch: 1, ..Head::default() }, ..Model::default() };
    let mut node = Node::new();
    node.read(&model);
    let (upper, lower) = (ServiceKey::parse("default/Orders").unwrap(), ServiceKey::parse("default/orders").unwrap());
    let entry = node.cache.entry_or_new(&lower);
    let id = InstanceId::parse("default/i").unwrap();
    let registration = Box::new(Registration::new(id.clone(), upper.clone(), "h", 1));
    let committed = model.commit(vec![WriteKind::Register(registration).always()]);
    assert!(node.offer(&committed));
    assert_eq!((entry.mark().get(), entry.snapshot().revision), (committed.revision, committed.revision));
    assert!(!entry.snapshot().exists());
    assert_eq!(node.cache.spellings(&ServiceKey::parse("default/ORDERS").unwrap()).len(), 3, "the asked one too");
    assert_eq!(node.cache.spellings(&lower), [upper.clone(), lower.clone()]);
    let committed = model.commit(vec![WriteKind::Deregister(id).always()]);
    assert!(node.offer(&committed));
    node.cache.forget(committed.revision);
    assert!(node.cache.entry(&upper).is_none() && node.cache.entry(&lower).is_some(), "one is watched");
    drop(entry);
    node.cache.forget(committed.revision);
    assert_eq!((node.cache.spellings(&lower), node.cache.entries()), (vec![lower], 0));
    // A placeholder that was only watched.
    let entry = node.cache.entry_or_new(&upper);
    node.cache.leave(&upper, &entry);
    assert!(node.cache.spellings.read().unwrap().is_empty());
}
