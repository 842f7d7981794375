"""Starts commands for a worker, each in a session of its own, and ends all that they leave.

A process of its own with one thread, for two reasons: the kernel then ends its children when it dies, and it
ends *them* when the worker dies in whatever way, which it sees at once as the end of its socket. Processes
that leave their session, as daemons do, become its children when their parents end, and are ended, too.

The message ``start`` comes with three descriptors: standard input, output and error. Answers: ``pid`` or
``error`` for a start, ``status`` when nothing of a command runs any more.

Whose a process is that left its session, its environment says: commands pass the name of their attempt on,
or the variable that ``mark`` names. One that says nothing is ended once no command runs.

Python programs that are started often are forked (`fork_servers`). Then ``own`` names the variables that each
attempt has for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yarn_accel.worker.fork_servers import ForkServers
from yarn_accel.worker.message_channel import receive, send
from yarn_accel.worker.process_tree import ProcessInfo, bytes_read, listed_processes

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: How often what is left of a session is looked for and killed, and the pauses between.
_KILL_ROUNDS, _KILL_PAUSE_S = 200, 0.005
_N_EMPTY_LISTS = 2
#: So many ended commands may have left something that is found only later.
_MAX_ENDED = 256
#: How often servers that fork are looked at, whether they are needed still.
_LOOK_S = 20.0


class _Guard:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        #: Pid of the first process of a session -> the worker's number for it, and its attempt's variable.
        self._numbers: dict[int, tuple[int, bytes]] = {}
        #: The variables of attempts that ended, the last one at the end.
        self._ended: deque[bytes] = deque(maxlen=_MAX_ENDED)
        self._forks = ForkServers(self._before_exec(os.getpid()))

    def run(self) -> None:
        """Serve until the worker is gone; then nothing that was started here runs any more."""
        adopt_orphans()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A container is ended by signals to all of its group, and we are the last to go. Ignored signals
        # would be ignored by every command, too.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        try:
            while True:
                starting = {each.fileno(): each for each in self._forks.starting}
                timeout_s = self._forks.fork_next_in_s
                if timeout_s is None and self._forks.pids:
                    timeout_s = _LOOK_S
                fds = [self._channel.fileno(), wake_read, *starting]
                ready, _, _ = select.select(fds, [], [], timeout_s)
                if wake_read in ready:
                    os.read(wake_read, 4096)
                    self._reap()
                if wake_read in ready or self._forks.fork_next_in_s == 0.0:
                    self._forks.fork_next()
                for fd in starting.keys() & set(ready):
                    self._forks.greet(starting[fd])
                self._forks.end_idle()
                if self._channel.fileno() in ready and not self._serve():
                    return
        except OSError:
            return  # the worker is gone
        finally:
            end_children()

    def _serve(self) -> bool:
        received = receive(self._channel)
        if received is None:
            return False
        message, fds = received
        try:
            if "start" in message:
                self._start(message, fds)
            else:
                self._signal(message)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        number, name = message["start"], message["mark"]
        try:
            pid = self._forks.fork(message, fds) or self._started(message, fds)
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            send(self._channel, {"number": number, "error": _start_error(message, error)})
            return
        mark = f"{name}={message['env'].get(name, '')}".encode()
        self._numbers[pid] = number, mark
        send(self._channel, {"number": number, "pid": pid})

    def _started(self, message: dict[str, Any], fds: list[int]) -> int:
        process = subprocess.Popen(
            message["argv"],
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            cwd=message["cwd"],
            env=message["env"],
            start_new_session=True,
            preexec_fn=self._before_exec(os.getpid()),
        )
        process.returncode = 0  # it is reaped here, not there
        return process.pid

    def _before_exec(self, parent: int) -> Callable[[], None]:
        def prepare() -> None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        return prepare

    def _signal(self, message: dict[str, Any]) -> None:
        for pid, (number, _) in self._numbers.items():
            if number == message["signal"]:
                self._to_session(pid, signal.SIGKILL if message["force"] else signal.SIGTERM)
                # A stopped process takes notice of SIGTERM only when it goes on.
                self._to_session(pid, signal.SIGCONT)

    def _to_session(self, session: int, number: signal.Signals) -> None:
        for each in listed_processes():
            if each.session == session:
                with contextlib.suppress(OSError):
                    os.kill(each.pid, number)

    def _reap(self) -> None:
        """Take the statuses of children that ended; end what the first process of a session leaves.

        A process that left its session may take seconds to end, and its own children become ours only then:
        so these are looked for once more whenever such a process has ended.
        """
        for pid, status, n_bytes in _ended_children():
            if pid in self._forks.pids:
                self._forks.pids.discard(pid)
                continue
            number, mark = self._numbers.pop(pid, (None, b""))
            if number is not None:
                self._ended.append(mark)
            self._end_session(pid)
            if number is not None:
                exit_status = os.waitstatus_to_exitcode(status)
                send(self._channel, {"number": number, "status": exit_status, "read_bytes": n_bytes})

    def _end_session(self, session: int) -> None:
        """Kill what is left of a session, and what has left it or an earlier one."""
        if not self._has_other_children():
            return
        n_empty = 0
        for _ in range(_KILL_ROUNDS):
            left = [
                each.pid
                for each in listed_processes()
                if not each.is_zombie and (each.session == session or self._has_left(each))
            ]
            # One that became our child while the list was read is missing from it.
            n_empty = 0 if left else n_empty + 1
            if n_empty == _N_EMPTY_LISTS:
                return
            if not left:
                continue
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_KILL_PAUSE_S)

    def _has_other_children(self) -> bool:
        """Whether there are children but the first processes of sessions that run, and servers that fork.

        What a session leaves is below a child of ours, whose parent the kernel made us. No child vanishes
        from the list while it is read, as only this thread reaps them. Looking at all processes takes longer
        than a short command.
        """
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return True  # a kernel without CONFIG_PROC_CHILDREN
        known = self._numbers.keys() | self._forks.pids
        return any(int(pid) not in known for pid in children)

    def _has_left(self, process: ProcessInfo) -> bool:
        """Whether a process is our child, in no session that runs, and perhaps of an attempt that ended."""
        if process.parent != os.getpid() or process.session in (self._numbers.keys() | self._forks.pids):
            return False
        # A process without memory is about to end, and its children then become ours.
        if not self._numbers or not process.resident_bytes:
            return True
        running = {mark for _, mark in self._numbers.values()}
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            return not (set(self._ended) - running).isdisjoint(environ)
        return False


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of its descendants whose parents end."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children, and theirs, which `adopt_orphans` makes ours, until there is none."""
    own = os.getpid()
    for _ in range(_KILL_ROUNDS):
        left = [each.pid for each in listed_processes() if each.parent == own]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)
        _ended_children()


def _ended_children() -> list[tuple[int, int, int]]:
    """Pid, status, and bytes read of each child that ended, with its own children for which it has waited."""
    found = []
    with contextlib.suppress(ChildProcessError):
        # Its files in /proc are there until it is reaped.
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            n_bytes = bytes_read([ended.si_pid])
            found.append((*os.waitpid(ended.si_pid, 0), n_bytes))
    return found


def _start_error(message: dict[str, Any], error: Exception) -> str:
    """Why a command cannot be started: what is missing, and what to look at."""
    program = message["argv"][0]
    if isinstance(error, FileNotFoundError):
        return f"{program}: there is no such program, or its first line (#!) names none that is there"
    if isinstance(error, PermissionError):
        return f"{program}: may not be run: is it executable?"
    if isinstance(error, OSError) and error.strerror:
        return f"{program}: {error.strerror}"
    return f"{program}: {error}"


def main(argv: list[str]) -> None:
    """Serve the worker at the other end of the descriptor that is named."""
    with socket.socket(fileno=int(argv[0])) as channel:
        _Guard(channel).run()


if __name__ == "__main__":
    main(sys.argv[1:])
