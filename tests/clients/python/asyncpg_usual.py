"""asyncpg at its usual work, with its statement cache as it comes: it prepares every statement by name."""

import asyncio
import datetime
import decimal
import json
import os
import uuid

import asyncpg

from tap import check, run

URL = os.environ["DATABASE_URL"]


async def connect(**more):
    return await asyncpg.connect(URL, timeout=20, **more)


async def table(conn, columns):
    name = "asyncpg_" + uuid.uuid4().hex[:12]
    await conn.execute(f"CREATE TABLE {name} ({columns})")
    return name


@check
async def parameters_and_rows():
    conn = await connect()
    assert await conn.fetchval("SELECT $1::int + $2::int", 40, 2) == 42
    assert dict(await conn.fetchrow("SELECT 1 AS a, 'é✓' AS b")) == {"a": 1, "b": "é✓"}
    assert [row[0] for row in await conn.fetch("SELECT n FROM generate_series(1, 10000) n")] == list(range(1, 10001))
    assert await conn.execute("SELECT 1") == "SELECT 1"
    await conn.close()


async def caching(**settings):
    connections = await asyncio.gather(*(connect(**settings) for _ in range(10)))
    name = await table(connections[0], "n int PRIMARY KEY, t text")

    async def work(number, conn):
        for turn in range(20):
            n = turn * 10 + number
            await conn.execute(f"INSERT INTO {name} VALUES ($1, $2)", n, f"row {n}")
            assert await conn.fetchval(f"SELECT t FROM {name} WHERE n = $1", n) == f"row {n}"
            assert await conn.fetchval("SELECT $1::int + $2::int", n, number) == n + number

    await asyncio.gather(*(work(number, conn) for number, conn in enumerate(connections)))
    await asyncio.gather(*(conn.close() for conn in connections))


@check
async def statement_cache():
    await caching()


@check
async def statement_cache_off():
    await caching(statement_cache_size=0)


@check
async def statement_cache_of_two():
    await caching(statement_cache_size=2)


@check
async def prepared_by_hand():
    conn = await connect()
    statement = await conn.prepare("SELECT $1::int * 2, $2::text")
    assert [str(kind.name) for kind in statement.get_parameters()] == ["int4", "text"]
    for n in range(20):
        assert tuple(await statement.fetchrow(n, str(n))) == (n * 2, str(n))
    assert (await statement.explain(1, "x"))[0]["Plan"]["Node Type"] == "Result"
    await conn.close()


@check
async def transactions():
    conn = await connect()
    name = await table(conn, "n int PRIMARY KEY")
    async with conn.transaction():
        await conn.execute(f"INSERT INTO {name} VALUES (1)")
        try:
            async with conn.transaction():
                await conn.execute(f"INSERT INTO {name} VALUES (1)")
        except asyncpg.UniqueViolationError:
            pass
        else:
            raise AssertionError("a duplicate went in")
        await conn.execute(f"INSERT INTO {name} VALUES (2)")
    assert await conn.fetchval(f"SELECT array_agg(n ORDER BY n) FROM {name}") == [1, 2]
    try:
        async with conn.transaction():
            await conn.execute(f"INSERT INTO {name} VALUES (3)")
            raise KeyError("on purpose")
    except KeyError:
        pass
    assert await conn.fetchval(f"SELECT count(*) FROM {name}") == 2
    async with conn.transaction(isolation="serializable", readonly=True, deferrable=True):
        assert await conn.fetchval(f"SELECT count(*) FROM {name}") == 2
    try:
        async with conn.transaction(readonly=True):
            await conn.execute(f"INSERT INTO {name} VALUES (9)")
    except asyncpg.ReadOnlySQLTransactionError:
        pass
    else:
        raise AssertionError("a read-only transaction wrote")
    await conn.close()


