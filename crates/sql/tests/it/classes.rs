//! Classes of statements.

use sql::{Access, Class, Classifier, ClassifierConfig, Control, Flags, Hint, Local, NameUse, Pins};

fn classifier() -> Classifier {
    Classifier::new(ClassifierConfig {
        read_functions: vec!["my_area".into(), "geo.length".into()],
        ..ClassifierConfig::default()
    })
}

fn whole_class(text: &str) -> Class {
    classifier().classify(text.as_bytes())
}

/// Returns the class without the parts that have tests of their own.
fn plain(class: Class) -> Class {
    Class { flags: Flags(class.flags.0 & !APART_TESTED), ..class }
}

fn classify(text: &str) -> Class {
    plain(whole_class(text))
}

/// Flags that have tests of their own.
const APART_TESTED: u32 = Flags::ROWLESS.0
    | Flags::SCHEMA.0
    | Flags::DDL.0
    | Flags::SESSION.0
    | Flags::LOCAL.0
    | Flags::LOCKS.0
    | Flags::UNKNOWN.0
    | Flags::OF_SESSION.0
    | Flags::MAKES.0
    | Flags::SNAPSHOT.0
    | Flags::SHOWS.0
    | Flags::NAMES.0
    | Flags::EXECUTES.0
    | Flags::EXECUTES_ONE.0;

#[test]
fn what_depends_on_statements_and_cursors_of_the_session() {
    for (text, expected) in [
        ("execute q1 (3)", true),
        ("fetch next from c1", true),
        ("move 3 in c1", true),
        ("select 1; fetch c1", true),
        ("explain analyze execute q1", true),
        ("create temp table x as execute q1", true),
        ("prepare q1 as select 1", false),
        ("declare c1 cursor for select 1", false),
        ("close c1", false),
        ("deallocate q1", false),
        ("select 'execute q1'", false),
    ] {
        let flags = classifier().classify(text.as_bytes()).flags;
        assert_eq!(flags.has(Flags::OF_SESSION), expected, "{text}");
    }
}

#[test]
fn texts_that_name_prepared_statements() {
    let classes = [Flags::NAMES, Flags::EXECUTES, Flags::EXECUTES_ONE];
    let long = "n".repeat(70);
    let (executes_long, long_name) = (format!("execute {long}"), format!("e0:{}", &long[..63]));
    for (text, names, flags) in [
        ("execute q1 (3)", "e0:q1", "+++"),
        ("EXECUTE Q1", "e0:q1", "+++"),
        ("execute \"Q 1\"", "e0:Q 1", "+++"),
        ("execute q1 (nextval('s'))", "e0:q1", "++-"),
        ("explain (verbose, format json) execute sqlx_s_1 (null, null)", "e0:sqlx_s_1", "+++"),
        ("create temp table x as execute q1", "e0:q1", "++-"),
        ("explain create table x as execute q1", "e0:q1", "++-"),
        ("select 1; execute q1; deallocate q1; prepare q1 as select 2", "e1:q1 d2:q1 p3:q1", "++-"),
        (executes_long.as_str(), long_name.as_str(), "+++"),
        ("deallocate prepare q1", "d0:q1", "+--"),
        ("prepare q1 (int) as select $1", "p0:q1", "+--"),
        ("deallocate all", "", "---"),
        ("select 'execute q1'", "", "---"),
        ("explain select 1", "", "---"),
    ] {
        let mut classifier = classifier();
        let found = classifier.classify(text.as_bytes()).flags;
        let found: String = classes.iter().map(|flag| if found.has(*flag) { '+' } else { '-' }).collect();
        assert_eq!(found, flags, "{text}");
        let named = classifier.prepared_names(text.as_bytes());
        let shown = named.iter().map(|named| {
            let used = match named.used {
                NameUse::Execute => 'e',
                NameUse::Prepare => 'p',
                NameUse::Deallocate => 'd',
            };
            format!("{used}{}:{}", named.statement, named.name)
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), names, "{text}");
    }
}

#[test]
fn what_holds_for_the_transaction_only() {
    for (text, expected) in [
        ("set local search_path = a", true),
        ("begin; set local timezone = 'UTC'; select 1", true),
        ("set local role a", true),
        ("set local role to default", true),
        ("set local session authorization a", true),
        ("select set_config('app.tenant', 'a', true)", true),
        ("insert into t select set_config('search_path', a, true) from b", true),
        ("set local app.tenant = 'a'", false),
        ("set local statement_timeout = 5", false),
        ("set transaction isolation level serializable", false),
        ("set search_path = a", false),
        ("select 1", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::LOCAL), expected, "{text}");
    }
}

#[test]
fn what_reads_the_time_of_its_transaction() {
    for (text, expected) in [
        ("select now()", true),
        ("select a from t where b > pg_catalog.transaction_timestamp() - interval '1 day'", true),
        ("select current_timestamp(3), localtime", true),
        ("select 1 from t where a = current_date", true),
        ("select age(b) from t", true),
        ("select (select now())", true),
        ("insert into t values (now())", true),
        ("select age(a, b) from t", false),
        ("select statement_timestamp(), clock_timestamp()", false),
        ("select current_user, session_user, current_catalog, current_schema, current_role", false),
        ("select my.now()", false),
        ("select now from t", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::BEGIN_TIME), expected, "{text}");
    }
}

