//! Classes of texts that only PostgreSQL 19 accepts: the grammar, which is 18's, refuses them.

use sql::{Access, Class, Classifier, ClassifierConfig, Flags, Hint, Pins};

fn classify(text: &str) -> Class {
    Classifier::new(ClassifierConfig::default()).classify(text.as_bytes())
}

#[test]
fn a_wait_for_a_position_goes_to_a_standby() {
    let standby = Flags::APART.with(Flags::STANDBY);
    for text in [
        "WAIT FOR LSN '0/306EE20'",
        "wait for lsn '0/306EE20';",
        "/* a */ Wait -- b\n for lsn '0/1' with (timeout '1s', no_throw)",
        "WAIT FOR LSN '0/1' WITH (MODE 'standby_flush', TIMEOUT 100)",
    ] {
        let class = classify(text);
        assert_eq!((class.access, class.flags, class.pins), (Access::Read, standby, Pins::NONE), "{text}");
    }
    for text in
        ["WAIT FOR LSN '0/1' WITH (MODE 'primary_flush')", "wait for lsn '0/1' with (no_throw, mode 'PRIMARY_FLUSH')"]
    {
        assert_eq!(classify(text).access, Access::Write, "{text}");
        assert!(!classify(text).flags.has(Flags::STANDBY), "{text}");
    }
    // The mode is a literal, and decides: one text of a shape says nothing of another.
    let mut classifier = Classifier::new(ClassifierConfig::default());
    for (mode, access) in
        [("standby_write", Access::Read), ("primary_flush", Access::Write), ("standby_write", Access::Read)]
    {
        let text = format!("WAIT FOR LSN '0/1' WITH (MODE '{mode}')");
        assert_eq!(classifier.classify(text.as_bytes()).access, access, "{text}");
    }
    assert_eq!(classify("/* kingpost.route=primary */ WAIT FOR LSN '0/1'").hint, Some(Hint::Primary));
    for text in
        ["WAIT FOR LSN", "WAIT FOR LSN $1", "WAIT FOR LSN '0/1'; delete from t", "wait for it", "WAIT FOR LSN '0/1"]
    {
        assert_eq!(classify(text).access, Access::Write, "{text}");
    }
}

#[test]
fn reads_of_graphs() {
    for text in [
        "SELECT name FROM GRAPH_TABLE (g MATCH (a IS person)-[e IS knows]->(b IS person) COLUMNS (b.name AS name))",
        "select * from graph_table(s.g match (a is person where a.id = 1 and lower(a.name) in ('x', 'y)'))-[]->(b) columns (a.id + 1 as id)) as t(x), u where u.id = x",
        "SELECT count(*) FROM GRAPH_TABLE (g MATCH (a)<-[e]-(b) WHERE (a.x > $1) COLUMNS (a.x AS \"x\")) JOIN GRAPH_TABLE (g MATCH (c)->(d) COLUMNS (c.x AS y)) ON x = y",
        "WITH q AS (SELECT 1 FROM GRAPH_TABLE (g MATCH (a)-(b) COLUMNS (1 AS c))) SELECT * FROM q",
        "EXPLAIN SELECT 1 FROM GRAPH_TABLE (g MATCH (a) COLUMNS (a.x AS x));",
    ] {
        let class = classify(text);
        assert_eq!((class.access, class.pins), (Access::Read, Pins::NONE), "{text}");
        assert!(class.flags.has(Flags::APART) && !class.flags.has(Flags::UNKNOWN), "{text}");
    }
    let graph = "FROM GRAPH_TABLE (g MATCH (a) COLUMNS (a.x AS x))";
    for text in [
        format!("SELECT mine(x) {graph}"),
        format!("SELECT x {graph} FOR UPDATE"),
        format!("INSERT INTO t SELECT x {graph}"),
        format!("WITH d AS (DELETE FROM t RETURNING 1) SELECT x {graph}"),
        format!("SELECT x {graph}; DELETE FROM t"),
        format!("SELECT nextval('s') {graph}"),
        "SELECT 1 FROM pg_stat_activity, GRAPH_TABLE (g MATCH (a) COLUMNS (a.x AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a WHERE mine(a.x)) COLUMNS (a.x AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a WHERE s.lower(a.x) = 'x') COLUMNS (a.x AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a WHERE \"Mine\" (a.x)) COLUMNS (a.x AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a) COLUMNS (nextval('s') AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a) COLUMNS ((SELECT f FROM v) AS x))".into(),
        "SELECT x FROM GRAPH_TABLE (g MATCH (a) COLUMNS (a.x AS x)".into(),
        "SELECT x FROM t GROUP BY ALL".into(),
        "SELECT lag(x) IGNORE NULLS OVER () FROM t".into(),
        "REPACK t".into(),
    ] {
        assert_eq!(classify(&text).access, Access::Write, "{text}");
    }
    let hinted = classify("/* kingpost.route=replica */ SELECT x FROM t GROUP BY ALL");
    assert_eq!((hinted.access, hinted.hint, hinted.pins), (Access::Write, Some(Hint::Replica), Pins::NONE));
}

/// State that is not noticed would pass to the next client.
#[test]
fn what_newer_statements_leave_in_the_session() {
    let graph = "SELECT x FROM GRAPH_TABLE (g MATCH (a) COLUMNS (a.x AS x))";
    for (text, pins) in [
        (format!("PREPARE p AS {graph}"), Pins::PREPARE),
        (format!("CREATE TEMP TABLE t AS {graph}"), Pins::TEMP),
        (format!("SET a.b = 1; {graph}"), Pins::SET),
        (format!("DECLARE c CURSOR WITH HOLD FOR {graph}"), Pins::CURSOR),
        ("PREPARE p AS SELECT x FROM t GROUP BY ALL".into(), Pins::PREPARE),
        ("CREATE TEMP PROPERTY GRAPH g".into(), Pins::TEMP),
        ("SELECT lag(x) IGNORE NULLS OVER (), set_config('a.b', 'c', false) FROM t".into(), Pins::SET),
        ("SET search_path = NULL".into(), Pins::SET),
        ("SET search_path TO NULL".into(), Pins::SET),
        ("SELECT x FROM GRAPH_TABLE (g MATCH (a) COLUMNS (set_config('a.b', 'c', false) AS x))".into(), Pins::SET),
    ] {
        assert_eq!(classify(&text).pins.0 & pins.0, pins.0, "{text}");
    }
    for text in ["CREATE PROPERTY GRAPH g", "ALTER PROPERTY GRAPH g ADD VERTEX TABLES (t)", "DROP PROPERTY GRAPH g"] {
        let class = classify(text);
        assert_eq!((class.access, class.pins), (Access::Write, Pins::NONE), "{text}");
        assert!(class.flags.has(Flags::SCHEMA.with(Flags::DDL)), "{text}");
    }
    // What no version accepts leaves nothing.
    for text in
        ["SET a", "set names 'utf8' collate x y", "prepare", "repack", "selct 1", "UPDATE t SET a = NULL WHERE WHERE"]
    {
        assert_eq!(classify(text).pins, Pins::NONE, "{text}");
    }
}
