"""One host of the cluster: a process that holds a network, processes, a host name and mounts of its own.

The holder is the first process of its namespace, so its end is the end of all that runs there; it ends with
its standard input, that is at the latest with the program that made it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Host", "link"]

_HOLDER = """
import os, sys, threading, time
def reap():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.05)
threading.Thread(target=reap, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""
_SPACES = ("--mount", "--uts", "--net", "--pid")
_READY_S = 20.0


class Host:
    """A host with mounts of its own.

    Args:
        name: its host name.
        mounts: what lies over what: target -> source, bound in this order.
        python: this Python, where the host has it.

    Raises:
        RuntimeError: the machine does not allow it.
    """

    def __init__(self, name: str, mounts: Mapping[Path, Path], python: Path) -> None:
        self.name = name
        binds = [f"mount --bind '{source}' '{target}'" for target, source in mounts.items()]
        lines = ["set -e", *binds, 'hostname "$1"', "ip link set lo up", 'exec "$2" -c "$3"']
        argv = ["unshare", *_SPACES, "--propagation", "private", "--fork", "--mount-proc", "--kill-child"]
        self._holder = subprocess.Popen(
            [*argv, "sh", "-c", "\n".join(lines), "sh", name, str(python), _HOLDER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"ready\n":
            said = self._holder.stderr.read().decode(errors="replace").strip()
            raise RuntimeError(f"no namespaces for {name}: {said}")
        self.pid = child_of(self._holder.pid)

    def inside(self, argv: Sequence[str], ids: tuple[int, int] | None = None) -> list[str]:
        """The words that run a command here, as root or with a user's and a group's number."""
        words = ["nsenter", "--target", str(self.pid), *_SPACES, "--"]
        if ids is not None:
            words += ["setpriv", f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups"]
        return [*words, *argv]

    def close(self) -> None:
        """End everything that runs here."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            self._holder.wait(10)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for stream in (self._holder.stdout, self._holder.stderr):
            assert stream is not None
            stream.close()


def child_of(pid: int) -> int:
    """The only child of a process, such as that of an nsenter or unshare that had to fork."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])


def link(head: Host, nodes: Sequence[Host], network: str) -> None:
    """Join hosts by a bridge that lives at the head; the head is .1, the nodes .11, .12 and so on.

    Args:
        head: has the bridge.
        nodes: have a cable to it each.
        network: such as ``10.78.0``.
    """

    def at(host: Host, *words: str) -> None:
        argv = ["nsenter", "--target", str(host.pid), "--net", "--", "ip", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
        if done.returncode:
            raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    at(head, "link", "add", "br0", "type", "bridge")
    at(head, "addr", "add", f"{network}.1/24", "dev", "br0")
    at(head, "link", "set", "br0", "up")
    for number, node in enumerate(nodes, 11):
        port = f"port{number}"
        at(head, *f"link add {port} type veth peer name eth0 netns {node.pid}".split())
        at(head, "link", "set", port, "master", "br0", "up")
        at(node, "addr", "add", f"{network}.{number}/24", "dev", "eth0")
        at(node, "link", "set", "eth0", "up")
