#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::json;

use super::*;

fn one(kind: Kind, rule: Value) -> Result<Rule, String> {
    let read = read(kind, json!([rule]).to_string().as_bytes());
    read.map(|mut rules| rules.remove(0)).map_err(|error| error.to_string())
}

/// A circuit breaker as shown by Polaris' own server, with the field names of its present version and of an older one.
fn breaker(value_type: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/v1.CircuitBreakerRule", "id": "1", "name": "b", "namespace": "default", "enable": true,
        "level": "SERVICE",
        "ruleMatcher": {
            "source": { "service": "*", "namespace": "*" },
            "destination": { "service": "shop", "namespace": "default", "method": null },
        },
        "errorConditions": [
            { "inputType": "RET_CODE", "condition": { "type": "NOT_EQUALS", "value": "0", value_type: "TEXT" } },
        ],
        "triggerCondition": [{ "triggerType": "CONSECUTIVE_ERROR", "errorCount": 3 }],
        "recoverCondition": { "sleepWindow": 60, "consecutiveSuccess": 3 },
        "faultDetectConfig": { "enable": false },
        "fallbackConfig": { "enable": false, "response": { "code": 0, "headers": [], "body": "" } },
        "block_configs": [{ "name": "n", "api": { "path": { "value": "/" } }, "error_conditions": [], "trigger_conditions": [] }],
    })
}