#[test]
fn advisory_locks() {
    for (text, expected) in [
        ("select pg_advisory_lock(1)", true),
        ("select pg_try_advisory_xact_lock_shared(1, 2)", true),
        ("select 1 from t where pg_catalog.pg_advisory_xact_lock(a)", true),
        ("select pg_advisory_unlock_all()", true),
        ("lock table t", false),
        ("select * from t for update", false),
        ("select my.pg_advisory_lock(1)", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::LOCKS), expected, "{text}");
    }
}

/// The first schema of `search_path` may be `pg_temp`.
#[test]
fn what_is_made_where_search_path_begins() {
    for (text, expected) in [
        ("create table t (a int)", true),
        ("create unlogged table if not exists t (a int)", true),
        ("create table t as select 1", true),
        ("select 1 as a into t", true),
        ("with a as (select 1) select * into t from a", true),
        ("create foreign table t (a int) server s", true),
        ("create view v as select 1", true),
        ("create materialized view v as select 1", true),
        ("create sequence s", true),
        ("create type c as (a int)", true),
        ("create type e as enum ('a')", true),
        ("create type r as range (subtype = int)", true),
        ("create domain d as int", true),
        ("create function f() returns int language sql as 'select 1'", true),
        ("create aggregate a (int) (sfunc = int4pl, stype = int)", true),
        ("create operator ### (function = f, leftarg = int)", true),
        ("create collation c from \"C\"", true),
        ("create text search configuration c (copy = simple)", true),
        ("create statistics s on a, b from t", true),
        ("create operator family f using btree", true),
        ("select 1; create table t (a int)", true),
        ("explain analyze create table t as select 1", true),
        ("create table s.t (a int)", false),
        ("create temp table t (a int)", false),
        ("create table pg_temp.t (a int)", false),
        ("create function s.f() returns int language sql as 'select 1'", false),
        ("create index on t (a)", false),
        ("alter table t add a int", false),
        ("drop table t", false),
        ("insert into t values (1)", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::MAKES), expected, "{text}");
    }
}

#[test]
fn what_only_shows() {
    for (text, expected) in [
        ("show all", true),
        ("SHOW TimeZone; show search_path", true),
        ("show transaction isolation level", true),
        ("show kingpost.token", false),
        ("show all; set a = 1", false),
        ("set a = 1", false),
        ("reset all", false),
        ("select current_setting('a')", false),
        ("", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::SHOWS), expected, "{text}");
    }
}

#[test]
fn whose_snapshot_is_another_sessions() {
    for (text, expected) in [
        ("set transaction snapshot '00000003-1'", true),
        ("begin; set transaction snapshot 'a'", true),
        ("select pg_export_snapshot()", true),
        ("select pg_catalog.pg_export_snapshot() from t", true),
        ("set transaction isolation level repeatable read", false),
        ("select pg_current_snapshot()", false),
        ("select my.pg_export_snapshot()", false),
    ] {
        let class = Classifier::new(ClassifierConfig::default()).classify(text.as_bytes());
        assert_eq!(class.flags.has(Flags::SNAPSHOT), expected, "{text}");
    }
}

#[test]
fn what_an_extension_keeps_in_the_session() {
    for text in ["select dblink_connect('a', 'host=h')", "select ext.dblink_connect_u('host=h')", "load 'auto_explain'"]
    {
        assert_eq!(whole_class(text).pins.0 & Pins::LOAD.0, Pins::LOAD.0, "{text}");
    }
    assert_eq!(whole_class("select * from dblink('host=h', 'select 1') as t (a int)").pins, Pins::NONE);
}

