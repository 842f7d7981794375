"""How a program reaches a task service: the same requests that the commands send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from yarn_accel.storage import Store
from yarn_accel.tasks.own_loop import run_to_end
from yarn_accel.tasks.submission import Ask

ResultT = TypeVar("ResultT")


class ServiceLink(Protocol):
    """A task service and the storage that it shares with us."""

    def store(self) -> Store:
        """Reads and writes by URI."""

    def run(self, work: Callable[[Ask], Awaitable[ResultT]], *, is_waiting: bool = False) -> ResultT:
        """Do some work that asks the master.

        Args:
            is_waiting: for the end of what runs: a master that is away is asked for many minutes.
        """


class ClusterLink:
    """The task service on the cluster that ``HADOOP_CONF_DIR`` names.

    Args:
        application: its id; default: the only one that runs.

    Raises:
        StartupError: HADOOP_CONF_DIR is not set, or not there.
        ConfigError: a file in it is wrong.
    """

    def __init__(self, application: str = "") -> None:
        # Takes half a second, which a module with functions alone need not wait for.
        from yarn_accel.hadoop.rm_client import RmClient

        self._rm_client = RmClient.load()
        self._application = application

    def store(self) -> Store:
        """The cluster's storage, and files of this machine."""
        return self._rm_client.store()

    def run(self, work: Callable[[Ask], Awaitable[ResultT]], *, is_waiting: bool = False) -> ResultT:
        """Find the master, and do some work with it.

        Where an event loop runs in this thread, the work is done in another one, and that loop waits.

        Raises:
            UnavailableError: no application runs, or its master does not answer.
            ConfigError: several run.
        """
        from yarn_accel.hadoop.control import WAIT_PATIENCE_S, Control, with_control

        async def with_master(_: Any, control: Control) -> ResultT:
            return await work(partial(control.ask, patience_s=WAIT_PATIENCE_S if is_waiting else None))

        result: ResultT = run_to_end(lambda: with_control(self._rm_client, self._application, with_master))
        return result
