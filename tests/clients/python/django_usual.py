"""Django's ORM at its usual work: migrations, queries, transactions, cursors on the server, threads, reconnecting.

Each check runs once for each way in which Django talks to psycopg 3: parameters put in by the client, parameters bound by the
server, and connections from psycopg's pool."""

import datetime
import decimal
import os
import sys
import threading
import uuid
from urllib.parse import parse_qsl, unquote, urlsplit

import django
from django.conf import settings

from tap import check, run

WAYS = {"client": {}, "server": {"server_side_binding": True}, "pool": {"pool": {"min_size": 1, "max_size": 4, "timeout": 20}}}


def database(options, url=os.environ["DATABASE_URL"]):
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": unquote(parts.password or ""),
        "NAME": parts.path[1:],
        "OPTIONS": {"connect_timeout": 20, **dict(parse_qsl(parts.query)), **options},
    }


def in_schema(way):
    """A database alias of its own for each way, in a schema of its own."""
    options = {"application_name": f"django {way}", "options": f"-c search_path={SCHEMAS[way]}", **WAYS[way]}
    return database(options)


SCHEMAS = {way: f"django_{way}_{uuid.uuid4().hex[:10]}" for way in WAYS}
# `makemigrations` writes them: into the directory where the test runs.
sys.path.insert(0, os.getcwd())
os.mkdir("migrations_of_library")
open("migrations_of_library/__init__.py", "x").close()
settings.configure(
    DATABASES={"default": database({}), **{way: in_schema(way) for way in WAYS}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.postgres", "library"],
    MIGRATION_MODULES={"library": "migrations_of_library"},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    TIME_ZONE="Asia/Tokyo",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402 (there is no model before the set-up)
from django.core.management import call_command  # noqa: E402
from django.db import (  # noqa: E402
    DataError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.models import Avg, Count, F, Prefetch, Q, Window  # noqa: E402
from django.db.models.functions import Rank, TruncDay  # noqa: E402
from django.utils import timezone  # noqa: E402
from library.models import Author, Book  # noqa: E402


def each(function):
    for way in WAYS:

        def once(way=way):
            function(way)

        once.__name__ = f"{way}_{function.__name__}"
        check(once)


def one(way, text, arguments=None):
    with connections[way].cursor() as cur:
        cur.execute(text, arguments)
        return cur.fetchone()


@each
def migrations(way):
    if not os.path.exists("migrations_of_library/0001_initial.py"):
        call_command("makemigrations", "library", verbosity=0)
    with connections["default"].cursor() as cur:
        cur.execute(f"CREATE SCHEMA {SCHEMAS[way]}")
    call_command("migrate", database=way, verbosity=0)
    call_command("migrate", database=way, verbosity=0)
    call_command("check", databases=[way], verbosity=0)
    assert "library_book" in connections[way].introspection.table_names()
    User.objects.db_manager(way).create_superuser("root", password="x")
    assert User.objects.using(way).get(username="root").has_perm("library.add_book")


@each
def creating_reading_changing_deleting(way):
    author = Author.objects.using(way).create(name="Ursula")
    Book.objects.using(way).bulk_create(
        [Book(author=author, title=f"b{n}", price=n, tags=["x", f"{n}"], extra={"n": n, "deep": [None, {"é": "✓"}]}) for n in range(500)],
        batch_size=200,
    )
    assert author.books.count() == 500
    book = Book.objects.using(way).get(tags__contains=["7"])
    assert (book.title, book.price, book.extra["deep"][1]["é"]) == ("b7", decimal.Decimal("7.0000"), "✓")
    assert Book.objects.using(way).filter(extra__n__gte=498).count() == 2
    book.lent = (datetime.date(2024, 1, 1), datetime.date(2024, 2, 1))
    book.save()
    assert Book.objects.using(way).filter(lent__contains=datetime.date(2024, 1, 15)).get() == book
    assert Book.objects.using(way).filter(price__lt=10).update(copies=F("copies") + 5) == 10
    book.refresh_from_db()
    assert book.copies == 6 and book.changed.tzinfo is not None
    found, made = Author.objects.using(way).get_or_create(name="Ursula")
    assert found == author and not made
    changed, made = Author.objects.using(way).update_or_create(name="Iain", defaults={"name": "Iain M."})
    assert made and changed.name == "Iain M."
    Book.objects.using(way).bulk_create([Book(id=book.id, author=author, title="again")], update_conflicts=True, unique_fields=["id"], update_fields=["title"])
    assert Book.objects.using(way).get(id=book.id).title == "again"
    assert Book.objects.using(way).filter(price__gte=400).delete()[0] == 100
    assert author.books.count() == 400


@each
def queries(way):
    books = Book.objects.using(way)
    assert books.aggregate(mean=Avg("price"))["mean"] > 0
    assert Author.objects.using(way).annotate(n=Count("books")).order_by("-n").values_list("n", flat=True)[0] == 400
    ranked = books.annotate(place=Window(Rank(), order_by=F("price").desc())).order_by("place")[:3]
    assert [book.place for book in ranked] == [1, 2, 3]
    assert books.filter(Q(title__icontains="B1") | Q(title="again")).exclude(copies=0).exists()
    assert len(list(books.select_related("author").order_by("price")[:20])) == 20
    prefetched = Author.objects.using(way).prefetch_related(Prefetch("books", queryset=books.filter(price__lt=5)))
    assert sum(len(author.books.all()) for author in prefetched) == 5
    assert len(books.annotate(day=TruncDay("changed")).values("day").annotate(n=Count("id"))) >= 1
    assert books.union(books.filter(copies=6)).count() == 400
    assert "Plan" in books.explain(format="json") or "Scan" in books.explain()
    assert books.raw("SELECT * FROM library_book WHERE title = %s", ["b3"])[0].title == "b3"
    assert one(way, "SELECT %s::int + 1", [41]) == (42,)


@each
def iterating_with_a_cursor_on_the_server(way):
    # In autocommit these are cursors WITH HOLD.
    seen = 0
    for book in Book.objects.using(way).iterator(chunk_size=70):
        seen += 1
        if seen % 100 == 0:
            assert Author.objects.using(way).filter(id=book.author_id).exists()
    assert seen == 400
    with transaction.atomic(using=way):
        assert sum(1 for _ in Book.objects.using(way).iterator(chunk_size=50)) == 400


@each
def transactions(way):
    authors = Author.objects.using(way)
    with transaction.atomic(using=way):
        authors.create(name="one")
        try:
            with transaction.atomic(using=way):
                authors.create(name="one")
        except IntegrityError:
            pass
        else:
            raise AssertionError("a duplicate went in")
        after = []
        transaction.on_commit(lambda: after.append(authors.filter(name="one").exists()), using=way)
        mine = authors.select_for_update(skip_locked=True).get(name="one")
        mine.name = "two"
        mine.save()
    assert after == [False] and authors.filter(name="two").exists()
    try:
        with transaction.atomic(using=way):
            authors.create(name="three")
            raise KeyError("on purpose")
    except KeyError:
        pass
    assert not authors.filter(name="three").exists()
    with transaction.atomic(using=way, durable=True):
        point = transaction.savepoint(using=way)
        authors.create(name="four")
        transaction.savepoint_rollback(point, using=way)
    assert not authors.filter(name="four").exists()
    try:
        Book.objects.using(way).create(author=mine, title="x", price=-1)
    except IntegrityError as error:
        assert "price_not_negative" in str(error)
    else:
        raise AssertionError("the constraint did not hold")


@each
def the_session_is_as_django_set_it_up(way):
    for _ in range(8):
        assert one(way, "SHOW search_path") == (SCHEMAS[way],)
        assert one(way, "SHOW TimeZone") == ("UTC",)
        assert one(way, "SHOW application_name") == (f"django {way}",)
    with timezone.override("America/New_York"):
        assert timezone.localtime(Book.objects.using(way).first().changed).utcoffset() is not None


@each
def errors_keep_the_connection(way):
    for text, error in (("SELEC 1", ProgrammingError), ("SELECT * FROM nowhere", ProgrammingError), ("SELECT 'x'::int", DataError)):
        try:
            one(way, text)
        except error:
            pass
        else:
            raise AssertionError(text)
        assert one(way, "SELECT 7") == (7,)


@each
def changing_the_schema(way):
    from django.db import models

    with connections[way].schema_editor() as editor:
        field = models.IntegerField(null=True)
        field.set_attributes_from_name("pages")
        editor.add_field(Book, field)
    # The statement's text is the one from before: SELECT * of a table that has another shape now.
    assert connections[way].introspection.get_table_description(connections[way].cursor(), "library_book")[-1].name == "pages"
    assert Book.objects.using(way).first().title
    with connections[way].schema_editor() as editor:
        editor.remove_field(Book, field)
    assert Book.objects.using(way).first().title


@each
def threads(way):
    failures = []

    def work(worker):
        try:
            for n in range(10):
                with transaction.atomic(using=way):
                    Author.objects.using(way).create(name=f"thread {worker} {n}")
                # A connection from the pool may be another one by now, which need not see this on a replica.
                if way != "pool":
                    assert Author.objects.using(way).filter(name=f"thread {worker} {n}").exists()
        except BaseException as error:
            failures.append(error)
        finally:
            connections[way].close()

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failures, failures
    with transaction.atomic(using=way):
        assert Author.objects.using(way).filter(name__startswith="thread").count() == 80


@each
def statement_time_out_and_a_lost_server_session(way):
    try:
        with transaction.atomic(using=way):
            one(way, "SELECT set_config('statement_timeout', '150ms', true)")
            one(way, "SELECT pg_sleep(600)")
    except OperationalError as error:
        assert "statement timeout" in str(error), error
    else:
        raise AssertionError("slept for ten minutes")
    assert one(way, "SHOW statement_timeout") == ("0",)
    try:
        one(way, "SELECT pg_terminate_backend(pg_backend_pid())")
    except (OperationalError, NotSupportedError):
        pass
    # What Django does before and after each request.
    connections[way].close_if_unusable_or_obsolete()
    assert one(way, "SELECT 7") == (7,)


@check
def the_pools_are_closed():
    connections["pool"].close_pool()


run()
