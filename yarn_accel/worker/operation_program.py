"""How a worker starts an operation task: with its own interpreter, and the credential for pipeline servers.

The credential comes with the worker's own, and reaches the task in a file that only this user may read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.client.task_servers import TOKEN_VARIABLE
from yarn_accel.client.token_file import read_secrets, write_secrets
from yarn_accel.core.tasks.applications import OPERATION_PROGRAM
from yarn_accel.core.tasks.attempt_orders import AttemptOrder
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.wire.credential import SECRET_ALIAS

_TOKEN_FILE = ".servers-credential"
_MODULE = "yarn_accel.worker.operation_task"
_THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class OperationProgram:
    """What a worker adds to an order whose program is `OPERATION_PROGRAM`.

    Attributes:
        token_file: has the credential; empty: there is none.
        agent_socket: of the node's agent; empty: where agents listen by default.
    """

    token_file: str = ""
    agent_socket: str = ""

    def argv(self, order: AttemptOrder) -> tuple[str, ...]:
        """The command of an order."""
        if order.argv[0] != OPERATION_PROGRAM:
            return order.argv
        runner = "hadoop" if order.form is Form.GPU else "inline"
        return (sys.executable, "-m", _MODULE, runner, *order.argv[1:])

    def environment(self, order: AttemptOrder) -> dict[str, str]:
        """Further variables of its environment.

        Raises:
            ConfigError: it needs a server, and there is no credential for one.
        """
        if order.argv[0] != OPERATION_PROGRAM:
            return {}
        found = dict.fromkeys(_THREAD_VARIABLES, str(order.demand.cores))
        found["PYTHONPATH"] = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
        if order.form is Form.GPU:
            if not self.token_file:
                raise ConfigError("this worker got no credential for pipeline servers")
            found[TOKEN_VARIABLE] = self.token_file
            if self.agent_socket:
                found["ACCEL_AGENT"] = self.agent_socket
        return found


def operation_program(folder: Path, agent_socket: str, environ: Mapping[str, str]) -> OperationProgram:
    """Put the credential of the worker's own token file, if it has one, into a file in `folder`."""
    target = folder / _TOKEN_FILE
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    credential = _credential(environ.get(TOKEN_VARIABLE, ""))
    if credential is None:
        return OperationProgram("", agent_socket)
    number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(write_secrets({SECRET_ALIAS: credential}))
    return OperationProgram(str(target), agent_socket)


def _credential(token_file: str) -> bytes | None:
    if not token_file:
        return None
    try:
        return read_secrets(Path(token_file).read_bytes()).get(SECRET_ALIAS)
    except (OSError, AccelError):
        return None
