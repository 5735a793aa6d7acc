//! Requirements on configuration entries, through two nodes on every store.

use std::sync::Arc;

use registry::configuration::{
    Audience, ConfigClient, ConfigEntry, ConfigError, ConfigKey, Expected, NewConfig, md5_of,
};
use registry::{ConfigLimits, NamespaceName, Registry, Settings, Store, StoreError, WriteError};

use super::*;

fn namespace(name: &str) -> NamespaceName {
    NamespaceName::new(name).unwrap()
}

fn key(id: &str) -> ConfigKey {
    ConfigKey::new("g", id).unwrap()
}

async fn publish(registry: &Registry, namespace: &NamespaceName, id: &str, content: &str) -> ConfigEntry {
    let new = NewConfig::new(content);
    let change = registry.publish_config(namespace, &key(id), &new, &Expected::Anything, "ann").await.unwrap();
    change.entry.unwrap()
}

fn versions(registry: &Registry, namespace: &NamespaceName, id: &str) -> Vec<(u64, String)> {
    let history = registry.config_history(namespace, &key(id)).unwrap();
    history.iter().map(|entry| (entry.version, entry.text().to_owned())).collect()
}

/// Runs all tests on a store. `again` opens the same database as another node.
pub(crate) async fn all<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(again: impl Fn() -> F) {
    let limits = ConfigLimits { history: 3, removed: 2, content_bytes: 1 << 20, ..ConfigLimits::default() };
    let settings = Settings { config: limits, ..Settings::default() };
    let one = Registry::open(settings.clone(), again().await.unwrap()).await.unwrap();
    let other = Registry::open(settings, again().await.unwrap()).await.unwrap();
    let (mine, theirs) = (namespace("config-mine"), namespace("config-theirs"));
    changes(&one, &other, &mine, &theirs).await;
    history(&one, &other, &mine).await;
    gray(&one, &mine).await;
    drafts(&one, &other, &mine).await;
    at_once(&one, &other, &mine).await;
    for registry in [one, other] {
        registry.shutdown().await;
    }
}

/// Entries are read and heard of at either node, in their namespace only.
async fn changes(one: &Registry, other: &Registry, mine: &NamespaceName, theirs: &NamespaceName) {
    let listener = other.config_listener().unwrap();
    listener.add(mine, &key("a"));
    let stranger = other.config_listener().unwrap();
    stranger.add(theirs, &key("a"));
    stranger.add(mine, &key("b"));
    let first = publish(one, mine, "a", "one").await;
    assert_eq!((first.version, first.md5.as_str(), first.kind.as_str()), (1, md5_of(b"one").as_str(), "text"));
    assert!(first.revision > Revision(0));
    tokio::time::timeout(PATIENCE, listener.changed()).await.unwrap();
    assert_eq!(other.config(mine, &key("a")).unwrap(), Some(first.clone()));
    assert_eq!((other.config_wakes(), stranger.pop().is_none()), (1, true), "a change wakes its own listeners only");
    assert_eq!(other.config(theirs, &key("a")).unwrap(), None);
    assert!(other.configs(theirs, None).unwrap().is_empty());
    // The same content again is no change.
    let again =
        other.publish_config(mine, &key("a"), &NewConfig::new("one"), &Expected::Anything, "bob").await.unwrap();
    assert_eq!((again.wrote, again.entry), (false, Some(first.clone())));
    // A condition is decided on the store's state.
    let second = publish(one, mine, "a", "two").await;
    let stale = Expected::Md5(first.md5);
    let refused = other.publish_config(mine, &key("a"), &NewConfig::new("x"), &stale, "bob").await;
    assert!(matches!(refused, Err(ConfigError::Changed { ref found, .. }) if *found == second.md5), "{refused:?}");
    let current = Expected::Md5(second.md5);
    other.publish_config(mine, &key("a"), &NewConfig::new("three"), &current, "bob").await.unwrap();
    let stale = Expected::Revision(second.revision);
    let refused = one.publish_config(mine, &key("a"), &NewConfig::new("x"), &stale, "ann").await;
    assert!(matches!(refused, Err(ConfigError::Stale { .. })), "{refused:?}");
    assert!(one.remove_config(mine, &key("a"), &stale, "ann").await.is_err());
    let absent = Expected::Revision(Revision(0));
    assert!(one.publish_config(mine, &key("a"), &NewConfig::new("x"), &absent, "ann").await.is_err());
    // The largest content, and what is beyond it.
    let large = "ü".repeat(1 << 19);
    assert_eq!(publish(one, mine, "large", &large).await.content.len(), 1 << 20);
    let larger = NewConfig::new(large.clone() + "x");
    let refused = one.publish_config(mine, &key("large"), &larger, &Expected::Anything, "ann").await;
    assert!(matches!(refused, Err(ConfigError::Write(WriteError::Invalid(_)))), "{refused:?}");
    other.kv_settle().await.unwrap();
    assert_eq!(other.config(mine, &key("large")).unwrap().unwrap().text(), large);
    assert!(one.remove_config(mine, &key("large"), &Expected::Anything, "ann").await.unwrap().wrote);
    assert!(!other.remove_config(mine, &key("large"), &Expected::Anything, "ann").await.unwrap().wrote);
    let listed: Vec<String> = other.configs(mine, Some("g")).unwrap().iter().map(|it| it.key.to_string()).collect();
    assert_eq!(listed, ["g/a"]);
    assert!(other.configs(mine, Some("G")).unwrap().is_empty());
}

