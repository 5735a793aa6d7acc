//! Tests of the supervisor: a table, rules over any observation, and random walks through a small world.

use proptest::prelude::*;
use watermark::Lsn;

use crate::controldata::OnDisk;
use crate::mandate::{Leader, Mandate};
use crate::supervise::{Action, Data, Lease, Observation, Permits, Rebuild, Server, State, Trouble, Up, decide};

const fn disk(standby: bool, timeline: u32) -> OnDisk {
    OnDisk { system: 1, standby, timeline, clean: false, checkpoint: Lsn(50), segment: 16 << 20 }
}

fn leader(timeline: u32) -> Option<Leader> {
    let fork = Some(Lsn(100));
    Some(Leader { name: "b".into(), address: "b:5432".into(), system: 1, timeline, fork })
}

fn up(standby: bool, timeline: u32) -> Server {
    Server::Up(Up {
        standby,
        timeline,
        system: 1,
        has: Lsn(90),
        receiving: standby,
        patience_over: false,
        led: true,
        locked: false,
        cramped: false,
    })
}

/// An observation of stopped data of a primary on timeline 1, with nobody else there.
fn seen() -> Observation {
    Observation {
        data: Data::Present(disk(false, 1)),
        server: Server::Down,
        leader: None,
        cluster_exists: false,
        mandate: Mandate::Stands,
        lease: Lease::Valid,
        fenced: false,
        permits: Permits::default(),
        claimed: None,
        paused: false,
        rebuild: Rebuild::No,
    }
}

fn with(server: Server) -> Observation {
    let standby = matches!(&server, Server::Up(up) if up.standby);
    Observation { server, data: Data::Present(disk(standby, 1)), ..seen() }
}

fn changed(server: Server, change: impl Fn(&mut Up)) -> Server {
    match server {
        Server::Up(mut up) => {
            change(&mut up);
            Server::Up(up)
        }
        other => other,
    }
}

