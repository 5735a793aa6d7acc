//! Statements that clients, tools and ORMs send on their own.

use sql::{Access, Classifier, ClassifierConfig, Control};

fn access(text: &str) -> Access {
    Classifier::new(ClassifierConfig::default()).classify(text.as_bytes()).access
}

/// The catalog queries of psql (`\d`, `\dt`, `\l`, `\d table`, `\df`, `\dn`, `\du`), in the form of PostgreSQL 15.
const PSQL: [&str; 8] = [
    r#"SELECT n.nspname as "Schema", c.relname as "Name",
  CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' END as "Type",
  pg_catalog.pg_get_userbyid(c.relowner) as "Owner"
FROM pg_catalog.pg_class c
     LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.relkind IN ('r','p','')
      AND n.nspname <> 'pg_catalog'
      AND n.nspname !~ '^pg_toast'
  AND pg_catalog.pg_table_is_visible(c.oid)
ORDER BY 1,2;"#,
    r#"SELECT d.datname as "Name", pg_catalog.pg_get_userbyid(d.datdba) as "Owner",
  pg_catalog.pg_encoding_to_char(d.encoding) as "Encoding",
  CASE d.datlocprovider WHEN 'c' THEN 'libc' WHEN 'i' THEN 'icu' END AS "Locale Provider",
  pg_catalog.array_to_string(d.datacl, E'\n') AS "Access privileges"
FROM pg_catalog.pg_database d ORDER BY 1;"#,
    r#"SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c
     LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default
  AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 2, 3;"#,
    r#"SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
  (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d
   WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef),
  a.attnotnull, (SELECT c.collname FROM pg_catalog.pg_collation c, pg_catalog.pg_type t
   WHERE c.oid = a.attcollation AND t.oid = a.atttypid AND a.attcollation <> t.typcollation) AS attcollation,
  a.attidentity, a.attgenerated
FROM pg_catalog.pg_attribute a WHERE a.attrelid = '16385' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum;"#,
    r#"SELECT c2.relname, i.indisprimary, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true),
  pg_catalog.pg_get_constraintdef(con.oid, true), contype, c2.reltablespace
FROM pg_catalog.pg_class c, pg_catalog.pg_class c2, pg_catalog.pg_index i
  LEFT JOIN pg_catalog.pg_constraint con ON (conrelid = i.indrelid AND conindid = i.indexrelid AND contype IN ('p','u','x'))
WHERE c.oid = '16385' AND c.oid = i.indrelid AND i.indexrelid = c2.oid ORDER BY i.indisprimary DESC, c2.relname;"#,
    r#"SELECT n.nspname as "Schema", p.proname as "Name", pg_catalog.pg_get_function_result(p.oid) as "Result",
  pg_catalog.pg_get_function_arguments(p.oid) as "Arguments"
FROM pg_catalog.pg_proc p LEFT JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE pg_catalog.pg_function_is_visible(p.oid) ORDER BY 1, 2, 4;"#,
    r#"SELECT n.nspname AS "Name", pg_catalog.pg_get_userbyid(n.nspowner) AS "Owner" FROM pg_catalog.pg_namespace n
WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' ORDER BY 1;"#,
    r#"SELECT r.rolname, ARRAY(SELECT b.rolname FROM pg_catalog.pg_auth_members m
  JOIN pg_catalog.pg_roles b ON (m.roleid = b.oid) WHERE m.member = r.oid) as memberof
FROM pg_catalog.pg_roles r WHERE r.rolname !~ '^pg_' ORDER BY 1;"#,
];

const ORMS: [&str; 8] = [
    // Django
    r#"SELECT c.relname, CASE WHEN c.relispartition THEN 'p' WHEN c.relkind IN ('m', 'v') THEN 'v' ELSE 't' END,
  obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('f', 'm', 'p', 'r', 'v') AND n.nspname NOT IN ('pg_catalog', 'pg_toast')
  AND pg_catalog.pg_table_is_visible(c.oid)"#,
    r#"SELECT "django_migrations"."id", "django_migrations"."app", "django_migrations"."applied" FROM "django_migrations""#,
    r#"SELECT (1) AS "a" FROM "auth_user" WHERE "auth_user"."id" = 1 LIMIT 1"#,
    r#"SELECT COUNT(*) FROM (SELECT DISTINCT "t"."a" AS "col1" FROM "t" WHERE UPPER("t"."b"::text) LIKE UPPER('%x%')) subquery"#,
    // SQLAlchemy
    "select pg_catalog.version()",
    "select current_schema()",
    r"SELECT pg_catalog.pg_class.relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace
  ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.relkind = ANY (ARRAY['r', 'p']) AND pg_catalog.pg_class.relpersistence != 't'
  AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != 'pg_catalog'",
    // ActiveRecord
    r#"SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), a.attnotnull,
  col_description(a.attrelid, a.attnum) AS comment FROM pg_attribute a
LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE a.attrelid = '"users"'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"#,
];

const BENCHMARKS: [&str; 8] = [
    "SELECT abalance FROM pgbench_accounts WHERE aid = 5;",
    "select o.n, p.partstrat, pg_catalog.count(i.inhparent) from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on (n.oid = c.relnamespace) cross join lateral (select pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)) as o(n) left join pg_catalog.pg_partitioned_table as p on (p.partrelid = c.oid) left join pg_catalog.pg_inherits as i on (c.oid = i.inhparent) where c.relname = 'pgbench_accounts' and o.n is not null group by 1, 2 order by 1 asc limit 1",
    "SELECT c FROM sbtest1 WHERE id=$1",
    "SELECT c FROM sbtest1 WHERE id BETWEEN $1 AND $2",
    "SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN 5 AND 104",
    "SELECT c FROM sbtest1 WHERE id BETWEEN 5 AND 104 ORDER BY c",
    "SELECT DISTINCT c FROM sbtest1 WHERE id BETWEEN 5 AND 104 ORDER BY c",
    "select count(*) from pgbench_branches",
];

const WRITES: [&str; 7] = [
    "UPDATE pgbench_accounts SET abalance = abalance + -5 WHERE aid = 5;",
    "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 2, 3, 4, CURRENT_TIMESTAMP);",
    "vacuum pgbench_branches",
    "DELETE FROM sbtest1 WHERE id=5",
    "SHOW transaction isolation level",
    "show standard_conforming_strings",
    "SELECT nextval('users_id_seq'::regclass)",
];

#[test]
fn introspection_and_benchmarks() {
    for text in PSQL.iter().chain(&ORMS).chain(&BENCHMARKS) {
        assert_eq!(access(text), Access::Read, "{text}");
    }
    for text in WRITES {
        assert_eq!(access(text), Access::Write, "{text}");
    }
}

#[test]
fn drivers_begin() {
    let mut classifier = Classifier::new(ClassifierConfig::default());
    for (text, read_only) in [
        ("BEGIN", false),
        ("BEGIN ISOLATION LEVEL READ COMMITTED", false),
        ("BEGIN READ ONLY", true),
        ("begin isolation level repeatable read read only", true),
        ("START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;", true),
    ] {
        assert_eq!(classifier.classify(text.as_bytes()).control, Control::Begin { read_only }, "{text}");
    }
}
