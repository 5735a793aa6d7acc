"""SQLAlchemy at its usual work, with each of its drivers: engine and pool, Core, ORM, reflection, streaming, reconnecting."""

import asyncio
import datetime
import decimal
import enum
import os
import uuid

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload

from tap import check, run

URL = sa.make_url(os.environ["DATABASE_URL"])
SYNC = ("psycopg", "psycopg2")
ASYNC = ("psycopg", "asyncpg")


def at(driver, url=URL):
    url = url.set(drivername=f"postgresql+{driver}")
    # asyncpg has its own word for libpq's parameter.
    if driver == "asyncpg" and "sslmode" in url.query:
        url = url.set(query={"ssl": url.query["sslmode"]})
    return url


def engine(driver, **more):
    return sa.create_engine(at(driver), **more)


def each(function):
    """The check once for each driver that is not asynchronous."""

    def bound(driver):
        def once():
            engine_ = engine(driver)
            try:
                function(engine_)
            finally:
                engine_.dispose()

        once.__name__ = f"{driver}_{function.__name__}"
        check(once)

    for driver in SYNC:
        bound(driver)


def each_async(function):
    """The check once for each driver that is asynchronous."""

    def bound(driver):
        async def once():
            engine_ = create_async_engine(at(driver))
            try:
                await function(engine_)
            finally:
                await engine_.dispose()

        once.__name__ = f"async_{driver}_{function.__name__}"
        check(once)

    for driver in ASYNC:
        bound(driver)


class Mood(enum.Enum):
    SAD = "sad"
    GLAD = "glad"


def model():
    """Classes over tables that nobody else uses."""
    mark = uuid.uuid4().hex[:10]

    class Base(DeclarativeBase):
        pass

    class Author(Base):
        __tablename__ = f"author_{mark}"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(sa.String(50), unique=True)
        mood: Mapped[Mood] = mapped_column(sa.Enum(Mood, name=f"mood_{mark}"), default=Mood.GLAD)
        books: Mapped[list["Book"]] = relationship(back_populates="author", cascade="all, delete-orphan")

    class Book(Base):
        __tablename__ = f"book_{mark}"
        id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
        author_id: Mapped[int] = mapped_column(sa.ForeignKey(Author.id), index=True)
        title: Mapped[str]
        price: Mapped[decimal.Decimal] = mapped_column(sa.Numeric(12, 4))
        tags: Mapped[list[str]] = mapped_column(ARRAY(sa.Text), default=list)
        extra: Mapped[dict] = mapped_column(JSONB, default=dict)
        out: Mapped[datetime.datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
        author: Mapped[Author] = relationship(back_populates="books")

    return Base.metadata, Author, Book


@each
def orm_from_creating_to_deleting(engine):
    metadata, Author, Book = model()
    metadata.create_all(engine)
    metadata.create_all(engine)  # looks whether they are there
    with Session(engine) as session:
        author = Author(name="Ursula", books=[Book(title=f"b{n}", price=n, tags=["x", f"{n}"]) for n in range(50)])
        session.add(author)
        session.commit()
        # Expired by the commit: read again.
        assert author.mood is Mood.GLAD and len(author.books) == 50
        book = session.scalars(sa.select(Book).where(Book.tags.contains(["7"]))).one()
        book.extra = {"a": [1, None, {"b": "é✓"}]}
        book.price = decimal.Decimal("12345678.9012")
        session.commit()
        found = session.scalars(sa.select(Book).where(Book.extra["a"][0].as_integer() == 1)).one()
        assert found.extra["a"][2]["b"] == "é✓" and found.price == decimal.Decimal("12345678.9012")
        assert found.out.tzinfo is not None
        assert session.scalar(sa.select(sa.func.count()).select_from(Book)) == 50
        session.delete(author)
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Book)) == 0
    with Session(engine) as session:
        session.add_all([Author(name=f"author {n}") for n in range(500)])
        session.commit()
        several = session.scalars(sa.select(Author).options(selectinload(Author.books)).order_by(Author.id)).all()
        assert [author.name for author in several] == [f"author {n}" for n in range(500)]
    metadata.drop_all(engine)


