"""Clients of tenants, for programs in Python: what a client does in a round, and what it must see.

The world is in ../tenants: world.json says who there is, how a client takes a tenant, what it reads and how many rows it must
get; README.md there says what a program is given and what it prints. A program brings a class for its driver's session:

    await Session.connect(port, user, database)
    await session.run(text, arguments)       # a statement whose result does not matter
    await session.fetch(text, arguments)     # the rows, as dictionaries from column names to values, columns in order
    session.transaction()                    # an async context manager; an exception in it rolls back
    await session.reset(statements)          # gives the tenant back
    await session.close()
"""

import asyncio
import json
import os
import pathlib
import sys

WORLD = json.loads((pathlib.Path(__file__).parent.parent / "tenants" / "world.json").read_text())
READS = 8
ROUNDS = 9
FAULTS = 100


class Rollback(Exception):
    """Ends a transaction of the test's that is not to be committed."""


class Tally:
    """What all clients of this program have counted, by way."""

    def __init__(self):
        self.ways = {way["name"]: {"reads": 0, "inserts": 0, "faults": []} for way in WORLD["ways"]}

    def faults(self):
        return sum(len(way["faults"]) for way in self.ways.values())

    def report(self):
        """Prints a line for each way, and gives the exit status."""
        for number, (name, way) in enumerate(self.ways.items(), 1):
            faults = way["faults"]
            # Without a read, nothing was tested.
            good = not faults and way["reads"] > 0
            end = f", {len(faults)} faults" if faults else ""
            print(f"{'ok' if good else 'not ok'} {number} - {name}: {way['reads']} reads, {way['inserts']} inserts{end}")
            for fault in faults[:3]:
                print("#", fault)
        print(f"1..{len(self.ways)}", flush=True)
        return 1 if self.faults() or not all(way["reads"] for way in self.ways.values()) else 0


def filled(values, who):
    """The values with `{name}` replaced by what stands for it in `who`; numbers stay numbers."""
    return [filled_one(value, who) for value in values]


def filled_one(value, who):
    if not isinstance(value, str):
        return value
    if value.startswith("{") and value[1:-1] in who:
        return who[value[1:-1]]
    for name in ("tenant", "datestyle", "timezone"):
        value = value.replace("{" + name + "}", who[name])
    return value


def wrong(statement, rows, tenant, home, database):
    """What is wrong with the rows that a reader of this tenant (none: of nobody's) got; None if nothing is."""
    if tenant is None:
        return f"{len(rows)} rows for nobody: {rows[0]}" if rows else None
    count = 1 if statement["rows"] == "single" else tenant[statement["rows"]][database]
    if len(rows) != count:
        return f"{len(rows)} rows, not {count}: {rows[:1]}"
    expected = {"tenant": tenant["name"], "place": database, "days": home["days"], "epoch": home["epoch"]}
    expected["n"] = tenant["orders"][database]
    for row in rows:
        if list(row) != statement["columns"][database]:
            return f"columns {list(row)}"
        for column, value in row.items():
            if column in expected and value != expected[column]:
                return f"{column} is {value!r}, not {expected[column]!r}"
    return None


