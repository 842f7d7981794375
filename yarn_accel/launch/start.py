"""``yarn-accel start``: checks, packs, uploads, submits and waits for the master, or finds what runs already.

A start that fails removes what it uploaded and retained for its application, and cancels its tokens.  Only
the packed environment stays, which the next start uses.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from yarn_accel.adapters.credentials import MAKE_AGENTS_SECRET, read_master_secret
from yarn_accel.adapters.hadoop_rpc import (
    ApplicationId,
    ApplicationSubmission,
    ConnectionLostError,
    RemoteCallError,
)
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState, NodeReport
from yarn_accel.core.application.exits import failure_line
from yarn_accel.core.site_checks import missing_privileges
from yarn_accel.errors import AccelError, JobError, StartupError, StorageError, UnavailableError
from yarn_accel.hadoop.control import RetainedApplication, own_master_secret
from yarn_accel.hadoop.delegation import EXCLUDED_PROPERTY, ending
from yarn_accel.hadoop.rm_client import RmClient, find_running, kill
from yarn_accel.hadoop.site import SITE_FILE
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.node_checks import (
    CompatibilityReport,
    attribute_facts,
    check_gpu_environment,
    check_nodes,
    check_sizes,
    fitted,
    packed_extras,
)
from yarn_accel.launch.packing import Environment, pack
from yarn_accel.launch.plan import EXIT_REASONS, make_submission
from yarn_accel.launch.staging import (
    Staged,
    application_uri,
    check_settings,
    hdfs_servers,
    stage,
    stage_dry_run,
)
from yarn_accel.launch.stop import ProgressReport, clear_ended, restore_left_nodes
from yarn_accel.master.inventory import attribute_of
from yarn_accel.master.operator_commands import OWNER
from yarn_accel.storage import Store

_POLL_S = 0.05
#: So long a start, and the end of one that fails, wait for storage that is away.
_STAGE_PATIENCE_S, _FORGET_PATIENCE_S = 30.0, 15.0
_STORAGE_PAUSE_S = 1.0
T = TypeVar("T")
_N_NAMED = 6
_BESIDE_OTHERS = (
    "this application gets agents and servers of its own; slots, and bindings as node attributes, "
    "are those of the first one until it is over; a GPU serves whoever locked it first",
    "jobs use the application of their own user; another one: `yarn-accel streaming --application NAME`, or "
    "the variable ACCEL_APPLICATION",
)
_NO_ATTRIBUTES = (
    "this YARN has no node attributes (Hadoop has them since 3.2): each node's slots stay as configured, "
    "drained nodes are forgotten when the master is started again, and nodes check themselves only when "
    "their first container starts; servers, bindings, jobs, tasks and DAGs work without"
)
_EXIT_CODE = re.compile(r"exitCode: (-?\d+)")


@dataclass(frozen=True, slots=True)
class StartedApplication:
    """A running application.

    Attributes:
        report: what the ResourceManager says of it.
        is_new: this start submitted it; else it ran already.
        took_s: from the submission, all uploads done, until its master was registered; 0 when it ran already.
    """

    report: ApplicationReport
    is_new: bool
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run: what a start would do.

    Attributes:
        running: the application that it would find; None: it would submit one.
        packed: the environment it would upload.
        staged: the files and the plan.
        warnings: what may not work on some nodes.
    """

    running: ApplicationReport | None
    packed: Environment
    staged: Staged
    warnings: tuple[str, ...]


def pipeline_secret_file(rm_client: RmClient) -> Path:
    """The pipeline servers' master secret, from which the credentials of jobs are made.

    It is the site's when that names one (``master_secret_file`` in yarn-accel-site.yaml), else this user's.
    """
    return rm_client.site.master_secret_file or own_master_secret()


