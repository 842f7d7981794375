"""Functions that the tests' tasks call in the processes of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

CALLS: list[str] = []


def echo(**arguments: Any) -> Any:
    return arguments


def add(*numbers: int) -> int:
    return sum(numbers)


def who(name: str = "") -> dict[str, Any]:
    """Where it runs, and what it can see."""
    CALLS.append(name)
    print(f"reporter:counter:g,calls,1\nhere is {name}", file=sys.stderr)
    print("printed")
    names = ("mapreduce_task_attempt_id", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MINE", "LEFT")
    return {
        "pid": os.getpid(),
        "calls": CALLS,
        "cwd": Path.cwd().name,
        "files": sorted(path.name for path in Path().iterdir()),
        "environ": {name: os.environ.get(name) for name in names},
        "secrets": [name for name in os.environ if "TOKEN" in name or "KEY" in name],
    }


def concatenate(number: int = 1) -> int:
    parts = [path.read_bytes() for path in sorted(Path().glob("in*"))]
    Path("out").write_bytes(b"".join(parts) * number)
    return len(parts)


def set_variable() -> None:
    os.environ["LEFT"] = "1"


def fail() -> None:
    raise ValueError("no such tile\nat all \x1b[31m")


def leave() -> None:
    sys.exit(3)


def nothing_json() -> Any:
    return {"a": {1, 2}}


def not_a_number() -> float:
    return float("nan")


def nested() -> Any:
    found: list[Any] = []
    for _ in range(5000):
        found = [found]
    return found


def long_result() -> str:
    return "x" * 20_000


def huge_result() -> bytes:
    kept = [b"x" * (1 << 20) for _ in range(1 << 10)]
    time.sleep(600)
    return kept[0]


def die() -> None:
    os._exit(9)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    time.sleep(600)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def print_always() -> None:
    while True:
        print("more" * 1000)


def close_all() -> str:
    os.closerange(0, 100)
    return "done"


def lie(text: str = "") -> None:
    """Answer in its place what is no answer."""
    for fd in range(3, 30):
        try:
            os.write(fd, bytes.fromhex(text))
        except OSError:
            continue
    time.sleep(600)


def fork_and_return(path: str) -> int:
    """A child in its session, a daemon in one of its own, and this process goes on."""
    if (pid := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            Path(path).write_text(f"{os.getpid()}\n")
        time.sleep(600)
        os._exit(0)
    while not Path(path).exists() or not Path(path).read_text().endswith("\n"):
        time.sleep(0.01)
    return pid


def fork_and_exit(path: str) -> None:
    fork_and_return(path)
    os._exit(0)


def return_twice() -> str:
    """The child returns as well."""
    return "child" if os.fork() == 0 else "parent"


def leave_thread() -> int:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


def pid() -> int:
    return os.getpid()


def children_write(n_children: int) -> None:
    for number in range(n_children):
        subprocess.run([sys.executable, "-c", f"open('out{number}', 'w').write('x')"], check=True)
