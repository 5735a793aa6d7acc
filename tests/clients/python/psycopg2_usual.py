"""psycopg2 at its usual work: parameters on the client's side, cursors, transactions, COPY, notices, large objects, cancel."""

import datetime
import decimal
import io
import os
import select
import threading
import uuid

import psycopg2
import psycopg2.errors
import psycopg2.extensions
import psycopg2.extras
import psycopg2.pool
from psycopg2 import sql

from tap import check, run

URL = os.environ["DATABASE_URL"]


def connect(url=URL, autocommit=False, **more):
    conn = psycopg2.connect(url, connect_timeout=20, **more)
    conn.autocommit = autocommit
    return conn


def one(conn, text, arguments=None):
    with conn.cursor() as cur:
        cur.execute(text, arguments)
        return cur.fetchone()


def table(columns):
    name = "psycopg2_" + uuid.uuid4().hex[:12]
    conn = connect(autocommit=True)
    with conn.cursor() as cur:
        cur.execute(sql.SQL("CREATE TABLE {} (" + columns + ")").format(sql.Identifier(name)))
    conn.close()
    return name


@check
def parameters_rows_and_types():
    psycopg2.extras.register_uuid()
    conn = connect()
    day = datetime.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=datetime.timezone.utc)
    for value in (1, 2**40, "x'é✓\\", 2.5, None, True, decimal.Decimal("1.10"), day, day.date(), [1, 2], ["a", None], uuid.UUID(int=5)):
        assert one(conn, "SELECT %s", (value,))[0] == value, value
    assert bytes(one(conn, "SELECT %s", (psycopg2.Binary(bytes(range(256))),))[0]) == bytes(range(256))
    assert one(conn, "SELECT %s::jsonb", (psycopg2.extras.Json({"a": [1, None]}),))[0] == {"a": [1, None]}
    with conn.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cur:
        cur.execute("SELECT %(a)s AS a, 'b' AS b", {"a": 1})
        assert dict(cur.fetchone()) == {"a": 1, "b": "b"}
    with conn.cursor() as cur:
        cur.execute("SELECT n FROM generate_series(1, 10000) n")
        assert [n for (n,) in cur] == list(range(1, 10001))
        # The answers of all but the last are dropped by the driver.
        cur.execute("SELECT 1; SELECT 2; SELECT 3")
        assert cur.fetchall() == [(3,)]
    conn.close()


@check
def transactions():
    name = table("n int PRIMARY KEY")
    conn = connect()
    with conn, conn.cursor() as cur:
        cur.execute(f"INSERT INTO {name} VALUES (1)")
        cur.execute("SAVEPOINT one")
        try:
            cur.execute(f"INSERT INTO {name} VALUES (1)")
        except psycopg2.errors.UniqueViolation:
            cur.execute("ROLLBACK TO one")
        cur.execute(f"INSERT INTO {name} VALUES (2)")
    assert one(conn, f"SELECT array_agg(n ORDER BY n) FROM {name}") == ([1, 2],)
    conn.rollback()
    try:
        with conn, conn.cursor() as cur:
            cur.execute(f"INSERT INTO {name} VALUES (3)")
            raise KeyError("on purpose")
    except KeyError:
        pass
    assert one(conn, f"SELECT count(*) FROM {name}") == (2,)
    conn.rollback()
    conn.set_session(isolation_level="SERIALIZABLE", readonly=True, deferrable=True)
    assert one(conn, "SHOW transaction_isolation") == ("serializable",)
    assert one(conn, "SHOW transaction_read_only") == ("on",)
    assert one(conn, f"SELECT count(*) FROM {name}") == (2,)
    conn.rollback()
    try:
        one(conn, f"INSERT INTO {name} VALUES (4) RETURNING n")
    except psycopg2.errors.ReadOnlySqlTransaction:
        conn.rollback()
    else:
        raise AssertionError("a read-only transaction wrote")
    conn.close()
    # The same by default_transaction_… of the session: set_session in autocommit sends SET.
    conn = connect(autocommit=True)
    conn.set_session(isolation_level="REPEATABLE READ")
    for _ in range(5):
        assert one(conn, "SHOW default_transaction_isolation") == ("repeatable read",)
    conn.close()


