"""The audit file: every request of another site: who, what, and what it was told. One JSON object a line."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path


class Audit:
    """Writes the file; a full one gets a number, and the oldest go.

    Args:
        path: the file, readable for its owner alone.
        file_bytes: it is closed when it is this long.
        n_files: so many are kept.
    """

    def __init__(self, path: Path, file_bytes: int = 16 << 20, n_files: int = 8) -> None:
        self._path, self._most, self._n_files = path, file_bytes, n_files
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, peer: str, address: str, what: str, answer: str, **facts: object) -> None:
        """One request.

        Args:
            peer: name of the site; empty: nobody we know.
            address: where it came from.
            what: kind of the request.
            answer: what it was told, or why it was refused.
            facts: token, user and the like.

        Raises:
            OSError: it cannot be written.
        """
        line = {"at": round(time.time(), 3), "peer": peer, "address": address, "what": what, "answer": answer}
        line |= {key: value for key, value in facts.items() if value not in (None, "")}
        os.write(self._fd, json.dumps(line, default=str).encode() + b"\n")
        if os.fstat(self._fd).st_size >= self._most:
            self._turn()

    def _turn(self) -> None:
        for number in range(self._n_files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            with suppress(FileNotFoundError):
                newer.replace(older)
        os.close(self._fd)
        self._fd = self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
