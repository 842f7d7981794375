"""What this scheduler remembers: jobs that ended, what they used, and what was expected of them.

:class:`~torque_sched.learn.history.History` is all the daemon needs.
"""

from torque_sched.learn.history import History, HistorySettings

__all__ = ["History", "HistorySettings"]
