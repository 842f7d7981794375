"""Running Torque's commands: an argument list in, a completed run out, never a shell, never half an output.

A command has a time limit and its output a size limit; beyond either the whole process group is killed and
the call fails, so nobody ever reads a part of an output. Many run at once on one event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torque_sched.errors import CommandError

_CHUNK_BYTES = 1 << 18
_STDERR_BYTES = 1 << 16
_REAP_FIRST_S = 0.0003
_REAP_LONGEST_S = 0.05


@dataclass(frozen=True, slots=True)
class Completed:
    """How one command ended; ``exit_code`` is negative when a signal ended it."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes
    wall_s: float

    def last_line(self) -> str:
        """The last line with text on standard error, else on standard output: usually the diagnosis."""
        for data in (self.stderr, self.stdout[-4096:]):
            lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "no output"


class Commands:
    """Starts programs found on one PATH with one environment.

    Args:
        env: the whole environment of the programs; this process's own when None.
        max_bytes: longest standard output that is taken.
    """

    def __init__(self, env: Mapping[str, str] | None = None, *, max_bytes: int = 512 << 20) -> None:
        self._env = dict(os.environ if env is None else env)
        self._max_bytes = max_bytes
        self._found: dict[str, str] = {}
        self._running: set[int] = set()
        self._unreaped: set[int] = set()

    def find(self, name: str) -> str:
        """Where the program is.

        Raises:
            CommandError: it is not on PATH.
        """
        path = self._found.get(name)
        if path is None:
            path = shutil.which(name, path=self._env.get("PATH"))
            if path is None:
                raise CommandError(
                    f"{name} is not on PATH", cure="install Torque's client commands, or set `commands` to "
                    "the folder they are in",
                )  # fmt: skip
            self._found[name] = os.path.abspath(path)  # noqa: PTH100 -- a symbolic link stays one
        return self._found[name]

    async def run(self, argv: Sequence[str], timeout_s: float, *, keeps: int | None = None) -> Completed:
        """Run a program to its end; its exit code may be anything.

        Args:
            argv: program name and arguments.
            timeout_s: its process group is killed after this time.
            keeps: a descriptor that it has open, too, as long as it lives.

        Raises:
            CommandError: it is not there, ran too long, or printed too much.
        """
        started_s = time.monotonic()
        self._reap_killed()
        child = self._spawn(argv, keeps)
        self._running.add(child.pid)
        try:
            exit_code = await child.finish(self._max_bytes, timeout_s)
        finally:
            if not child.close():
                self._unreaped.add(child.pid)
            self._running.discard(child.pid)
        return Completed(
            tuple(argv),
            exit_code,
            b"".join(child.stdout),
            b"".join(child.stderr),
            time.monotonic() - started_s,
        )

    def kill_all(self) -> None:
        """End every command that still runs; for the way out."""
        for pid in self._running:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _reap_killed(self) -> None:
        for pid in tuple(self._unreaped):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._unreaped.discard(pid)

    def _spawn(self, argv: Sequence[str], keeps: int | None) -> _Child:
        path = self.find(argv[0])
        # As outputs are read, whatever this process's locale is.
        words = tuple(word.encode("utf-8", "surrogateescape") for word in argv)
        out, out_child = os.pipe()
        err, err_child = os.pipe()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out_child, 1),
            (os.POSIX_SPAWN_DUP2, err_child, 2),
        ]
        if keeps is not None:
            # After the others, as the number may be that of a pipe's end; and another than its own, because
            # only a copy outlives the exec.
            actions.append((os.POSIX_SPAWN_DUP2, keeps, 3 if keeps != 3 else 4))
        try:
            pid = os.posix_spawn(
                path, words, self._env, file_actions=actions, setpgroup=0, setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGALRM, signal.SIGHUP),
            )  # fmt: skip
        except OSError as error:
            os.close(out)
            os.close(err)
            raise _cannot_start(argv[0], path, error) from error
        finally:
            os.close(out_child)
            os.close(err_child)
        return _Child(argv[0], pid, out, err)


class _Child:
    """One running program: its two pipes and its end."""

    def __init__(self, name: str, pid: int, out: int, err: int) -> None:
        self.pid = pid
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        self._name = name
        self._fds = {out, err}
        self._is_reaped = False
        for fd in self._fds:
            os.set_blocking(fd, False)
        self._out, self._err = out, err

    async def finish(self, max_bytes: int, timeout_s: float) -> int:
        """Read both pipes to their ends and reap; returns the exit code.

        Raises:
            CommandError: it printed too much, or did not end in time.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        done: asyncio.Future[None] = loop.create_future()
        left = [max_bytes]

        def read(fd: int, parts: list[bytes], *, keeps_all: bool) -> None:
            try:
                data = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                loop.remove_reader(fd)
                self._fds.discard(fd)
                os.close(fd)
                if not self._fds and not done.done():
                    done.set_result(None)
            elif keeps_all:
                left[0] -= len(data)
                parts.append(data)
                if left[0] < 0 and not done.done():
                    done.set_exception(_too_much(self._name, max_bytes))
            elif sum(map(len, parts)) < _STDERR_BYTES:
                parts.append(data)

        loop.add_reader(self._out, lambda: read(self._out, self.stdout, keeps_all=True))
        loop.add_reader(self._err, lambda: read(self._err, self.stderr, keeps_all=False))
        # A timer of its own is cheaper than a task around the whole: this runs hundreds of times a second.
        timer = loop.call_at(deadline_s, _fail, done, _too_slow(self._name, timeout_s))
        try:
            await done
        finally:
            timer.cancel()
        return await self._reap(deadline_s, timeout_s)

    async def _reap(self, deadline_s: float, timeout_s: float) -> int:
        pause_s = _REAP_FIRST_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 -- it does not wait
            if pid:
                self._is_reaped = True
                return os.waitstatus_to_exitcode(status)
            if asyncio.get_running_loop().time() > deadline_s:
                raise _too_slow(self._name, timeout_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_REAP_LONGEST_S, pause_s * 2)

    def close(self) -> bool:
        """Close the pipes and kill what still runs; False when it has to be reaped later.

        A process that waits for a dead file server cannot even be killed, and nobody waits for it.
        """
        loop = asyncio.get_running_loop()
        for fd in self._fds:
            loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        if not self._is_reaped:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._is_reaped = bool(os.waitpid(self.pid, os.WNOHANG)[0])
        return self._is_reaped


def _fail(done: asyncio.Future[None], error: CommandError) -> None:
    if not done.done():
        done.set_exception(error)


def _too_slow(name: str, timeout_s: float) -> CommandError:
    return CommandError(
        f"{name} did not end within {timeout_s:g} s and was killed",
        cure="is the server or a mom hanging? try it by hand",
    )


def _too_much(name: str, max_bytes: int) -> CommandError:
    return CommandError(
        f"{name} printed more than {max_bytes} bytes and was killed",
        cure="lower the server's keep_completed, so that fewer finished jobs are listed",
    )


def _cannot_start(name: str, path: str, error: OSError) -> CommandError:
    if error.errno == errno.ENOENT:
        return CommandError(f"{name} is not there any more ({path})", cure="reinstall Torque's clients")
    return CommandError(f"{name} cannot be started: {error.strerror}", cure=f"see the permissions of {path}")
