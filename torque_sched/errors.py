"""Every error this package raises, drawn as a tree.

::

    TorqueSchedError       anything a user of this package may catch
    ├── ConfigError        a setting is wrong: names the key and the known ones       exit 2
    ├── StartupError       something the machine or the rights lack: what, the cure   exit 3
    │   └── NoSpaceError   space on a disk for a file that is to be begun
    ├── CommandError       a Torque command did not end well; its output is not used
    ├── SnapshotError      no complete look at the cluster: nothing is decided on it
    ├── BatchError         a request over Torque's own protocol was refused, or got no answer
    │   ├── ServerConnectionError  there is no connection; nothing was sent
    │   └── AnswerLostError        it was sent, and whether it took effect is unknown
    ├── ModelError         a job or a node that cannot exist (negative processors, no name)
    │   └── UnitError      a text that is no size, no duration, no count
    ├── ParseError         what a command printed is not what Torque prints
    │   ├── RecordError    one record is damaged; the others were read
    │   └── DocumentError  the whole output is unusable: cut off, too large, another format
    └── ProtocolError      the other side does not keep to Torque's batch protocol; the connection is closed
        ├── ForeignProtocolError   it uses another protocol
        └── UnknownRequestError    a request of a number that is not supported here

``transient`` says whether trying the same thing again later may work.
"""


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


class NoSpaceError(StartupError):
    """A file cannot be begun because the disk is full."""


class CommandError(TorqueSchedError):
    """A command was not there, ran too long, printed too much or failed; asking again may work."""

    transient = True


class SnapshotError(TorqueSchedError):
    """One part of the cluster's picture is missing, so there is no picture; the next cycle asks again."""

    transient = True


class BatchError(TorqueSchedError):
    """A request over Torque's own protocol was refused, or got no answer; asking again may work."""

    transient = True


class ServerConnectionError(BatchError):
    """There is no connection to pbs_server, or none for this user; nothing was sent."""


class AnswerLostError(BatchError):
    """A request was sent, and no whole answer came: whether it took effect, only a look tells."""


class ModelError(TorqueSchedError):
    """A value that no real server could mean, caught where it is built."""


class UnitError(ModelError):
    """A text that is no size, no duration, no count."""


class ParseError(TorqueSchedError):
    """What a command printed is not what Torque prints."""


class RecordError(ParseError):
    """One record of an output is damaged; the message names the record and the attribute."""


class DocumentError(ParseError):
    """An output is unusable as a whole; asking again may give a good one."""

    transient = True


class ProtocolError(TorqueSchedError):
    """Bytes that are no message of the batch protocol; the message names the place in it.

    Nothing after them can be read, because only the last field of a message tells where it ends. A new
    connection may work.
    """

    transient = True


class ForeignProtocolError(ProtocolError):
    """The first number is not that of the batch protocol."""


class UnknownRequestError(ProtocolError):
    """A request whose number is not supported.

    Args:
        message: names the number.
        number: the request's number.
    """

    def __init__(self, message: str, number: int, *, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.number = number