/// Versions are kept up to their limit, and can be rolled back to; the last one of a removed entry too.
async fn history(one: &Registry, other: &Registry, mine: &NamespaceName) {
    for n in 1..=6 {
        let registry = if n % 2 == 0 { one } else { other };
        publish(registry, mine, "h", &format!("v{n}")).await;
    }
    one.kv_settle().await.unwrap();
    let text = |n: u64| (n, format!("v{n}"));
    assert_eq!(versions(one, mine, "h"), [text(6), text(5), text(4), text(3)]);
    let missing = one.roll_back_config(mine, &key("h"), 2, "ann").await;
    assert!(matches!(missing, Err(ConfigError::NoVersion { version: 2, .. })), "{missing:?}");
    let back = one.roll_back_config(mine, &key("h"), 4, "ann").await.unwrap();
    let entry = back.entry.unwrap();
    assert_eq!((back.wrote, entry.version, entry.restored, entry.text()), (true, 7, 4, "v4"));
    assert_eq!(versions(one, mine, "h"), [(7, "v4".into()), text(6), text(5), text(4)]);
    one.remove_config(mine, &key("h"), &Expected::Anything, "bob").await.unwrap();
    other.kv_settle().await.unwrap();
    let left = other.config_history(mine, &key("h")).unwrap();
    assert_eq!((left.len(), left[0].text(), left[0].removal.as_ref().unwrap().author.as_str()), (1, "v4", "bob"));
    assert_eq!(other.config(mine, &key("h")).unwrap(), None);
    let back = other.roll_back_config(mine, &key("h"), 7, "ann").await.unwrap().entry.unwrap();
    assert_eq!((back.version, back.text()), (8, "v4"));
    assert_eq!(versions(other, mine, "h"), [(8, "v4".into()), (7, "v4".into())]);
    // Only the last removed entries are kept.
    for id in ["r1", "r2", "r3"] {
        publish(other, mine, id, "x").await;
        other.remove_config(mine, &key(id), &Expected::Anything, "bob").await.unwrap();
    }
    let kept = ["r1", "r2", "r3"].map(|id| versions(other, mine, id).len());
    assert_eq!(kept, [0, 1, 1]);
}