@each
def core_statements(engine):
    table = sa.Table(f"t_{uuid.uuid4().hex[:10]}", sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True), sa.Column("t", sa.Text))
    with engine.begin() as conn:
        table.create(conn)
        conn.execute(table.insert(), [{"n": n, "t": f"row {n}"} for n in range(3000)])
    with engine.connect() as conn:
        assert conn.execute(sa.select(table.c.t).where(table.c.n.in_([1, 2, 2999])).order_by(table.c.n)).scalars().all() == ["row 1", "row 2", "row 2999"]
        upsert = insert(table).values([{"n": n, "t": "new"} for n in (1, 5000)])
        upsert = upsert.on_conflict_do_update(index_elements=["n"], set_={"t": upsert.excluded.t}).returning(table.c.n)
        assert sorted(conn.execute(upsert).scalars()) == [1, 5000]
        conn.commit()
        changed = conn.execute(table.update().where(table.c.n < 10).values(t=sa.bindparam("t_")), {"t_": "changed"})
        assert changed.rowcount == 10
        assert conn.execute(table.delete().where(table.c.n >= 10).returning(table.c.n)).all().__len__() == 2991
        conn.rollback()
        assert conn.scalar(sa.select(sa.func.count()).select_from(table)) == 3001


@each
def transactions_and_savepoints(engine):
    metadata, Author, _ = model()
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Author(name="one"))
        session.flush()
        try:
            with session.begin_nested():
                session.add(Author(name="one"))
        except IntegrityError as error:
            assert getattr(error.orig, "sqlstate", None) or error.orig.pgcode == "23505"
        else:
            raise AssertionError("a duplicate went in")
        with session.begin_nested():
            session.add(Author(name="two"))
    with Session(engine) as session:
        assert session.scalars(sa.select(Author.name).order_by(Author.name)).all() == ["one", "two"]
    for level in ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"):
        with engine.connect().execution_options(isolation_level=level) as conn, conn.begin():
            assert conn.scalar(sa.text("SHOW transaction_isolation")) == level.lower()
    with engine.connect().execution_options(postgresql_readonly=True) as conn:
        try:
            conn.execute(sa.insert(Author).values(name="three"))
        except DBAPIError as error:
            assert "read-only" in str(error)
        else:
            raise AssertionError("a read-only transaction wrote")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.insert(Author).values(name="three"))
        assert conn.scalar(sa.select(sa.func.count()).select_from(Author)) == 3


@each
def two_phase_commit(engine):
    metadata, Author, _ = model()
    metadata.create_all(engine)
    xid = uuid.uuid4().hex
    with engine.connect() as conn:
        with conn.begin_twophase(xid) as transaction:
            conn.execute(sa.insert(Author).values(name="kept"))
            transaction.prepare()
            # It belongs to nobody now: any connection could finish it.
            with engine.connect() as other:
                assert any(xid in found for found in other.recover_twophase())
            transaction.commit()
        with conn.begin_twophase() as transaction:
            conn.execute(sa.insert(Author).values(name="dropped"))
            transaction.prepare()
            transaction.rollback()
    with Session(engine) as session:
        assert session.scalars(sa.select(Author.name)).all() == ["kept"]


@each
def streaming(engine):
    rows = sa.text("SELECT n FROM generate_series(1, 20000) n")
    with engine.connect() as conn:
        seen = 0
        for part in conn.execution_options(yield_per=700).execute(rows).scalars().partitions():
            seen += len(part)
            # Something else in between, on the same connection.
        assert seen == 20000
    with engine.connect() as conn:
        result = conn.execution_options(stream_results=True).execute(rows)
        assert result.fetchmany(3) == [(1,), (2,), (3,)]
        result.close()
        assert conn.scalar(sa.text("SELECT 7")) == 7


@each
def reflection(engine):
    metadata, Author, Book = model()
    metadata.create_all(engine)
    inspector = sa.inspect(engine)
    table = Book.__tablename__
    assert table in inspector.get_table_names()
    assert {column["name"] for column in inspector.get_columns(table)} == set(Book.__table__.columns.keys())
    assert inspector.get_foreign_keys(table)[0]["referred_table"] == Author.__tablename__
    assert [index["column_names"] for index in inspector.get_indexes(table)] == [["author_id"]]
    again = sa.Table(table, sa.MetaData(), autoload_with=engine)
    assert isinstance(again.c.extra.type, JSONB) and isinstance(again.c.tags.type, ARRAY)


@each
def errors_leave_the_pool_usable(engine):
    for _ in range(3):
        with engine.connect() as conn:
            for text, error in (("SELEC 1", ProgrammingError), ("SELECT 1/0", DBAPIError), ("SELECT * FROM nowhere", ProgrammingError)):
                try:
                    conn.execute(sa.text(text))
                except error:
                    conn.rollback()
                else:
                    raise AssertionError(text)
            assert conn.scalar(sa.text("SELECT 7")) == 7


