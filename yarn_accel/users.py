"""The user of this process, by its login and by the name that HDFS and YARN know, and of a socket's peer.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import getpass
import os
import pwd
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

_UCRED = struct.Struct("3i")


def peer_uid(sock: socket.SocketType) -> int:
    """The user at the other end of a Unix socket, or who listened there; the kernel says it."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def login_name() -> str:
    """The user's name, or ``uid-NUMBER`` where neither the environment nor the system has one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.geteuid()}"


def user_name(environ: Mapping[str, str] | None = None) -> str:
    """The user as HDFS and YARN know it, found as Hadoop's own clients find it.

    That is ``HADOOP_USER_NAME``, else the user that this process runs as; ``$USER`` may name another.
    """
    named = (os.environ if environ is None else environ).get("HADOOP_USER_NAME")
    if named:
        return named
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return login_name()


def shares_uid(environ: Mapping[str, str]) -> bool:
    """Whether this process is a container that runs as its NodeManager does, as those of all users do then.

    YARN gives a container folders below ``usercache``, which the NodeManager has made. A container that
    cannot tell counts as one.
    """
    if not environ.get("CONTAINER_ID"):
        return False
    folder = Path(environ.get("LOCAL_DIRS", "").partition(",")[0])
    above = next((each for each in folder.parents if each.name == "usercache"), None)
    try:
        return above is None or above.stat().st_uid == os.geteuid()
    except OSError:
        return True
