"""Ports for processes and servers of a test."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def held_port(stack: ExitStack) -> int:
    """A port that nobody else is given: held, but not listened on, until the stack ends."""
    holder = stack.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a server may listen on it
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])
