"""psycopg 3 at its usual work: parameters, preparing, transactions, pools, COPY, pipelines, cursors, types, cancel."""

import asyncio
import datetime
import decimal
import os
import threading
import uuid

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Json, Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from tap import check, run

URL = os.environ["DATABASE_URL"]


def connect(**more):
    return psycopg.connect(URL, connect_timeout=20, **more)


def table(columns):
    """A new table of our own."""
    name = "psycopg_" + uuid.uuid4().hex[:12]
    with connect(autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE TABLE {} (" + columns + ")").format(sql.Identifier(name)))
    return name


@check
def parameters_and_rows():
    with connect() as conn:
        assert conn.execute("SELECT %s + %s", (40, 2)).fetchone() == (42,)
        assert conn.execute("SELECT %(a)s || %(b)s", {"a": "x", "b": "é✓"}).fetchone() == ("xé✓",)
        assert conn.execute("SELECT %s::int", (None,)).fetchone() == (None,)
        with conn.cursor(row_factory=dict_row) as cur:
            assert cur.execute("SELECT 1 AS a, 'b' AS b").fetchone() == {"a": 1, "b": "b"}
        with conn.cursor(binary=True) as cur:
            assert cur.execute("SELECT %b::int8", (2**40,)).fetchone() == (2**40,)
        rows = conn.execute("SELECT n FROM generate_series(1, 10000) n").fetchall()
        assert [n for (n,) in rows] == list(range(1, 10001))


def preparing(threshold):
    name = table("n int PRIMARY KEY, t text")
    connections = [connect(prepare_threshold=threshold, autocommit=True) for _ in range(8)]
    for turn in range(12):
        for number, conn in enumerate(connections):
            n = turn * 8 + number
            conn.execute(f"INSERT INTO {name} VALUES (%s, %s)", (n, f"row {n}"))
            assert conn.execute(f"SELECT t FROM {name} WHERE n = %s", (n,)).fetchone() == (f"row {n}",)
            assert conn.execute("SELECT %s::int + %s::int", (n, number)).fetchone() == (n + number,)
    if threshold is not None:
        prepared = connections[0]._prepared._names
        assert prepared, "nothing was prepared: this check proves nothing"
    for conn in connections:
        conn.close()


@check
def preparing_at_once():
    preparing(0)


@check
def preparing_after_one_use():
    preparing(1)


@check
def never_preparing():
    preparing(None)


@check
def many_statements_with_a_small_cache():
    with connect(prepare_threshold=0, autocommit=True) as conn:
        conn.prepared_max = 3
        for turn in range(3):
            for n in range(20):
                assert conn.execute(f"SELECT {n} + %s", (turn,)).fetchone() == (n + turn,)


@check
def the_same_text_with_other_types():
    with connect(prepare_threshold=0) as conn:
        for value in (1, "x", 2.5, None, 2**40, b"bytes", datetime.date(2024, 2, 29), decimal.Decimal("1.10")):
            assert conn.execute("SELECT %s", (value,)).fetchone() == (value,)


@check
def transactions():
    name = table("n int PRIMARY KEY")
    with connect() as conn, connect() as other:
        with conn.transaction():
            conn.execute(f"INSERT INTO {name} VALUES (1)")
            try:
                with conn.transaction():
                    conn.execute(f"INSERT INTO {name} VALUES (1)")
            except psycopg.errors.UniqueViolation:
                pass
            else:
                raise AssertionError("a duplicate went in")
            conn.execute(f"INSERT INTO {name} VALUES (2)")
            try:
                with conn.transaction():
                    conn.execute(f"INSERT INTO {name} VALUES (3)")
                    raise psycopg.Rollback
            except psycopg.Rollback:
                pass
        assert conn.execute(f"SELECT array_agg(n ORDER BY n) FROM {name}").fetchone() == ([1, 2],)
        conn.rollback()
        try:
            other.execute("SELECT 1/0")
        except psycopg.errors.DivisionByZero:
            pass
        try:
            other.execute("SELECT 1")
        except psycopg.errors.InFailedSqlTransaction:
            pass
        else:
            raise AssertionError("a failed transaction went on")
        other.rollback()
        assert other.execute("SELECT 1").fetchone() == (1,)
    with connect() as conn:
        conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with conn.transaction():
            assert conn.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
    with connect() as conn:
        # It has written, so a read-only transaction must be where that shows.
        conn.execute(f"INSERT INTO {name} VALUES (4)")
        conn.commit()
        conn.read_only = True
        with conn.transaction():
            assert conn.execute("SHOW transaction_read_only").fetchone() == ("on",)
            assert conn.execute(f"SELECT count(*) FROM {name}").fetchone() == (3,)
        try:
            conn.execute(f"INSERT INTO {name} VALUES (9)")
        except psycopg.errors.ReadOnlySqlTransaction:
            conn.rollback()
        else:
            raise AssertionError("a read-only transaction wrote")


@check
def pool_of_connections():
    name = table("worker int, n int")
    with ConnectionPool(URL, min_size=4, max_size=12, timeout=20) as pool:
        pool.wait(timeout=20)
        failures = []

        def work(worker):
            try:
                for n in range(20):
                    with pool.connection() as conn:
                        conn.execute(f"INSERT INTO {name} VALUES (%s, %s)", (worker, n))
                    # A connection of a pool is another one each time, so what it reads need not be there on a replica.
                    with pool.connection() as conn:
                        sql_text = f"/* kingpost.route=primary */ SELECT count(*) FROM {name} WHERE worker = %s"
                        assert conn.execute(sql_text, (worker,)).fetchone() == (n + 1,)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures, failures
        with pool.connection() as conn:
            assert conn.execute(f"/* kingpost.route=primary */ SELECT count(*) FROM {name}").fetchone() == (200,)


@check
async def async_pool():
    async with AsyncConnectionPool(URL, min_size=2, max_size=8, open=False, timeout=20) as pool:

        async def work(n):
            async with pool.connection() as conn:
                cur = await conn.execute("SELECT %s::int * 2", (n,))
                assert await cur.fetchone() == (n * 2,)

        await asyncio.gather(*(work(n) for n in range(100)))


@check
def copy_in_and_out():
    name = table("n int, t text, d date")
    with connect() as conn, conn.cursor() as cur:
        with cur.copy(f"COPY {name} FROM STDIN") as copy:
            for n in range(5000):
                copy.write_row((n, f"tab\tnewline\n{n}", datetime.date(2024, 1, 1)))
        with cur.copy(f"COPY {name} FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "text", "date"])
            for n in range(5000, 6000):
                copy.write_row((n, None, datetime.date(2024, 1, 2)))
        with cur.copy(f"COPY (SELECT * FROM {name} ORDER BY n) TO STDOUT") as copy:
            copy.set_types(["int4", "text", "date"])
            rows = list(copy.rows())
        assert len(rows) == 6000 and rows[7] == (7, "tab\tnewline\n7", datetime.date(2024, 1, 1)), rows[:8]
        try:
            with cur.copy(f"COPY {name} FROM STDIN") as copy:
                copy.write_row((1, "x", None))
                raise KeyError("on purpose")
        except KeyError:
            conn.rollback()
        assert conn.execute("SELECT 1").fetchone() == (1,)


@check
def pipeline_mode():
    name = table("n int PRIMARY KEY")
    with connect(autocommit=True) as conn:
        with conn.pipeline() as pipeline:
            cursors = [conn.execute("SELECT %s::int", (n,)) for n in range(100)]
            pipeline.sync()
            assert [cur.fetchone()[0] for cur in cursors] == list(range(100))
            conn.execute(f"INSERT INTO {name} VALUES (1)")
        try:
            with conn.pipeline():
                conn.execute(f"INSERT INTO {name} VALUES (1)")
                conn.execute(f"INSERT INTO {name} VALUES (1000)")
        except psycopg.errors.UniqueViolation:
            pass
        else:
            raise AssertionError("a duplicate went in")
        assert conn.execute("SELECT 7").fetchone() == (7,)
        with conn.pipeline(), conn.transaction():
            for n in range(2, 50):
                conn.execute(f"INSERT INTO {name} VALUES (%s)", (n,))
        assert conn.execute(f"SELECT count(*) FROM {name}").fetchone() == (49,)


@check
def executemany():
    name = table("n int, t text")
    with connect() as conn:
        with conn.cursor() as cur:
            cur.executemany(f"INSERT INTO {name} VALUES (%s, %s)", [(n, str(n)) for n in range(1000)])
            assert cur.rowcount == 1000
            cur.executemany(f"INSERT INTO {name} VALUES (%s, 'r') RETURNING n", [(n,) for n in range(3)], returning=True)
            seen = []
            while True:
                seen.append(cur.fetchone()[0])
                if not cur.nextset():
                    break
            assert seen == [0, 1, 2]


@check
def server_side_cursors():
    with connect() as conn:
        with conn.cursor(name="portions") as cur:
            cur.execute("SELECT n FROM generate_series(1, 1000) n")
            cur.itersize = 100
            assert [n for (n,) in cur] == list(range(1, 1001))
        with conn.cursor(name="scrolls", scrollable=True) as cur:
            cur.execute("SELECT n FROM generate_series(1, 100) n")
            cur.scroll(50)
            assert cur.fetchone() == (51,)
            cur.scroll(0, mode="absolute")
            assert cur.fetchmany(2) == [(1,), (2,)]
    with connect(autocommit=True) as conn:
        with conn.cursor(name="held", withhold=True) as cur:
            cur.execute("SELECT n FROM generate_series(1, 10) n")
            assert cur.fetchmany(3) == [(1,), (2,), (3,)]
            assert conn.execute("SELECT 1").fetchone() == (1,)
            assert cur.fetchall() == [(n,) for n in range(4, 11)]
        streamed = conn.cursor().stream("SELECT n FROM generate_series(1, 1000) n")
        assert [n for (n,) in streamed] == list(range(1, 1001))


@check
def notices_and_notifications():
    with connect(autocommit=True) as conn, connect(autocommit=True) as other:
        notices = []
        conn.add_notice_handler(lambda notice: notices.append((notice.severity, notice.message_primary)))
        conn.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
        assert notices == [("NOTICE", "one"), ("WARNING", "two")], notices
        conn.execute("LISTEN psycopg_channel")
        other.execute("NOTIFY psycopg_channel, 'hello'")
        heard = list(conn.notifies(timeout=20, stop_after=1))
        assert [(notify.channel, notify.payload) for notify in heard] == [("psycopg_channel", "hello")]
        assert heard[0].pid != conn.info.backend_pid
        with conn.transaction():
            conn.execute("LISTEN psycopg_second")
        with other.transaction():
            other.execute("NOTIFY psycopg_second, 'one'")
            other.execute("NOTIFY psycopg_channel, 'two'")
        heard = list(conn.notifies(timeout=20, stop_after=2))
        assert [notify.payload for notify in heard] == ["one", "two"]
        conn.execute("UNLISTEN *")


def cancelling(cancel):
    with connect(autocommit=True) as conn, connect() as holder:
        holder.execute("SELECT pg_advisory_xact_lock(7100)")
        failure = []

        def blocked():
            try:
                conn.execute("SELECT pg_advisory_xact_lock(7100)")
            except psycopg.errors.QueryCanceled as error:
                failure.append(error)

        thread = threading.Thread(target=blocked)
        thread.start()
        with connect(autocommit=True) as watcher:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7100 AND NOT granted"
            while watcher.execute("/* kingpost.route=primary */ " + waiting).fetchone() != (1,):
                assert thread.is_alive()
        cancel(conn)
        thread.join(30)
        assert len(failure) == 1
        assert conn.execute("SELECT 7").fetchone() == (7,)


@check
def cancel():
    cancelling(lambda conn: conn.cancel())


@check
def cancel_safe():
    cancelling(lambda conn: conn.cancel_safe(timeout=20))


@check
def json_arrays_and_dates():
    tz = datetime.timezone(datetime.timedelta(hours=2))
    values = [
        (Json({"a": [1, 2, {"b": None}]}), "json", {"a": [1, 2, {"b": None}]}),
        (Jsonb([1, "zwei", 3.5]), "jsonb", [1, "zwei", 3.5]),
        ([1, None, 3], "int[]", [1, None, 3]),
        ([["a", "b,"], ['"c"', "{d}"]], "text[]", [["a", "b,"], ['"c"', "{d}"]]),
        (datetime.date(1066, 10, 14), "date", datetime.date(1066, 10, 14)),
        (datetime.datetime(2024, 2, 29, 12, 30, 1, 5), "timestamp", datetime.datetime(2024, 2, 29, 12, 30, 1, 5)),
        (datetime.datetime(2024, 2, 29, 12, 0, tzinfo=tz), "timestamptz", datetime.datetime(2024, 2, 29, 12, 0, tzinfo=tz)),
        (datetime.timedelta(days=3, seconds=5), "interval", datetime.timedelta(days=3, seconds=5)),
        (decimal.Decimal("12345678901234567890.123456789"), "numeric", decimal.Decimal("12345678901234567890.123456789")),
        (uuid.UUID(int=2**100), "uuid", uuid.UUID(int=2**100)),
        (bytes(range(256)), "bytea", bytes(range(256))),
        (True, "bool", True),
    ]
    with connect() as conn:
        for binary in (False, True):
            for value, kind, expected in values:
                (seen,) = conn.cursor(binary=binary).execute(f"SELECT %s::{kind}", (value,)).fetchone()
                assert seen == expected, (kind, seen)


@check
def session_settings():
    with connect(autocommit=True, application_name="psycopg tests", options="-c statement_timeout=77s") as conn:
        for _ in range(5):
            assert conn.execute("SHOW application_name").fetchone() == ("psycopg tests",)
            assert conn.execute("SHOW statement_timeout").fetchone() == ("77s",)
        conn.execute("SET TIME ZONE 'Asia/Tokyo'")
        assert conn.info.timezone.key == "Asia/Tokyo"
        assert conn.execute("SELECT '2024-01-01 00:00+00'::timestamptz").fetchone()[0].hour == 9


@check
def many_sessions_with_settings_of_their_own():
    # More than there are server connections: none of them keeps one for what it has set.
    zones = ["Australia/Sydney", "Asia/Tokyo", "America/New_York", "Europe/Berlin"]
    connections = [connect(autocommit=True) for _ in range(12)]
    for number, conn in enumerate(connections):
        conn.execute(f"SET application_name = 'session {number}'")
        conn.execute("SELECT set_config('TimeZone', %s, false)", (zones[number % 4],))
        with conn.transaction():
            conn.execute(f"SET statement_timeout = '{100 + number}s'")
            conn.execute("SET LOCAL work_mem = '7MB'")
        try:
            with conn.transaction():
                conn.execute("SET statement_timeout = '1s'")
                raise KeyError
        except KeyError:
            pass
    for _ in range(3):
        for number, conn in enumerate(connections):
            assert conn.info.timezone.key == zones[number % 4]
            for name, expected in [
                ("application_name", f"session {number}"),
                ("TimeZone", zones[number % 4]),
                ("statement_timeout", f"{100 + number}s"),
                ("work_mem", "4MB"),
            ]:
                assert conn.execute("SELECT current_setting(%s)", (name,)).fetchone() == (expected,), name
    for conn in connections:
        conn.close()


@check
def errors_keep_the_connection():
    with connect(autocommit=True) as conn:
        for text, error in (
            ("SELEC 1", psycopg.errors.SyntaxError),
            ("SELECT * FROM no_such_table", psycopg.errors.UndefinedTable),
            ("SELECT 'x'::int", psycopg.errors.InvalidTextRepresentation),
        ):
            try:
                conn.execute(text)
            except error as seen:
                assert seen.diag.message_primary
            else:
                raise AssertionError(text)
            assert conn.execute("SELECT 7").fetchone() == (7,)


if os.environ.get("DATABASE_TLS_URL"):

    @check
    def tls_where_it_is_offered():
        # Without sslmode libpq prefers TLS.
        for more in ({}, {"sslmode": "require"}, {"sslmode": "require", "channel_binding": "require"}):
            with psycopg.connect(os.environ["DATABASE_TLS_URL"], **more) as conn:
                assert conn.pgconn.ssl_in_use
                assert conn.execute("SELECT 7").fetchone() == (7,)


run()