@check
def cursors_on_the_server():
    conn = connect()
    with conn.cursor("portions") as cur:
        cur.itersize = 100
        cur.execute("SELECT n FROM generate_series(1, 1000) n")
        assert [n for (n,) in cur] == list(range(1, 1001))
    with conn.cursor("scrolls", scrollable=True) as cur:
        cur.execute("SELECT n FROM generate_series(1, 100) n")
        cur.scroll(50)
        assert cur.fetchone() == (51,)
    with conn.cursor("held", withhold=True) as cur:
        cur.execute("SELECT n FROM generate_series(1, 10) n")
        conn.commit()
        assert cur.fetchmany(3) == [(1,), (2,), (3,)]
        assert one(conn, "SELECT 1") == (1,)
        assert len(cur.fetchall()) == 7
    conn.close()


@check
def many_rows_at_once():
    name = table("n int, t text")
    conn = connect()
    with conn, conn.cursor() as cur:
        psycopg2.extras.execute_values(cur, f"INSERT INTO {name} VALUES %s", [(n, str(n)) for n in range(2500)], page_size=500)
        psycopg2.extras.execute_batch(cur, f"UPDATE {name} SET t = %s WHERE n = %s", [("new", n) for n in range(250)])
        cur.executemany(f"INSERT INTO {name} VALUES (%s, %s)", [(n, "m") for n in range(2500, 2600)])
    assert one(conn, f"SELECT count(*), count(*) FILTER (WHERE t = 'new') FROM {name}") == (2600, 250)
    conn.close()


@check
def copy():
    name = table("n int, t text")
    conn = connect()
    with conn, conn.cursor() as cur:
        cur.copy_expert(f"COPY {name} FROM STDIN", io.StringIO("".join(f"{n}\trow {n}\n" for n in range(5000))))
        assert cur.rowcount == 5000
        out = io.StringIO()
        cur.copy_expert(f"COPY (SELECT * FROM {name} ORDER BY n) TO STDOUT (FORMAT csv)", out)
        assert out.getvalue().startswith("0,row 0\n1,row 1\n") and out.getvalue().count("\n") == 5000
    try:
        with conn.cursor() as cur:
            cur.copy_expert(f"COPY {name} FROM STDIN", io.StringIO("not a number\tx\n"))
    except psycopg2.errors.InvalidTextRepresentation:
        conn.rollback()
    else:
        raise AssertionError("COPY took what is not a number")
    assert one(conn, "SELECT 7") == (7,)
    conn.close()


@check
def notices_and_notifications():
    conn, other = connect(autocommit=True), connect(autocommit=True)
    with conn.cursor() as cur:
        cur.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    assert [notice.split(":")[1].strip() for notice in conn.notices] == ["one", "two"]
    channel = "psycopg2_" + uuid.uuid4().hex[:8]
    with conn.cursor() as cur:
        cur.execute(f"LISTEN {channel}")
    with other.cursor() as cur:
        for n in range(3):
            cur.execute(f"NOTIFY {channel}, '{n}'")
    heard = []
    while len(heard) < 3:
        assert select.select([conn], [], [], 20)[0], f"heard only {heard}"
        conn.poll()
        while conn.notifies:
            heard.append(conn.notifies.pop(0).payload)
    assert heard == ["0", "1", "2"]
    conn.close()
    other.close()


@check
def large_objects():
    conn = connect()
    data = bytes(range(256)) * 2000
    lobject = conn.lobject(0, "wb")
    lobject.write(data)
    lobject.close()
    conn.commit()
    again = conn.lobject(lobject.oid, "rb")
    again.seek(256)
    assert again.read(256) == bytes(range(256))
    again.seek(0)
    assert again.read() == data
    again.unlink()
    conn.commit()
    conn.close()