#[test]
fn decisions() {
    use Action as A;
    use State as S;
    let silent = |up: &mut Up| (up.receiving, up.patience_over) = (false, true);
    let unknown = Mandate::Unknown { answering: 1, needed: 2 };
    let missing = |known| Data::Missing { known };
    let init = Permits { initialise: true, join: false };
    let join = Permits { initialise: false, join: true };
    let both = Permits { initialise: true, join: true };
    let claimed = || Some(Trouble::Claimed { node: "b".into(), key: "k".into() });
    let clean = Data::Present(OnDisk { clean: true, ..disk(false, 1) });
    let clean_late = Data::Present(OnDisk { clean: true, checkpoint: Lsn(100), ..disk(false, 1) });
    for (name, observation, state, action) in [
        ("empty", Observation { data: missing(false), ..seen() }, S::Broken, A::Wait),
        ("a lost volume", Observation { data: missing(true), permits: init, ..seen() }, S::Broken, A::Wait),
        ("init", Observation { data: missing(false), permits: init, ..seen() }, S::Absent, A::Initialise),
        (
            "init beside a cluster",
            Observation { data: missing(false), permits: init, cluster_exists: true, ..seen() },
            S::Broken,
            A::Wait,
        ),
        (
            "join",
            Observation { data: missing(false), permits: join, leader: leader(1), ..seen() },
            S::Cloning,
            A::Clone,
        ),
        ("join nobody", Observation { data: missing(false), permits: join, ..seen() }, S::Absent, A::Wait),
        (
            "half rewound",
            Observation { data: Data::HalfRewound, leader: leader(2), ..seen() },
            S::Rewinding,
            A::SetAside,
        ),
        ("half rewound alone", Observation { data: Data::HalfRewound, ..seen() }, S::Rewinding, A::Wait),
        (
            "init or join, alone",
            Observation { data: missing(false), permits: both, ..seen() },
            S::Absent,
            A::Initialise,
        ),
        (
            "init or join, and a cluster without a primary",
            Observation { data: missing(false), permits: both, cluster_exists: true, ..seen() },
            S::Absent,
            A::Wait,
        ),
        (
            "init or join, and another makes it",
            Observation { data: missing(false), permits: both, claimed: claimed(), ..seen() },
            S::Absent,
            A::Wait,
        ),
        (
            "init, and another makes it",
            Observation { data: missing(false), permits: init, claimed: claimed(), ..seen() },
            S::Broken,
            A::Wait,
        ),
        (
            "init or join, and another has made it",
            Observation { data: missing(false), permits: both, claimed: claimed(), leader: leader(1), ..seen() },
            S::Cloning,
            A::Clone,
        ),
        ("paused", Observation { paused: true, ..seen() }, S::Starting, A::Wait),
        (
            "paused without a lease",
            Observation { paused: true, lease: Lease::Over, ..with(up(false, 1)) },
            S::Fenced,
            A::Wait,
        ),
        (
            "settings that fall short",
            Observation { leader: leader(1), ..with(changed(up(true, 1), |up| up.cramped = true)) },
            S::Starting,
            A::StopFast,
        ),
        ("strange", Observation { data: Data::Strange(Trouble::Unknown), ..seen() }, S::Broken, A::Wait),
        ("a primary starts", seen(), S::Starting, A::StartPrimary),
        ("unproven", Observation { mandate: unknown, ..seen() }, S::Fenced, A::Wait),
        ("another was elected", Observation { mandate: Mandate::Ended, ..seen() }, S::Fenced, A::Wait),
        (
            "replaced while down",
            Observation { leader: leader(2), mandate: Mandate::Ended, ..seen() },
            S::Rewinding,
            A::Rewind,
        ),
        (
            "replaced, stopped cleanly",
            Observation { data: clean, leader: leader(2), ..seen() },
            S::Rewinding,
            A::BecomeStandby,
        ),
        (
            "replaced, stopped too late",
            Observation { data: clean_late, leader: leader(2), ..seen() },
            S::Rewinding,
            A::Rewind,
        ),
        ("twins", Observation { leader: leader(1), ..seen() }, S::Broken, A::Wait),
        (
            "an old primary is left",
            Observation { data: Data::Present(disk(false, 3)), leader: leader(2), ..seen() },
            S::Starting,
            A::StartPrimary,
        ),
        (
            "a standby starts",
            Observation { data: Data::Present(disk(true, 1)), mandate: unknown, ..seen() },
            S::Starting,
            A::StartStandby,
        ),
        ("starting", Observation { server: Server::Silent, ..seen() }, S::Starting, A::Wait),
        (
            "hung without a lease",
            Observation { server: Server::Silent, lease: Lease::Over, ..seen() },
            S::Fenced,
            A::StopNow,
        ),
        ("primary", with(up(false, 1)), S::Primary, A::Wait),
        ("late", Observation { lease: Lease::Late, ..with(up(false, 1)) }, S::Fenced, A::Fence),
        ("late and fenced", Observation { lease: Lease::Late, fenced: true, ..with(up(false, 1)) }, S::Fenced, A::Wait),
        ("over", Observation { lease: Lease::Over, fenced: true, ..with(up(false, 1)) }, S::Fenced, A::StopNow),
        ("back", Observation { fenced: true, ..with(up(false, 1)) }, S::Primary, A::Unfence),
        ("not quite back", Observation { fenced: true, mandate: unknown, ..with(up(false, 1)) }, S::Fenced, A::Wait),
        (
            "locked",
            Observation { lease: Lease::Over, ..with(changed(up(false, 1), |up| up.locked = true)) },
            S::Fenced,
            A::Wait,
        ),
        ("elected away", Observation { mandate: Mandate::Ended, ..with(up(false, 1)) }, S::Fenced, A::Fence),
        ("replaced", Observation { leader: leader(2), ..with(up(false, 1)) }, S::Rewinding, A::StopFast),
        ("running twins", Observation { leader: leader(1), ..with(up(false, 1)) }, S::Fenced, A::Fence),
        ("promoted", Observation { leader: leader(1), ..with(up(false, 2)) }, S::Primary, A::Wait),
        ("following", Observation { leader: leader(1), ..with(up(true, 1)) }, S::Following, A::Wait),
        ("no primary", with(changed(up(true, 1), silent)), S::Following, A::Wait),
        (
            "led",
            Observation { leader: leader(1), ..with(changed(changed(up(true, 1), silent), |up| up.led = false)) },
            S::Following,
            A::Lead,
        ),
        ("no WAL", Observation { leader: leader(1), ..with(changed(up(true, 1), silent)) }, S::Following, A::Lead),
        (
            "beyond the fork",
            Observation { leader: leader(2), ..with(changed(changed(up(true, 1), silent), |up| up.has = Lsn(101))) },
            S::Rewinding,
            A::Rewind,
        ),
        (
            "an order",
            Observation { rebuild: Rebuild::Due, leader: leader(1), ..with(up(true, 1)) },
            S::Cloning,
            A::Rebuild,
        ),
        (
            "an order, and clients leave",
            Observation { rebuild: Rebuild::Draining, leader: leader(1), ..with(up(true, 1)) },
            S::Following,
            A::Wait,
        ),
        (
            "an order, paused",
            Observation { rebuild: Rebuild::Due, leader: leader(1), paused: true, ..with(up(true, 1)) },
            S::Cloning,
            A::Wait,
        ),
        (
            "an order without a primary",
            Observation { rebuild: Rebuild::Due, ..with(up(true, 1)) },
            S::Following,
            A::Wait,
        ),
        (
            "an order for half-rewound data",
            Observation { rebuild: Rebuild::Due, data: Data::HalfRewound, leader: leader(2), ..seen() },
            S::Cloning,
            A::Rebuild,
        ),
        (
            "an order for the primary",
            Observation { rebuild: Rebuild::Due, ..with(up(false, 1)) },
            S::Primary,
            A::WithdrawRebuild,
        ),
        (
            "an order for a primary beside its predecessor",
            Observation {
                rebuild: Rebuild::Due,
                leader: leader(1),
                data: Data::Present(disk(false, 2)),
                ..with(up(false, 2))
            },
            S::Primary,
            A::WithdrawRebuild,
        ),
        (
            "an order for a primary without a lease",
            Observation { rebuild: Rebuild::Due, lease: Lease::Over, ..with(up(false, 1)) },
            S::Fenced,
            A::StopNow,
        ),
        (
            "an order for one of twins",
            Observation { rebuild: Rebuild::Due, leader: leader(1), ..with(up(false, 1)) },
            S::Cloning,
            A::Rebuild,
        ),
        (
            "an order for data that are set aside",
            Observation { rebuild: Rebuild::Due, data: missing(true), permits: join, leader: leader(1), ..seen() },
            S::Cloning,
            A::Clone,
        ),
        (
            "an order without the volume",
            Observation { rebuild: Rebuild::Due, data: Data::Strange(Trouble::Vanished), leader: leader(1), ..seen() },
            S::Broken,
            A::Wait,
        ),
    ] {
        let decision = decide(&observation);
        assert_eq!((decision.state, decision.action), (state, action), "{name}");
    }
}