async def dry_run(rm_client: RmClient, config: LaunchConfig, report: ProgressReport) -> DryRun:
    """Do all checks of a start and change nothing in the cluster."""
    check_settings(rm_client, config)
    _agents_secret(config)
    async with rm_client.manager() as manager:
        running = await find_running(manager, config.app.name)
        nodes = await manager.nodes()
        config, sized = fitted(config, rm_client.site.properties, nodes)
        packed = _pack(config, report)
        staged = stage_dry_run(rm_client, config, packed)
        return DryRun(
            running[0] if running else None,
            packed,
            staged,
            (
                *sized,
                *(await _others_running(manager, nodes)),
                *(await _lacking(manager)),
                *_rights_warnings(config),
                *_operator_warnings(rm_client, config),
                *check_gpu_environment(config, nodes),
                *_compatibility_warnings(packed, nodes),
                *check_sizes(staged.plan, None, nodes),
            ),
        )


async def start(
    rm_client: RmClient, config: LaunchConfig, report: ProgressReport, wait_s: float
) -> StartedApplication:
    """Submit the application and wait until its master is registered, or find the one that runs.

    Args:
        report: gets one line per step.
        wait_s: how long to wait; the application stays when that is over.

    Raises:
        StartupError: no node can run it, or the master is not there after `wait_s`.
        JobError: the application ended.
        ConfigError: a setting cannot be met by this cluster.
        StorageError: the cluster's storage takes nothing.
        UnavailableError: no ResourceManager answers.
    """
    check_settings(rm_client, config)
    async with rm_client.manager() as manager:
        running = await find_running(manager, config.app.name)
        if running:
            return StartedApplication(running[0], is_new=False)
        staging_uri = rm_client.staging_uri(config.environment.staging_uri)
        # Before the environment is packed, which takes longest: HDFS may be away, or in safe mode.
        rm_client.store().mkdirs(staging_uri)
        await clear_ended(rm_client, manager, report, staging_uri)
        await restore_left_nodes(manager, report)
        nodes = await manager.nodes()
        _warn(await _others_running(manager, nodes), report)
        config, sized = fitted(config, rm_client.site.properties, nodes)
        _warn(await _lacking(manager), report)
        _warn([*sized, *_rights_warnings(config), *_operator_warnings(rm_client, config)], report)
        _warn(check_gpu_environment(config, nodes), report)
        secret_file = pipeline_secret_file(rm_client)
        pipeline = read_master_secret(secret_file)
        if rm_client.site.master_secret_file is None:
            site_file = rm_client.site.conf_dir / SITE_FILE
            report(f"note: for jobs' credentials, say `master_secret_file: {secret_file}` in {site_file}")
        packed = _pack(config, report)
        _check_compatibility(packed, nodes, report)
        application, submitted_s = await _submit(rm_client, manager, config, packed, pipeline, nodes, report)
        if other := await _withdrawn_for(rm_client, manager, config, application, report):
            return StartedApplication(other, is_new=False)
        try:
            found = await _until_registered(manager, application, wait_s, report)
        except JobError:
            await _forget(
                rm_client.store(), rm_client, config, RetainedApplication.of(str(application)), report
            )
            raise
        took_s = time.monotonic() - submitted_s
        # Again: YARN lists an application a moment after it has noted when it began.
        if other := await _withdrawn_for(rm_client, manager, config, application, report):
            return StartedApplication(other, is_new=False)
        return StartedApplication(found, is_new=True, took_s=took_s)


