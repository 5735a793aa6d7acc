//! Changes of run-time parameters by texts.

use sql::{Change, Changes, Classifier, ClassifierConfig, Value};

fn changes(text: &str) -> Option<Changes> {
    Classifier::new(ClassifierConfig::default()).changes(text.as_bytes())
}

fn set(name: &str, value: &str) -> Change {
    Change::Set(name.into(), Value::Text(value.into()))
}

fn local(name: &str, value: &str) -> Change {
    Change::Local(name.into(), Some(Value::Text(value.into())))
}

#[test]
fn one_statement() {
    for (text, want) in [
        ("set search_path = a", vec![set("search_path", "a")]),
        ("SET Search_Path TO a, \"B c\", '$user'", vec![set("search_path", "a, \"B c\", \"$user\"")]),
        ("set search_path = 'a, b'", vec![set("search_path", "\"a, b\"")]),
        ("set search_path = ''", vec![set("search_path", "\"\"")]),
        ("set session statement_timeout to 5", vec![set("statement_timeout", "5")]),
        ("set statement_timeout = '5s'", vec![set("statement_timeout", "5s")]),
        ("set random_page_cost = 1.5", vec![set("random_page_cost", "1.5")]),
        ("set geqo = -0.5", vec![set("geqo", "-0.5")]),
        ("set jit = off", vec![set("jit", "off")]),
        ("set jit = true", vec![set("jit", "true")]),
        ("set DateStyle = ISO, DMY", vec![set("datestyle", "iso, dmy")]),
        ("set my.Own = 'it''s'", vec![set("my.own", "it's")]),
        ("set time zone 'Asia/Tokyo'", vec![set("timezone", "Asia/Tokyo")]),
        ("set time zone -7", vec![set("timezone", "-7")]),
        ("set time zone local", vec![Change::Reset("timezone".into())]),
        ("set time zone default", vec![Change::Reset("timezone".into())]),
        ("set names 'utf8'", vec![set("client_encoding", "utf8")]),
        ("set names", vec![Change::Reset("client_encoding".into())]),
        ("set role x", vec![set("role", "x")]),
        ("set role none", vec![set("role", "none")]),
        ("reset role", vec![Change::Reset("role".into())]),
        ("reset a", vec![Change::Reset("a".into())]),
        ("set a to default", vec![Change::Reset("a".into())]),
        ("reset all", vec![Change::ResetAll]),
        ("discard all", vec![Change::DiscardAll]),
        ("discard plans", vec![]),
        ("listen Some_Channel", vec![Change::Listen("some_channel".into())]),
        ("LISTEN \"Some \"\"Channel\"", vec![Change::Listen("Some \"Channel".into())]),
        ("unlisten a", vec![Change::Unlisten("a".into())]),
        ("unlisten *", vec![Change::UnlistenAll]),
        ("notify a, 'b'", vec![]),
        ("savepoint A", vec![Change::Savepoint("a".into())]),
        ("release savepoint a", vec![Change::Release("a".into())]),
        ("rollback to a", vec![Change::RollbackTo("a".into())]),
        ("commit", vec![Change::End { commits: true }]),
        ("commit and chain", vec![Change::End { commits: true }]),
        ("prepare transaction 'a'", vec![Change::End { commits: true }]),
        ("rollback", vec![Change::End { commits: false }]),
        ("begin", vec![]),
        ("set local a.b = 1", vec![]),
        ("set local statement_timeout = 1", vec![]),
        ("set local Search_Path = A, \"B\"", vec![local("search_path", "a, \"B\"")]),
        ("set local timezone = 'Asia/Tokyo'", vec![local("timezone", "Asia/Tokyo")]),
        ("set local role x", vec![local("role", "x")]),
        ("set local timezone to default", vec![Change::Local("timezone".into(), None)]),
        ("set local time zone interval '1' hour", vec![Change::LocalUnknown]),
        ("set local session authorization x", vec![Change::LocalUnknown]),
        // Also resets the role.
        ("reset session authorization", vec![Change::Reset("role".into())]),
        ("set session authorization default", vec![Change::Reset("role".into())]),
        ("set transaction isolation level serializable", vec![]),
        ("set transaction_read_only = on", vec![]),
        (
            "set session characteristics as transaction read only, isolation level repeatable read",
            vec![set("default_transaction_read_only", "on"), set("default_transaction_isolation", "repeatable read")],
        ),
        ("select set_config('A', 'b, c', false)", vec![set("a", "b, c")]),
        ("select pg_catalog.set_config('search_path', '', false)", vec![set("search_path", "")]),
        ("select set_config('a.b', 'c', true)", vec![]),
        ("select set_config('role', 'a', true)", vec![local("role", "a")]),
        ("select set_config('TimeZone', $2, true)", vec![Change::Local("timezone".into(), Some(Value::Bound(1)))]),
        ("select set_config('timezone', a, true) from t", vec![Change::LocalUnknown]),
        ("select set_config(a, 'b', true) from t", vec![Change::LocalUnknown]),
        ("SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new", vec![set("jit", "off")]),
        ("select set_config('jit', $1, false)", vec![Change::Set("jit".into(), Value::Bound(0))]),
        ("select 1", vec![]),
        ("insert into t values (1)", vec![]),
    ] {
        assert_eq!(changes(text).unwrap(), Changes { statements: vec![want], doubt: false }, "{text}");
    }
}

#[test]
fn doubts() {
    for text in [
        "set session authorization x",
        "set time zone interval '1' hour",
        "set client_encoding = 'latin1'",
        "set default_transaction_isolation = serializable",
        "set session characteristics as transaction isolation level serializable",
        "set temp_buffers = 100",
        "select set_config(name, 'b', false) from x",
        "select set_config('a', 'b', false) from t",
        "select set_config('a', 'b', false) where false",
        "select set_config('a', upper('b'), false)",
        "select set_config('a', 'b', $1)",
        "select set_config('a', null, false)",
        "select set_config('a', 'b', false) union all select set_config('a', 'c', false)",
        "select f(), set_config('a', 'b', false)",
        "insert into t select set_config('a', 'b', false)",
        "values (set_config('a', 'b', false))",
    ] {
        let changes = changes(text).unwrap();
        assert!(changes.doubt, "{text}: {changes:?}");
        assert_eq!(changes.statements, vec![vec![]], "{text}");
    }
    assert_eq!(changes("not sql"), None);
}

#[test]
fn several_statements() {
    assert_eq!(
        changes("begin; set a = 1; ; select 1; reset a; commit").unwrap(),
        Changes {
            statements: vec![
                vec![],
                vec![set("a", "1")],
                vec![],
                vec![Change::Reset("a".into())],
                vec![Change::End { commits: true }]
            ],
            doubt: false,
        }
    );
    assert_eq!(
        changes("set a = 1; set session authorization x").unwrap(),
        Changes { statements: vec![vec![set("a", "1")], vec![]], doubt: true }
    );
    assert_eq!(
        changes("listen a; set b = 1; discard all").unwrap().statements,
        [vec![Change::Listen("a".into())], vec![set("b", "1")], vec![Change::DiscardAll]]
    );
}