#[test]
fn reasons_name_what_helps() {
    for (observation, word) in [
        (Observation { data: Data::Missing { known: false }, ..seen() }, "--init"),
        (Observation { data: Data::Missing { known: true }, ..seen() }, "mounted"),
        (Observation { mandate: Mandate::Unknown { answering: 1, needed: 2 }, ..seen() }, "1 of 2"),
    ] {
        let why = decide(&observation).why.map(|why| why.to_string()).unwrap_or_default();
        assert!(why.contains(word), "{why}");
    }
}

fn observations() -> impl Strategy<Value = Observation> {
    let on_disk = (any::<bool>(), 1_u32..4, any::<bool>(), 1_u64..3, 0_u64..200).prop_map(
        |(standby, timeline, clean, system, checkpoint)| {
            Data::Present(OnDisk { system, standby, timeline, clean, checkpoint: Lsn(checkpoint), segment: 16 << 20 })
        },
    );
    let data = prop_oneof![
        4 => on_disk,
        1 => any::<bool>().prop_map(|known| Data::Missing { known }),
        1 => Just(Data::HalfRewound),
        1 => Just(Data::Strange(Trouble::Unknown)),
    ];
    let running = (any::<[bool; 6]>(), 1_u32..4, 1_u64..3, 0_u64..200).prop_map(|(flags, timeline, system, has)| {
        let [standby, receiving, patience_over, led, locked, cramped] = flags;
        Server::Up(Up { standby, timeline, system, has: Lsn(has), receiving, patience_over, led, locked, cramped })
    });
    let server = prop_oneof![3 => running, 2 => Just(Server::Down), 1 => Just(Server::Silent)];
    let leads = proptest::option::of((1_u32..4, 1_u64..3, proptest::option::of(0_u64..200)).prop_map(
        |(timeline, system, fork)| Leader {
            name: "b".into(),
            address: "b:1".into(),
            system,
            timeline,
            fork: fork.map(Lsn),
        },
    ));
    let mandate =
        prop_oneof![Just(Mandate::Stands), Just(Mandate::Ended), Just(Mandate::Unknown { answering: 0, needed: 1 })];
    let lease = prop_oneof![Just(Lease::Valid), Just(Lease::Late), Just(Lease::Over)];
    let rebuild = prop_oneof![3 => Just(Rebuild::No), 1 => Just(Rebuild::Draining), 1 => Just(Rebuild::Due)];
    (data, server, leads, mandate, lease, rebuild, any::<[bool; 6]>()).prop_map(
        |(data, server, leader, mandate, lease, rebuild, flags)| {
            let [cluster_exists, fenced, initialise, join, claimed, paused] = flags;
            let permits = Permits { initialise, join };
            let claimed = claimed.then(|| Trouble::Claimed { node: "c".into(), key: "k".into() });
            Observation {
                data,
                server,
                leader,
                cluster_exists,
                mandate,
                lease,
                fenced,
                permits,
                claimed,
                paused,
                rebuild,
            }
        },
    )
}

