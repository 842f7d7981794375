"""The user of this process: by its login, and by the name that HDFS and YARN know.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import getpass
import os
import pwd
from collections.abc import Mapping


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
