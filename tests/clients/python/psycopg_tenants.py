"""psycopg 3 for tenants (tenants.py): it prepares whatever comes for the second time."""

import re

import psycopg
from psycopg.rows import dict_row

import tenants


class Session:
    def __init__(self, connection):
        self.connection = connection

    @classmethod
    async def connect(cls, port, user, database):
        where = {"host": "127.0.0.1", "port": port, "user": user, "dbname": database, "sslmode": "disable"}
        more = {"autocommit": True, "prepare_threshold": 1, "row_factory": dict_row, "connect_timeout": 60}
        return cls(await psycopg.AsyncConnection.connect(**where, **more))

    async def execute(self, text, arguments):
        # In its own way to write parameters, which come in order in all texts.
        return await self.connection.execute(re.sub(r"\$\d", "%s", text), arguments or None)

    async def run(self, text, arguments):
        await self.execute(text, arguments)

    async def fetch(self, text, arguments):
        return await (await self.execute(text, arguments)).fetchall()

    def transaction(self):
        return self.connection.transaction()

    async def reset(self, statements):
        for text, arguments in statements:
            await self.run(text, arguments)

    async def close(self):
        await self.connection.close()


tenants.main("psycopg", Session.connect)
