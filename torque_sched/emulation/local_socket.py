"""Local sockets in a state folder, and who is at their other end."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
from pathlib import Path


def listen_at(directory: Path, name: str, mode: int) -> socket.socket:
    """A local socket in a folder, whatever the length of its path.

    Bound under another name and renamed: a client finds the old one, the new one, never a half one.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = directory / f"{name}.new"
        path.unlink(missing_ok=True)
        sock.bind(f"/proc/self/fd/{place}/{name}.new")
        sock.listen(512)
        path.chmod(mode)
        path.replace(directory / name)
        return sock
    finally:
        os.close(place)


def other_end(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Process id and user id of whoever is at the other end."""
    sock = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def name_of(uid: int) -> str:
    """The name of a user, or his number where he has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
