"""Root's rights are not used on files of an ordinary account: who owns them could point them anywhere."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.home import HIGHEST_TRUSTED_UID

__all__ = ["act_as_owner"]


def act_as_owner(folder: Path) -> None:
    """Where root works in a folder of an ordinary account, go on as that account, for good.

    Args:
        folder: ``sched_priv``; the folders above are root's, or root would not use them. One that is not
            there, or of a system account (uid up to 10), changes nothing.
    """
    if os.geteuid() != 0:
        return
    with suppress(OSError):
        owner = folder.stat()
        if owner.st_uid > HIGHEST_TRUSTED_UID:
            _become(owner.st_uid, owner.st_gid)


def _become(uid: int, gid: int) -> None:
    try:
        account = pwd.getpwuid(uid)
        os.initgroups(account.pw_name, account.pw_gid)
        gid = account.pw_gid
    except KeyError:
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