@check
def cancelling():
    conn = connect()
    for _ in range(3):
        timer = threading.Timer(0.2, conn.cancel)
        timer.start()
        try:
            one(conn, "SELECT pg_sleep(600)")
        except psycopg2.errors.QueryCanceled:
            conn.rollback()
        else:
            raise AssertionError("slept for ten minutes")
        timer.join()
        assert one(conn, "SELECT 7") == (7,)
        conn.rollback()
    conn.close()


@check
def pool_in_threads():
    name = table("worker int, n int")
    pool = psycopg2.pool.ThreadedConnectionPool(2, 12, URL)
    failures = []

    def work(worker):
        try:
            for n in range(20):
                conn = pool.getconn()
                with conn, conn.cursor() as cur:
                    cur.execute(f"INSERT INTO {name} VALUES (%s, %s)", (worker, n))
                    # In the transaction, so on the connection that wrote.
                    cur.execute(f"SELECT count(*) FROM {name} WHERE worker = %s", (worker,))
                    assert cur.fetchone() == (n + 1,)
                pool.putconn(conn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    pool.closeall()


@check
def settings_of_the_session():
    conn = connect(autocommit=True, application_name="psycopg2 tests", options="-c statement_timeout=77s -c search_path=nowhere,public")
    with conn.cursor() as cur:
        cur.execute("SET TIME ZONE 'Asia/Tokyo'")
    for _ in range(8):
        assert one(conn, "SHOW application_name") == ("psycopg2 tests",)
        assert one(conn, "SHOW statement_timeout") == ("77s",)
        assert one(conn, "SHOW search_path") == ("nowhere,public",)
        assert one(conn, "SELECT extract(hour FROM '2024-01-01 00:00+00'::timestamptz)::int") == (9,)
    assert conn.get_parameter_status("TimeZone") == "Asia/Tokyo"
    conn.set_client_encoding("LATIN1")
    assert one(conn, "SELECT 'é'") == ("é",)
    assert conn.encoding == "LATIN1"
    # What its pool does before somebody else gets it.
    conn.reset()
    assert one(conn, "SHOW statement_timeout") == ("77s",)
    conn.close()


@check
def errors_keep_the_connection():
    conn = connect(autocommit=True)
    for text, error in (
        ("SELEC 1", psycopg2.errors.SyntaxError),
        ("SELECT * FROM no_such_table", psycopg2.errors.UndefinedTable),
        ("SELECT 'x'::int", psycopg2.errors.InvalidTextRepresentation),
    ):
        try:
            one(conn, text)
        except error as seen:
            assert seen.pgcode and seen.diag.message_primary
        else:
            raise AssertionError(text)
        assert one(conn, "SELECT 7") == (7,)
    conn.close()


@check
def asynchronous_connection():
    def wait(conn):
        while (state := conn.poll()) != psycopg2.extensions.POLL_OK:
            read, write = state == psycopg2.extensions.POLL_READ, state == psycopg2.extensions.POLL_WRITE
            assert any(select.select([conn] if read else [], [conn] if write else [], [], 20)), "no answer"

    conn = psycopg2.connect(URL, async_=True)
    wait(conn)
    cur = conn.cursor()
    for n in range(20):
        cur.execute("SELECT %s", (n,))
        wait(conn)
        assert cur.fetchone() == (n,)
    conn.close()


if os.environ.get("DATABASE_TLS_URL"):

    @check
    def tls_where_it_is_offered():
        # Without sslmode libpq prefers TLS.
        for more in ({}, {"sslmode": "require"}):
            conn = connect(os.environ["DATABASE_TLS_URL"], **more)
            assert conn.info.ssl_in_use
            assert one(conn, "SELECT 7") == (7,)
            conn.close()


run()
