"""Asks the master for one's own credential, over its Unix socket on this node.

One line of JSON each way: ``{"v": 1, "want": "credential", "tenant": "", "lifetime_s": 0}``, and
``{"v": 1, "credential": ...}`` or ``{"v": 1, "refused": {"code", "message", "cure"}}``.

Whoever made up a credential could act as the servers towards us, so the answer counts only from the socket of
root, of the owner of ``/run/yarn-accel`` (which root alone can make), of ``yarn``, or of a named user.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from yarn_accel.errors import AccelError, AuthenticationError, RejectedError, UnavailableError
from yarn_accel.wire.credential import Credential, decode

SOCKET_NAME = "credential.sock"
_RUN = Path("/run/yarn-accel")
_PATIENCE_S = 15.0
_PAUSE_S = 0.2
_MAX_ANSWER_BYTES = 65536
_UCRED = struct.Struct("3i")


def socket_paths() -> list[Path]:
    """Where masters of this node listen by default; also what killed ones left."""
    others = Path("/tmp")
    places = [_RUN, *_RUN.glob("*"), *_RUN.glob("*/*")]
    places += [*others.glob("yarn-accel-*/*"), *others.glob("yarn-accel-*/*/*")]
    return [place / SOCKET_NAME for place in places if (place / SOCKET_NAME).is_socket()]


def trusted_users(names: Iterable[str] = ()) -> frozenset[int]:
    """Whose sockets are trusted: see above; `names` are those of further users.

    Raises:
        UnavailableError: there is no such user.
    """
    found = {0}
    with contextlib.suppress(OSError):
        found.add(_RUN.lstat().st_uid)
    with contextlib.suppress(KeyError):
        found.add(pwd.getpwnam("yarn").pw_uid)
    for name in names:
        try:
            found.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise UnavailableError(f"this node has no user {name!r}") from None
    return frozenset(found)


def request_credential(
    paths: Iterable[Path], trusted: frozenset[int], tenant: str = "", lifetime_s: float = 0.0
) -> tuple[Credential, Path]:
    """Ask at the first socket where a trusted master listens.

    Args:
        tenant: whom it is for; empty: this user. A master gives no other.
        lifetime_s: its life; 0: as long as the site allows.

    Raises:
        RejectedError: the master refuses, with its reason.
        UnavailableError: no master answers here.
        AuthenticationError: the answer holds no credential.
    """
    question = {"v": 1, "want": "credential", "tenant": tenant, "lifetime_s": lifetime_s}
    failures = []
    for path in paths:
        try:
            return _credential_in(_ask(path, trusted, question)), path
        except OSError as error:
            failures.append(f"{path}: {(error.strerror or str(error)).lower()}")
        except UnavailableError as error:
            failures.append(f"{path}: {error.message}")
    why = f" ({'; '.join(failures)})" if failures else ""
    raise UnavailableError(
        f"no master gives out credentials on this node{why}",
        cure="run this on the master's node (AM Host in `yarn application -status`), or ask the "
        "administrator for one: yarn-accel credential issue",
    )


def _ask(path: Path, trusted: frozenset[int], question: dict[str, Any]) -> dict[str, Any]:
    """One question, asked again while the master has no place for it."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        with _connected(path, until_s) as sock:
            _, user, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            if user not in trusted:
                raise UnavailableError(f"who listens there is user {user}, whom nobody named (--master-user)")
            line = _exchange(sock, question)
        if line.endswith(b"\n"):
            break
        if time.monotonic() >= until_s:
            raise UnavailableError("the master ended the connection: it has too many")
        time.sleep(_PAUSE_S)
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("v") != 1:
        raise UnavailableError("what came back is no answer of a master")
    return answer


@contextlib.contextmanager
def _connected(path: Path, until_s: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_PATIENCE_S)
        while True:
            try:
                sock.connect(os.fspath(path))
                break
            except BlockingIOError:  # its queue is full
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_PAUSE_S)
        yield sock


def _exchange(sock: socket.socket, question: dict[str, Any]) -> bytes:
    """The answer; empty when the master had no place for us."""
    received = b""
    try:
        sock.sendall(json.dumps(question).encode() + b"\n")
        while not received.endswith(b"\n") and len(received) < _MAX_ANSWER_BYTES:
            part = sock.recv(_MAX_ANSWER_BYTES)
            if not part:
                break
            received += part
    except (ConnectionError, TimeoutError):
        return b""
    return received


def _credential_in(answer: dict[str, Any]) -> Credential:
    refused = answer.get("refused")
    if isinstance(refused, dict):
        code, message, cure = (str(refused.get(name, "")) for name in ("code", "message", "cure"))
        raise RejectedError(code or "refused", message, cure=cure)
    try:
        return decode(str(answer.get("credential", "")).encode("utf-8"))
    except AccelError as error:
        raise AuthenticationError(f"the master's answer: {error.message}") from None
