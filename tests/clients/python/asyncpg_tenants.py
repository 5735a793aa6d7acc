"""asyncpg for tenants (tenants.py): every query with a result or an argument is prepared, and its cache of statements is on."""

import asyncpg

import tenants


class Session:
    def __init__(self, connection):
        self.connection = connection

    @classmethod
    async def connect(cls, port, user, database):
        where = {"host": "127.0.0.1", "port": port, "user": user, "database": database, "ssl": False}
        return cls(await asyncpg.connect(**where, timeout=60, command_timeout=60))

    async def run(self, text, arguments):
        await self.connection.execute(text, *arguments)

    async def fetch(self, text, arguments):
        return [dict(row) for row in await self.connection.fetch(text, *arguments)]

    def transaction(self):
        return self.connection.transaction()

    async def reset(self, statements):
        for text, arguments in statements:
            await self.run(text, arguments)

    async def close(self):
        await self.connection.close()


tenants.main("asyncpg", Session.connect)
