#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use super::super::check::check;
use super::super::json::read;
use super::super::{Kind, Stamp};
use super::*;
use crate::Revision;
use crate::settings::RuleLimits;

/// Parses a rule, and sets its number as id and revision.
fn rule(kind: Kind, number: usize, written: &Value) -> Rule {
    let mut rule = read(kind, json!([written]).to_string().as_bytes()).unwrap().remove(0);
    let home = rule.home().unwrap();
    check(&mut rule, &home, &RuleLimits::default()).unwrap();
    let (id, revision) = (format!("{number:02}"), format!("r{number}"));
    rule.set_stamp(&home, Stamp { id, revision, ..Stamp::default() });
    rule
}

fn view(namespace: &str, rules: &[Rule]) -> View {
    let entry = |rule: &Rule| {
        Arc::new(Entry {
            key: format!("rule/{}/{}", rule.kind().name(), rule.id()).into(),
            value: rule.encode().into(),
            flags: 0,
            session: None,
            lock_index: 0,
            created: Revision(1),
            modified: Revision(1),
        })
    };
    let entries: Vec<_> = rules.iter().map(entry).collect();
    View::new(&NamespaceName::new(namespace).unwrap(), RulesMark::default(), &entries)
}

fn asked(view: &View, sort: Sort, service: &str) -> Option<Served> {
    let key = ServiceKey::parse(service).unwrap();
    view.select(sort, &NamespaceName::new(key.namespace()).unwrap(), &key)
}

fn routing(namespace: &str, from: (&str, &str), to: (&str, &str), priority: u32) -> Value {
    json!({
        "name": "n", "namespace": namespace, "enable": true, "priority": priority,
        "routing_config": { "rules": [{
            "name": "part",
            "sources": [{ "namespace": from.0, "service": from.1, "arguments": [
                { "type": "CUSTOM", "key": "user", "value": { "value": "vip" } },
                { "type": "HEADER", "key": "color", "value": { "type": "REGEX", "value": "b.*" } },
            ] }],
            "destinations": [{ "namespace": to.0, "service": to.1, "weight": 100, "name": "group",
                "labels": { "version": { "value": "2" } } }],
        }] },
    })
}

