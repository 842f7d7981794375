"""How a worker starts an operation task: with its own interpreter, and the credential for pipeline servers.

The credential comes with the worker's own, and reaches the task in a file that only this user may read.
Where there is Kerberos, every task gets the worker's HDFS tokens in the same way, as mappers get YARN's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc.tokens import TokenFile, read_token_file, write_token_file
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.core.tasks.applications import OPERATION_PROGRAM
from yarn_accel.core.tasks.attempt_orders import AttemptOrder
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.local_filesystem import LocalFiles, write_whole
from yarn_accel.wire.credential import SECRET_ALIAS

#: The variable of a task that says what ``hdfs:///`` means, as Hadoop Streaming gives it to mappers.
DEFAULT_FS_VARIABLE = "fs_defaultFS"
_TOKEN_FILE, _HDFS_FILE = ".servers-credential", ".hdfs-tokens"
_MODULE = "yarn_accel.worker.operation_task"
_THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(slots=True)
class OperationProgram:
    """What a worker adds to an order whose program is `OPERATION_PROGRAM`.

    Attributes:
        token_file: has the credential, and the HDFS tokens; empty: there is no credential.
        agent_socket: of the node's agent; empty: where agents listen by default.
        hdfs_file: has the HDFS tokens alone; empty: there is none.
        default_fs: what ``hdfs:///`` means; empty: what Hadoop's settings say.
        own_file: the worker's own tokens, which a master with a keytab renews; empty: there are none.
        folder: of the files for tasks.
    """

    token_file: str = ""
    agent_socket: str = ""
    hdfs_file: str = ""
    default_fs: str = ""
    own_file: str = ""
    folder: Path = field(default_factory=Path)
    _seen: tuple[int, ...] = ()

    def follow(self) -> None:
        """Give tasks what the worker's own token file has now."""
        seen = _stamp(self.own_file)
        if not seen or seen == self._seen:
            return
        own = _own_tokens(self.own_file)
        tokens = {alias: each for alias, each in own.tokens.items() if each.kind == HDFS_DELEGATION_KIND}
        credential = own.secrets.get(SECRET_ALIAS)
        if credential is not None:
            content = TokenFile(tokens, {SECRET_ALIAS: credential})
            self.token_file = _written(self.folder / _TOKEN_FILE, content)
        if tokens:
            self.hdfs_file = _written(self.folder / _HDFS_FILE, TokenFile(tokens))
        self._seen = seen

    def argv(self, order: AttemptOrder) -> tuple[str, ...]:
        """The command of an order."""
        if order.argv[0] != OPERATION_PROGRAM:
            return order.argv
        runner = "hadoop" if order.form is Form.GPU else "inline"
        return (sys.executable, "-m", _MODULE, runner, *order.argv[1:])

    def environment(self, order: AttemptOrder) -> dict[str, str]:
        """Further variables of its environment; those of the HDFS tokens unless the order has its own.

        Raises:
            ConfigError: it needs a server, and there is no credential for one.
        """
        self.follow()
        own = dict(order.environment)
        hdfs = {TOKEN_FILE_VARIABLE: self.hdfs_file, DEFAULT_FS_VARIABLE: self.default_fs}
        found = {name: value for name, value in hdfs.items() if self.hdfs_file and value and name not in own}
        if order.argv[0] != OPERATION_PROGRAM:
            return found
        found.update(dict.fromkeys(_THREAD_VARIABLES, str(order.demand.cores)))
        found["PYTHONPATH"] = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
        if order.form is Form.GPU:
            if not self.token_file:
                raise ConfigError("this worker got no credential for pipeline servers")
            found[TOKEN_FILE_VARIABLE] = self.token_file
            if self.agent_socket:
                found["ACCEL_AGENT"] = self.agent_socket
        return found


def operation_program(
    folder: Path, agent_socket: str, environ: Mapping[str, str], default_fs: str = ""
) -> OperationProgram:
    """Put what the worker's own token file has for tasks into files in `folder`."""
    for name in (_TOKEN_FILE, _HDFS_FILE):  # Of a worker that was here before.
        (folder / name).unlink(missing_ok=True)
    own_file = environ.get(TOKEN_FILE_VARIABLE, "")
    program = OperationProgram("", agent_socket, "", default_fs, own_file, folder)
    program.follow()
    return program


def _written(target: Path, content: TokenFile) -> str:
    """Write a file that only this user may read; a task may be reading the one of before."""
    files = LocalFiles(follow_symlinks=True, mode=0o600)
    write_whole(files, str(target.absolute()), [write_token_file(content)])
    return str(target)


def _stamp(path: str) -> tuple[int, ...]:
    """Changes with the content of a file; empty: there is none."""
    try:
        found = Path(path).stat() if path else None
    except OSError:
        found = None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else ()


def _own_tokens(path: str) -> TokenFile:
    if path:
        with contextlib.suppress(OSError, AccelError):
            return read_token_file(Path(path).read_bytes())
    return TokenFile()
