"""What Npgsql sends, for tenants (tenants.py), over the protocol itself: .NET is not where these tests run.

- All statements of a command are one batch with one Sync: here what takes the tenant, and the first read.
- BEGIN is written in front of the next batch, and so is what clears a connection of its pool for its next user.
- In every second session a statement that comes for the second time is prepared by itself (Max Auto Prepare): Parse with a name in
  front of its Bind. The others leave that at its default, which is off.
- Results are in the binary format.
"""

import asyncio
import contextlib
import struct

import tenants

INT4, DATE, NUMERIC = 23, 1082, 1700
# Instead of DISCARD ALL when it has prepared something, which would be lost.
CLEAR = "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;SELECT pg_advisory_unlock_all();DISCARD SEQUENCES;DISCARD TEMP"
BEGIN = "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED"


class ServerError(Exception):
    def __init__(self, fields):
        self.sqlstate = fields.get("C")
        super().__init__(fields.get("M"))


def message(kind, body):
    return kind + struct.pack("!i", len(body) + 4) + body


def text(value):
    return value.encode() + b"\0"


def query(sql):
    return message(b"Q", text(sql))


class Session:
    number = 0

    def __init__(self, reader, writer):
        Session.number += 1
        self.prepares = Session.number % 2 == 0
        self.reader, self.writer = reader, writer
        self.seen, self.prepared = set(), {}
        self.ahead, self.batch, self.failed = [], [], False

    @classmethod
    async def connect(cls, port, user, database):
        session = cls(*await asyncio.open_connection("127.0.0.1", port))
        options = {"user": user, "database": database, "client_encoding": "UTF8"}
        body = struct.pack("!i", 3 << 16) + b"".join(text(k) + text(v) for k, v in options.items()) + b"\0"
        session.writer.write(struct.pack("!i", len(body) + 4) + body)
        await session.until_ready()
        return session

    async def receive(self):
        kind, length = struct.unpack("!ci", await self.reader.readexactly(5))
        return kind, await self.reader.readexactly(length - 4)

    async def until_ready(self):
        """The messages up to the next ReadyForQuery."""
        messages, error = [], None
        while True:
            kind, body = await self.receive()
            if kind == b"E":
                fields = {part[:1].decode(): part[1:].decode() for part in body.rstrip(b"\0").split(b"\0")}
                error = error or ServerError(fields)
            if kind == b"Z":
                if error:
                    raise error
                return messages
            messages.append((kind, body))

    async def send(self):
        """Sends what was to go ahead, and the batch, in one write; gives the batch's messages."""
        ahead, batch = self.ahead, self.batch
        self.ahead, self.batch = [], []
        if not ahead and not batch:
            return []
        parts, names = [query(sql) for sql in ahead], []
        for sql, arguments in batch:
            parts.append(self.statement(sql, arguments, names))
        if batch:
            parts.append(message(b"S", b""))
        self.writer.write(b"".join(parts))
        for _ in ahead:
            await self.until_ready()
        if not batch:
            return []
        answers = await self.until_ready()
        self.prepared.update(names)
        return answers

    def statement(self, sql, arguments, names):
        name, parse = self.prepared.get(sql) or dict(names).get(sql), b""
        if not name:
            name = f"_auto{len(self.prepared) + len(names)}" if self.prepares and sql in self.seen else ""
            if name:
                names.append((sql, name))
            self.seen.add(sql)
            kinds = [INT4 if isinstance(value, int) else 25 for value in arguments]
            parse = message(b"P", text(name) + text(sql) + struct.pack(f"!h{len(kinds)}i", len(kinds), *kinds))
        values = b""
        for value in arguments:
            raw = struct.pack("!i", value) if isinstance(value, int) else value.encode()
            values += struct.pack("!i", len(raw)) + raw
        # All parameters and all results are binary.
        bind = text("") + text(name) + struct.pack("!hhh", 1, 1, len(arguments)) + values + struct.pack("!hh", 1, 1)
        rest = message(b"B", bind) + message(b"D", b"P\0") + message(b"E", text("") + struct.pack("!i", 0))
        return parse + rest

    async def run(self, sql, arguments):
        self.batch.append((sql, arguments))

    async def fetch(self, sql, arguments):
        self.batch.append((sql, arguments))
        rows, columns = [], []
        for kind, body in await self.send():
            if kind == b"T":
                # Another statement of the batch: what its rows were does not matter.
                rows, columns = [], list(fields(body))
            elif kind == b"D":
                rows.append(row(body, columns))
        return rows

    @contextlib.asynccontextmanager
    async def transaction(self):
        # What is not sent yet was said before it.
        await self.send()
        self.ahead.append(BEGIN)
        end = "ROLLBACK"
        try:
            yield
            end = "COMMIT"
        finally:
            self.ahead.append(end)
            await self.send()

    async def reset(self, statements):
        # In front of what the next user of the connection sends.
        if statements:
            self.ahead.append(CLEAR if self.prepared else "DISCARD ALL")

    async def close(self):
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def fields(body):
    """Names and types of a RowDescription's columns."""
    at = 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        end = body.index(0, at)
        yield body[at:end].decode(), struct.unpack_from("!i", body, end + 7)[0]
        at = end + 19


def row(body, columns):
    values, at = {}, 2
    for name, kind in columns:
        (length,) = struct.unpack_from("!i", body, at)
        raw = body[at + 4:at + 4 + max(length, 0)]
        at += 4 + max(length, 0)
        if length < 0:
            values[name] = None
        elif kind == INT4:
            (values[name],) = struct.unpack("!i", raw)
        else:
            values[name] = raw if kind in (DATE, NUMERIC) else raw.decode()
    return values


tenants.main("npgsql-pattern", Session.connect)
