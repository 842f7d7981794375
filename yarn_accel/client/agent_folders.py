"""Where agents listen on a node, and which of them a mapper belongs to.

::

    /run/yarn-accel/agent.sock                           an agent of the site, which serves every application
    /run/yarn-accel/NODE/agent.sock                      the same, of a site that names its nodes
    /run/yarn-accel/NODE/APPLICATION/agent.sock          an application's agent; its containers are root's,
    /tmp/yarn-accel-UID/NODE/APPLICATION/agent.sock      ... or user UID's

APPLICATION is an application's id without its first word. Beside such a socket lies `IDENTITY_FILE`, which
names the application. A mapper takes those that the variable ``ACCEL_APPLICATION`` names (a name or an id);
without it the one of its own user first (``USER``, whom YARN names, as all containers may run as one user),
then one of its own cluster, then the newest. A folder counts when nobody but its owner may write in it or
above it, and the owner is root, this user, or who owns ``/run/yarn-accel``, which root alone can make.

Standard library only, Python 3.8: mappers import it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from typing import Collection, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

RUN_FOLDER = "/run/yarn-accel"
SOCKET_NAME = "agent.sock"
IDENTITY_FILE = "application.json"
#: The application whose servers a mapper is to use: its name or its id.
VARIABLE = "ACCEL_APPLICATION"
_MAX_IDENTITY_BYTES = 4096
_MAX_FOLDERS, _MAX_SOCKETS = 256, 4
_FOLDER = re.compile(r"([0-9]{1,20})_([0-9]{1,10})\Z")
_CONTAINER = re.compile(r"container_(?:e[0-9]+_)?([0-9]+)_[0-9]+_[0-9]+_[0-9]+\Z")
_PREFIX = "application_"


class ApplicationName(NamedTuple):
    """An application as people know it."""

    id: str
    name: str
    user: str


def run_folder(user: int, node: str, application: str = "") -> str:
    """The folder of a node's agent where none is set.

    Args:
        user: id of the user that it runs as.
        application: its application; empty: it belongs to none.
    """
    base = RUN_FOLDER if user == 0 else "/tmp/yarn-accel-{}".format(user)
    return "/".join([base, node, application_folder(application)] if application else [base, node])


def application_folder(application: str) -> str:
    """The name of an application's folder: paths of Unix sockets are short."""
    return application[len(_PREFIX) :] if application.startswith(_PREFIX) else application


def is_of_application(folder: str) -> bool:
    """Whether a folder's name is an application's."""
    return _FOLDER.match(folder.rpartition("/")[2]) is not None


def agent_sockets(environ: Mapping[str, str]) -> Sequence[Tuple[str, bool]]:
    """Where an agent may listen, best first, and whether whoever answers there is trusted.

    ``ACCEL_AGENT`` (a path, or ``unix:`` and a path) is the only place when it is set.
    """
    given = environ.get("ACCEL_AGENT", "")
    if given:
        return [(given[len("unix:") :] if given.startswith("unix:") else given, True)]
    # Only root makes folders in /run, so whoever listens there was meant to; in /tmp anybody could.
    places = [("{}/{}".format(RUN_FOLDER, SOCKET_NAME), True)]
    node, user = environ.get("NM_HOST", ""), os.geteuid()
    if not node or "/" in node or node in (".", ".."):
        return places
    places.append(("{}/{}/{}".format(RUN_FOLDER, node, SOCKET_NAME), True))
    private = "/tmp/yarn-accel-{}".format(user)
    places.append(("{}/{}/{}".format(private, node, SOCKET_NAME), False))
    above = [(RUN_FOLDER, True), (private, False)]
    found = _of_applications(above, node, user, environ)
    return found + places if environ.get(VARIABLE) else places + found


def application_user(path: str) -> str:
    """Whose application an agent belongs to, by the path of its socket; empty: that is not known."""
    return _read_identity(path.rpartition("/")[0]).user


def _of_applications(
    above: Sequence[Tuple[str, bool]], node: str, user: int, environ: Mapping[str, str]
) -> List[Tuple[str, bool]]:
    found = []
    own, wanted = _CONTAINER.match(environ.get("CONTAINER_ID", "")), environ.get(VARIABLE, "").strip()
    for base, is_trusted in above:
        for folder, numbers in _folders(base, node, user):
            named = _read_identity(folder)
            if wanted and wanted not in (named.id, named.name):
                continue
            rank = (
                not named.user or named.user != environ.get("USER", ""),
                own is None or int(own[1]) != numbers[0],
                -numbers[0],
                -numbers[1],
            )
            found.append((rank, ("{}/{}".format(folder, SOCKET_NAME), is_trusted)))
    return [place for _, place in sorted(found)][:_MAX_SOCKETS]


def _folders(base: str, node: str, user: int) -> Iterator[Tuple[str, Tuple[int, int]]]:
    """Applications' folders of a node below a folder, with the numbers of the application."""
    try:
        owners = {0, user, os.lstat(base).st_uid} if base == RUN_FOLDER else {0, user}
        below = "{}/{}".format(base, node)
        if not _is_private(base, owners) or not _is_private(below, owners):
            return
        with os.scandir(below) as entries:
            names = [each.name for each in itertools.islice(entries, _MAX_FOLDERS)]
    except OSError:
        return
    for name in names:
        numbers, folder = _FOLDER.match(name), "{}/{}".format(below, name)
        if numbers is not None and _is_private(folder, owners):
            yield folder, (int(numbers[1]), int(numbers[2]))


def _is_private(folder: str, owners: Collection[int]) -> bool:
    """Whether nobody but these users can put something into the folder."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in owners and not status.st_mode & 0o022


def _read_identity(folder: str) -> ApplicationName:
    """Whose folder it is; without a file that says it, the folder's name is all that is known."""
    own_id = _PREFIX + folder.rpartition("/")[2]
    try:
        # A named pipe would keep whoever opens it waiting.
        number = os.open("{}/{}".format(folder, IDENTITY_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            raw = os.read(number, _MAX_IDENTITY_BYTES)
        finally:
            os.close(number)
        document = json.loads(raw.decode("utf-8"))
        return ApplicationName(own_id, str(document["name"]), str(document["user"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ApplicationName(own_id, "", "")