/// A node with its data and server, as far as actions change them.
#[derive(Debug, Clone)]
struct World {
    seen: Observation,
    /// True if the data have writes beyond the fork of timeline 2.
    diverged: bool,
}

impl World {
    fn apply(&mut self, action: &Action, succeeds: bool) {
        let seen = &mut self.seen;
        let timeline = seen.leader.as_ref().map_or(1, |leader| leader.timeline);
        match action {
            Action::Wait | Action::Lead => {}
            Action::Rewind if !succeeds => (seen.data, seen.server) = (Data::HalfRewound, Server::Down),
            _ if !succeeds => {}
            Action::Initialise => seen.data = Data::Present(disk(false, 1)),
            Action::SetAside => (seen.data, seen.permits.join) = (Data::Missing { known: true }, true),
            Action::Rebuild => {
                (seen.data, seen.server) = (Data::Missing { known: true }, Server::Down);
                (seen.permits.join, seen.rebuild) = (true, Rebuild::No);
            }
            Action::WithdrawRebuild => seen.rebuild = Rebuild::No,
            Action::Clone => {
                seen.data = Data::Present(disk(true, timeline));
                (self.diverged, seen.fenced) = (false, false);
            }
            Action::Rewind => {
                (seen.data, seen.server) = (Data::Present(disk(true, timeline)), Server::Down);
                (self.diverged, seen.fenced) = (false, false);
            }
            Action::BecomeStandby => {
                assert!(!self.diverged, "data with writes of their own follow without a rewind");
                if let Data::Present(disk) = &mut seen.data {
                    disk.standby = true;
                }
                seen.fenced = false;
            }
            Action::StartPrimary | Action::StartStandby => {
                let Data::Present(disk) = &mut seen.data else { panic!("a server is started without data") };
                disk.clean = false;
                if disk.standby {
                    disk.timeline = disk.timeline.max(timeline);
                }
                seen.server = up(disk.standby, disk.timeline);
            }
            Action::StopFast | Action::StopNow => {
                seen.server = Server::Down;
                if let Data::Present(disk) = &mut seen.data {
                    disk.clean = *action == Action::StopFast;
                    disk.checkpoint = Lsn(if self.diverged { 150 } else { 60 });
                }
            }
            Action::Fence => seen.fenced = true,
            Action::Unfence => seen.fenced = false,
        }
    }
}

