"""The containers' part of an application that lives for weeks: each takes over the tokens that are newest.

The master puts new tokens into a file of the application's folder, see `master.token_renewal`.  A container
looks there now and then, and replaces its own token file.  By that file the HDFS client logs in at its next
connection, and an agent asks YARN where the master is.  Tokens that are older than the container's own, or
those of another owner, change nothing.

A child process looks: ``python -m yarn_accel.launch.token_follower URI PLACE``.  It logs in by the token file
of the container, also where the process that started it has another identity; and an agent stays small
without the HDFS client.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.core.token_renewal import look_interval_s
from yarn_accel.errors import AccelError, StorageError

logger = logging.getLogger(__name__)

#: Variable with the URI of the newest tokens.
TOKENS_LOCATION = "ACCEL_TOKENS_LOCATION"
_MAX_BYTES = 1 << 16
_MAX_TEXT = 500
_JITTER = 0.2
_LOOK_LIMIT_S = 120.0
_NEWER = "newer"


def follow(environ: Mapping[str, str]) -> threading.Event | None:
    """Look for newer tokens in a daemon thread, until the returned event is set; None: nobody renews them."""
    uri, place = environ.get(TOKENS_LOCATION, ""), environ.get(TOKEN_FILE_VARIABLE, "")
    if not uri or not place:
        return None
    done = threading.Event()
    path = Path(place).absolute()
    threading.Thread(target=_follow, args=(uri, path, done), name="tokens", daemon=True).start()
    return done


def _follow(uri: str, place: Path, done: threading.Event) -> None:
    trouble = ""
    while not done.wait(interval_s(place) * (1 + _JITTER * random.random())):
        before, trouble = trouble, _looked(uri, place)
        if trouble and trouble != before:
            logger.warning("no newer tokens: %s", trouble)


def _looked(uri: str, place: Path) -> str:
    """Have a child look; why it could not, if so."""
    # In a packed environment the node's own start-up files, which this process has been through, are not run.
    flags = ["-S"] if "ACCEL_ENVIRONMENT" in os.environ else []
    words = [sys.executable, *flags, "-m", __name__, uri, str(place)]
    found = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environ = {**os.environ, "PYTHONPATH": found, TOKEN_FILE_VARIABLE: str(place)}
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ,
            timeout=_LOOK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:_MAX_TEXT]
    if done.returncode:
        return done.stderr.decode("utf-8", "replace").strip()[-_MAX_TEXT:] or f"exit code {done.returncode}"
    if done.stdout.decode("ascii", "replace").strip() == _NEWER:
        logger.info("this container has newer tokens")
    return ""


def interval_s(place: Path) -> float:
    """How long to wait before the next look, by the life of a container's tokens."""
    from yarn_accel.adapters.hadoop_rpc.tokens import owner_of, read_token_file

    try:
        tokens = read_token_file(place.read_bytes()).tokens.values()
        owners = [owner_of(each) for each in tokens if each.kind == HDFS_DELEGATION_KIND]
    except (AccelError, OSError):
        return look_interval_s(0.0)
    return look_interval_s(min((each.ends_s - each.issued_s for each in owners), default=0.0))


def look(uri: str, place: Path) -> bool:
    """Take the newest tokens over; whether they were newer.

    Raises:
        StorageError: the storage does not answer.
        OSError: the container's token file cannot be replaced.
        AuthenticationError: the tokens are another owner's.
        RemoteProtocolError: the file there is damaged.
    """
    from yarn_accel.adapters.hadoop_rpc.tokens import read_token_file, replace_tokens
    from yarn_accel.storage import Store

    try:
        content = Store().read_bytes(uri, _MAX_BYTES)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False  # the first tokens are the newest
        raise
    return replace_tokens(place, read_token_file(content))


def main(words: Sequence[str]) -> int:
    """Look once: the words are URI and PLACE."""
    uri, place = words
    try:
        sys.stdout.write(_NEWER if look(uri, Path(place)) else "")
    except (AccelError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
