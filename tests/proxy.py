"""Somebody between a client and a PostgreSQL server: a bad network, and a pooler. Threads, on loopback.

PgBouncer itself is used too where it is installed; the pooler that is made here stands in for it everywhere.

The two made here speak as much of the protocol as they need: after the start of a session every message is a letter,
its length in four bytes (itself included), and its contents; an answer is complete with `Z`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import queue
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from holdfast.clock import pause
from tests.servers import CLOCK, free_port

SSL, GSS, CANCEL = 80877103, 80877104, 80877102


class _Door:
    """Listens on a port of its own and hands each visitor to a thread."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self.port = free_port()
        host = f"{parts.username}@127.0.0.1:{self.port}" if parts.username else f"127.0.0.1:{self.port}"
        self.url = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        self._listener: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        """Take visitors."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=200)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Let every new connection be refused; those that are there stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # or the thread in accept() would keep it
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._visit, args=(client,), daemon=True).start()

    def _visit(self, client: socket.socket) -> None:
        raise NotImplementedError

    def _dial(self) -> socket.socket:
        server = socket.create_connection(self._target, timeout=60)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server


class Proxy(_Door):
    """A network that a test breaks."""

    def __init__(self, server_url: str) -> None:
        self.delay_s = 0.0  # for every piece, either way
        self.swallowed = 0  # answers
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._swallow: list[bytes] = []
        self._delay: list[bytes] = []
        self._delayed: list[tuple[_Pair, bytes]] = []
        super().__init__(server_url)

    def cut(self, *, server_side: bool = True) -> list[socket.socket]:
        """Cut all connections. Without `server_side` the server hears nothing of it: its ends are returned."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.keep_server = not server_side
            pair.close()
            if pair.flows is not self._flows:
                pair.flows.set()  # its threads end
        return [pair.server for pair in pairs if not server_side]

    def stall(self) -> None:
        """Pass nothing on, either way, and close nothing: connected, and deaf and dumb."""
        self._flows.clear()

    def flow(self) -> None:
        """Pass everything on again, what was held up first."""
        self._flows.set()

    def abandon(self) -> None:
        """Leave those that are connected stalled for ever; new ones flow."""
        with self._lock:
            for pair in self._pairs:
                pair.flows = threading.Event()

    def swallow(self, words: bytes) -> None:
        """Let the next statement with these words reach the server, drop its answer, and cut that connection."""
        self._swallow.append(words)

    def delay(self, words: bytes) -> None:
        """Keep the next statement with these words back, and cut that connection on the client's side."""
        self._delay.append(words)

    def deliver(self) -> None:
        """Let the server have what was kept back, long after its client has given up; return when it has answered."""
        while self._delayed:
            pair, piece = self._delayed.pop()
            pair.answer = bytearray()
            pair.server.sendall(piece)
            assert pair.answered.wait(60)
            pair.server.close()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Refuse and cut everything for a while."""
        self.refuse()
        self.cut()
        yield
        self.listen()

    def close(self) -> None:
        self.refuse()
        self._flows.set()
        self.cut()

    def _visit(self, client: socket.socket) -> None:
        try:
            server = self._dial()
        except OSError:
            client.close()
            return
        pair = _Pair(client, server, self._flows)
        with self._lock:
            if self._listener is None:  # it came in while the door was being shut: nobody would cut it
                pair.close()
                return
            self._pairs.append(pair)
        upstream = threading.Thread(target=self._pump, args=(pair, client, server, self._asked), daemon=True)
        upstream.start()
        self._pump(pair, server, client, self._answered)
        upstream.join()
        with self._lock, contextlib.suppress(ValueError):
            self._pairs.remove(pair)

    def _pump(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, seen: Callable[[_Pair, bytes], bool]
    ) -> None:
        try:
            while piece := source.recv(65536):
                pair.flows.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                if seen(pair, piece):
                    sink.sendall(piece)
        except OSError:
            pass
        pair.close()

    def _asked(self, pair: _Pair, piece: bytes) -> bool:
        for statement in pair.heard(piece):
            if (words := _taken(self._delay, statement)) is not None:
                pair.keep_server = True
                self._delayed.append((pair, piece))
                raise OSError(f"somebody else will hear {words!r}, later")
            if _taken(self._swallow, statement) is not None:
                pair.answer = bytearray()
        return True

    def _answered(self, pair: _Pair, piece: bytes) -> bool:
        if pair.answer is None:
            return True
        pair.answer += piece
        if any(kind == b"Z" for kind, _ in _messages(pair.answer)):
            self.swallowed += 1
            pair.answered.set()
            raise OSError("the answer is complete, and nobody shall have it")
        return False


def _taken(wanted: list[bytes], statement: bytes) -> bytes | None:
    """Take the words out that the statement has; two sessions may come at once, and one of them has it."""
    for words in list(wanted):
        if words in statement:
            with contextlib.suppress(ValueError):
                wanted.remove(words)
                return words
    return None


class _Pair:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket, flows: threading.Event) -> None:
        self.client = client
        self.server = server
        self.flows = flows
        self.keep_server = False
        self.answer: bytearray | None = None  # what is swallowed
        self.answered = threading.Event()  # and all of it is here
        self._asked = bytearray()
        self._started = False
        self._statements: dict[bytes, bytes] = {}  # prepared, by name

    def heard(self, piece: bytes) -> Iterator[bytes]:
        """Yield each statement that is to be run now, whether its text is here or was sent before."""
        self._asked += piece
        while not self._started and len(self._asked) >= 8:
            length, code = struct.unpack_from("!II", self._asked)
            del self._asked[:length]
            self._started = code not in (SSL, GSS)
        if not self._started:
            return
        for kind, message in list(_messages(self._asked)):
            del self._asked[: len(message)]
            if kind == b"P":
                name, text, _ = message[5:].split(b"\0", 2)
                self._statements[name] = text
            elif kind == b"B":
                _, name, _ = message[5:].split(b"\0", 2)
                yield self._statements[name] + b"\0"
            elif kind == b"Q":
                yield message[5:]
            elif kind == b"c":
                yield b"CopyDone\0"  # the end of a stream; outside a transaction the server commits it

    def close(self) -> None:
        for end in (self.client,) if self.keep_server else (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Pooler(_Door):
    """Many clients share a few sessions of the server, one transaction at a time, and are told of a process that is
    none: what pgbouncer does in transaction mode. It knows nothing of prepared statements."""

    def __init__(self, server_url: str, size: int = 2) -> None:
        parts = urlsplit(server_url)
        self._user, self._database = parts.username or "", parts.path.strip("/")
        self.clients = 0
        super().__init__(server_url)
        self._idle: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._sessions = [self._dial() for _ in range(size)]
        for session in self._sessions:
            self._greeting = self._greet(session)
            self._idle.put(session)

    def close(self) -> None:
        self.refuse()
        for session in self._sessions:
            session.close()

    def _greet(self, session: socket.socket) -> bytes:
        """Begin a session with the server; return what it says of itself, without the number of its process."""
        words = b"\0".join([b"user", self._user.encode(), b"database", self._database.encode(), b"", b""])
        session.sendall(struct.pack("!II", len(words) + 8, 3 << 16) + words)
        said: list[bytes] = []
        while True:
            kind, message = _read_message(session)
            if kind == b"Z":
                return b"".join(said)
            if kind != b"K":
                said.append(message)

    def _visit(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self.clients += 1
            while (code := _read_start(client)) in (SSL, GSS):
                client.sendall(b"N")
            if code == CANCEL:
                return
            made_up = b"K" + struct.pack("!III", 12, 4_000_000 + self.clients, 1)
            client.sendall(self._greeting + made_up + b"Z" + struct.pack("!I", 5) + b"I")
            session: socket.socket | None = None
            try:
                while True:
                    kind, message = _read_message(client)
                    if kind == b"X":
                        return
                    session = session or self._idle.get()
                    session.sendall(message)
                    if kind in (b"Q", b"S") and self._answer(client, session) == b"I":
                        self._idle.put(session)
                        session = None
            finally:
                if session is not None:  # it left inside a transaction
                    session.sendall(b"Q" + struct.pack("!I", 13) + b"ROLLBACK\0")
                    while _read_message(session)[0] != b"Z":
                        pass
                    self._idle.put(session)

    @staticmethod
    def _answer(client: socket.socket, session: socket.socket) -> bytes:
        """Pass the answer on; return whether a transaction is open."""
        while True:
            kind, message = _read_message(session)
            client.sendall(message)
            if kind == b"Z":
                return message[-1:]
            while kind == b"G":  # the client streams
                streamed, message = _read_message(client)
                session.sendall(message)
                if streamed in (b"c", b"f"):
                    break


def _messages(stream: bytes | bytearray) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while len(stream) - at >= 5:
        (length,) = struct.unpack_from("!I", stream, at + 1)
        if len(stream) - at < length + 1:
            return
        yield bytes(stream[at : at + 1]), bytes(stream[at : at + length + 1])
        at += length + 1


def _read_message(end: socket.socket) -> tuple[bytes, bytes]:
    head = _read(end, 5)
    (length,) = struct.unpack_from("!I", head, 1)
    return head[:1], head + _read(end, length - 4)


def _read_start(end: socket.socket) -> int:
    length, code = struct.unpack("!II", _read(end, 8))
    _read(end, length - 8)
    return int(code)


def _read(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = end.recv(size - len(found))
        if not piece:
            raise OSError("closed")
        found += piece
    return found


class PgBouncer:
    """The real pooler, with two sessions of the server."""

    def __init__(self, server_url: str, binary: str, mode: str = "transaction") -> None:
        parts = urlsplit(server_url)
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
        self.port = free_port()
        self.url = urlunsplit((parts.scheme, f"{parts.username}@127.0.0.1:{self.port}", parts.path, "", ""))
        (self._folder / "users").write_text(f'"{parts.username}" ""\n')
        (self._folder / "ini").write_text(
            f"[databases]\n* = host={parts.hostname} port={parts.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._folder / 'users'}\n"
            f"pool_mode = {mode}\ndefault_pool_size = 2\n"
        )
        user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        if user is not None:
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([binary, self._folder / "ini"], user=user, stdout=log, stderr=log)
        give_up_at = CLOCK.lease() + 60
        while not self._answers():
            alive = self._process.poll() is None and CLOCK.lease() < give_up_at
            assert alive, (self._folder / "log").read_text()[-2000:]
            pause(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=30).close()
        except psycopg.OperationalError:
            return False
        return True