#[test]
fn what_runs_something_unknown() {
    let mut classifier =
        Classifier::new(ClassifierConfig { read_functions: vec!["area".into()], ..ClassifierConfig::default() });
    for (text, expected) in [
        ("select login('a')", true),
        ("select * from app.login('a')", true),
        ("update t set a = compute(b)", true),
        ("select 1 from t order by rank_of(a)", true),
        ("do $$ begin end $$", true),
        ("call p()", true),
        ("select query_to_xml('select login()', true, true, '')", true),
        ("declare c cursor for select login('a')", true),
        ("select 1; select login('a')", true),
        ("explain analyze select login('a')", true),
        ("copy (select login('a')) to stdout", true),
        ("create table x as select login('a')", true),
        ("not sql", true),
        ("alter table t add column b text default login('a')", true),
        ("alter table t add column b text constraint c check (login(b) is not null)", true),
        ("alter table t alter column b type text using login(b)", true),
        ("alter table t alter column b set default login('a')", true),
        ("alter table t add constraint c check (login(b) is not null)", true),
        ("alter table t attach partition p for values in (login('a'))", true),
        ("alter domain d add constraint c check (login(value) is not null)", true),
        ("create table p partition of t for values from (login('a')) to (login('b'))", true),
        ("create table t (a text, check (login(a) is not null))", true),
        ("create table t (a text) partition by list (login(a))", true),
        ("create foreign table t (a text default login('a')) server s", true),
        ("create schema s create table t (a text default login('a'))", true),
        ("create index on t (login(a))", true),
        ("create index on t (a) where login(a) is not null", true),
        ("create extension e", true),
        ("alter extension e update", true),
        ("select area(a) from t", false),
        (
            "alter table t add column b timestamptz default now(), drop column c, alter column d type int using d::int",
            false,
        ),
        ("alter table t inherit u, owner to o, replica identity full, set (fillfactor = 70)", false),
        ("alter table t attach partition p for values from (minvalue) to (3)", false),
        (
            "create table t (like u including all, a int primary key, b int references u on delete cascade, unique (a, b))",
            false,
        ),
        ("create table t (r int4range, exclude using gist (r with &&) where (a > 3))", false),
        ("create table p partition of t for values with (modulus 2, remainder 0)", false),
        ("create index on t using gin (to_tsvector('english', a)) include (b)", false),
        ("create view v as select 1", false),
        ("select now(), count(*), nextval('s'), pg_notify('a', 'b')", false),
        ("insert into t values (gen_random_uuid())", false),
        ("select set_config('a.b', 'c', false)", false),
        ("set a = 1", false),
        ("create function f() returns int language sql as 'select login()'", false),
        ("", false),
    ] {
        assert_eq!(classifier.classify(text.as_bytes()).flags.has(Flags::UNKNOWN), expected, "{text}");
    }
}

#[test]
fn statements_about_the_session_alone() {
    for (text, session) in [
        ("SET work_mem = '1MB'", true),
        ("SET LOCAL synchronous_commit = off; SHOW synchronous_commit", true),
        ("RESET ALL", true),
        ("LISTEN news", true),
        ("UNLISTEN *", true),
        ("DEALLOCATE ALL", true),
        ("", false),
        ("SET work_mem = '1MB'; INSERT INTO t VALUES (1)", false),
        ("NOTIFY news", false),
        ("DISCARD ALL", false),
        ("SELECT set_config('work_mem', '1MB', false)", false),
        ("BEGIN", false),
        ("not SQL", false),
    ] {
        let flags = classifier().classify(text.as_bytes()).flags;
        assert_eq!(flags.has(Flags::SESSION), session, "{text}");
    }
}

#[test]
fn result_columns() {
    for (text, rowless, schema) in [
        ("insert into t values (1)", true, false),
        ("with x as (select 1) update t set a = 1", true, false),
        ("delete from t returning a", false, false),
        ("merge into t using u on t.id = u.id when matched then delete", true, false),
        ("insert into t values (1); select 1", false, false),
        ("select 1", false, false),
        ("begin; alter table t add a int; commit", false, true),
        ("create table t as select 1", false, true),
        ("drop function f", false, true),
        ("do 'begin end'", false, true),
        ("call p()", false, true),
        ("truncate t", false, false),
        ("set a = 1", false, false),
        ("begin", false, false),
    ] {
        let flags = classifier().classify(text.as_bytes()).flags;
        assert_eq!((flags.has(Flags::ROWLESS), flags.has(Flags::SCHEMA)), (rowless, schema), "{text}");
    }
}

const READ: Class = Class { access: Access::Read, ..Class::UNKNOWN };
const WRITE: Class = Class::UNKNOWN;

