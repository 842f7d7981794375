"""The user of this job: its HDFS tokens, and by what a server is known that may have them.

Who has a job's token acts as its user in HDFS, for days. A server proves that it knows the credential, but so
could whoever else has a credential of the same tenant. So tokens are handed over only to a server that the
job knows by something else, which its submitter has put into the job's environment:

* ``ACCEL_SERVICE_USER``, the user (name or number) that the servers run as. Over a Unix socket the kernel
  says who listens there. `yarn-accel streaming` sets it to the user whom the ResourceManager names for the
  application. Where it is set, nobody else's Unix socket is used at all. Where containers run as their
  NodeManager's user (DefaultContainerExecutor), so do the servers, and that user is meant.
* ``ACCEL_SERVER_CA_FILE``, the authority (PEM) that signs the servers' certificates. It must be the site's
  own, and sign servers alone: which host is a server the node's agent says. Where it is set, no other
  authority counts.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE, StoredToken, read_tokens
from yarn_accel.errors import AccelError, ConfigError, StartupError
from yarn_accel.users import shares_uid
from yarn_accel.wire import MAX_HDFS_TOKENS, HdfsToken

#: Where the submitter says as whom the servers run, and who signs their certificates.
USER_VARIABLE = "ACCEL_SERVICE_USER"
CA_VARIABLE = "ACCEL_SERVER_CA_FILE"
_CONTAINER = re.compile(r"container_(?:e[0-9]+_)?([0-9]+_[0-9]+)_[0-9]+_[0-9]+\Z")
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_NOBODY = 65534


class JobUser(NamedTuple):
    """The tokens that a client hands over, and by what it knows the servers that get them.

    Attributes:
        tokens: of the job's user; none: there is nothing to hand over.
        application: of this task; empty: it is in none.
        service_uid: the user that listens at the servers' Unix sockets; None: nobody said, or this node does
            not know the name.
        ca_file: the authority of the servers' certificates; empty: nobody said.
    """

    tokens: Tuple[HdfsToken, ...] = ()
    application: str = ""
    service_uid: Optional[int] = None
    ca_file: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Optional[JobUser]:
        """That of a task; None where nothing in its environment says by what servers are known.

        Raises:
            ConfigError: a variable is set to what is none.
            StartupError: the token file cannot be read.
        """
        user, ca_file = environ.get(USER_VARIABLE, "").strip(), environ.get(CA_VARIABLE, "").strip()
        if not user and not ca_file:
            return None
        if ca_file and not Path(ca_file).is_file():
            raise ConfigError("{}: there is no file {}".format(CA_VARIABLE, ca_file))
        container = _CONTAINER.match(environ.get("CONTAINER_ID", ""))
        application = "application_" + container.group(1) if container else ""
        uid = None
        if user:
            uid = os.geteuid() if shares_uid(environ) else _uid_of(user)
        return cls(_tokens(environ), application, uid, ca_file)


def _tokens(environ: Mapping[str, str]) -> Tuple[HdfsToken, ...]:
    path = environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        return ()
    try:
        return hdfs_tokens(read_tokens(Path(path).read_bytes()))
    except OSError as error:
        reraise_from_signal(error)
        raise StartupError("the token file {} cannot be read: {}".format(path, error.strerror)) from None
    except AccelError as error:
        reraise_from_signal(error)
        raise StartupError("the token file {} is not valid: {}".format(path, error.message)) from None


def hdfs_tokens(stored: Iterable[StoredToken]) -> Tuple[HdfsToken, ...]:
    """The tokens of HDFS among those of a token file, each once, and no more than a server takes.

    A job has one for each file system that it names; Java's clients add copies with other services.
    """
    found: Dict[Tuple[bytes, bytes], HdfsToken] = {}
    for each in stored:
        if each.kind == HDFS_DELEGATION_KIND:
            token = HdfsToken(each.identifier, each.password, each.service)
            found.setdefault((token.identifier, token.password), token)
    return tuple(found.values())[:MAX_HDFS_TOKENS]


def _uid_of(user: str) -> Optional[int]:
    try:
        uid = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        reraise_from_signal(error)
        return None
    if uid == _overflow_uid():
        # In a container of Docker everybody whom it does not know looks like this one.
        raise ConfigError("{}: {} may be anybody, so servers must not run as it".format(USER_VARIABLE, user))
    return uid


def _overflow_uid() -> int:
    try:
        return int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        reraise_from_signal(error)
        return _NOBODY