class Client:
    """A client at its work, round after round."""

    def __init__(self, number, program, tally):
        self.number, self.name, self.tally = number, f"{program}-{number}", tally
        self.database = WORLD["databases"][number % 2]
        self.user = WORLD["users"][1 if number // 2 % 4 == 3 else 0]
        self.reads = 0

    async def read(self, session, way, statement, who, tenant):
        rows = await session.fetch(statement["text"], filled(statement["args"], who))
        self.reads += 1
        counted = self.tally.ways[way["name"]]
        counted["reads"] += 1
        fault = wrong(statement, rows, tenant, self.home(who["round"]), self.database)
        if fault:
            counted["faults"].append(f"{self.told(who, tenant)}, {statement['name']}: {fault}")

    def told(self, who, tenant):
        return f"{self.name} ({self.user}, {self.database}), round {who['round']}, as {tenant['name'] if tenant else 'nobody'}"

    async def round(self, session, turn):
        tenants, statements = WORLD["tenants"], WORLD["statements"]
        at = self.number // 16 + turn + turn // 24
        way = WORLD["ways"][(self.number // 2 + turn) % len(WORLD["ways"])]
        tenant = tenants[at % 6]
        # Whose the session is around a transaction that is another tenant's.
        other = tenants[(at + 1 + turn % 5) % 6]
        who = self.who(tenant, turn)
        inserts = (self.number + turn) % 4 == 0
        try:
            for text, *arguments in way["outside"]:
                around = self.who(other, turn) if way["inside"] else who
                await session.run(filled_one(text, around), filled(arguments, around))
            if way["inside"]:
                try:
                    async with session.transaction():
                        for text, *arguments in way["inside"]:
                            await session.run(filled_one(text, who), filled(arguments, who))
                        await self.work(session, way, who, tenant, turn, inserts)
                        if turn % 3 == 0 and not inserts:
                            raise Rollback
                except Rollback:
                    pass
                if way["outside"]:
                    await self.read(session, way, statements[turn % len(statements)], who, other)
            else:
                await self.work(session, way, who, tenant, turn, inserts)
            if turn % ROUNDS == ROUNDS - 1:
                # It leaves with all that it has set.
                return
            await session.reset([(filled_one(text, who), filled(arguments, who)) for text, *arguments in way["reset"]])
            for n in range(2):
                await self.read(session, way, statements[(turn + n) % (len(statements) - 1)], who, None)
        except Exception as error:
            fault = f"{self.told(who, tenant)}: {type(error).__name__} {getattr(error, 'sqlstate', '')}: {error}"
            self.tally.ways[way["name"]]["faults"].append(fault)
            raise

    def who(self, tenant, turn):
        home = self.home(turn)
        return {"tenant": tenant["name"], "home": home["name"], "datestyle": home["datestyle"], "timezone": home["timezone"],
                "client": self.name, "round": turn}

    def home(self, turn):
        """Whose DateStyle and TimeZone this connection has."""
        return WORLD["tenants"][(self.number // 2 + turn // ROUNDS) % 6]

    async def work(self, session, way, who, tenant, turn, inserts):
        statements = WORLD["statements"]
        if inserts:
            text, *arguments = WORLD["insert"]
            await session.run(text, filled(arguments, who))
            self.tally.ways[way["name"]]["inserts"] += 1
        for n in range(READS):
            await self.read(session, way, statements[(self.number + turn + n) % len(statements)], who, tenant)
        if inserts:
            await self.read(session, way, WORLD["entry"], who, tenant)

    async def run(self, connect, reads):
        session, turn = None, 0
        while self.reads < reads and self.tally.faults() < FAULTS:
            session = session or await connect(self.user, self.database)
            try:
                await self.round(session, turn)
            except Exception:
                # Its state is not known: the next round has a new connection.
                await session.close()
                session = None
            turn += 1
            if session and turn % ROUNDS == 0:
                await session.close()
                session = None
        if session:
            await session.close()


def main(program, connect):
    """Runs the clients that the environment asks for. `connect(port, user, database)` gives a session."""
    port = int(os.environ["TENANTS_PORT"])
    first, clients = int(os.environ.get("TENANTS_FIRST", "0")), int(os.environ.get("TENANTS_CLIENTS", "48"))
    reads = int(os.environ.get("TENANTS_READS", "10000"))
    tally = Tally()

    async def all_clients():
        numbers = range(first, first + clients)
        runs = (Client(n, program, tally).run(lambda *where: connect(port, *where), reads // clients) for n in numbers)
        await asyncio.gather(*runs)

    asyncio.run(all_clients())
    sys.exit(tally.report())
