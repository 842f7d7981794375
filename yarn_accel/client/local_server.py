"""A pipeline server on this machine for one process: it ends with that process, whatever ends it.

The server is a process of its own, as on a cluster, on a Unix socket in a private folder. `server_guard`, one
more process, ends it and removes the folder when its owner is gone. Standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import yarn_accel
from yarn_accel.client import server_guard
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.token_file import write_secrets
from yarn_accel.errors import StartupError
from yarn_accel.users import login_name
from yarn_accel.wire.credential import SECRET_ALIAS, Credential, encode, issue

START_LIMIT_S = 120.0
#: A start that takes longer says so.
_QUIET_S = 1.0
_STOP_LIMIT_S = 15.0
_LIFETIME_S = 365 * 24 * 3600
#: Unix sockets have no longer paths.
_LONGEST_PATH = 100
_SECRET_BYTES = 32
_INLINE = "connect('inline') computes without a server"
#: Words in the last line of a server that did not start, and the cure.
_CURES = (
    (
        ("No module named", "not installed"),
        "install what a server needs (`pip install 'cluster-accel[yarn]'`)",
    ),
    (
        (
            "MemoryError",
            "Cannot allocate memory",
            "out of memory",
            "start new thread",
            "failed to map segment",
            "each ends while it starts",
        ),
        "give it more memory: raise `ulimit -v`, or the memory of the container",
    ),
    (("No space left",), "free disk space, or set TMPDIR to another folder"),
)
#: The server serves its owner only, who may read and write these files anyway.
_PREFIXES = ["file:///", "hdfs://*"]


class LocalServer:
    """Started by ``with``, which waits until it is ready.

    Args:
        settings: in place of the defaults of the server's configuration file.
        tenant: whom the credential is for; empty: the user.
        secret: 32 bytes that the credentials of several servers are derived from; random unless given.

    Attributes:
        endpoint: where it listens.
        credential: what it wants to see.

    Raises (by ``with``):
        StartupError: it did not start; the message has the last line that it wrote.
    """

    endpoint: Endpoint
    credential: Credential

    def __init__(self, settings: Mapping[str, Any], tenant: str = "", secret: bytes = b"") -> None:
        self._settings = dict(settings)
        self._tenant = tenant
        self._secret = secret or secrets.token_bytes(_SECRET_BYTES)
        self._guard: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> LocalServer:
        folder = _new_folder()
        try:
            (folder / "secret").touch(mode=0o600)
            (folder / "secret").write_text(self._secret.hex() + "\n", encoding="ascii")
            (folder / server_guard.CONFIG_FILE).write_text(json.dumps(self._config(folder)), encoding="utf-8")
            self._guard = _start_guard(folder)
            state = self._await_ready(folder)
        except BaseException:
            self._end()
            shutil.rmtree(str(folder), ignore_errors=True)
            raise
        self.endpoint = Endpoint(state["name"], state["host"], state["port"], state["unix_path"])
        expires_s = int(time.time()) + _LIFETIME_S
        self.credential = issue(self._secret, self._tenant or login_name(), expires_s, secrets.token_hex(8))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def write_token_file(self, path: Path) -> None:
        """Write the credential (0600) as Hadoop gives it to a task, by `HADOOP_TOKEN_FILE_LOCATION`."""
        path.touch(mode=0o600)
        path.write_bytes(write_secrets({SECRET_ALIAS: encode(self.credential)}))

    def _config(self, folder: Path) -> Dict[str, Any]:
        path = str(folder / "socket")
        is_short = len(path) <= _LONGEST_PATH
        return {
            "name": "local",
            "listen_host": "" if is_short else "127.0.0.1",
            "unix_path": path if is_short else "",
            "tenants": {"*": {"read_prefixes": _PREFIXES, "write_prefixes": _PREFIXES}},
            "follow_symlinks": True,
            "drain_timeout_s": 1.0,
            **self._settings,
            "master_secret_file": str(folder / "secret"),
            "state_file": str(folder / "state.json"),
        }

    def _await_ready(self, folder: Path) -> Dict[str, Any]:
        assert self._guard is not None
        began_s = time.monotonic()
        until_s, says_at_s = began_s + START_LIMIT_S, began_s + _QUIET_S
        state = folder / "state.json"
        while self._guard.poll() is None and time.monotonic() < until_s:
            try:
                found: Dict[str, Any] = json.loads(state.read_text(encoding="utf-8"))
                return found
            except (OSError, ValueError) as error:  # not there yet, or not whole
                reraise_from_signal(error)
            time.sleep(0.02)
            if time.monotonic() > says_at_s:
                says_at_s = float("inf")
                sys.stderr.write("yarn-accel: starting a pipeline server on this machine ...\n")
                sys.stderr.flush()
        why = "not ready after {:.0f} s".format(START_LIMIT_S)
        if self._guard.poll() is not None and self._guard.stderr is not None:
            why = self._guard.stderr.read().decode("utf-8", "replace").strip()
        raise StartupError("the pipeline server did not start: {}".format(why), cure=_cure_of(why))

    def _end(self) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stderr is not None
        guard.stdin.close()
        try:
            guard.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        guard.stderr.close()


def _cure_of(why: str) -> str:
    given = "pip install" in why
    found = [cure for words, cure in _CURES if not given and any(word in why for word in words)]
    return "; or ".join([*found, _INLINE])


def _new_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="accel-"))
    except OSError as error:
        reraise_from_signal(error)
        raise StartupError(
            "no folder can be made for a pipeline server: {}".format(error.strerror),
            cure="set TMPDIR to a folder in which you may write",
        ) from None


def _start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that ^C ends the owner, and its end the server."""
    environ = dict(os.environ)
    root = str(Path(str(yarn_accel.__file__)).absolute().parent.parent)
    if not root.endswith("-packages"):
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "yarn_accel.client.server_guard", str(folder), str(os.getpid())]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=str(folder),
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        reraise_from_signal(error)
        why = "{!r} cannot be started: {}".format(sys.executable, error.strerror)
        raise StartupError(why, cure=_cure_of(why)) from None
