"""The least of PostgreSQL's protocol 3 that the benchmark needs: log in under trust, and a simple query."""

import socket
import struct

MAX_MESSAGE = 1 << 20


class ProtocolError(Exception):
    """The server answered with an error, with nonsense, or hung up."""


class Connection:
    """A blocking connection that holds only its socket: thousands of them are cheap."""

    __slots__ = ("socket",)

    def __init__(self, port, user, database, timeout=10.0, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(source, 0))
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(startup(user, database))
            self.receive()
        except BaseException:
            self.socket.close()
            raise

    def query(self, text):
        """Runs a simple query; returns its rows as lists of strings or None."""
        self.send(text)
        return self.receive()

    def send(self, text):
        """Sends a simple query, whose answer `receive` returns."""
        body = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", len(body) + 4) + body)

    def close(self):
        """Says goodbye and closes; never fails."""
        try:
            self.socket.sendall(b"X\0\0\0\4")
        except OSError:
            pass
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def receive(self):
        """Reads to the end of an answer; returns its rows as lists of strings or None."""
        rows, error = [], None
        while True:
            kind, length = struct.unpack("!cI", self._exactly(5))
            if not 4 <= length <= MAX_MESSAGE:
                raise ProtocolError(f"a message of {length} bytes")
            body = self._exactly(length - 4)
            if kind == b"R" and struct.unpack("!I", body[:4])[0] != 0:
                raise ProtocolError("the server wants a password; the benchmark uses trust")
            if kind == b"D":
                rows.append(data_row(body))
            if kind == b"E":
                error = error_text(body)
                if b"SFATAL\0" in body:
                    raise ProtocolError(error)
            if kind == b"Z":
                if error:
                    raise ProtocolError(error)
                return rows

    def _exactly(self, count):
        parts = []
        while count > 0:
            part = self.socket.recv(count)
            if not part:
                raise ProtocolError("the server closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def startup(user, database):
    """A StartupMessage of protocol 3.0."""
    body = struct.pack("!I", 196608)
    body += b"user\0" + user.encode() + b"\0database\0" + database.encode() + b"\0\0"
    return struct.pack("!I", len(body) + 4) + body


def data_row(body):
    """The columns of a DataRow's body in text format."""
    (count,) = struct.unpack_from("!H", body)
    at, row = 2, []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        if size < 0:
            row.append(None)
        else:
            row.append(body[at : at + size].decode("utf-8", "replace"))
            at += size
    return row


def error_text(body):
    """`severity code: message` of an ErrorResponse's body."""
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    return f"{fields.get(b'S', '?')} {fields.get(b'C', '?')}: {fields.get(b'M', '?')}"