#[test]
fn reads() {
    for text in [
        "select 1",
        "SELECT * FROM t WHERE id = 5;",
        "table t",
        "values (1, 'a'), (2, 'b')",
        "(select 1) union all (select 2 order by 1 limit 5 offset 3) except select a from b",
        "with recursive x(n) as (values (1) union all select n + 1 from x where n < 100) select sum(n) from x",
        "select count(*) filter (where a > 1), sum(b) over (partition by c order by d rows between 1 preceding and current row) from t",
        "select a, (select max(b) from u where u.id = t.id) from t where exists (select 1 from v) and a in (1, 2, 3) and b like 'x%'",
        "select case when a is null then 'x' else coalesce(b, nullif(c, 'y')) end, greatest(1, 2), row(1, 2), (array[1, 2])[1:2] from t",
        "select a::int, cast(b as numeric(10, 2)), date '2020-01-01', interval '1 day', b collate \"C\" at time zone 'UTC' from t",
        "select * from t tablesample system (10) repeatable (5)",
        "select * from a left join b using (id) natural join c cross join lateral (select * from d where d.id = a.id) x",
        "select * from generate_series(1, 10) with ordinality as g(n, o), rows from (unnest(array[1]), json_each('{}')) r",
        "select distinct on (a) a, b from t group by grouping sets ((a), (b), ()), rollup (c), a having count(*) > 1 order by a desc nulls last fetch first 5 rows only",
        "select now(), current_timestamp, localtime, current_user, session_user, current_schema(), current_database(), version(), random(), clock_timestamp(), gen_random_uuid()",
        "select extract(year from a), position('a' in b), substring(b from 1 for 2), overlay(a placing b from 1), trim(both ' ' from a) from t",
        "select to_tsvector('english', a) @@ websearch_to_tsquery($1) from t where a = any($2)",
        "select xmlelement(name a, b), xmlforest(a, b), xmlserialize(content a as text) from t",
        "select json_object('a': 1), json_array(1, 2), a is json, json_value(a, '$.x' returning int default 0 on empty) from t",
        "select * from json_table('{}', '$' columns (a int path '$.a', nested '$.b[*]' columns (c text)))",
        "select * from xmltable('/a' passing x columns a int path 'b' default 5)",
        "select percentile_cont(0.5) within group (order by a) from t",
        "explain select 1",
        "explain (analyze, buffers, format json) select * from t where a = 1",
        "copy t to stdout",
        "copy t (a, b) to stdout with (format csv, header)",
        "copy (select * from t where a = 5) to stdout with binary",
        "select my_area(a), geo.length(a) from t",
        "select pg_relation_size('t'), pg_get_viewdef('v'::regclass), has_table_privilege('t', 'select')",
        "select * from information_schema.tables",
        "select * from pg_catalog.pg_class, pg_subscription",
        "select 1; select 2",
        "select pg_catalog.lower('A')",
    ] {
        let class = classify(text);
        assert_eq!(class.access, Access::Read, "{text}");
        assert_eq!(
            (class.pins, class.unpins, class.local, class.hint),
            (Pins::NONE, Pins::NONE, false, None),
            "{text}"
        );
        assert_eq!(class.control, Control::None, "{text}");
    }
}

#[test]
fn writes() {
    for text in [
        "insert into t values (1) returning *",
        "update t set a = 1 where b = 2",
        "delete from t using u where t.id = u.id",
        "merge into t using u on t.id = u.id when matched then update set a = u.a when not matched then insert values (u.a)",
        "truncate t",
        "select * into u from t",
        "select * from t for update",
        "select * from t for key share skip locked",
        "select * from (select * from t for no key update) x",
        "with d as (delete from t returning *) select * from d",
        "select (with d as (insert into t values (1) returning *) select 1)",
        "values (nextval('s'))",
        "select nextval('s')",
        "select setval('s', 5)",
        "select my_function(1)",
        "select public.lower('a')",
        "select a from t where my_function(a) > 1 order by 1",
        "select count(*) over (order by my_function(a)) from t",
        "select count(*) filter (where my_function(a)) from t",
        "select * from my_function(1)",
        "select * from t tablesample my_method (1)",
        "select array[1, my_function(2)], case a when 1 then my_function(1) end, coalesce(a, my_function(a)) from t",
        "select * from t limit my_function(1)",
        "select geo.my_area(a) from t",
        "select pg_is_in_recovery()",
        "select pg_current_wal_lsn()",
        "select pg_last_wal_replay_lsn()",
        "select txid_current()",
        "select pg_backend_pid()",
        "select pg_sleep(1)",
        "select pg_notify('a', 'b')",
        "select current_setting('transaction_read_only')",
        "select pg_advisory_xact_lock(1)",
        "select pg_advisory_unlock(1)",
        "select lo_import('x')",
        "select * from dblink('x', 'y') as t(a int)",
        "select query_to_xml('delete from t', true, true, '')",
        "select * from pg_stat_activity",
        "select * from pg_catalog.pg_stat_replication",
        "select * from pg_locks l join pg_class c on c.oid = l.relation",
        "select * from public.pg_stat_statements",
        "select * from pg_settings",
        "select 1 where exists (select from pg_prepared_xacts)",
        "show transaction_read_only",
        "show all",
        "explain insert into t values (1)",
        "explain analyze delete from t",
        "explain analyze select my_function(1)",
        "explain execute p",
        "explain create table x as select 1",
        "copy t from stdin",
        "copy t to '/tmp/x'",
        "copy t to program 'cat'",
        "copy (delete from t returning *) to stdout",
        "copy pg_stat_activity to stdout",
        "create table t (a int)",
        "create table t as select 1",
        "create extension x",
        "vacuum t",
        "analyze",
        "lock table t",
        "notify x",
        "execute p(1)",
        "fetch 5 from c",
        "close c",
        "declare c cursor for select 1",
        "refresh materialized view v",
        "discard plans",
        "discard sequences",
        "set local statement_timeout = 5",
        "set transaction read only",
        "set constraints all deferred",
        "create temp table t (a int) on commit drop",
        "create temp table t on commit drop as select 1",
        "select set_config('a.b', 'c', true)",
        "selec 1",
        "select 'open",
        "checkpoint",
    ] {
        assert_eq!(classify(text), WRITE, "{text}");
    }
    assert_eq!(classify("select 1; insert into t values (1)"), Class { flags: Flags::MULTI, ..WRITE });
}

fn leaves(pins: Pins) -> Class {
    Class { pins, ..WRITE }
}

