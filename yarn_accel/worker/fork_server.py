"""``PYTHON [OPTIONS] fork_server.py DESCRIPTOR``: waits, and forks for each Python program that is to run.

The guard of a worker starts it for commands like ``PYTHON [OPTIONS] PROGRAM.py ARGUMENT...``, with their
interpreter, options and environment. To start an interpreter takes ten milliseconds or more, and the modules
that most programs import take as long again.

A process for the next command is forked before that is known, and waits: so a start costs one message. With
the request to fork comes a socket. There the new process tells the guard its pid, and then gets its command,
the variables that are its own, its folder, and three descriptors: standard input, output and error. It runs
nothing of the program before the guard has answered once more. If anything fails until then, it exits, and
the guard starts the command in the ordinary way.

The new process is a child of the guard, as other commands are. Linux can fork it as such. Where that cannot
be, its parent here ends at once, and the kernel then gives it to the guard.

The request names the last program, which the server compiles once, for all commands that name the same one.

It is run by its path, with the standard library alone (3.9 or later).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import itertools
import os
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
#: Of the standard library; none of them starts a thread or opens a file.
_COMMON_MODULES = (
    "argparse",
    "base64",
    "collections.abc",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "functools",
    "glob",
    "heapq",
    "itertools",
    "json",
    "logging",
    "math",
    "random",
    "re",
    "shutil",
    "string",
    "struct",
    "subprocess",
    "tempfile",
    "textwrap",
    "traceback",
    "typing",
    "urllib.parse",
)
_MODULE_ENDS = ("py", "pyc", "so")
#: Programs that are kept compiled, and how large their texts may be.
_MAX_PROGRAMS, _MAX_SOURCE_BYTES = 8, 1 << 20
_PR_GET_TID_ADDRESS = 40
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
#: The exit status of Python where its output could not be written.
_NOT_FLUSHED = 120


class _Program(NamedTuple):
    """What a new process runs: the words after the interpreter's options, and what the first one contains."""

    words: list[str]
    code: types.CodeType | bytes


class _Server:
    """Forks.

    Args:
        channel: where the guard asks.
        is_path_safe: whether the folder of a program is no place to import from (``-I``, ``-P``).
    """

    def __init__(self, channel: socket.socket, is_path_safe: bool) -> None:
        self._channel = channel
        self._is_path_safe = is_path_safe
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.getenv.restype = ctypes.c_void_p
        self._fork_sibling = _fork_sibling(self._libc)
        #: The texts of programs, and what they are compiled to.
        self._compiled: dict[str, tuple[bytes, types.CodeType]] = {}

    def next_program(self) -> _Program | None:
        """Serve the guard until it is gone; in each new process it returns that one's program."""
        while (received := receive(self._channel)) is not None:
            message, fds = received
            self._compile(message["program"])
            if self._fork():
                return self._become(message["guard"], fds[0])
            for fd in fds:
                os.close(fd)
        return None

    def _fork(self) -> bool:
        """Make a child of the guard; True in that one."""
        if self._fork_sibling is not None:
            return self._fork_sibling() == 0
        middle = os.fork()
        if middle == 0:
            with contextlib.suppress(BaseException):
                parent = os.getpid()
                if os.fork() == 0:
                    while os.getppid() == parent:
                        time.sleep(0.0001)
                    return True
            os._exit(1)
        os.waitpid(middle, 0)
        return False

    def _become(self, guard: int, descriptor: int) -> _Program:
        """Be the process of a command; whatever fails, the guard starts it in another way."""
        with contextlib.suppress(BaseException), socket.socket(fileno=descriptor) as handshake:
            self._channel.close()
            os.setsid()
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)
            handshake.sendall(b"%d\n" % os.getpid())
            received = receive(handshake)
            if received is None:
                os._exit(1)
            message, fds = received
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
                os.close(fd)
            self._set_environ(message["env"], message["mark"])
            os.chdir(message["cwd"])
            words = message["argv"][message["n_options"] :]
            program = _Program(words, self._code(words[0]))
            if not self._is_path_safe:
                self._use_folder_of(words[0])
            handshake.sendall(b"r")
            if handshake.recv(1) != b"g":
                os._exit(1)
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[:] = message["argv"]
            return program
        os._exit(1)

    def _set_environ(self, own: Mapping[str, str], mark: str) -> None:
        """Take the variables that are the command's own; all others are the server's."""
        # The kernel shows the memory in which this process got its environment: whose it is stands there.
        at, place = self._libc.getenv(mark.encode()), os.environ.get(mark, "")
        name = own.get(mark, "").encode()
        if at is None or not name or len(name) > len(place):
            os._exit(1)
        ctypes.memmove(at, name.ljust(len(place), b"\0"), len(place))
        os.environ.update(own)

    def _compile(self, path: str) -> None:
        """Compile a program for processes that are forked from now on, where that changes nothing."""
        with contextlib.suppress(Exception), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            source = Path(path).read_bytes()
            known = self._compiled.pop(path, None)
            if known is not None and known[0] == source:
                self._compiled[path] = known
            elif len(source) <= _MAX_SOURCE_BYTES:
                code = compile(source, path, "exec", dont_inherit=True)
                if not warned:  # else each run warns
                    self._compiled[path] = source, code
            if len(self._compiled) > _MAX_PROGRAMS:
                del self._compiled[next(iter(self._compiled))]

    def _code(self, path: str) -> types.CodeType | bytes:
        """A program: compiled, where it is known and has not changed; else its text."""
        with open(path, "rb") as file:  # noqa: PTH123 -- it touches less memory, which would be copied
            source = file.read()
        known = self._compiled.get(os.path.abspath(path))  # noqa: PTH100 -- as Python itself writes it
        return known[1] if known is not None and known[0] == source else source

    def _use_folder_of(self, script: str) -> None:
        """Import from a program's folder first; it must have no module that is loaded here already."""
        folder = os.path.dirname(os.path.realpath(script))  # noqa: PTH120 -- as Python itself writes it
        loaded = {name for name in sys.modules if "." not in name}
        for entry in os.scandir(folder):
            stem, _, end = entry.name.partition(".")
            if stem in loaded and (not end or end.rpartition(".")[2] in _MODULE_ENDS):
                os._exit(1)
        sys.path.insert(0, folder)


