"""The applications whose end a pipeline server waits for, and those that have ended.

With Kerberos a server's sessions belong to applications. The server lists these in its statistics, and its
node's agent sends the list to the master with a heartbeat. The master asks the ResourceManager, once for all
servers. Its responses name those that have ended, and the agent writes them into a file beside the server's
state file. Standard library only, Python 3.8: the wire protocol has such ids, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

#: Of the file, after the name of the state file.
ENDED_SUFFIX = ".ended"
#: So many applications of one node are asked for; sessions of others end when their tokens are looked at.
MAX_APPLICATIONS = 256
#: Longest file of ended applications.
MAX_ENDED_BYTES = 64 * 1024
_VERSION = 1
#: Ids of applications of YARN.
APPLICATION_ID = r"application_[0-9]{1,20}_[0-9]{1,10}"
_ID = re.compile(APPLICATION_ID)


def application_ids(value: Any) -> tuple[str, ...]:
    """The ids in a list that somebody sent; what is none is left out.

    >>> application_ids(["application_1_2", 7, "x", "application_1_2"]), application_ids(None)
    (('application_1_2',), ())
    """
    found = value if isinstance(value, list) else []
    ids = [each for each in found if isinstance(each, str) and _ID.fullmatch(each)]
    return tuple(dict.fromkeys(ids))[:MAX_APPLICATIONS]


def format_ended(applications: Iterable[str]) -> str:
    """The content of the file of ended applications."""
    return json.dumps({"version": _VERSION, "ended": sorted(applications)}) + "\n"


def parse_ended(text: str) -> tuple[str, ...]:
    """The applications in such a file; none where it is another file.

    >>> parse_ended(format_ended(["application_1_2"])), parse_ended("{")
    (('application_1_2',), ())
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return ()
    return application_ids(document.get("ended"))