#[test]
fn apart() {
    let cases = [
        ("select * from t where id = 5", false),
        ("table t", false),
        ("values (1), (2)", false),
        ("with x as (select 1) select lower(a), pg_catalog.upper(b) from t union select 'a', 'b'", false),
        ("select 1; select 2", true),
        ("explain select 1", true),
        ("copy t to stdout", true),
        ("select my_area(a) from t", true),
        ("select a from t where exists (select 1 from u order by geo.length(a))", true),
        ("", false),
    ];
    for (text, expected) in cases {
        let class = classify(text);
        assert_eq!((class.access, class.flags.has(Flags::APART)), (Access::Read, expected), "{text}");
    }
}

#[test]
fn session_state() {
    let set_or_role = Pins::SET.with(Pins::ROLE);
    for (text, want) in [
        ("set search_path = a", leaves(Pins::SET)),
        ("set session statement_timeout to 5", leaves(Pins::SET)),
        ("set time zone 'UTC'", leaves(Pins::SET)),
        ("set names 'utf8'", leaves(Pins::SET)),
        ("set session characteristics as transaction read only", leaves(Pins::SET)),
        ("set role x", leaves(Pins::ROLE)),
        ("SET \"Role\" = x", leaves(Pins::ROLE)),
        ("set session authorization x", leaves(Pins::ROLE)),
        ("set seed = 0.5", leaves(Pins::SEQUENCE)),
        ("set a to default", Class { flags: Flags::RESETS_PARAMETERS, ..WRITE }),
        ("set time zone local", Class { flags: Flags::RESETS_PARAMETERS, ..WRITE }),
        ("reset a", Class { flags: Flags::RESETS_PARAMETERS, ..WRITE }),
        ("reset all", Class { unpins: Pins::SET, flags: Flags::RESETS_PARAMETERS, ..WRITE }),
        ("select set_config('a', 'b', false)", leaves(set_or_role)),
        ("select set_config('a', 'b', 'true')", leaves(set_or_role)),
        ("select pg_catalog.set_config('a', 'b', $1)", leaves(set_or_role)),
        ("select set_config(is_local => true, setting_name => 'a', new_value => 'b')", leaves(set_or_role)),
        ("insert into t select set_config('a', 'b', false)", leaves(set_or_role)),
        ("with x as (update t set a = 1 returning set_config('a', 'b', false)) select 1", leaves(set_or_role)),
        ("listen a", Class { flags: Flags::LISTENS, ..leaves(Pins::LISTEN) }),
        ("unlisten x", Class { flags: Flags::LISTENS, ..WRITE }),
        ("unlisten *", Class { unpins: Pins::LISTEN, flags: Flags::LISTENS, ..WRITE }),
        ("declare c cursor with hold for select 1", leaves(Pins::CURSOR)),
        ("declare c binary scroll cursor without hold for select 1", WRITE),
        ("close all", Class { unpins: Pins::CURSOR, ..WRITE }),
        ("select pg_advisory_lock(1)", leaves(Pins::ADVISORY_LOCK)),
        ("select pg_try_advisory_lock_shared(1, 2)", leaves(Pins::ADVISORY_LOCK)),
        ("select pg_advisory_unlock_all()", Class { unpins: Pins::ADVISORY_LOCK, ..WRITE }),
        ("select pg_advisory_unlock_all() where false", WRITE),
        ("select case when false then pg_advisory_unlock_all() end", WRITE),
        ("prepare p as select 1", leaves(Pins::PREPARE)),
        ("prepare p as select set_config('a', 'b', false)", leaves(Pins::PREPARE.with(set_or_role))),
        ("create temp table t (a int)", leaves(Pins::TEMP)),
        ("create temporary table t (a int) on commit delete rows", leaves(Pins::TEMP)),
        ("create table pg_temp.t (a int)", leaves(Pins::TEMP)),
        ("create temp table t as select 1", leaves(Pins::TEMP)),
        ("select 1 into temp t", leaves(Pins::TEMP)),
        ("create temp view v as select 1", leaves(Pins::TEMP)),
        ("create temp sequence s", leaves(Pins::TEMP)),
        ("create function pg_temp.f() returns int language sql as 'select 1'", leaves(Pins::TEMP)),
        ("select * from pg_temp.t", leaves(Pins::TEMP)),
        ("select * from pg_temp_3.t", leaves(Pins::TEMP)),
        ("insert into pg_temp.t values (1)", leaves(Pins::TEMP)),
        ("select pg_temp.f()", leaves(Pins::TEMP)),
        ("discard temp", Class { unpins: Pins::TEMP, ..WRITE }),
        ("load 'auto_explain'", leaves(Pins::LOAD)),
        ("select currval('s')", leaves(Pins::SEQUENCE)),
        ("select lastval()", leaves(Pins::SEQUENCE)),
        ("select setseed(0.5)", leaves(Pins::SEQUENCE)),
        (
            "discard all",
            Class {
                unpins: Pins::ALL,
                flags: Flags::RESETS_PARAMETERS.with(Flags::DROPS_STATEMENTS).with(Flags::LISTENS),
                ..WRITE
            },
        ),
        (
            "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;",
            Class {
                unpins: Pins::ADVISORY_LOCK.with(Pins::CURSOR).with(Pins::LISTEN).with(Pins::SET),
                flags: Flags::MULTI.with(Flags::RESETS_PARAMETERS).with(Flags::LISTENS),
                ..WRITE
            },
        ),
        (
            "set a = 1; reset all",
            Class { pins: Pins::SET, unpins: Pins::SET, flags: Flags::MULTI.with(Flags::RESETS_PARAMETERS), ..WRITE },
        ),
        (
            // The second statement may fail; the first one has prepared nevertheless.
            "prepare p as select 1; deallocate all",
            Class {
                pins: Pins::PREPARE,
                unpins: Pins::PREPARE,
                flags: Flags::MULTI.with(Flags::DROPS_STATEMENTS),
                ..WRITE
            },
        ),
        (
            "reset all; set a = 1",
            Class { pins: Pins::SET, flags: Flags::MULTI.with(Flags::RESETS_PARAMETERS), ..WRITE },
        ),
        (
            "set role x; reset all",
            Class { pins: Pins::ROLE, unpins: Pins::SET, flags: Flags::MULTI.with(Flags::RESETS_PARAMETERS), ..WRITE },
        ),
    ] {
        assert_eq!(classify(text), want, "{text}");
    }
}

