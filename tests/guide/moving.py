"""Files of other programs, which blocks translate."""

import os
import pathlib

from worlds import World, expect


PGBOUNCER = """[databases]
shop = host=db1 port=5432 dbname=shop
books = host=db1 port=5432 dbname=books
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = 6432
auth_type = scram-sha-256
auth_file = /etc/pgbouncer/userlist.txt
pool_mode = transaction
"""
PGCAT = """[general]
host = "127.0.0.1"
port = 6432
admin_username = "admin"
admin_password = "of the console"
[pools.shop]
pool_mode = "transaction"
[pools.shop.users.0]
username = "ann"
password = "of ann"
pool_size = 5
[pools.shop.shards.0]
servers = [["db1", 5432, "primary"], ["db2", 5432, "replica"]]
database = "shop"
"""
PGDOG = """[general]
host = "127.0.0.1"
port = 6432
[[databases]]
name = "shop"
host = "db1"
role = "primary"
[[databases]]
name = "shop"
host = "db2"
role = "replica"
"""
PGDOG_USERS = """[[users]]
name = "ann"
database = "shop"
password = "of ann"
"""
PGPOOL = """listen_addresses = '127.0.0.1'
port = 9999
backend_hostname0 = 'db1'
backend_port0 = 5432
backend_weight0 = 1
backend_hostname1 = 'db2'
backend_port1 = 5432
backend_weight1 = 1
load_balance_mode = on
enable_pool_hba = off
"""


def files(*of: tuple[str, str]):
    def write(world: World) -> None:
        for path, text in of:
            pathlib.Path(path).write_text(text)
            os.chmod(path, 0o600)
        for path in pathlib.Path("/etc/kingpost").glob("*"):
            path.unlink()

    return write


def is_translated(world: World, output: str) -> None:
    text = pathlib.Path("/etc/kingpost/kingpost.toml").read_text()
    expect("db1:5432" in text and os.stat("/etc/kingpost/kingpost.toml").st_mode & 0o777 == 0o600, text)
