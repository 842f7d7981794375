"""What pbs_sched leaves to whoever takes its place: its usage file, and options that mean nothing here."""

from __future__ import annotations

from torque_sched.adapters.state_file import read_plain
from torque_sched.daemon.place import Options
from torque_sched.errors import RecordError
from torque_sched.learning import History
from torque_sched.parse.usage_file import parse_usage

USAGE = "usage"
"""pbs_sched's own store of fair-share usage, in ``sched_priv``."""


def without_effect(options: Options) -> list[str]:
    """Options that were given and do nothing, a sentence each."""
    if options.mom_port is None:
        return []
    return [f"-R {options.mom_port} has no effect: moms are not asked, their reports to the server are read"]


def take_over_usage(history: History, options: Options) -> str:
    """Count the fair-share usage that pbs_sched kept, as of its last writing.

    It is read at each start and never written, so going back to pbs_sched finds it as it was. Jobs that ended
    since are in the history by themselves.

    Returns:
        What was done or why not, for the log; empty without such a file.
    """
    path = options.sched_priv / USAGE
    try:
        data, at_s = read_plain(path), path.stat().st_mtime
        usage = parse_usage(data, str(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}; fair share begins without it"
    except RecordError as error:
        return f"{error}; fair share begins without it"
    if not usage:
        return ""
    if history.take_over_usage(usage, at_s):
        return f"fair-share usage of {len(usage)} users and groups was taken over from {path}"
    return f"{path} is not read: the accounting tells the same jobs"
