"""The errors of a Hadoop call, as a part of the tree in `yarn_accel.errors`.

::

    AuthenticationError              the server does not accept the token or the user
    ├── UnsupportedLoginError        no login and no protection that both sides take
    ├── KerberosError                a Kerberos login failed; `code` names the trouble
    └── TokenEndedError              a delegation token is over; `code` says why
    UnavailableError                 transient
    ├── KdcUnavailableError          no KDC answers
    ├── StandbyError                 this ResourceManager is not the active one
    ├── BusyError                    the server asks to try again
    └── ConnectionLostError          no answer; `was_sent`: the call may have been carried out
    RejectedError
    └── RemoteCallError              the server refuses; `exception_class` is Java's, `code` its short form
        ├── NotRegisteredError       the master must register again and send all its asks again
        ├── AttemptGoneError         this attempt is over: the master must end
        │   └── AlreadyRegisteredError   it is registered, and the answer to that does not come again
        └── ApplicationGoneError     no such application (any more)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from yarn_accel.errors import AccelError, AuthenticationError, RejectedError, UnavailableError

if TYPE_CHECKING:
    from yarn_accel.adapters.hadoop_rpc.methods import SerializedException

LOGIN_CURE = (
    "the cluster wants Kerberos: let HADOOP_CONF_DIR name its own configuration, in which "
    "hadoop.security.authentication is kerberos"
)
_MAX_CHARS = 2000
_STACK = re.compile(r"\n\s+at |\nCaused by: ")


class UnsupportedLoginError(AuthenticationError):
    """There is no login, or no protection, that both sides take."""


class KerberosError(AuthenticationError):
    """A Kerberos login failed.

    Args:
        code: a short stable word for the trouble, such as ``kerberos-no-ticket``.
    """

    def __init__(self, code: str, message: str, *, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.code = code


class TokenEndedError(AuthenticationError):
    """A delegation token is over.

    Args:
        code: ``token-expired``, or ``token-cancelled``.
    """

    def __init__(self, code: str, message: str, *, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.code = code


class KdcUnavailableError(UnavailableError):
    """No KDC answers; another server of the service would ask the same one."""

    code = "kerberos-no-kdc"


class StandbyError(UnavailableError):
    """This ResourceManager is not the active one."""


class BusyError(UnavailableError):
    """The server asks to try again later."""


class ConnectionLostError(UnavailableError):
    """No connection, or it broke, or no answer came in time.

    Args:
        was_sent: the request left, so it may have been carried out; only a call that may be repeated may be
            tried again then.
    """

    def __init__(self, message: str, *, was_sent: bool, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.was_sent = was_sent


class RemoteCallError(RejectedError):
    """The server threw an exception.

    Args:
        exception_class: its Java name, such as ``org.apache.hadoop.yarn.exceptions.YarnException``.
    """

    def __init__(self, exception_class: str, message: str) -> None:
        super().__init__(_code(exception_class), message)
        self.exception_class = exception_class


class NotRegisteredError(RemoteCallError):
    """The ResourceManager does not know this master (any more): register again, send all asks again."""


class AttemptGoneError(RemoteCallError):
    """The ResourceManager has given this attempt up: end at once, the next one may run already."""


class AlreadyRegisteredError(AttemptGoneError):
    """The ResourceManager has registered this attempt before: its answer to that was lost.

    It gives no second one, but takes heartbeats.  What was in that answer alone is lost: the containers of
    earlier attempts, and the tokens of their nodes.
    """


class ApplicationGoneError(RemoteCallError):
    """There is no such application (any more)."""


_REJECTIONS: dict[str, type[RemoteCallError]] = {
    "ApplicationMasterNotRegisteredException": NotRegisteredError,
    "ApplicationAttemptNotFoundException": AttemptGoneError,
    "ApplicationNotFoundException": ApplicationGoneError,
}
_TRANSIENT: dict[str, type[UnavailableError]] = {
    "StandbyException": StandbyError,
    "RetriableException": BusyError,
    "NMNotYetReadyException": BusyError,
}
#: Hadoop has no class of its own for it; its clients look for these words, too.
_ALREADY_REGISTERED = "Application Master is already registered"
_LOGIN = {"SaslException"}
#: What a server says of a principal that it knows, and has no rights for -> the cure.
_ACCOUNT_CURES = (
    (
        "is not allowed to impersonate",
        "set hadoop.proxyuser.NAME.hosts and .groups for the caller, on the NameNode and the ResourceManager",
    ),
    (
        "No rules applied to",
        "the server's hadoop.security.auth_to_local has no rule for this principal's realm",
    ),
)
_EXPIRED_CURE = "the token's longest life is over (7 days by default): start again"
_CANCELLED_CURE = "the job or application that owned the token has ended, which cancels it"
_LOGIN_IF_FATAL = {"AccessControlException", "AuthorizationException"}


def error_of_exception(exception: SerializedException | None, address: str) -> AccelError:
    """The error that an exception inside an answer stands for."""
    if exception is None:
        return RemoteCallError("", f"{address}: no reason given")
    return remote_error(exception.class_name, exception.message, address)


def remote_error(exception_class: str, text: str, address: str, *, is_fatal: bool = False) -> AccelError:
    """The error that a Java exception with this text stands for.

    Args:
        address: who sent it.
        is_fatal: the server closes the connection after it.
    """
    name = _simple(exception_class)
    reason = _STACK.split(text[: 2 * _MAX_CHARS], maxsplit=1)[0].strip()
    reason = reason.removeprefix(f"{exception_class}: ")[:_MAX_CHARS]
    message = f"{address}: {name or 'no exception named'}: {reason}"
    if name in _TRANSIENT:
        return _TRANSIENT[name](message)
    if name == "AccessControlException" and is_fatal and "SIMPLE authentication is not enabled" in reason:
        return UnsupportedLoginError(message, cure=LOGIN_CURE)
    if name == "InvalidToken":
        return _token_error(message)
    for pattern, cure in _ACCOUNT_CURES:
        if is_fatal and pattern in reason:
            return KerberosError("kerberos-account", message, cure=cure)
    if name in _LOGIN or (is_fatal and name in _LOGIN_IF_FATAL):
        return AuthenticationError(message)
    if name == "InvalidApplicationMasterRequestException" and _ALREADY_REGISTERED in reason:
        return AlreadyRegisteredError(exception_class, message)
    return _REJECTIONS.get(name, RemoteCallError)(exception_class, message)


def _token_error(message: str) -> AuthenticationError:
    if "expired" in message or "expected renewal time" in message:
        return TokenEndedError("token-expired", message, cure=_EXPIRED_CURE)
    if "can't be found in cache" in message:
        return TokenEndedError("token-cancelled", message, cure=_CANCELLED_CURE)
    return AuthenticationError(message)


def _simple(exception_class: str) -> str:
    return re.split(r"[.$]", exception_class[:200])[-1]


def _code(exception_class: str) -> str:
    """``InvalidResourceRequestException`` -> ``invalid-resource-request``."""
    name = _simple(exception_class).removesuffix("Exception")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower() or "remote-exception"