/// A gray release is for its addresses and labels only, and goes with the entry.
async fn gray(one: &Registry, mine: &NamespaceName) {
    publish(one, mine, "gray", "for all").await;
    let audience = Audience::new(vec!["10.0.0.7".to_owned()], vec!["zone=a".to_owned()]).unwrap();
    let new = NewConfig::new("for some");
    let given = one.publish_gray_config(mine, &key("gray"), &new, &audience, "ann").await.unwrap();
    assert_eq!(given.entry.unwrap().audience, audience);
    let at = |address: &str| ConfigClient::at(address);
    let given = |client: &ConfigClient| one.config_for(mine, &key("gray"), client).unwrap().unwrap().text().to_owned();
    let of = |address: &str| given(&at(address));
    let labelled = |zone: &str| given(&at("10.0.0.8").with([("zone".to_owned(), zone.to_owned())]));
    assert_eq!((labelled("a").as_str(), labelled("b").as_str()), ("for some", "for all"));
    assert_eq!((of("10.0.0.7").as_str(), of("10.0.0.8").as_str()), ("for some", "for all"));
    assert!(one.remove_gray_config(mine, &key("gray")).await.unwrap().wrote);
    assert_eq!(of("10.0.0.7"), "for all");
    one.publish_gray_config(mine, &key("gray"), &new, &audience, "ann").await.unwrap();
    one.remove_config(mine, &key("gray"), &Expected::Anything, "ann").await.unwrap();
    assert_eq!(one.config_for(mine, &key("gray"), &at("10.0.0.7")).unwrap(), None);
}

/// A draft is given to nobody until it is released, and then is a version.
async fn drafts(one: &Registry, other: &Registry, mine: &NamespaceName) {
    let (draft, new) = (key("draft"), NewConfig::new("first"));
    let absent = one.draft_config(mine, &draft, &new, false, "ann").await;
    assert!(matches!(absent, Err(ConfigError::Absent { .. })), "{absent:?}");
    assert!(matches!(one.release_config(mine, &draft, "ann").await, Err(ConfigError::Absent { .. })));
    assert!(one.draft_config(mine, &draft, &new, true, "ann").await.unwrap().wrote);
    let exists = other.draft_config(mine, &draft, &new, true, "bob").await;
    assert!(matches!(exists, Err(ConfigError::Exists { .. })), "{exists:?}");
    assert_eq!(other.config(mine, &draft).unwrap(), None);
    let released = other.release_config(mine, &draft, "bob").await.unwrap().entry.unwrap();
    assert_eq!((released.version, released.text()), (1, "first"));
    assert!(!other.release_config(mine, &draft, "bob").await.unwrap().wrote, "the draft has ended");
    assert!(other.draft_config(mine, &draft, &NewConfig::new("second"), false, "bob").await.unwrap().wrote);
    assert_eq!(other.config(mine, &draft).unwrap().unwrap().text(), "first");
    one.kv_settle().await.unwrap();
    assert_eq!(one.release_config(mine, &draft, "ann").await.unwrap().entry.unwrap().version, 2);
    other.draft_config(mine, &draft, &NewConfig::new("third"), false, "bob").await.unwrap();
    other.remove_config(mine, &draft, &Expected::Anything, "bob").await.unwrap();
    assert!(matches!(other.release_config(mine, &draft, "bob").await, Err(ConfigError::Absent { .. })));
}

/// Conditional changes at two nodes at once: none is lost, and no version is given twice.
async fn at_once(one: &Registry, other: &Registry, mine: &NamespaceName) {
    const EACH: usize = 10;
    publish(one, mine, "count", "0").await;
    let count = async |registry: &Registry| {
        let mut done = 0;
        while done < EACH {
            let Some(now) = registry.config(mine, &key("count")).unwrap() else {
                registry.kv_settle().await.unwrap();
                continue;
            };
            let new = NewConfig::new((now.text().parse::<usize>().unwrap() + 1).to_string());
            match registry.publish_config(mine, &key("count"), &new, &Expected::Md5(now.md5), "ann").await {
                Ok(_) => done += 1,
                Err(ConfigError::Changed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(count(one), count(other)) }).await.unwrap();
    one.kv_settle().await.unwrap();
    let last = one.config(mine, &key("count")).unwrap().unwrap();
    assert_eq!((last.text(), last.version), ("20", 21));
}
