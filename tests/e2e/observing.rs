//! Examples for operators: alert rules and a dashboard, checked against the metrics of a real proxy, with Prometheus' own tools.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kingpost_tests::{Kingpost, new_dir, skipped};
use serde_json::Value;

use crate::common::{only_kingpost, shared, value};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// Returns all metrics of Kingpost that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("kingpost_") {
        let name: String = text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        found.insert(name);
    }
    found
}

/// Returns the expressions of a dashboard's panels.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("expr").to_owned()).collect()
}

/// Runs promtool; None if it is not installed.
fn promtool(arguments: &[&str], dir: &Path, input: Option<&Path>) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).unwrap());
    }
    match command.output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            skipped("promtool is not installed (package prometheus)");
            None
        }
    }
}

#[tokio::test]
async fn alert_rules_and_dashboard_name_metrics_that_are_there() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let client = shared.kingpost.connect().await;
    assert_eq!(value(&client, "SELECT 7").await, "7");
    let (_, scrape) = shared.kingpost.http("/metrics").await.expect("metrics");
    let alerts = std::fs::read_to_string(packaging().join("prometheus/alerts.yaml")).unwrap();
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(packaging().join("grafana/kingpost.json")).unwrap()).unwrap();
    let expressions = expressions(&dashboard);
    let there = named(&scrape);
    for (what, text) in [("alerts.yaml", alerts), ("kingpost.json", expressions.join("\n"))] {
        let names = named(&text);
        assert!(names.len() > 10, "{what}: {names:?}");
        let missing: Vec<_> = names.difference(&there).collect();
        assert!(missing.is_empty(), "{what} names metrics that no scrape has: {missing:?}");
    }

    // Prometheus' own check: of the scrape, of the rules, of their alerts, and of the dashboard's expressions.
    let dir = new_dir("promtool");
    std::fs::write(dir.join("scrape.txt"), &scrape).unwrap();
    let rules: Vec<Value> = expressions
        .iter()
        .enumerate()
        .map(|(n, expr)| serde_json::json!({"record": format!("panel:{n}"), "expr": expr.replace("$__rate_interval", "1m")}))
        .collect();
    let panels = serde_json::json!({"groups": [{"name": "panels", "rules": rules}]});
    std::fs::write(dir.join("panels.yaml"), panels.to_string()).unwrap();
    let prometheus = packaging().join("prometheus");
    for (arguments, at, input) in [
        (["check", "metrics"].as_slice(), &dir, Some(dir.join("scrape.txt"))),
        (["check", "rules", "panels.yaml"].as_slice(), &dir, None),
        (["check", "rules", "alerts.yaml"].as_slice(), &prometheus, None),
        (["test", "rules", "alerts_test.yaml"].as_slice(), &prometheus, None),
    ] {
        let Some((good, said)) = promtool(arguments, at, input.as_deref()) else { return };
        assert!(good, "promtool {arguments:?}: {said}");
    }
}

#[test]
fn every_alert_has_a_page_that_is_there_and_a_test() {
    let alerts = std::fs::read_to_string(packaging().join("prometheus/alerts.yaml")).unwrap();
    let tests = std::fs::read_to_string(packaging().join("prometheus/alerts_test.yaml")).unwrap();
    let root = packaging().join("..");
    let pages: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")).collect();
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(pages.len(), names.len());
    for page in pages {
        assert!(root.join(page).exists(), "{page}");
    }
    for name in names {
        assert!(tests.contains(&format!("alertname: {name}, exp_alerts: [{{")), "{name} is never seen to fire");
    }
}

#[tokio::test]
async fn the_default_configuration_is_printed_and_good() {
    if only_kingpost() {
        return;
    }
    let output = Kingpost::run(&["config", "default"]);
    assert!(output.status.success());
    let file = new_dir("default").join("kingpost.toml");
    std::fs::write(&file, &output.stdout).unwrap();
    let check = Kingpost::run(&["check", "--config", file.to_str().unwrap()]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let schema = Kingpost::run(&["config", "schema"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(schema["properties"]["proxy"]["properties"]["pool"]["properties"]["size"]["default"], 20);
}
