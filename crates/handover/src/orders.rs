//! Operators' orders in the console, as one process sends them to another: a list in JSON. Pure.
//!
//! ```text
//!  {"orders": [{"order": "pause", "cluster": "main", "database": "shop"}, {"order": "set", "key": "proxy.pool.size", "value": "5"}, …]}
//! ```
//!
//! The processes may have different versions. An order that this version does not know, or a rule with an unknown field, is left out and reported;
//! other unknown fields are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use proxy::config::TrafficConfig;
use proxy::console::Orders;
use serde::{Deserialize, Serialize};

use config::Overrides;

/// Operators' orders to a process.
#[derive(Clone, Default, PartialEq)]
pub struct Ordered {
    /// Orders of its clusters, by their names.
    pub clusters: BTreeMap<String, Orders>,
    /// Changed settings and their values, unchecked.
    pub settings: Vec<(String, String)>,
}

/// Shows no values of settings: they may be secret.
impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.settings.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("Ordered").field("clusters", &self.clusters).field("settings", &keys).finish()
    }
}

/// Error: the bytes are no list of orders.
#[derive(Debug, thiserror::Error)]
#[error("found something else than a list of orders, at line {line}, column {column}")]
pub struct NoList {
    line: usize,
    column: usize,
}

#[derive(Serialize)]
struct Written {
    orders: Vec<Order>,
}

#[derive(Deserialize)]
struct Read {
    orders: Vec<serde_json::Value>,
}