async def _submit(
    rm_client: RmClient,
    manager: ResourceManager,
    config: LaunchConfig,
    packed: Environment,
    pipeline: bytes,
    nodes: tuple[NodeReport, ...],
    report: ProgressReport,
) -> tuple[ApplicationId, float]:
    """Submit; returns the application and the time of its submission on the monotonic clock."""
    agents = _agents_secret(config)
    given = await manager.new_application()
    application = given.application
    store = rm_client.store()
    retained = RetainedApplication.of(str(application))
    servers = hdfs_servers(rm_client, config)
    delegated = await rm_client.tokens(manager, servers)
    ends_s = 0.0 if config.kerberos.keytab else delegated.ends_s
    if config.kerberos.keytab:
        report(f"note: the master renews the application's tokens as {config.kerberos.principal}, by keytab")
        if why := missing_privileges(rm_client.site.properties):
            report(f"note: {why} (docs/hadoop-kerberos.md#kerberos-for-weeks)")
    elif sentence := ending(ends_s):
        report(f"note: the application {sentence}")
        if delegated.excluded:
            listed = ", ".join(delegated.excluded)
            report(f"note: the ResourceManager does not prolong the token of {listed}: {EXCLUDED_PROPERTY}")
    try:
        known = (rm_client.site.properties.get("fs.defaultFS", ""), *servers) if delegated.tokens else ()
        control = retained.create(application_uri(rm_client, config, str(application)), ends_s, known)
        report(f"uploading what the containers need ({packed.n_bytes / 1e6:.0f} MB at most)")
        staged = await _stored(
            lambda: stage(rm_client, store, config, packed, str(application), delegated.names),
            _STAGE_PATIENCE_S,
            report,
        )
        _warn(check_sizes(staged.plan, given.maximum, nodes), report)
        submission = make_submission(
            application,
            config,
            staged.plan,
            control,
            pipeline,
            agents,
            staged.delivered,
            delegated.tokens,
        )
        submitted_s = time.monotonic()
        await _hand_in(manager, submission)
    except ConnectionLostError as error:
        # YARN may have taken it: then it needs its files, and we its secret.
        raise UnavailableError(
            f"the ResourceManager went away while {application} was submitted: {error.message}",
            cure="when it is back, `yarn-accel start` finds the application or submits another one",
        ) from None
    except BaseException:
        await _forget(store, rm_client, config, retained, report)
        _warn(await rm_client.cancel(manager, delegated), report)
        raise
    report(f"submitted {application}")
    return application, submitted_s


async def _hand_in(manager: ResourceManager, submission: ApplicationSubmission) -> None:
    try:
        await manager.submit(submission)
    except RemoteCallError as error:
        cure = "look at queue, node_label and priority under `app` in the launch settings"
        raise JobError(f"YARN does not take the application: {error.message}", cure=cure) from None


def _agents_secret(config: LaunchConfig) -> bytes:
    path = config.agent.secret_file
    return read_master_secret(Path(path), "agent.secret_file", MAKE_AGENTS_SECRET) if path else b""


async def _stored(act: Callable[[], T], patience_s: float, report: ProgressReport) -> T:
    """Do something in the storage, again and again while that is away, as when its NameNodes change places.

    Raises:
        StorageError: trying again is of no use, or the patience is over.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except StorageError as error:
            if not error.transient or time.monotonic() >= until_s:
                raise
            report(f"note: trying again: {error}")
        await asyncio.sleep(_STORAGE_PAUSE_S)


async def _forget(
    store: Store,
    rm_client: RmClient,
    config: LaunchConfig,
    retained: RetainedApplication,
    report: ProgressReport,
) -> None:
    retained.remove()
    uri = application_uri(rm_client, config, retained.application)
    try:
        await _stored(lambda: store.delete(uri), _FORGET_PATIENCE_S, report)
    except AccelError as error:
        _warn([f"{uri} may be left, remove it: {error}"], report)


async def _withdrawn_for(
    rm_client: RmClient,
    manager: ResourceManager,
    config: LaunchConfig,
    application: ApplicationId,
    report: ProgressReport,
) -> ApplicationReport | None:
    """Kill our application if YARN accepted another of its name before: two starts may both find none.

    Returns:
        the one that stays; None: ours does.
    """
    first = (await find_running(manager, config.app.name))[:1]
    if not first or first[0].id == application:
        return None
    await kill(manager, application, "another start was first")
    await _forget(rm_client.store(), rm_client, config, RetainedApplication.of(str(application)), report)
    return first[0]


async def _until_registered(
    manager: ResourceManager, application: ApplicationId, wait_s: float, report: ProgressReport
) -> ApplicationReport:
    until_s = time.monotonic() + wait_s
    shown: object = None
    while True:
        found = await manager.report(application)
        if found.state is ApplicationState.RUNNING and found.rpc_port > 0:
            return found
        if found.state is not None and found.state.is_final:
            cure = f"yarn logs -applicationId {application}"
            if "unknown queue" in found.diagnostics:
                cure = "name one there is as `app: {queue: ...}` in the launch settings"
            raise JobError(
                f"{application} ended as {found.state.name}: {_diagnosis(found.diagnostics)}", cure=cure
            )
        if found.state is not shown:
            shown = found.state
            report(f"{application}: {found.state.name if found.state is not None else 'unknown'}")
        if time.monotonic() >= until_s:
            raise StartupError(
                f"the master of {application} is not there after {wait_s:g} s: "
                f"{_diagnosis(found.diagnostics) or 'YARN gives no reason'}",
                cure="YARN goes on; see `yarn application -status`, or end it: yarn-accel stop --force",
            )
        await asyncio.sleep(_POLL_S)


def _diagnosis(diagnostics: str) -> str:
    """The reason why the master's container failed, in one line; the meaning of our own exit codes first."""
    text = failure_line(diagnostics) or " ".join(diagnostics.split())[:600]
    reasons = [
        EXIT_REASONS[int(code)] for code in _EXIT_CODE.findall(diagnostics) if int(code) in EXIT_REASONS
    ]
    return f"{reasons[-1]} ({text})" if reasons else text