#[test]
fn transactions() {
    let begin = |read_only| Class { control: Control::Begin { read_only }, ..WRITE };
    let one_snapshot = |read_only| Class { flags: Flags::ONE_SNAPSHOT, ..begin(read_only) };
    let inside = Class { flags: Flags::TRANSACTION, ..WRITE };
    let several = Class { flags: Flags::TRANSACTION.with(Flags::MULTI), ..WRITE };
    for (text, want) in [
        ("begin", begin(false)),
        ("BEGIN TRANSACTION", begin(false)),
        ("start transaction", begin(false)),
        ("begin read only", begin(true)),
        ("begin isolation level read committed, not deferrable", begin(false)),
        ("begin isolation level read uncommitted", begin(false)),
        ("begin isolation level repeatable read", one_snapshot(false)),
        ("begin work isolation level repeatable read, read only", one_snapshot(true)),
        ("begin isolation level repeatable read read only deferrable", one_snapshot(true)),
        ("start transaction read only, isolation level serializable", one_snapshot(false)),
        // In doubt.
        ("begin isolation level serializable, isolation level read committed, read only", one_snapshot(true)),
        ("begin read only, read write", begin(false)),
        ("begin read write, read only", begin(true)),
        ("commit", Class { control: Control::Commit, ..WRITE }),
        ("end;", Class { control: Control::Commit, ..WRITE }),
        ("rollback work", Class { control: Control::Rollback, ..WRITE }),
        ("abort", Class { control: Control::Rollback, ..WRITE }),
        ("commit and no chain", Class { control: Control::Commit, ..WRITE }),
        ("commit and chain", inside),
        ("rollback and chain", inside),
        ("prepare transaction 'a'", inside),
        ("commit prepared 'a'", inside),
        ("rollback prepared 'a'", inside),
        ("call p(1)", inside),
        ("do 'begin commit; end'", inside),
        ("do $$begin end$$", inside),
        ("begin; select 1", several),
        ("select 1; commit", several),
        ("begin; commit", several),
        ("savepoint a; select 1", Class { flags: several.flags.with(Flags::SAVEPOINT), ..several }),
        ("savepoint a", Class { flags: Flags::SAVEPOINT, ..WRITE }),
        ("release a", Class { flags: Flags::SAVEPOINT, ..WRITE }),
        ("rollback to a", Class { flags: Flags::SAVEPOINT, ..WRITE }),
    ] {
        assert_eq!(classify(text), want, "{text}");
    }
}

#[test]
fn empty() {
    for text in ["", ";", " ; ;\n", "-- ping", "/* a */"] {
        assert_eq!(classify(text), Class { flags: Flags::EMPTY, ..READ }, "{text}");
    }
}

#[test]
fn hints() {
    assert_eq!(classify("/* kingpost.route=primary */ select 1"), Class { hint: Some(Hint::Primary), ..READ });
    assert_eq!(classify("/*KINGPOST.ROUTE = Replica*/ delete from t").hint, Some(Hint::Replica));
    assert_eq!(classify("/* kingpost.route=auto */ not sql").hint, Some(Hint::Auto));
    assert_eq!(classify("/* kingpost.route=x */ select 1"), READ);
    assert_eq!(classify("select /* kingpost.route=primary */ 1"), READ);
}