@check
async def pool():
    async with asyncpg.create_pool(URL, min_size=5, max_size=15, timeout=20) as pool:
        async with pool.acquire() as conn:
            name = await table(conn, "n int PRIMARY KEY")

        async def work(n):
            async with pool.acquire() as conn:
                async with conn.transaction():
                    await conn.execute(f"INSERT INTO {name} VALUES ($1)", n)
                assert await conn.fetchval(f"SELECT count(*) FROM {name} WHERE n = $1", n) == 1

        await asyncio.gather(*(work(n) for n in range(200)))
        assert await pool.fetchval(f"/* kingpost.route=primary */ SELECT count(*) FROM {name}") == 200


@check
async def copy():
    conn = await connect()
    name = await table(conn, "n int, t text")
    records = [(n, f"row\t{n}\n") for n in range(5000)]
    assert await conn.copy_records_to_table(name, records=records) == "COPY 5000"
    chunks = []

    async def collect(chunk):
        chunks.append(chunk)

    assert await conn.copy_from_query(f"SELECT * FROM {name} ORDER BY n", output=collect, format="csv") == "COPY 5000"
    text = b"".join(chunks)
    assert text.startswith(b'0,"row\t0\n"\n1,'), text[:40]

    async def source():
        for at in range(0, len(text), 7777):
            yield text[at : at + 7777]

    assert await conn.copy_to_table(name, source=source(), format="csv") == "COPY 5000"
    assert await conn.fetchval(f"SELECT count(*) FROM {name}") == 10000
    await conn.close()


@check
async def executemany():
    conn = await connect()
    name = await table(conn, "n int PRIMARY KEY, t text")
    await conn.executemany(f"INSERT INTO {name} VALUES ($1, $2)", [(n, str(n)) for n in range(2000)])
    assert await conn.fetchval(f"SELECT sum(n) FROM {name}") == sum(range(2000))
    try:
        await conn.executemany(f"INSERT INTO {name} VALUES ($1, 'x')", [(5000,), (1,)])
    except asyncpg.UniqueViolationError:
        pass
    else:
        raise AssertionError("a duplicate went in")
    assert await conn.fetchval(f"SELECT count(*) FROM {name}") == 2000, "half of an executemany stayed"
    rows = await conn.fetchmany(f"INSERT INTO {name} VALUES ($1, 'y') RETURNING n", [(n,) for n in range(6000, 6010)])
    assert [row[0] for row in rows] == list(range(6000, 6010))
    await conn.close()


@check
async def cursors():
    conn = await connect()
    async with conn.transaction():
        seen = [row[0] async for row in conn.cursor("SELECT n FROM generate_series(1, 1000) n", prefetch=70)]
        assert seen == list(range(1, 1001))
        cursor = await conn.cursor("SELECT n FROM generate_series(1, 100) n")
        assert await cursor.forward(10) == 10
        assert [row[0] for row in await cursor.fetch(3)] == [11, 12, 13]
    await conn.close()


@check
async def notices_and_notifications():
    conn, other = await connect(), await connect()
    notices = []
    conn.add_log_listener(lambda _, message: notices.append(message.message))
    await conn.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    while len(notices) < 2:
        await asyncio.sleep(0)
    assert notices == ["one", "two"]
    heard = asyncio.get_running_loop().create_future()
    await conn.add_listener("asyncpg_channel", lambda *message: heard.done() or heard.set_result(message[2:]))
    await other.execute("NOTIFY asyncpg_channel, 'hello'")
    assert await asyncio.wait_for(heard, 20) == ("asyncpg_channel", "hello")
    await conn.close()
    await other.close()


@check
async def cancel_by_time_out():
    conn = await connect()
    for _ in range(3):
        try:
            await conn.fetchval("SELECT pg_sleep(600)", timeout=0.2)
        except asyncio.TimeoutError:
            pass
        else:
            raise AssertionError("slept for ten minutes")
        assert await conn.fetchval("SELECT 7") == 7
    await conn.close()