/// Columns: the rules (namespace, caller, callee, priority), the service, the rules of the routes to it and from it.
#[test]
fn routes_of_a_service() {
    type Rules = [(&'static str, (&'static str, &'static str), (&'static str, &'static str), u32)];
    let one: &Rules = &[("a", ("a", "web"), ("a", "shop"), 0)];
    let foreign: &Rules = &[("a", ("a", "web"), ("b", "shop"), 0)];
    let order: &Rules = &[
        ("a", ("*", "*"), ("a", "shop"), 5),
        ("a", ("*", "*"), ("a", "*"), 1),
        ("a", ("*", "*"), ("*", "*"), 1),
        ("a", ("*", "*"), ("a", "shop"), 1),
        ("a", ("*", "*"), ("a", "cart"), 0),
    ];
    for (rules, service, inbound, outbound) in [
        (one, "a/shop", &["00"][..], &[][..]),
        (one, "a/web", &[], &["00"]),
        (one, "a/cart", &[], &[]),
        // A rule is served for services of its own namespace only, whatever it names.
        (foreign, "a/web", &[], &["00"]),
        (foreign, "b/shop", &[], &[]),
        (foreign, "a/shop", &[], &[]),
        // Higher priority first; with equal priority, the rules that name the service.
        (order, "a/shop", &["03", "01", "02", "00"], &["00", "01", "02", "03", "04"]),
        (order, "a/cart", &["04", "01", "02"], &["04", "00", "01", "02", "03"]),
    ] {
        let rules: Vec<Rule> = rules
            .iter()
            .enumerate()
            .map(|(number, (namespace, from, to, priority))| {
                rule(Kind::Routing, number, &routing(namespace, *from, *to, *priority))
            })
            .collect();
        let view = view(service.split('/').next().unwrap(), &rules);
        let ids = |routes: &[pb::Route]| -> Vec<String> {
            routes.iter().map(|route| route.extend_info["__routing_v2_id__"].clone()).collect()
        };
        let found = asked(&view, Sort::Routing, service);
        let routes = found.and_then(|found| found.content.routing).unwrap_or_default();
        assert_eq!(ids(&routes.inbounds), inbound, "to {service}");
        let mut from = ids(&routes.outbounds);
        if outbound.len() > 1 {
            // Ordered only by priority, and then by id.
            from.sort();
            let mut outbound = outbound.to_vec();
            outbound.sort_unstable();
            assert_eq!(from, outbound, "from {service}");
        } else {
            assert_eq!(from, outbound, "from {service}");
        }
    }
}

/// A route has the form that Polaris' own server gives it and its clients read.
#[test]
fn a_route_is_as_clients_read_it() {
    let mut written = routing("a", ("a", "web"), ("a", "shop"), 3);
    written["metadata"] = json!({ "k": "v" });
    written["routing_config"]["rules"][0]["sources"][0]["arguments"].as_array_mut().unwrap().extend([
        json!({ "type": "QUERY", "key": "q", "value": { "value": "1" } }),
        json!({ "type": "COOKIE", "key": "c", "value": { "value": "1" } }),
        json!({ "type": "METHOD", "key": "", "value": { "value": "GET" } }),
        json!({ "type": "PATH", "value": { "value": "/x" } }),
        json!({ "type": "CALLER_IP", "value": { "value": "10.0.0.1" } }),
        json!({ "type": "CALLER_METADATA", "key": "m", "value": { "value": "1" } }),
    ]);
    // A second source, and a second destination; each direction uses one of them.
    let part = &mut written["routing_config"]["rules"][0];
    part["sources"].as_array_mut().unwrap().push(json!({ "namespace": "a", "service": "cart" }));
    part["destinations"].as_array_mut().unwrap().push(json!({ "namespace": "a", "service": "bank", "weight": 1 }));
    let view = view("a", &[rule(Kind::Routing, 7, &written)]);
    let found = asked(&view, Sort::Routing, "a/shop").unwrap();
    let routing = found.content.routing.unwrap();
    assert_eq!(routing.revision, Some(found.revision));
    assert_eq!((routing.service.as_deref(), routing.outbounds.len()), (Some("shop"), 0));
    let route = &routing.inbounds[0];
    assert_eq!((route.sources.len(), route.destinations.len()), (2, 1), "the client tells callers apart");
    let mut words: Vec<&str> = route.sources[0].metadata.keys().map(String::as_str).collect();
    words.sort_unstable();
    let expected =
        ["$caller_ip", "$caller_metadata.m", "$cookie.c", "$header.color", "$method", "$path", "$query.q", "user"];
    assert_eq!(words, expected);
    assert_eq!(route.sources[0].metadata["$header.color"].r#type(), pb::match_string::MatchStringType::Regex);
    let destination = &route.destinations[0];
    assert_eq!(destination.name.as_deref(), Some("n.part.group"));
    assert_eq!((destination.weight, destination.priority, destination.isolate), (Some(100), Some(0), Some(false)));
    assert_eq!(destination.metadata["version"].value.as_deref(), Some("2"));
    assert_eq!(route.extend_info["__routing_v2_priority__"], "0003");
    assert_eq!(route.metadata["k"], "v");
    let outbounds = asked(&view, Sort::Routing, "a/web").unwrap().content.routing.unwrap().outbounds;
    assert_eq!(
        (outbounds[0].sources.len(), outbounds[0].destinations.len()),
        (1, 2),
        "a client takes every source for its own"
    );
    let custom = asked(&view, Sort::Custom, "a/web").unwrap().content.custom_route_rules;
    assert_eq!(custom.iter().map(|rule| rule.id.as_str()).collect::<Vec<_>>(), ["07"]);
}

/// Parts without sources or destinations inherit the common ones.
#[test]
fn parts_inherit() {
    let all = json!({ "namespace": "a", "service": "all" });
    let own = json!({ "namespace": "a", "service": "own" });
    let to = json!({ "namespace": "a", "service": "shop", "weight": 1 });
    for (config, sources) in [
        (json!({ "sources": [all], "destinations": [to] }), vec![vec!["all"]]),
        (
            json!({ "sources": [all], "destinations": [to], "rules": [{}, { "sources": [own] }] }),
            vec![vec!["all"], vec!["own"]],
        ),
        (json!({ "destinations": [to], "rules": [{}] }), vec![vec![]]),
    ] {
        let written = json!({ "namespace": "a", "enable": true, "routing_config": config });
        let view = view("a", &[rule(Kind::Routing, 0, &written)]);
        let routes = asked(&view, Sort::Routing, "a/shop").unwrap().content.routing.unwrap().inbounds;
        let found: Vec<Vec<&str>> =
            routes.iter().map(|route| route.sources.iter().map(|it| of(&it.service)).collect()).collect();
        assert_eq!(found, sources, "{written}");
    }
}

/// Columns: kind, type, the rule, and which of two services it is served for.
#[test]
fn rules_of_a_service() {
    let breaker = |namespace: &str, service: &str, enable: bool| {
        json!({ "name": "b", "namespace": "a", "enable": enable,
            "ruleMatcher": { "source": { "namespace": "*", "service": "*" }, "destination": { "namespace": namespace, "service": service } } })
    };
    let detector = |namespace: &str, service: &str| json!({ "name": "d", "namespace": "a", "targetService": { "namespace": namespace, "service": service } });
    let limit = |disable: bool| json!({ "namespace": "a", "service": "shop", "disable": disable });
    let nearby = |namespace: &str, service: &str| {
        json!({ "namespace": "a", "enable": true, "routing_policy": "NearbyPolicy",
            "routing_config": { "namespace": namespace, "service": service, "match_level": "ZONE" } })
    };
    for (kind, sort, written, shop, cart) in [
        (Kind::Breaker, Sort::Breakers, breaker("a", "shop", true), true, false),
        (Kind::Breaker, Sort::Breakers, breaker("a", "shop", false), false, false),
        (Kind::Breaker, Sort::Breakers, breaker("a", "*", true), true, true),
        (Kind::Breaker, Sort::Breakers, breaker("*", "*", true), true, true),
        (Kind::Breaker, Sort::Breakers, breaker("", "", true), true, true),
        (Kind::Breaker, Sort::Breakers, breaker("*", "shop", true), true, false),
        (Kind::Detector, Sort::Detectors, detector("a", "shop"), true, false),
        (Kind::Detector, Sort::Detectors, detector("*", "*"), true, true),
        (Kind::Limit, Sort::Limits, limit(false), true, false),
        (Kind::Limit, Sort::Limits, limit(true), false, false),
        (Kind::Routing, Sort::Nearby, nearby("a", "shop"), true, false),
        (Kind::Routing, Sort::Nearby, nearby("*", "*"), true, true),
        (Kind::Routing, Sort::Routing, nearby("a", "shop"), false, false),
    ] {
        let rules = [rule(kind, 1, &written)];
        let own = view("a", &rules);
        for (service, expected) in [("a/shop", shop), ("a/cart", cart)] {
            let found = asked(&own, sort, service);
            assert_eq!(found.is_some(), expected, "{sort:?} for {service} of {written}");
        }
        // A rule found in another namespace was put there without permission: it is never served.
        let other = view("b", &rules);
        for service in ["b/shop", "b/cart"] {
            assert!(asked(&other, sort, service).is_none(), "{sort:?} for {service} of {written}");
        }
    }
}

#[test]
fn a_revision_is_another_one_where_the_rules_are() {
    let limit = |priority: u32| json!({ "namespace": "a", "service": "shop", "priority": priority });
    let one = rule(Kind::Limit, 1, &limit(2));
    let two = rule(Kind::Limit, 2, &limit(1));
    let mut changed = two.clone();
    let stamp = Stamp { revision: "other".into(), ..two.stamp() };
    changed.set_stamp(&NamespaceName::new("a").unwrap(), stamp);
    let revision = |rules: &[Rule]| asked(&view("a", rules), Sort::Limits, "a/shop").map(|served| served.revision);
    let all = [
        revision(&[]),
        revision(std::slice::from_ref(&one)),
        revision(std::slice::from_ref(&two)),
        revision(&[one.clone(), two.clone()]),
        revision(&[one.clone(), changed]),
    ];
    for (index, known) in all.iter().enumerate() {
        assert!(!all[..index].contains(known), "{all:?}");
    }
    assert_eq!(revision(&[two.clone(), one.clone()]), all[3], "whatever the order in the store");
    let rules = asked(&view("a", &[one, two]), Sort::Limits, "a/shop").unwrap().content.rate_limit.unwrap().rules;
    assert_eq!(rules.iter().map(|rule| of(&rule.id)).collect::<Vec<_>>(), ["02", "01"], "by priority");
}

/// Columns: kind, a rule, and the expected error.
#[test]
fn rules_that_make_no_sense_are_refused() {
    let many = json!(vec![json!({ "namespace": "a", "service": "x".repeat(100) }); 100]);
    let parts = json!(vec![json!({}); 1000]);
    let config = json!({ "sources": many, "destinations": [{ "namespace": "a", "service": "s" }], "rules": parts });
    let twice = json!({ "rules": [{ "sources": [{ "namespace": "a", "service": "s", "arguments": [
        { "type": "HEADER", "key": "h", "value": { "value": "1" } }, { "type": "HEADER", "key": "h", "value": { "value": "2" } }] }] }] });
    let to = |namespace: &str| json!({ "destination": { "namespace": namespace, "service": "s" } });
    for (kind, written, expected) in [
        (Kind::Limit, json!({ "namespace": "a", "service": "" }), "service"),
        (Kind::Limit, json!({ "namespace": "a", "service": "*" }), "service"),
        (Kind::Limit, json!({ "namespace": "a b", "service": "s" }), "namespace"),
        (Kind::Limit, json!({ "namespace": "a", "service": "s", "service_token": "t" }), "service_token"),
        (
            Kind::Limit,
            json!({ "namespace": "a", "service": "s", "amounts": [{ "validDuration": "1s" }, { "validDuration": "1s" }] }),
            "validDuration",
        ),
        (Kind::Limit, json!({ "namespace": "a", "service": "s", "name": "x".repeat(65) }), "name"),
        (Kind::Breaker, json!({ "namespace": "a", "ruleMatcher": to("a") }), "name"),
        (Kind::Breaker, json!({ "name": "b", "namespace": "a", "ruleMatcher": to("b") }), "nobody would be given it"),
        (Kind::Breaker, json!({ "name": "b", "namespace": "a", "description": "x".repeat(1025) }), "description"),
        (
            Kind::Detector,
            json!({ "name": "d", "namespace": "a", "targetService": { "namespace": "b", "service": "s" } }),
            "nobody",
        ),
        (Kind::Routing, json!({ "namespace": "a" }), "routing_config"),
        (Kind::Routing, json!({ "namespace": "a", "routing_config": {} }), "nobody"),
        (Kind::Routing, routing("c", ("a", "x"), ("b", "y"), 0), "nobody"),
        (Kind::Routing, routing("", ("a", "x"), ("b", "y"), 0), "which namespace it belongs to"),
        (Kind::Routing, routing("a", ("a", "x"), ("a", "y"), 11), "priority"),
        (Kind::Routing, json!({ "namespace": "a", "routing_config": config }), "registry.rules.rule_bytes"),
        (Kind::Routing, json!({ "namespace": "a", "routing_config": twice }), "$header.h"),
    ] {
        let mut rule = read(kind, json!([written]).to_string().as_bytes()).unwrap().remove(0);
        let refused = rule.home().map_err(crate::api::polaris::rules::check::Refused::from);
        let refused = refused.and_then(|home| check(&mut rule, &home, &RuleLimits::default()));
        let info = refused.expect_err("it is wrong").info;
        assert!(info.contains(expected), "{expected}: {info}");
    }
}

#[test]
fn where_a_rule_belongs() {
    let to = |namespace: &str| json!({ "destination": { "namespace": namespace, "service": "s" } });
    for (kind, written, home) in [
        (Kind::Limit, json!({ "service": "s" }), "default"),
        (Kind::Limit, json!({ "service": "s", "namespace": "a" }), "a"),
        (Kind::Breaker, json!({ "name": "b", "ruleMatcher": to("a") }), "a"),
        (Kind::Breaker, json!({ "name": "b", "namespace": "*", "ruleMatcher": to("a") }), "a"),
        (Kind::Breaker, json!({ "name": "b", "namespace": "b", "ruleMatcher": to("*") }), "b"),
        (Kind::Breaker, json!({ "name": "b", "ruleMatcher": to("*") }), "default"),
        (Kind::Breaker, json!({ "name": "b" }), "default"),
        (Kind::Routing, routing("", ("*", "*"), ("a", "s"), 0), "a"),
        (Kind::Routing, routing("", ("a", "x"), ("a", "s"), 0), "a"),
    ] {
        let rule = read(kind, json!([written]).to_string().as_bytes()).unwrap().remove(0);
        assert_eq!(rule.home().unwrap().as_str(), home, "{written}");
    }
}

/// The weight of a bounded map never exceeds the limit.
#[test]
fn what_is_kept_is_bounded() {
    let mut kept = Bounded::default();
    for n in 0..1000 {
        kept.insert(n, KEPT / 100, ());
        assert!(kept.weight <= KEPT && kept.entries.len() <= 100, "{n}: {}", kept.weight);
        assert!(kept.get(&n).is_some());
    }
    kept.insert(0, KEPT + 1, ());
    assert!(kept.get(&0).is_none());
    assert_eq!(kept.weight, kept.entries.values().map(|(weight, ())| weight).sum::<usize>());
}