#[test]
fn rules_are_read_and_shown_as_they_are() {
    for value_type in ["value_type", "valueType"] {
        let Rule::Breaker(rule) = one(Kind::Breaker, breaker(value_type)).unwrap() else { panic!("another kind") };
        assert_eq!((rule.level(), rule.error_conditions.len()), (pb::Level::Service, 1));
        assert_eq!(rule.trigger_condition[0].error_count, 3);
        assert_eq!(rule.block_configs[0].api.as_ref().unwrap().path.as_ref().unwrap().value.as_deref(), Some("/"));
        let shown = show(&Rule::Breaker(rule), true);
        for (path, value) in [
            ("/@type", json!("type.googleapis.com/v1.CircuitBreakerRule")),
            ("/ruleMatcher/destination/service", json!("shop")),
            ("/errorConditions/0/condition/value_type", json!("TEXT")),
            ("/block_configs/0/name", json!("n")),
            ("/priority", json!(0)),
            ("/recoverCondition/sleepWindow", json!(60)),
        ] {
            assert_eq!(shown.pointer(path), Some(&value), "{path} of {shown}");
        }
    }
    let limit = json!({
        "service": "shop", "namespace": "default", "priority": 1, "disable": false, "resource": "CONCURRENCY", "type": 1,
        "amounts": [{ "maxAmount": 5, "validDuration": "1.5s" }], "regex_combine": true, "concurrencyAmount": { "maxAmount": 7 },
        "custom_response": { "body": "no" }, "arguments": [{ "type": "CALLER_IP", "value": { "value": "10.0.0.1" } }],
    });
    let Rule::Limit(rule) = one(Kind::Limit, limit.clone()).unwrap() else { panic!("another kind") };
    assert_eq!((rule.resource(), rule.r#type()), (pb::rule::Resource::Concurrency, pb::rule::Type::Local));
    assert_eq!(rule.amounts[0].valid_duration.unwrap().nanos, 500_000_000);
    let shown = show(&Rule::Limit(rule), false);
    for name in ["service", "priority", "disable", "regex_combine", "resource"] {
        assert_eq!(shown[name], limit[name], "{name}");
    }
    assert_eq!(shown["amounts"][0]["validDuration"], "1.500s");
    assert_eq!((&shown["type"], shown.get("@type")), (&json!("LOCAL"), None));
    assert_eq!(shown["custom_response"], limit["custom_response"]);
    let detector = json!({ "name": "d", "targetService": { "service": "shop", "namespace": "*", "api": { "method": "*" } },
        "protocol": "HTTP", "httpConfig": { "url": "/", "headers": [{ "key": "a", "value": "b" }] }, "extend_info": { "k": "v" } });
    let shown = show(&one(Kind::Detector, detector.clone()).unwrap(), false);
    assert_eq!((&shown["extend_info"], &shown["protocol"]), (&detector["extend_info"], &detector["protocol"]));
}

#[test]
fn a_configuration_of_routing_may_say_what_it_is() {
    let config = json!({ "rules": [{ "name": "r", "sources": [{ "service": "*", "namespace": "*" }] }] });
    let typed = |of: &str| {
        let mut config = config.clone();
        config["@type"] = of.into();
        config
    };
    let old = typed("type.googleapis.com/v2.RuleRoutingConfig");
    for config in [config.clone(), typed("type.googleapis.com/v1.RuleRoutingConfig"), old] {
        let rule = one(Kind::Routing, json!({ "name": "r", "routing_policy": "RulePolicy", "routing_config": config }))
            .unwrap();
        let shown = show(&rule, false);
        assert_eq!(shown["routing_config"]["@type"], "type.googleapis.com/v1.RuleRoutingConfig");
        assert_eq!(shown["routing_config"]["rules"][0]["name"], "r");
    }
    let nearby = json!({ "routing_policy": "NearbyPolicy", "routing_config": { "match_level": "ZONE" } });
    assert_eq!(show(&one(Kind::Routing, nearby).unwrap(), false)["routing_config"]["match_level"], "ZONE");
    for (policy, config) in [
        (json!("MetadataPolicy"), config.clone()),
        (json!(7), config.clone()),
        (json!("NearbyPolicy"), typed("type.googleapis.com/v1.RuleRoutingConfig")),
        (json!("RulePolicy"), typed("type.googleapis.com/v1.Instance")),
        (json!("RulePolicy"), typed("type.googleapis.com/google.protobuf.Any")),
        (json!("RulePolicy"), json!({ "@type": 1 })),
    ] {
        let rule = json!({ "routing_policy": policy, "routing_config": config });
        let error = one(Kind::Routing, rule.clone()).unwrap_err();
        assert!(error.contains("routing_"), "{rule}: {error}");
    }
}

/// No field is dropped: each of these is an error that names the unknown part.
#[test]
fn what_is_not_known_is_an_error() {
    let within = |config: Value| json!({ "routing_config": config });
    for (kind, rule, named) in [
        (Kind::Limit, json!({ "nmae": "x" }), "nmae"),
        (Kind::Limit, json!({ "amounts": [{ "maxAmounts": 1 }] }), "maxAmounts"),
        (Kind::Limit, json!({ "labels": { "a": { "vlaue": "b" } } }), "vlaue"),
        (Kind::Limit, json!({ "type": "LOCALLY" }), "LOCALLY"),
        (Kind::Limit, json!({ "priority": -1 }), "out of range"),
        (Kind::Limit, json!({ "@type": "type.googleapis.com/v1.RouteRule" }), "v1.RouteRule"),
        (Kind::Limit, json!({ "max_queue_delay": 1, "maxQueueDelay": 1 }), "maxQueueDelay"),
        (Kind::Routing, within(json!({ "rules": [{ "destinatons": [] }] })), "destinatons"),
        (Kind::Routing, within(json!({ "rules": [{ "sources": [{ "argument": [] }] }] })), "argument"),
        (Kind::Breaker, json!({ "rule_matcher": {}, "ruleMatcher": {} }), "two names of one field"),
        (Kind::Breaker, json!({ "errorConditions": [{ "input_type": 1, "inputType": 1 }] }), "two names of one field"),
        (Kind::Limit, json!({ "labels": { "a": { "value_type": 1, "valueType": 1 } } }), "two names of one field"),
        (Kind::Limit, json!("text"), "expected an object"),
    ] {
        let error = one(kind, rule.clone()).unwrap_err();
        assert!(error.contains(named) && error.contains("rule 1 of the list"), "{rule}: {error}");
    }
    let twice =
        within(json!({ "rules": [{ "sources": [], "sources_": 1 }] })).to_string().replace("sources_", "sources");
    for (body, named) in [
        (r#"[{"name":"a","name":"b"}]"#.to_owned(), r#""name" is there twice"#),
        (format!("[{twice}]"), r#""sources" is there twice"#),
        ("{}".into(), "expected a list"),
        ("[] []".into(), "trailing"),
        ("[".into(), "EOF"),
        ("[".repeat(1000), "recursion limit"),
    ] {
        let error = read(Kind::Limit, body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(named), "{body}: {error}");
    }
    let many = json!(vec![json!({}); MOST + 1]).to_string();
    assert!(matches!(read(Kind::Limit, many.as_bytes()), Err(ApiError::TooLarge { value: 100, .. })));
    assert_eq!(read(Kind::Limit, b"[]").unwrap(), []);
}