# ---- looking before


def _pack(config: LaunchConfig, report: ProgressReport) -> Environment:
    report("packing the environment")
    return pack(packed_extras(config.environment), config.environment.packages)


async def _others_running(manager: ResourceManager, nodes: tuple[NodeReport, ...]) -> list[str]:
    """The applications that run already, and what that means for this one."""
    listed = []
    for other in await find_running(manager):
        held = sorted(node.node.host for node in nodes if attribute_of(node, OWNER) == str(other.id))
        more = f" and {len(held) - _N_NAMED} more" if len(held) > _N_NAMED else ""
        holds = f"; it holds the slots of {', '.join(held[:_N_NAMED])}{more}" if held else ""
        listed.append(f"{other.id} ({other.name}, of {other.user}) runs here already{holds}")
    return [*listed, *_BESIDE_OTHERS] if listed else []


async def _lacking(manager: ResourceManager) -> list[str]:
    """Tell what the application goes without because this YARN lacks it."""
    return [] if await manager.has_node_attributes() else [_NO_ATTRIBUTES]


def _rights_warnings(config: LaunchConfig) -> list[str]:
    """Warn where no tenant may use storage: such servers compute only on data in the request itself."""
    if config.pipeline.get("tenants"):
        return []
    return [
        "no tenant may read or write storage, so requests that name files are refused (forbidden-uri): "
        "set `pipeline: {tenants: ...}`"
    ]


def _operator_warnings(rm_client: RmClient, config: LaunchConfig) -> list[str]:
    """Say what a master without a ticket leaves out."""
    parts = {"slots": "slots of nodes are not set", "attributes": "bindings are not published as attributes"}
    wanted = [text for key, text in parts.items() if config.master.settings.get(key, True)]
    if rm_client.kerberos is None or config.kerberos.keytab or not wanted:
        return []
    return [
        f"{', and '.join(wanted)}: YARN's service for operators takes no token, and the master has no ticket"
    ]


def _facts(nodes: tuple[NodeReport, ...]) -> Mapping[str, Mapping[str, str]]:
    return {
        node.node.host: attribute_facts({each.key.name: each.value or "" for each in node.attributes})
        for node in nodes
        if node.is_usable
    }


def _compatibility_warnings(packed: Environment, nodes: tuple[NodeReport, ...]) -> list[str]:
    return str(check_nodes(packed.requirement, _facts(nodes))).splitlines()


def _check_compatibility(packed: Environment, nodes: tuple[NodeReport, ...], report: ProgressReport) -> None:
    facts = _facts(nodes)
    if not facts:
        raise UnavailableError(
            "the cluster has no usable node", cure="start NodeManagers; see `yarn node -list`"
        )
    compatibility: CompatibilityReport = check_nodes(packed.requirement, facts)
    if len(compatibility.incompatible) == len(facts):
        node, why = sorted(compatibility.incompatible.items())[0]
        raise StartupError(f"none of the {len(facts)} nodes can run this environment; {node}: {why}")
    _warn(str(compatibility).splitlines(), report)


def _warn(lines: Iterable[str], report: ProgressReport) -> None:
    for line in lines:
        report(f"note: {line}")