def _fork_sibling(libc: ctypes.CDLL) -> Callable[[], int] | None:
    """Forks a child of our parent, with nobody between; None: that cannot be here.

    It does what ``fork`` of the GNU library does for a process with one thread: there the kernel writes the
    number of the new thread where that library keeps it.
    """
    number = _SYS_CLONE.get(os.uname().machine)
    try:
        is_gnu = "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (OSError, ValueError):
        is_gnu = False
    place = ctypes.c_void_p()
    if not is_gnu or number is None or libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0):
        return None
    flags = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    # The order of the last two differs between processors, and one of them is not looked at.
    arguments = [ctypes.c_long(each) for each in (number, flags, 0, 0, place.value or 0, place.value or 0)]
    python = ctypes.PyDLL(None)
    python.syscall.restype = ctypes.c_long

    def fork() -> int:
        python.PyOS_BeforeFork()
        pid = int(python.syscall(*arguments))
        (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
        if pid < 0:
            raise OSError("no process can be made")
        return pid

    return fork


def _run(program: _Program, loaded: Collection[str]) -> NoReturn:
    """Run a program, and end, as ``python PROGRAM.py ARGUMENT...`` does.

    Args:
        loaded: the modules that are not its own.
    """
    last = next(reversed(sys.modules))
    path = os.path.abspath(program.words[0])  # noqa: PTH100 -- as Python itself writes it
    sys.argv[:] = program.words
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    status = 0
    try:
        code = program.code
        if isinstance(code, bytes):
            code = compile(code, path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as error:
        status = _exit_status(error)
    except BaseException as error:  # noqa: BLE001 -- shown as Python itself shows it
        frames = error.__traceback__
        own = frames.tb_next if frames is not None else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    del module
    # To look at the names of all modules would copy the memory in which they are.
    newest = itertools.takewhile(lambda name: name != last, reversed(sys.modules))
    _end(status, ["__main__", *(name for name in list(newest) if name not in loaded)])


def _exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.write(f"{error.code}\n")
    return 1


def _end(status: int, own_modules: Iterable[str]) -> NoReturn:
    """End as Python does, but for the modules of the library: to take these down takes ten milliseconds.

    Args:
        own_modules: those of the program, whose objects end here: files that were left open are written.
    """
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for name in own_modules:
        found = sys.modules.pop(name, None)
        if isinstance(found, types.ModuleType):
            found.__dict__.clear()
        del found
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = status or _NOT_FLUSHED
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    # Libraries in C write what they hold, too.
    ctypes.CDLL(None).exit(status)
    os._exit(status)


def main(descriptor: int, is_path_safe: bool) -> None:
    """Serve the guard at the other end of a socket, and run a program in each process that is forked."""
    channel = socket.socket(fileno=descriptor)
    for name in _COMMON_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A thread that something on the path of imports has started would not be there after a fork.
    if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 -- the number alone
        os._exit(1)
    gc.collect()
    gc.freeze()
    loaded = frozenset(sys.modules)
    send(channel, {"is_ready": True})
    program = _Server(channel, is_path_safe).next_program()
    if program is None:
        os._exit(0)
    _run(program, loaded)


if __name__ == "__main__":
    _is_path_safe = bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    if _is_path_safe:
        sys.path.insert(0, str(Path(__file__).resolve().parent))
    from message_channel import receive, send  # type: ignore[import-not-found]

    # Nothing of ours is in the way of what programs import.
    del sys.path[0], sys.modules["message_channel"]
    main(int(sys.argv[1]), _is_path_safe)
else:
    from yarn_accel.worker.message_channel import receive, send
