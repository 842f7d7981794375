"""The guard's servers that fork (`fork_server`): which commands they start, and when there are any.

A command is forked that runs a file of Python, ``PYTHON [OPTIONS] PROGRAM.py ARGUMENT...``, once two others
with the same interpreter, options and environment were started, but for the variables that each attempt has
for itself. Each server keeps one process waiting, which becomes the next command. It is forked once the
command before it has ended, or has run for a while: so a short command's end is not held up by that. A server
that is not used for a while, that died, or that does not answer in time, is ended. What it has forked before
goes on, and commands are started in the ordinary way until there is another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarn_accel.worker.message_channel import receive, send
from yarn_accel.worker.process_tree import parse_stat

_PROGRAM = str(Path(__file__).with_name("fork_server.py"))
_INTERPRETER = re.compile(r"python(3(\.[0-9]+)?)?\Z")
#: Those that change nothing but how the interpreter starts, and that have no value.
_OPTION = re.compile(r"-[BEIOPSsu]+\Z")
#: A server that takes longer for an answer is ended, also one that was stopped.
_PATIENCE_S = 2.0
#: A command that runs for so long does not hold up the fork for the next one.
_FORK_AFTER_S = 0.02
_IDLE_S = 60.0
#: Each occupies some ten MiB, and one serves all tasks of most applications.
_MAX_SERVERS = 2
#: A server is started with the command of this number.
_N_BEFORE = 2
#: After a failure so many commands are started in the ordinary way before another server.
_PAUSE = 8
_MAX_KEYS = 64
#: The variable that marks a process is as long as this where a server is started; a longer one is not forked.
_MARK_CHARS = 96

_Key = tuple[tuple[str, ...], frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _ForkServer:
    """A server.

    Attributes:
        program: the last one that it has forked for; empty: none that another command may name.
        waiting: the process that waits for a command, and the socket of its handshake.
    """

    pid: int
    channel: socket.socket
    used_s: float
    is_ready: bool = False
    program: str = ""
    waiting: tuple[int, socket.socket] | None = None


class ForkServers:
    """One per guard, whose only thread uses it.

    Args:
        before_exec: called in each new server before its program.
    """

    def __init__(self, before_exec: Callable[[], None]) -> None:
        self._before_exec = before_exec
        self._servers: OrderedDict[_Key, _ForkServer] = OrderedDict()
        #: How many commands of a kind were started.
        self._n_started: OrderedDict[_Key, int] = OrderedDict()
        #: The servers and the processes that wait for commands, as far as they are not reaped yet.
        self.pids: set[int] = set()

    @property
    def starting(self) -> list[socket.socket]:
        """The channels of servers that are about to say that they are ready."""
        return [each.channel for each in self._servers.values() if not each.is_ready]

    def fork(self, message: Mapping[str, Any], fds: list[int]) -> int | None:
        """Start a command; its pid. None: it is to be started in the ordinary way.

        Args:
            message: as `guard` gets it for a start.
            fds: its standard input, output and error.
        """
        n_options = _n_options(message["argv"])
        own = {*message.get("own", ()), message["mark"]}
        if n_options is None or len(own) == 1:
            return None
        environ = frozenset(item for item in message["env"].items() if item[0] not in own)
        key = tuple(message["argv"][:n_options]), environ
        server = self._servers.get(key)
        if server is None:
            if self._is_due(key):
                self._start(key, message)
            return None
        if not server.is_ready:
            return None
        self._servers.move_to_end(key)
        server.used_s = time.monotonic()
        has_next = server.waiting is not None or self._fork_next(server)
        pid = self._become(server, message, fds, n_options, own) if has_next else None
        server.program = _last_program(message, n_options)
        if pid is None:
            self._fail(key)
        return pid

    @property
    def fork_next_in_s(self) -> float | None:
        """When to call `fork_next` at the latest; None: each server has a process that waits."""
        used_s = [each.used_s for each in self._servers.values() if each.is_ready and each.waiting is None]
        return max(0.0, min(used_s) + _FORK_AFTER_S - time.monotonic()) if used_s else None

    def fork_next(self) -> None:
        """Have each server fork a process that waits for the next command."""
        for key, server in list(self._servers.items()):
            if server.is_ready and server.waiting is None and not self._fork_next(server):
                self._fail(key)

    def greet(self, channel: socket.socket) -> None:
        """Take what a server says that starts; it is that it is ready, or it ends."""
        key, server = next(item for item in self._servers.items() if item[1].channel is channel)
        try:
            received = receive(channel)
        except (OSError, ValueError):
            received = None
        server.is_ready = received is not None and self._fork_next(server)
        if not server.is_ready:
            self._fail(key)

    def end_idle(self) -> None:
        """End those that were not used for a while; called now and then."""
        until_s = time.monotonic() - _IDLE_S
        for key, server in list(self._servers.items()):
            if server.used_s < until_s:
                self._end(key)

    def _is_due(self, key: _Key) -> bool:
        n_started = self._n_started[key] = self._n_started.pop(key, 0) + 1
        if len(self._n_started) > _MAX_KEYS:
            self._n_started.popitem(last=False)
        return n_started > _N_BEFORE

    def _start(self, key: _Key, message: Mapping[str, Any]) -> None:
        while len(self._servers) >= _MAX_SERVERS:
            self._end(next(iter(self._servers)))
        options, environ = key
        ours, theirs = socket.socketpair()
        # Pipes, as those of attempts are: the interpreter buffers its streams accordingly.
        pipes = [os.pipe() for _ in range(3)]
        try:
            process = subprocess.Popen(
                [*options, _PROGRAM, str(theirs.fileno())],
                stdin=pipes[0][0],
                stdout=pipes[1][1],
                stderr=pipes[2][1],
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={**dict(environ), message["mark"]: "-" * _MARK_CHARS},
                start_new_session=True,
                preexec_fn=self._before_exec,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            ours.close()
            self._n_started[key] = _N_BEFORE - _PAUSE
            return
        finally:
            theirs.close()
            for fd in (*pipes[0], *pipes[1], *pipes[2]):
                os.close(fd)
        process.returncode = 0  # it is reaped by the guard
        ours.settimeout(_PATIENCE_S)
        self.pids.add(process.pid)
        self._servers[key] = _ForkServer(process.pid, ours, time.monotonic())

    def _become(
        self, server: _ForkServer, message: Mapping[str, Any], fds: list[int], n_options: int, own: set[str]
    ) -> int | None:
        """Have the process that waits be a command; its pid. None: nothing of the command has begun."""
        assert server.waiting is not None
        pid, handshake = server.waiting
        server.waiting = None
        environ = {name: message["env"][name] for name in own & message["env"].keys()}
        with handshake, contextlib.suppress(OSError, ValueError):
            send(handshake, {**message, "env": environ, "n_options": n_options}, tuple(fds))
            if handshake.recv(1) == b"r" and pid in self.pids:
                with contextlib.suppress(OSError):
                    handshake.sendall(b"g")
                self.pids.discard(pid)
                return pid
        self._kill(pid)
        return None

    def _fork_next(self, server: _ForkServer) -> bool:
        """Have a process forked that waits for a command, once it is known to be a child of ours."""
        handshake, theirs = socket.socketpair()
        with contextlib.suppress(OSError, ValueError):
            with theirs:
                send(server.channel, {"program": server.program, "guard": os.getpid()}, (theirs.fileno(),))
            handshake.settimeout(_PATIENCE_S)
            pid = int(handshake.recv(32))
            found = parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
            if found.parent == os.getpid() and found.session == pid and pid not in self.pids:
                self.pids.add(pid)
                server.waiting = pid, handshake
                return True
        handshake.close()
        return False

    def _fail(self, key: _Key) -> None:
        self._end(key)
        self._n_started[key] = _N_BEFORE - _PAUSE

    def _end(self, key: _Key) -> None:
        server = self._servers.pop(key)
        server.channel.close()
        self._kill(server.pid)
        if server.waiting is not None:
            pid, handshake = server.waiting
            handshake.close()
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        if pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _last_program(message: Mapping[str, Any], n_options: int) -> str:
    """The program of a command, where another one may name the same; empty: it is in the command's folder."""
    program = message["argv"][n_options]
    return os.path.abspath(program) if program.startswith("/") else ""  # noqa: PTH100 -- as Python writes it


def _n_options(argv: list[str]) -> int | None:
    """How many words of a command come before its program in Python; None: it does not run such a file."""
    if not argv or not _INTERPRETER.match(os.path.basename(argv[0])):  # noqa: PTH119
        return None
    n = 1
    while n < len(argv) and _OPTION.match(argv[n]):
        n += 1
    return n if n < len(argv) and argv[n].endswith(".py") and not argv[n].startswith("-") else None
