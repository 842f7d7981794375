"""Every error this package raises, drawn as a tree.

::

    AccelError                    anything a user of this package may catch
    ├── ConfigError               a setting is wrong: names the key and the known ones        exit 2
    ├── StartupError              something the machine lacks: what, and the cure             exit 3
    ├── ProtocolError
    │   ├── LocalProtocolError    this side misused the client or the protocol object
    │   └── RemoteProtocolError   the peer sent what the protocol forbids
    ├── AuthenticationError       the peer could not prove its credential, or it expired
    ├── RejectedError             this one record is bad; the rest goes on (has a `code`)
    ├── UnavailableError          nobody answered, or the answer was "busy" (transient)
    ├── StorageError              a file or URI could not be read or written
    ├── ClusterError              the cluster launcher could not do what was asked
    └── JobError                  a submitted job failed

``transient`` says whether trying the same thing again later may work, so a retry is the caller's decision and
not a guess from the text. ``code`` is a short stable word for counters and scripts, ``place`` the record that
an error belongs to, where it belongs to one, and ``cure`` one sentence for the user. Standard library only,
Python 3.8: mappers import it.
"""

from typing import Any, Optional, Tuple

#: Code of a `StorageError`: the settings of this machine do not say where a URI leads.
UNKNOWN_STORAGE = "unknown-storage"


class AccelError(Exception):
    """Base of all errors of this package.

    Args:
        message: what happened and where (file, line, key, address).
        cure: one sentence that says what to do about it; empty when there is nothing to do.

    Attributes:
        code: a short stable word for counters and scripts.
        place: the call of a mapper that this is the outcome of, by its key and its URIs; else empty.
            `yarn-accel logs KEY` prints what the servers' logs say of it.
    """

    transient = False
    exit_code = 1
    code = "failed"
    place = ""

    def __init__(self, message: str, *, cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        text = "{} [{}]".format(self.message, self.place) if self.place else self.message
        return "{}: {}".format(text, self.cure) if self.cure else text


class ConfigError(AccelError):
    """A setting is wrong; the message names the file, the key and the known keys."""

    exit_code = 2
    code = "config"


class StartupError(AccelError):
    """The machine lacks something this command needs; ``cure`` says how to get it."""

    exit_code = 3
    code = "startup"


class ProtocolError(AccelError):
    """Base of what goes wrong between two ends of a connection."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This side misused the client or the protocol object, such as after it was closed."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol forbids; the connection must be closed."""


class AuthenticationError(AccelError):
    """The peer could not prove the credential, or the credential has expired."""

    code = "authentication"


class RejectedError(AccelError):
    """One record is bad and will not get better by trying again.

    Args:
        code: a short stable word for counters and scripts, such as ``not-positive-definite``.
        message: the cause with its place, such as ``leading minor of order 3 is not positive definite``.

    Attributes:
        item: number of the bad one of a stack of problems, counted from 0; None: there is no stack.
    """

    def __init__(self, code: str, message: str, *, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.code = code
        self.item: Optional[int] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.code, self.message), self.__dict__


class UnavailableError(AccelError):
    """No server answered, or every one was busy; another try may work."""

    transient = True
    code = "unavailable"

    def __init__(self, message: str, *, cure: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, cure=cure)
        self.retry_after_s = retry_after_s


class StorageError(AccelError):
    """A URI could not be read or written.

    Args:
        transient: whether the store may recover by itself (a DataNode that went away) or not (no such file).
        code: ``storage``, or `UNKNOWN_STORAGE`: the settings here do not say where the URI leads, so the
            record is as good as where they do.
    """

    code = "storage"

    def __init__(
        self, message: str, *, cure: str = "", transient: bool = False, code: str = "storage"
    ) -> None:
        super().__init__(message, cure=cure)
        self.transient = transient
        self.code = code


class ClusterError(AccelError):
    """The cluster launcher could not do what was asked; the message names node, role and log file."""

    code = "cluster"


class JobError(AccelError):
    """A submitted job failed; the message carries the first diagnosis found in its logs."""

    code = "job"
