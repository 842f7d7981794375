"""What a host of the cluster finds in /etc and in its PBS home, made before its daemons start."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

__all__ = ["USERS", "make_etc", "make_home"]

USERS = ("alice", "bob", "carol", "torquesched")
"""Ordinary users that exist at all hosts of the cluster, and nowhere else."""

_FIRST_ID = 61001
_HEAD_FOLDERS = (
    *(f"server_priv/{name}" for name in (
        "accounting", "acl_groups", "acl_hosts", "acl_svr", "acl_users", "arrays", "credentials",
        "disallowed_types", "hostlist", "jobs", "queues",
    )),
    "server_logs", "job_logs", "sched_priv/accounting", "sched_logs",
)  # fmt: skip
_NODE_FOLDERS = ("mom_priv/jobs", "mom_logs")
_MODES = {"server_priv": 0o750, "server_priv/accounting": 0o755, "mom_priv": 0o751, "mom_priv/jobs": 0o751}


_ETC = Path("/etc")


def make_etc(folder: Path, machine: Path, addresses: Iterable[tuple[str, str]]) -> dict[Path, Path]:
    """Names and users of the cluster; returns what lies over what.

    A whole /etc, whose other files are links to the machine's: what lies over /etc/passwd alone is gone as
    soon as the machine gets a user, for that replaces the file below.

    Args:
        folder: of the cluster.
        machine: where each host finds the machine's own /etc.
        addresses: pairs of an address and a host name.
    """
    etc = folder / "etc"
    etc.mkdir()
    people = {name: (_FIRST_ID + number, folder / "users" / name) for number, name in enumerate(USERS)}
    for uid, place in people.values():
        place.mkdir(parents=True)
        os.chown(place, uid, uid)
    known = [f"{each.pw_name}:x:{each.pw_uid}:{each.pw_gid}::/:/bin/sh" for each in _system()]
    own = [f"{name}:x:{uid}:{uid}::{place}:/bin/sh" for name, (uid, place) in people.items()]
    texts = {
        "hosts": ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in addresses)],
        "passwd": known + own,
        "group": ["root:x:0:", "tty:x:5:", *(f"{name}:x:{uid}:" for name, (uid, _) in people.items())],
        "nsswitch.conf": ["passwd: files", "group: files", "shadow: files", "hosts: files"],
        "resolv.conf": [],
    }
    for name, lines in texts.items():
        (etc / name).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    for path in _ETC.iterdir():
        if path.name not in texts:
            # The text of a link is to be read from /etc.
            (etc / path.name).symlink_to(path.readlink() if path.is_symlink() else machine / path.name)
    return {_ETC: etc}


def _system() -> list[pwd.struct_passwd]:
    return [each for each in pwd.getpwall() if each.pw_uid < 1000 or each.pw_name == "nobody"]


def make_home(home: Path, server: str, *, is_head: bool) -> None:
    """A PBS home as Torque's own installation makes it.

    Args:
        home: made here.
        server: host name of pbs_server.
        is_head: of the head, else of a node.
    """
    for name in ("aux", *(_HEAD_FOLDERS if is_head else _NODE_FOLDERS)):
        (home / name).mkdir(parents=True)
    for name, mode in _MODES.items():
        if (home / name).exists():
            (home / name).chmod(mode)
    for name in ("spool", "undelivered", "checkpoint"):
        (home / name).mkdir()
        (home / name).chmod(0o1777)
    (home / "server_name").write_text(f"{server}\n", encoding="ascii")
    (home / "pbs_environment").write_text("PATH=/bin:/usr/bin\n", encoding="ascii")
    if not is_head:
        settings = f"$pbsserver {server}\n$usecp *:/ /\n$status_update_time 5\n$logevent 255\n"
        (home / "mom_priv" / "config").write_text(settings, encoding="ascii")
