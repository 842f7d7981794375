"""The client of client.c once more in Python, for machines without a C compiler.

Started as ``python -I -S -E client.py NAME arguments...`` by the launchers in ``bin``; it imports next
to nothing, because every command of a cycle pays for it. STATE comes from the launcher's own place.
"""

from __future__ import annotations

import _socket
import os
import sys


def _receive(sock: _socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return data


def _put(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _gone(state: str, name: str) -> int:
    try:
        with open(f"{state}/gone/{name}", "rb") as file:  # noqa: PTH123 (pathlib costs as much as all the rest)
            code, _, text = file.read().partition(b"\n")
    except OSError:
        code, text = b"111", f"{name}: emulated server is not running\n".encode()
    _put(2, text)
    return int(code)


def _request(name: str, arguments: list[str]) -> bytes:
    chosen = [
        key + b"=" + value
        for key, value in os.environb.items()
        if name == "qsub" or key == b"TZ" or key.startswith((b"EMULATED_", b"PBS_"))
    ]
    head = [
        name,
        os.getcwd(),  # noqa: PTH109
        str(len(arguments)),
        *arguments,
    ]
    body = b"".join(part + b"\0" for part in [*(os.fsencode(text) for text in head), *chosen])
    return len(body).to_bytes(4, "big") + body


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read()
    return len(data).to_bytes(4, "big") + data


def main(state: str, name: str, arguments: list[str]) -> int:
    """Ask the server under ``state`` and print its answer; the exit code of the command."""
    try:
        place = os.open(state, os.O_PATH | os.O_DIRECTORY)
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.connect(f"/proc/self/fd/{place}/socket")
        sock.sendall(_request(name, arguments))
        while True:
            kind, size = _receive(sock, 1), int.from_bytes(_receive(sock, 4), "big")
            payload = _receive(sock, size)
            if kind == b"x":
                return int(payload)
            if kind == b"i":
                sock.sendall(_standard_input())
            else:
                _put(1 if kind == b"o" else 2, payload)
    except (OSError, EOFError):
        return _gone(state, name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
