"""How a program reaches a task service: the same requests that the commands send."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from yarn_accel.storage import Store
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


def run_to_end(make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run a coroutine to its end: in this thread, or in another one where a loop runs in this one.

    The caller waits in either case; what interrupts it ends the coroutine.

    Args:
        make: makes it, in the thread that runs it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def noted() -> ResultT:
        begun.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="task service") as pool:
        ending = pool.submit(lambda: asyncio.run(noted()))
        try:
            return ending.result()
        except BaseException:
            for loop, task in begun:
                if task is not None:
                    with contextlib.suppress(RuntimeError):  # it has ended, and its loop with it
                        loop.call_soon_threadsafe(task.cancel)
            raise