/// An event around a node.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The server is killed.
    Killed,
    /// Another server is promoted.
    Replaced,
    /// The primary writes something that no other server has.
    WritesAlone,
    Cut,
    Healed,
    /// An operator wants the data copied anew.
    Ordered,
    /// The agent acts, and fails or succeeds.
    Turn(bool),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn rules(seen in observations()) {
        let decision = decide(&seen);
        if seen.paused {
            prop_assert_eq!(decision.action, Action::Wait);
            return Ok(());
        }
        let starts = matches!(decision.action, Action::StartPrimary | Action::StartStandby);
        if starts {
            prop_assert!(matches!(seen.data, Data::Present(_)), "unusable data are started");
            prop_assert_eq!(&seen.server, &Server::Down);
        }
        if decision.action == Action::StartPrimary {
            prop_assert_eq!(seen.mandate, Mandate::Stands);
            if let (Data::Present(disk), Some(leader)) = (&seen.data, &seen.leader) {
                prop_assert!(leader.timeline < disk.timeline && leader.system == disk.system);
            }
        }
        if decision.action == Action::Initialise {
            let new = seen.data == Data::Missing { known: false };
            prop_assert!(new && seen.permits.initialise && !seen.cluster_exists && seen.claimed.is_none());
        }
        if decision.action == Action::Clone {
            let absent = matches!(seen.data, Data::Missing { .. });
            prop_assert!(absent && seen.permits.join, "present data are overwritten");
        }
        if decision.action == Action::Rebuild {
            // Only by order, and never the data of the newest primary.
            let newest = match (&seen.data, &seen.leader) {
                (Data::Present(disk), Some(leader)) => !disk.standby && disk.timeline > leader.timeline,
                (_, leader) => leader.is_none(),
            };
            prop_assert!(seen.rebuild == Rebuild::Due && !newest);
        }
        if let (Server::Up(up), Some(leader)) = (&seen.server, &seen.leader)
            && up.system != leader.system
            && !matches!(decision.action, Action::Rebuild | Action::WithdrawRebuild)
        {
            prop_assert_eq!(decision.action.clone(), Action::Wait, "a server of another cluster is touched");
        }
        if let Server::Up(up) = &seen.server
            && !up.standby
            && !up.locked
            && seen.leader.is_none()
        {
            // Nobody else may be primary without this one having stopped.
            let writes = decision.state == State::Primary && decision.action == Action::Wait;
            prop_assert!(!writes || (seen.lease == Lease::Valid && seen.mandate != Mandate::Ended && !seen.fenced));
            prop_assert!(seen.lease != Lease::Over || seen.mandate == Mandate::Ended || decision.action == Action::StopNow);
        }
    }

    #[test]
    fn a_node_comes_back_whatever_happens(events in proptest::collection::vec(prop_oneof![
        Just(Event::Killed), Just(Event::Replaced), Just(Event::WritesAlone), Just(Event::Cut), Just(Event::Healed),
        Just(Event::Ordered),
        any::<bool>().prop_map(Event::Turn), Just(Event::Turn(true)),
    ], 0..30)) {
        let mut world = World { seen: with(up(false, 1)), diverged: false };
        for event in events {
            match event {
                Event::Killed => world.seen.server = Server::Down,
                Event::Replaced => (world.seen.leader, world.seen.mandate) = (leader(2), Mandate::Ended),
                Event::WritesAlone if world.seen.server == up(false, 1) => {
                    prop_assert!(!world.seen.fenced || world.seen.lease != Lease::Over);
                    world.diverged = true;
                    if let Data::Present(disk) = &mut world.seen.data {
                        disk.checkpoint = Lsn(150);
                    }
                }
                Event::WritesAlone => {}
                Event::Cut => {
                    world.seen.lease = Lease::Over;
                    world.seen.mandate = Mandate::Unknown { answering: 0, needed: 1 };
                    world.seen.leader = None;
                }
                Event::Healed => world.seen.lease = Lease::Valid,
                Event::Ordered => world.seen.rebuild = Rebuild::Due,
                Event::Turn(succeeds) => {
                    let decision = decide(&world.seen);
                    world.apply(&decision.action, succeeds);
                }
            }
        }
        // All is well around it, and another server is primary.
        (world.seen.leader, world.seen.mandate, world.seen.lease) = (leader(2), Mandate::Ended, Lease::Valid);
        for _ in 0..8 {
            let decision = decide(&world.seen);
            world.apply(&decision.action, true);
        }
        prop_assert_eq!(decide(&world.seen).state, State::Following, "{:?}", world);
        prop_assert!(!world.diverged);
    }
}