@check
async def json_arrays_and_dates():
    conn = await connect()
    await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    utc = datetime.timezone.utc
    for kind, value in (
        ("jsonb", {"a": [1, 2, {"b": None}]}),
        ("int[]", [1, None, 3]),
        ("text[]", [["a", "b,"], ['"c"', "{d}"]]),
        ("date", datetime.date(1066, 10, 14)),
        ("timestamp", datetime.datetime(2024, 2, 29, 12, 30, 1, 5)),
        ("timestamptz", datetime.datetime(2024, 2, 29, 12, 30, tzinfo=utc)),
        ("interval", datetime.timedelta(days=3, seconds=5)),
        ("numeric", decimal.Decimal("12345678901234567890.123456789")),
        ("uuid", uuid.UUID(int=2**100)),
        ("bytea", bytes(range(256))),
        ("int4range", asyncpg.Range(1, 5)),
        ("point", asyncpg.Point(1.5, 2.5)),
    ):
        assert await conn.fetchval(f"SELECT $1::{kind}", value) == value, kind
    await conn.close()


@check
async def composite_types_are_looked_up():
    # asyncpg asks the catalogue for types that it does not know, by a statement of its own.
    conn = await connect()
    name = "asyncpg_" + uuid.uuid4().hex[:12]
    await conn.execute(f"CREATE TYPE {name}_mood AS ENUM ('sad', 'glad'); CREATE TYPE {name} AS (n int, mood {name}_mood)")
    assert tuple(await conn.fetchval(f"SELECT ROW(1, 'glad')::{name}")) == (1, "glad")
    assert await conn.fetchval(f"SELECT $1::{name}_mood[]", ["sad", "glad"]) == ["sad", "glad"]
    await conn.close()


@check
async def session_settings():
    conn = await connect(server_settings={"application_name": "asyncpg tests", "search_path": "nowhere,public"})
    for _ in range(5):
        assert await conn.fetchval("SHOW application_name") == "asyncpg tests"
        assert await conn.fetchval("SHOW search_path") == "nowhere,public"
    await conn.execute("SET TIME ZONE 'Asia/Tokyo'")
    assert conn.get_settings().TimeZone == "Asia/Tokyo"
    await conn.reset()
    await conn.close()


@check
async def many_sessions_with_settings_of_their_own():
    # More than there are server connections: none of them keeps one for what it has set.
    connections = [await connect() for _ in range(12)]
    for number, conn in enumerate(connections):
        await conn.execute(f"SET search_path = s{number}, public; SET work_mem = '{5 + number}MB'")
        # As asyncpg itself does while it looks up types.
        await conn.fetchval("SELECT set_config('jit', $1, false)", "off")
    for _ in range(3):
        for number, conn in enumerate(connections):
            assert await conn.fetchval("SHOW search_path") == f"s{number}, public"
            assert await conn.fetchval("SELECT current_setting($1)", "work_mem") == f"{5 + number}MB"
            assert await conn.fetchval("SHOW jit") == "off"
    await connections[0].reset()
    assert await connections[0].fetchval("SHOW work_mem") == "4MB"
    for conn in connections:
        await conn.close()


@check
async def a_table_that_changes():
    # The cached plan's result type changes: asyncpg itself prepares anew once it is told so.
    conn = await connect()
    name = await table(conn, "a int")
    await conn.execute(f"INSERT INTO {name} VALUES (1)")
    assert len(await conn.fetchrow(f"SELECT * FROM {name}")) == 1
    await conn.execute(f"ALTER TABLE {name} ADD COLUMN b int")
    assert len(await conn.fetchrow(f"SELECT * FROM {name}")) == 2
    await conn.close()


if os.environ.get("DATABASE_TLS_URL"):

    @check
    async def tls_where_it_is_offered():
        # Without sslmode it prefers TLS.
        conn = await asyncpg.connect(os.environ["DATABASE_TLS_URL"])
        assert conn._transport.get_extra_info("ssl_object")
        assert await conn.fetchval("SELECT 7") == 7
        await conn.close()


run()