@each
def a_table_that_changes_under_a_cached_statement(engine):
    name = f"changes_{uuid.uuid4().hex[:10]}"
    with engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE {name} (a int)"))
        conn.execute(sa.text(f"INSERT INTO {name} VALUES (1)"))
    for columns in range(1, 5):
        with engine.connect() as conn:
            for _ in range(8):
                assert len(conn.execute(sa.text(f"SELECT * FROM {name} WHERE a = :a"), {"a": 1}).one()) == columns
        with engine.begin() as conn:
            conn.execute(sa.text(f"ALTER TABLE {name} ADD COLUMN c{columns} text"))


@each
def reconnecting_after_the_server_ended_the_session(given):
    engine_ = engine(given.driver, pool_pre_ping=True, pool_size=1, max_overflow=0)
    with engine_.connect() as conn:
        try:
            conn.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        except DBAPIError as error:
            assert "terminat" in str(error) or "closed" in str(error) or "lost" in str(error), error
    with engine_.connect() as conn:
        assert conn.scalar(sa.text("SELECT 7")) == 7
    engine_.dispose()


@each
def statement_time_out(given):
    options = {"options": "-c statement_timeout=150ms"}
    engine_ = engine(given.driver, connect_args=options, pool_size=1)
    for _ in range(3):
        with engine_.connect() as conn:
            try:
                conn.execute(sa.text("SELECT pg_sleep(600)"))
            except DBAPIError as error:
                assert "statement timeout" in str(error), error
            else:
                raise AssertionError("slept for ten minutes")
        with engine_.connect() as conn:
            assert conn.scalar(sa.text("SHOW statement_timeout")) == "150ms"
    engine_.dispose()


@each_async
async def orm(engine):
    metadata, Author, Book = model()
    async with engine.begin() as conn:
        await conn.run_sync(metadata.create_all)
    async with AsyncSession(engine, expire_on_commit=False) as session:
        session.add_all([Author(name=f"a{n}", books=[Book(title="t", price=n)]) for n in range(100)])
        await session.commit()
        authors = (await session.scalars(sa.select(Author).options(selectinload(Author.books)).order_by(Author.id))).all()
        assert [author.books[0].price for author in authors] == list(range(100))
        try:
            async with session.begin_nested():
                session.add(Author(name="a1"))
        except IntegrityError:
            pass
        else:
            raise AssertionError("a duplicate went in")
        await session.commit()
        stream = await session.stream(sa.select(Book.price).order_by(Book.price), execution_options={"yield_per": 13})
        assert [price async for price in stream.scalars()] == list(range(100))
    async with engine.begin() as conn:
        await conn.run_sync(metadata.drop_all)


@each_async
async def many_sessions_at_once(engine):
    metadata, Author, _ = model()
    async with engine.begin() as conn:
        await conn.run_sync(metadata.create_all)

    async def work(n):
        async with AsyncSession(engine) as session:
            session.add(Author(name=f"a{n}"))
            await session.commit()
            # The session kept its connection's number of what it has written, or has another connection by now: the
            # primary is asked where that matters.
            found = sa.select(Author.name).where(Author.name == f"a{n}").prefix_with("/* kingpost.route=primary */")
            assert (await session.scalars(found)).one() == f"a{n}"

    await asyncio.gather(*(work(n) for n in range(100)))
    async with engine.connect() as conn:
        count = sa.text(f"/* kingpost.route=primary */ SELECT count(*) FROM {Author.__tablename__}")
        assert await conn.scalar(count) == 100


@each_async
async def isolation_and_a_cancelled_task(engine):
    async with engine.connect() as conn:
        await conn.execution_options(isolation_level="SERIALIZABLE")
        assert await conn.scalar(sa.text("SHOW transaction_isolation")) == "serializable"
    async with engine.connect() as conn:
        try:
            await asyncio.wait_for(conn.execute(sa.text("SELECT pg_sleep(600)")), 0.2)
        except (asyncio.TimeoutError, DBAPIError):
            pass
        else:
            raise AssertionError("slept for ten minutes")
        await conn.invalidate()
    async with engine.connect() as conn:
        assert await conn.scalar(sa.text("SELECT 7")) == 7


if os.environ.get("DATABASE_TLS_URL"):
    TLS = sa.make_url(os.environ["DATABASE_TLS_URL"])

    @check
    def tls_where_it_is_offered():
        # Without sslmode libpq prefers TLS.
        engine_ = sa.create_engine(at("psycopg", TLS))
        with engine_.connect() as conn:
            assert conn.connection.driver_connection.pgconn.ssl_in_use
            assert conn.scalar(sa.text("SELECT 7")) == 7
        engine_.dispose()


run()
