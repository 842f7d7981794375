"""Root's rights are not used on files of an ordinary account: who owns them could point them anywhere."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.home import HIGHEST_TRUSTED_UID, path_elements


def act_as_owner(folder: Path) -> None:
    """Where root works in a folder of an ordinary account, go on as that account, for good.

    Args:
        folder: ``sched_priv``. The first element of its path that is an ordinary account's, a folder above or
            a link also, tells whose it is. System accounts (uid up to 10) change nothing.
    """
    if os.geteuid() != 0:
        return
    with suppress(OSError):
        for _, status in path_elements(folder):
            if status.st_uid > HIGHEST_TRUSTED_UID:
                _become(status.st_uid, status.st_gid)
                return


def _become(uid: int, gid: int) -> None:
    try:
        account = pwd.getpwuid(uid)
        os.initgroups(account.pw_name, account.pw_gid)
        gid = account.pw_gid
    except KeyError:
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
