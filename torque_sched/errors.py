"""Every error this package raises, drawn as a tree.

::

    TorqueSchedError       anything a user of this package may catch
    ├── ConfigError        a setting is wrong: names the key and the known ones       exit 2
    ├── StartupError       something the machine or the rights lack: what, the cure   exit 3
    └── ModelError         a job or a node that cannot exist (negative processors, no name)

``transient`` says whether trying the same thing again later may work.
"""

__all__ = ["ConfigError", "ModelError", "StartupError", "TorqueSchedError"]


class TorqueSchedError(Exception):
    """Base of all errors of this package.

    Args:
        message: what happened and where.
        cure: one sentence that says what to do about it; empty when there is nothing to do.
    """

    transient = False
    exit_code = 1

    def __init__(self, message: str, *, cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.message}: {self.cure}" if self.cure else self.message


class ConfigError(TorqueSchedError):
    """A setting is wrong; the message names the file, the key and the known keys."""

    exit_code = 2


class StartupError(TorqueSchedError):
    """The machine or the rights lack something; ``cure`` says how to get it."""

    exit_code = 3


class ModelError(TorqueSchedError):
    """A value that no real server could mean, caught where it is built."""