#[test]
fn local() {
    let mut classifier = classifier();
    for (text, want) in [
        ("deallocate a", Local::Deallocate("a".into())),
        ("DEALLOCATE PREPARE \"A b\"", Local::Deallocate("A b".into())),
        ("deallocate all", Local::DeallocateAll),
        ("set kingpost.route = 'primary'", Local::Route(Some(Hint::Primary))),
        ("SET SESSION KingPost.Route TO Replica", Local::Route(Some(Hint::Replica))),
        ("set kingpost.route = auto", Local::Route(Some(Hint::Auto))),
        ("set kingpost.route to default", Local::Route(None)),
        ("reset kingpost.route", Local::Route(None)),
        ("set kingpost.consistency = 'Session'", Local::Consistency(Some("session".into()))),
        ("reset kingpost.consistency", Local::Consistency(None)),
        ("set kingpost.token = '2:0/1A2B'", Local::Token(Some("2:0/1a2b".into()))),
        ("reset kingpost.token", Local::Token(None)),
        ("show kingpost.route", Local::Show("route".into())),
        ("SHOW Kingpost.Consistency;", Local::Show("consistency".into())),
    ] {
        let class = classifier.classify(text.as_bytes());
        assert!(class.local, "{text}");
        assert_eq!((class.access, class.pins), (Access::Write, Pins::NONE), "{text}");
        assert_eq!(classifier.local_command(text.as_bytes()), Some(want), "{text}");
    }
    for text in [
        "set kingpost.route = 'nowhere'",
        "set kingpost.route = 5",
        "set kingpost.route = a, b",
        "set kingpost.other = 'a'",
        "reset kingpost.other",
        "set local kingpost.route = 'primary'",
    ] {
        assert!(classifier.classify(text.as_bytes()).local, "{text}");
        assert!(matches!(classifier.local_command(text.as_bytes()), Some(Local::Invalid(_))), "{text}");
    }
    for text in ["select 1", "set a = 1", "show a", "deallocate a; select 1", "reset all", "discard all", "nonsense"] {
        assert!(!classifier.classify(text.as_bytes()).local, "{text}");
        assert_eq!(classifier.local_command(text.as_bytes()), None, "{text}");
    }
    assert_eq!(
        classify("deallocate all"),
        Class { local: true, unpins: Pins::PREPARE, flags: Flags::DROPS_STATEMENTS, ..WRITE }
    );
    assert_eq!(classify("deallocate a"), Class { local: true, flags: Flags::DROPS_STATEMENTS, ..WRITE });
}

/// The literals of a shape do not affect its class.
#[test]
fn one_class_for_all_literals_of_a_shape() {
    let mut classifier = classifier();
    for (first, second, local) in [
        ("set kingpost.route = 'nowhere'", "set kingpost.route = 'primary'", Some(Local::Route(Some(Hint::Primary)))),
        ("select set_config('a', 'b', false)", "select set_config('role', 'c', false)", None),
        ("select pg_advisory_lock(1)", "select pg_advisory_lock(22)", None),
        ("select 'a', 1.5", "select 'it''s', 22.75", None),
    ] {
        let misses = classifier.counters().misses;
        let class = classifier.classify(first.as_bytes());
        assert_eq!(classifier.classify(second.as_bytes()), class, "{second}");
        assert_eq!(classifier.counters().misses, misses + 1, "{second}");
        assert_eq!(whole_class(second), class, "{second}");
        assert_eq!(classifier.local_command(second.as_bytes()), local, "{second}");
    }
}

#[test]
fn depth() {
    let parens = |n: usize| format!("select {}1{}", "(".repeat(n), ")".repeat(n));
    let chain = |word: &str, n: usize| format!("select 1 where {}", vec!["a = 1"; n].join(word));
    assert_eq!(classify(&parens(1_000)).access, Access::Read);
    assert_eq!(classify(&chain(" or ", 1_000)).access, Access::Read);
    assert_eq!(classify(&format!("select {}", vec!["1"; 5_000].join(", "))).access, Access::Read);
    // Only the survival of the process matters; these may be reads or not.
    for text in [
        parens(10_000),
        parens(32_000),
        chain(" or ", 6_000),
        format!("select {}", vec!["1"; 16_000].join("+")),
        format!("select {}1", "-".repeat(3).replace("---", "- ").repeat(10_000)),
        format!("select {}a", "not ".repeat(10_000)),
        format!("select {}1{}", "(select ".repeat(3_000), ")".repeat(3_000)),
        format!("select {}1{}", "f(".repeat(10_000), ")".repeat(10_000)),
        format!("select {}", vec!["select 1"; 3_000].join(" union ")),
        format!("select 1{}", "::int".repeat(10_000)),
        format!("select a{}", "[1]".repeat(10_000)),
        format!("{}select 1", "explain ".repeat(5_000)),
        "/*".repeat(30_000),
        "(".repeat(60_000),
    ] {
        std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || classify(&text)).unwrap().join().unwrap();
    }
}