/// An order.
#[derive(Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum Order {
    /// PAUSE and KILL; without a database, all of them.
    Pause { cluster: String, database: Option<String> },
    /// PAUSE FOR, with the remaining time.
    PauseFor { cluster: String, left_ms: u64 },
    /// DISABLE.
    Disable { cluster: String, database: String },
    /// LIMIT and BLOCK, with the rule in the form of the configuration.
    Limit { cluster: String, rule: TrafficConfig, left_ms: Option<u64> },
    /// LIFT of a rule of the configuration.
    Lift { cluster: String, name: String },
    /// SET.
    Set { key: String, value: String },
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Ordered {
    /// Makes the list of these clusters' orders and of the changed settings.
    pub fn new(clusters: BTreeMap<String, Orders>, settings: &Overrides) -> Ordered {
        let settings = settings.each().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ordered { clusters, settings }
    }

    /// Writes the orders for [`Ordered::read`].
    ///
    /// # Errors
    /// None that input could cause.
    pub fn write(&self) -> serde_json::Result<Vec<u8>> {
        let mut orders = Vec::new();
        for (name, of) in &self.clusters {
            let cluster = || name.clone();
            if of.paused {
                orders.push(Order::Pause { cluster: cluster(), database: None });
            }
            orders.extend(of.lease.map(|left| Order::PauseFor { cluster: cluster(), left_ms: millis(left) }));
            let databases = |databases: &BTreeSet<String>| databases.clone().into_iter();
            orders.extend(
                databases(&of.paused_databases)
                    .map(|database| Order::Pause { cluster: cluster(), database: Some(database) }),
            );
            orders.extend(databases(&of.disabled).map(|database| Order::Disable { cluster: cluster(), database }));
            orders.extend(databases(&of.lifted).map(|name| Order::Lift { cluster: cluster(), name }));
            orders.extend(of.rules.iter().map(|(rule, left)| Order::Limit {
                cluster: cluster(),
                rule: TrafficConfig::of(rule),
                left_ms: left.map(millis),
            }));
        }
        let set = |(key, value): &(String, String)| Order::Set { key: key.clone(), value: value.clone() };
        orders.extend(self.settings.iter().map(set));
        serde_json::to_vec(&Written { orders })
    }

    /// Reads orders. Also returns those that cannot be followed, with the reason and without values.
    ///
    /// # Errors
    /// The bytes are no list of orders.
    pub fn read(bytes: &[u8]) -> Result<(Ordered, Vec<String>), NoList> {
        let read: Read =
            serde_json::from_slice(bytes).map_err(|error| NoList { line: error.line(), column: error.column() })?;
        let (mut ordered, mut skipped) = (Ordered::default(), Vec::new());
        for value in read.orders {
            let kind = value.get("order").and_then(serde_json::Value::as_str).unwrap_or_default();
            let kind: String = kind.chars().take(20).collect();
            match serde_json::from_value(value) {
                Ok(order) => skipped.extend(ordered.take(order).err().map(|why| format!("{kind:?}: {why}"))),
                // The text of the error may have a value in it.
                Err(_) => skipped.push(format!("{kind:?}: this version does not know such an order")),
            }
        }
        Ok((ordered, skipped))
    }

    fn of(&mut self, cluster: String) -> &mut Orders {
        self.clusters.entry(cluster).or_default()
    }

    fn take(&mut self, order: Order) -> Result<(), String> {
        match order {
            Order::Pause { cluster, database: None } => self.of(cluster).paused = true,
            Order::Pause { cluster, database: Some(database) } => {
                self.of(cluster).paused_databases.insert(database);
            }
            Order::PauseFor { cluster, left_ms } => self.of(cluster).lease = Some(Duration::from_millis(left_ms)),
            Order::Disable { cluster, database } => {
                self.of(cluster).disabled.insert(database);
            }
            Order::Limit { cluster, rule, left_ms } => {
                let rule = rule.rule().map_err(|error| error.to_string())?;
                self.of(cluster).rules.push((rule, left_ms.map(Duration::from_millis)));
            }
            Order::Lift { cluster, name } => {
                self.of(cluster).lifted.insert(name);
            }
            Order::Set { key, value } => self.settings.push((key, value)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn rule(text: &str) -> proxy::traffic::Rule {
        toml::from_str::<TrafficConfig>(text).unwrap().rule().unwrap()
    }

    fn some() -> Ordered {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let shop = Orders {
            paused: true,
            lease: Some(Duration::from_millis(1_234)),
            paused_databases: names(&["shop", "with \"quotes\""]),
            disabled: names(&["bills"]),
            rules: vec![
                (rule("name = 'a'\nblock = true\nstatement = 'select 1'\nuser = 'ann'"), Some(Duration::from_secs(60))),
                (rule("name = 'b'\nrate = '7/h'\nconcurrency = 2\neach = ['user']\ndry_run = true"), None),
            ],
            lifted: names(&["few"]),
        };
        let billing = Orders { disabled: names(&["shop"]), ..Orders::default() };
        Ordered {
            clusters: BTreeMap::from([("shop".into(), shop), ("billing".into(), billing)]),
            settings: vec![("proxy.pool.size".into(), "5".into()), ("proxy.query_timeout".into(), "10s".into())],
        }
    }

    #[test]
    fn orders_are_the_same_once_they_were_written_and_read_again() {
        for ordered in [some(), Ordered::default()] {
            let (read, skipped) = Ordered::read(&ordered.write().unwrap()).unwrap();
            assert_eq!(read, ordered);
            assert_eq!(skipped, [""; 0]);
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        for (order, expected) in [
            // Additional fields of another version.
            (r#"{"order":"disable","cluster":"main","database":"a","since":7}"#, None),
            (r#"{"order":"pause","cluster":"main"}"#, None),
            (r#"{"order":"limit","cluster":"main","rule":{"name":"r","block":true},"left_ms":7,"by":"ann"}"#, None),
            // A rule with an unknown part would apply to more than was intended.
            (
                r#"{"order":"limit","cluster":"main","rule":{"name":"r","block":true,"weekday":"monday"}}"#,
                Some("\"limit\": this version"),
            ),
            (r#"{"order":"limit","cluster":"main","rule":{"name":"r"}}"#, Some("\"limit\": limits nothing")),
            (r#"{"order":"limit","cluster":"main","rule":{"name":"r","rate":"x"}}"#, Some("found the rate \"x\"")),
            (r#"{"order":"pause_for","cluster":"main","left_ms":-1}"#, Some("\"pause_for\": this version")),
            (r#"{"order":"disable","cluster":"main"}"#, Some("\"disable\": this version")),
            (r#"{"order":"dance","cluster":"main"}"#, Some("\"dance\": this version")),
            (r#"{"order":"set","key":"proxy.pool.size","value":["hush"]}"#, Some("\"set\": this version")),
            (r#"{"order":7}"#, Some("\"\": this version")),
            (r#""pause""#, Some("\"\": this version")),
            ("7", Some("\"\": this version")),
        ] {
            let text = format!(r#"{{"version":"9","orders":[{order},{{"order":"lift","cluster":"c","name":"n"}}]}}"#);
            let (read, skipped) = Ordered::read(text.as_bytes()).unwrap();
            assert!(read.clusters["c"].lifted.contains("n"), "the others are followed: {order}");
            match expected {
                None => assert!(skipped.is_empty() && read.clusters.len() == 2, "{order}: {skipped:?}"),
                Some(why) => {
                    assert!(skipped.len() == 1 && skipped[0].contains(why), "{order}: {skipped:?}");
                    assert!(!skipped[0].contains("hush"));
                    assert!(read.clusters.len() == 1 && read.settings.is_empty(), "{order}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "[]", "{}", "null", "{\"orders\":7}", "{\"orders\":[]", "{\"orders\":[]} x", "\u{0}"] {
            assert!(Ordered::read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Ordered::read(b"{\"orders\":[\"\xff\"]}").is_err());
        assert!(Ordered::read("[".repeat(10_000).as_bytes()).is_err());
        let deep = format!("{{\"orders\":[{}", "[".repeat(10_000));
        assert!(Ordered::read(deep.as_bytes()).is_err());
    }

    #[test]
    fn values_are_not_shown() {
        let ordered = Ordered { settings: vec![("key".into(), "hush".into())], ..Ordered::default() };
        let shown = format!("{ordered:?}");
        assert!(shown.contains("key") && !shown.contains("hush"), "{shown}");
    }
}
