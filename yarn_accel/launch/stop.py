"""``yarn-accel stop``: asks the master to end everything, waits for it, and removes what `start` made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from yarn_accel.adapters.hadoop_rpc import ApplicationGoneError, ApplicationId
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.errors import AccelError, ConfigError, StorageError, UnavailableError
from yarn_accel.hadoop.control import Control, RetainedApplication, retained_applications
from yarn_accel.hadoop.rm_client import RmClient, find_running, kill
from yarn_accel.master.inventory import BIND, attribute_of
from yarn_accel.master.operator_commands import OWNER, SLOTS, OperatorCommands

_POLL_S = 0.1

#: Gets one line per step.
ProgressReport = Callable[[str], None]


async def stop(
    rm_client: RmClient,
    manager: ResourceManager,
    found: ApplicationReport,
    report: ProgressReport,
    wait_s: float,
) -> ApplicationReport:
    """Let the master stop its containers, restore what it changed and end; then remove what `start` made.

    Args:
        found: the application.
        wait_s: how long its end is waited for.

    Raises:
        UnavailableError: the master does not answer, or has not ended after `wait_s`.
        AuthenticationError: the control secret is not here.
    """
    retained = RetainedApplication.of(str(found.id))
    async with Control(rm_client, manager, found.id, retained.secret()) as control:
        try:
            await control.ask("stop")
        except UnavailableError as error:
            if not await _is_over(manager, found.id):
                raise UnavailableError(
                    error.message, cure="try again, or end it without its master: yarn-accel stop --force"
                ) from None
    report(f"{found.id} stops its containers")
    ended = await _until_over(manager, found.id, wait_s)
    _clear(rm_client, retained, report)
    return ended


async def force(
    rm_client: RmClient,
    manager: ResourceManager,
    found: ApplicationReport,
    report: ProgressReport,
    wait_s: float,
) -> ApplicationReport:
    """Kill an application whose master does not answer, restore its nodes, and remove what `start` made.

    Raises:
        UnavailableError: it has not ended after `wait_s`.
    """
    await kill(manager, found.id, "yarn-accel stop --force", wait_s)
    ended = await _until_over(manager, found.id, wait_s)
    if not await find_running(manager):
        await restore_nodes(manager, report)
    _clear(rm_client, RetainedApplication.of(str(found.id)), report)
    return ended


async def clear_ended(
    rm_client: RmClient, manager: ResourceManager, report: ProgressReport, staging_uri: str = ""
) -> None:
    """Remove what applications left that this cluster knows to be over: secrets here, folders in the storage.

    Args:
        report: gets a line for each.
        staging_uri: also folders there, of which nothing is known here; empty: what is retained here alone.
    """
    retained = {each.application: each for each in retained_applications()}
    for name in sorted(retained.keys() | _stored(rm_client, staging_uri, report)):
        try:
            found = await manager.report(ApplicationId.parse(name))
        except (ApplicationGoneError, ConfigError):
            # Another cluster's, or one that the ResourceManager has forgotten: nothing says which.
            continue
        if found.state is not None and found.state.is_final:
            uri = f"{staging_uri}/applications/{name}" if staging_uri else ""
            if _clear(rm_client, retained.get(name) or RetainedApplication.of(name), report, uri):
                report(f"note: removed what {name} ({found.state.name}) left: its folder and its secret")


def _stored(rm_client: RmClient, staging_uri: str, report: ProgressReport) -> set[str]:
    """The applications that have a folder in the storage."""
    folder = f"{staging_uri}/applications"
    try:
        store = rm_client.store()
        uris = store.list(folder) if staging_uri and store.exists(folder) else []
    except StorageError as error:
        report(f"note: what ended applications left in {folder} is not looked at: {error}")
        return set()
    return {uri.rstrip("/").rpartition("/")[2] for uri in uris}


async def restore_left_nodes(manager: ResourceManager, report: ProgressReport) -> None:
    """Restore the nodes that a killed application left, where none runs now; drained nodes stay drained."""
    marked = [
        each
        for each in await manager.nodes()
        if any(attribute_of(each, name) for name in (SLOTS, BIND, OWNER))
    ]
    if marked and not await find_running(manager) and await restore_nodes(manager, report, has_drains=False):
        owners = sorted({owner for each in marked if (owner := attribute_of(each, OWNER))})
        left_by = ", ".join(owners) or "an application that was killed"
        report(f"note: slots and attributes of {len(marked)} nodes, which {left_by} left, are as configured")


async def restore_nodes(manager: ResourceManager, report: ProgressReport, *, has_drains: bool = True) -> bool:
    """Restore the nodes' configured slots and remove our attributes; returns whether all of that was done.

    It needs the rights of an operator. What cannot be restored is reported.

    Args:
        has_drains: drained nodes are no more so.
    """
    operator = OperatorCommands(manager, lambda _: None, time.monotonic)
    try:
        await operator.restore(has_drains=has_drains)
    except AccelError as error:
        report(f"note: slots and attributes of the nodes are left as they are: {error}")
        return False
    refused = {what: why for what, why in operator.refusals.items() if why}
    for what, why in refused.items():
        report(f"note: {what} of the nodes are left as they are: {why}")
    return not refused


async def _is_over(manager: ResourceManager, application: ApplicationId) -> bool:
    state = (await manager.report(application)).state
    return state is not None and state.is_final


async def _until_over(
    manager: ResourceManager, application: ApplicationId, wait_s: float
) -> ApplicationReport:
    until_s = time.monotonic() + wait_s
    while True:
        report = await manager.report(application)
        if report.state is not None and report.state.is_final:
            return report
        if time.monotonic() >= until_s:
            raise UnavailableError(
                f"{application} has not ended after {wait_s:g} s",
                cure="see its page with `yarn-accel status`, or end it: yarn-accel stop --force",
            )
        await asyncio.sleep(_POLL_S)


def _clear(rm_client: RmClient, retained: RetainedApplication, report: ProgressReport, uri: str = "") -> bool:
    """Remove what is retained here, and the folder that it names, else `uri`; whether all is removed."""
    try:
        uri = retained.staging_uri() or uri
        if uri:
            rm_client.store().delete(uri)
    except (StorageError, ConfigError) as error:
        # The notes that stay here name the folder: the next `stop` tries again.
        report(f"note: {error}")
        return False
    retained.remove()
    return True