#[test]
fn not_to_be_parsed() {
    let mut classifier = Classifier::new(ClassifierConfig { max_text: 100, ..ClassifierConfig::default() });
    let long = |text: &str| format!("{text} {}", "x".repeat(100));
    for (text, want) in [
        (long("select 1 from"), WRITE),
        (long("/* kingpost.route=replica */ select 1 from"), Class { hint: Some(Hint::Replica), ..WRITE }),
        (long("insert into t values (1, 'a; set b'); -- "), WRITE),
        (long("insert into t values (1); SET role = b"), leaves(Pins::ALL.with(Pins::LOAD))),
        (long("(select Set_Config('a', 'b', false))"), leaves(Pins::SET.with(Pins::ROLE))),
        (long("create temp table"), leaves(Pins::TEMP)),
        (long("create table"), WRITE),
        (long("begin; delete from"), Class { flags: Flags::TRANSACTION, ..WRITE }),
    ] {
        let class = classifier.classify(text.as_bytes());
        assert_eq!(plain(class), want, "{text}");
        assert!(class.flags.has(Flags::UNKNOWN), "nobody has seen what it calls: {text}");
    }
    assert_eq!(plain(classifier.classify(b"select '\xff'")), WRITE);
    assert_eq!(plain(classifier.classify(b"select \0")), WRITE);
    assert_eq!(plain(classifier.classify(b"select '\0'")), WRITE);
    // None of them affects the class of its shape.
    assert_eq!(classifier.classify(b"select 'a'"), READ);
    // Too deep for the tree's decoder, although the server would run it.
    let deep = format!("select {}; set a = 1", vec!["1"; 200].join("||"));
    assert_eq!(classify(&deep), leaves(Pins::ALL.with(Pins::LOAD)));
}

/// A message of the grammar quotes the text; words in the quoted part are not the message.
#[test]
fn a_text_does_not_speak_for_the_grammar() {
    for words in ["memory exhausted", "stack depth limit exceeded"] {
        assert_eq!(classify(&format!("'{words}'; set a = 1")), WRITE, "{words}");
        assert_eq!(classify(&format!("\"{words}\" x; set a = 1")), WRITE, "{words}");
    }
    // The grammar's own message counts: bison's stack has 10,000 places.
    let deep = format!("select {}1{}; set a = 1", "(".repeat(20_000), ")".repeat(20_000));
    assert!(!classify(&deep).pins.is_empty());
}

#[test]
fn demotion_lasts_for_the_shape() {
    let mut classifier = classifier();
    assert_eq!(classifier.classify(b"select * from v where a = 1").access, Access::Read);
    classifier.demote(b"select * from v where a = 2");
    assert_eq!(classifier.classify(b"select * from v where a = 3").access, Access::Write);
    assert_eq!(classifier.classify(b"select * from w where a = 3").access, Access::Read);
    // Also for a shape that was never requested.
    classifier.demote(b"select * from u");
    assert_eq!(classifier.classify(b"select * from u").access, Access::Write);
}

#[test]
fn the_text_of_a_parse_is_remembered_until_it_is_demoted() {
    let mut classifier = classifier();
    let (read, write) = (b"select * from v where a = $1", b"update v set a = $1");
    for _ in 0..2 {
        assert_eq!(classifier.classify_parsed(read).access, Access::Read);
        let shape = classifier.shape();
        // The text of another client comes in between.
        assert_eq!(classifier.classify(write).access, Access::Write);
        assert_ne!(classifier.shape(), shape);
        assert_eq!(classifier.classify_parsed(read).access, Access::Read);
        assert_eq!(classifier.shape(), shape);
        assert_eq!(classifier.classify_parsed(write).access, Access::Write);
    }
    assert_eq!(classifier.classify_parsed(read).access, Access::Read);
    classifier.demote(read);
    assert_eq!(classifier.classify_parsed(read).access, Access::Write);
}

#[test]
fn the_cache_is_bounded_and_keeps_what_is_used() {
    let mut classifier =
        Classifier::new(ClassifierConfig { max_entries: 100, max_bytes: 1 << 20, ..ClassifierConfig::default() });
    for i in 0..1_000 {
        classifier.classify(b"select hot");
        assert_eq!(classifier.classify(format!("select a{i}").as_bytes()), READ);
        assert_eq!(classifier.classify(format!("insert into a{i} values (1)").as_bytes()).access, Access::Write);
        assert!(classifier.counters().entries <= 100);
    }
    let counters = classifier.counters();
    assert_eq!((counters.entries, counters.misses, counters.hits), (100, 2_001, 999));
    assert_eq!(counters.evictions, 1_901);

    let mut classifier =
        Classifier::new(ClassifierConfig { max_entries: 1_000, max_bytes: 4_096, ..ClassifierConfig::default() });
    for i in 0..200 {
        classifier.classify(format!("select {}{i}", "a".repeat(i)).as_bytes());
        assert!(classifier.counters().bytes <= 4_096);
    }
    assert!(classifier.counters().entries > 5);
    // Larger than the whole cache: answered, not kept.
    assert_eq!(classifier.classify(format!("select {}", "a".repeat(5_000)).as_bytes()), READ);
    let mut none = Classifier::new(ClassifierConfig { max_entries: 0, ..ClassifierConfig::default() });
    assert_eq!(none.classify(b"select 1"), READ);
    assert_eq!(none.counters().entries, 0);
}

#[test]
fn is_send() {
    fn send<T: Send>(_: T) {}
    send(classifier());
}
