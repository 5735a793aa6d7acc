#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::config::NodeConfig;
use crate::view::{Address, Node, NodeView, Role};

fn view(primary: Option<NodeId>) -> View {
    let node = |index: u16| NodeView {
        node: Arc::new(Node::new(NodeId(index), format!("n{index}"))),
        address: Address::Tcp(([127, 0, 0, 1], 1).into()),
        socket: None,
        role: if primary == Some(NodeId(index)) { Role::Primary } else { Role::Replica },
        usable: true,
        weight: 10,
        zone: None,
        settings: 1,
    };
    View { epoch: 1, term: Term { system: 1, timeline: 1 }, primary, nodes: (0..2).map(node).collect() }
}

/// Returns a cluster whose node has no listener: port 1 on loopback refuses.
fn nowhere() -> ClusterConfig {
    let node = |name: &str| NodeConfig::new(name, "127.0.0.1:1");
    ClusterConfig { nodes: vec![node("a"), node("b")], ..ClusterConfig::default() }
}

#[test]
fn a_fixed_topology_is_what_it_is_told() {
    let topology = Topology::fixed(view(None));
    assert_eq!(topology.epoch(), 1);
    assert!(topology.view().primary_node().is_none());
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    topology.subscribe(Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    topology.publish(view(Some(NodeId(1))));
    assert_eq!((topology.epoch(), topology.view().epoch), (2, 2), "raised above the last");
    assert_eq!(topology.view().primary_node().unwrap().node.name, "n1");
    topology.publish(View { epoch: 40, ..view(None) });
    assert_eq!((topology.epoch(), topology.view().epoch), (40, 40));
    topology.report_failure(NodeId(0));
    topology.report_failure(NodeId(999));
    topology.want_replay();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "called for views alone");
}

#[test]
fn a_subscriber_may_subscribe() {
    let topology = Topology::fixed(view(None));
    let inner = Arc::downgrade(&topology);
    topology.subscribe(Box::new(move || inner.upgrade().unwrap().subscribe(Box::new(|| {}))));
    topology.publish(view(None));
    topology.publish(view(None));
}

#[tokio::test]
async fn waits_for_a_primary() {
    let topology = Topology::fixed(view(None));
    let publisher = Arc::clone(&topology);
    let waiting = tokio::spawn(async move { topology.wait_ready(Duration::from_secs(60)).await });
    tokio::task::yield_now().await;
    publisher.publish(view(Some(NodeId(0))));
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn says_why_there_is_no_primary() {
    let topology = Topology::start(nowhere(), &Handle::current()).unwrap();
    assert_eq!(topology.view().nodes.len(), 2, "all nodes are there from the start");
    let error = loop {
        let error = topology.wait_ready(Duration::from_millis(20)).await.unwrap_err().to_string();
        if error.contains("refused") {
            break error;
        }
    };
    assert!(error.contains("a is Unknown (cannot connect to 127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn refuses_a_bad_configuration() {
    let bad = ClusterConfig::default();
    assert!(matches!(Topology::start(bad.clone(), &Handle::current()), Err(StartError::NoNodes { .. })));
    let topology = Topology::start(nowhere(), &Handle::current()).unwrap();
    assert!(matches!(topology.reload(bad), Err(StartError::NoNodes { .. })));
}

#[tokio::test]
async fn ids_are_stable_across_reloads() {
    let topology = Topology::start(nowhere(), &Handle::current()).unwrap();
    let mut config = nowhere();
    config.nodes.remove(0);
    config.nodes.push(NodeConfig { name: "c".into(), weight: 5, ..config.nodes[0].clone() });
    config.nodes.reverse();
    topology.reload(config).unwrap();
    let mut published = topology.shared.published.subscribe();
    while topology.view().nodes.len() < 3 {
        published.changed().await.unwrap();
    }
    let view = topology.view();
    let seen: Vec<_> = view.nodes.iter().map(|node| (node.node.id.0, node.node.name.as_str(), node.weight)).collect();
    assert_eq!(seen, [(0, "a", 0), (1, "b", 10), (2, "c", 50)]);
}

/// The tasks must not keep the state that they work on alive, or the handle could never be dropped.
#[tokio::test]
async fn ends_with_its_last_handle() {
    let topology = Topology::start(nowhere(), &Handle::current()).unwrap();
    let shared = Arc::downgrade(&topology.shared);
    drop(topology);
    while shared.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}
