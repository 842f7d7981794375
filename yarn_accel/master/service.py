"""One attempt of the ApplicationMaster: startup, main loop, shutdown.

::

    RM ─── SchedulerLink ───▶ events ──▶ Application ──▶ commands ──▶ CommandExecutor ──▶ SchedulerLink,
    agents ─── Agents ──────▶              (core)                                         NodeManagerCalls,
    NMs ── NodeManagerCalls ▶                                                             OperatorCommands,
    clock ── StallDetector ─▶                                                             the timer

Everything runs in one event loop, and `Master.tell` alone calls the core. All state can be rebuilt: from the
ResourceManager, from the nodes' attributes, and from the agents, which report within a second. So the
process ends at an internal error, and the next attempt starts from the observed state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel import __version__
from yarn_accel.adapters.hadoop_rpc import AttemptGoneError
from yarn_accel.adapters.signed_http import RequestVerifier
from yarn_accel.core import binding
from yarn_accel.core.application import Application
from yarn_accel.core.application import events as ev
from yarn_accel.core.application.exits import failure_line
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.master.agents import Agents, LateBindingReports
from yarn_accel.master.command_executor import CommandExecutor, NodeManagerCalls
from yarn_accel.master.config import MasterConfig, load_config, tokens_uri
from yarn_accel.master.control_api import Admin, ControlApi
from yarn_accel.master.credential_endpoint import OFF as OFF_SOCKET
from yarn_accel.master.credential_endpoint import CredentialEndpoint, grant_rules, socket_path
from yarn_accel.master.ended_applications import EndedApplications
from yarn_accel.master.environment import ContainerEnvironment, container_environment
from yarn_accel.master.inventory import Inventory, attribute_of
from yarn_accel.master.operator_commands import DRAINED, OFF, OperatorCommands
from yarn_accel.master.plugin import MasterPlugin, PluginContext
from yarn_accel.master.registration import Registration, tracking_url
from yarn_accel.master.scheduler_link import SchedulerLink
from yarn_accel.master.status_documents import AgentStatistics, StatusDocuments

if TYPE_CHECKING:
    from yarn_accel.master.token_renewal import KeytabLogin, TokenRenewal

logger = logging.getLogger(__name__)

_RESTORE_LIMIT_S = 10.0
_RETRY_S = 1.0
#: How long, and how often, YARN is asked whether the whole application is over when this attempt is.
_GONE_S, _GONE_PAUSE_S = 1.0, 0.02
_CANCEL_AGAIN_S = 0.2
_STALL_INTERVAL_S = 0.25
#: Shorter stalls delay others little, and a busy machine has many.
_LEAST_STALL_S = 0.5


async def serve(
    config_file: Path, registration: Registration, environ: Mapping[str, str], report: Callable[[str], None]
) -> None:
    """Work until the application is over.

    Raises:
        AttemptGoneError: this attempt is over, the application is not.
        ConfigError: the settings or the plan are wrong.
    """
    config = load_config(config_file)
    logging.getLogger().setLevel(config.log_level)
    environment = container_environment(config, registration, environ)
    master = Master(config, environment, registration)
    try:
        await master.open()
        report(f"master of {master.application}, attempt {master.attempt}, on port {master.port}")
        # Loaded modules stay: looking for garbage among them takes 30 ms, in which no request is answered.
        gc.freeze()
        await master.work()
        await master.cancel_tokens()
    finally:
        await master.close()
        await environment.nm.close()
        await environment.rm.close()


def since_boot_s() -> float:
    """A monotonic clock that goes on while the machine is suspended, where the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class StallDetector:
    """Detects that this process did not run: stopped, swapped out, its machine suspended, its loop blocked.

    After a stall its timers are late, and messages that arrived meanwhile wait in the sockets. A task wakes
    at short intervals; the delay of its last wake-up is the length of the stall. A stall of a machine whose
    clocks stop as well, such as a paused virtual machine, stays unnoticed.

    Args:
        clock: see `since_boot_s`.
        tell: takes the length of a stall in seconds, when it is over.

    Attributes:
        stalled_s: all stalls together.
    """

    def __init__(self, clock: Callable[[], float], tell: Callable[[float], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._awake_s: float | None = None
        self.stalled_s = 0.0

    async def watch(self) -> None:
        """Stay awake until cancelled; before that, nothing is a stall."""
        self._awake_s = self._clock()
        try:
            while True:
                await asyncio.sleep(_STALL_INTERVAL_S)
                self.look()
        finally:
            self._awake_s = None

    def look(self) -> None:
        """Report the stall that has just ended, if there was one.

        It counts without the usual pause, so that time goes on even where every pause is too long.
        """
        if self._awake_s is None:
            return
        now_s = self._clock()
        for_s, self._awake_s = now_s - self._awake_s - _STALL_INTERVAL_S, now_s
        if for_s >= _LEAST_STALL_S:
            self.stalled_s += for_s
            self._tell(for_s)


class Master:
    """One attempt of the ApplicationMaster.

    Args:
        registration: where it listens, and the ResourceManager's answer so far.
        clock: monotonic; also that of the event loop.
        since_boot: the same with the time in which the machine was suspended.
    """

    def __init__(
        self,
        config: MasterConfig,
        environment: ContainerEnvironment,
        registration: Registration,
        clock: Callable[[], float] = time.monotonic,
        since_boot: Callable[[], float] = since_boot_s,
    ) -> None:
        self._config = config
        self._environment = environment
        self._registration = registration
        self._clock = clock
        self._stall_detector = StallDetector(since_boot, self._stalled)
        self.application = str(environment.container.attempt.application)
        self.attempt = environment.container.attempt.number
        self._core = Application(
            config.core_settings,
            environment.plan.roles,
            lambda: binding.make(config.policy, config.policy_settings),
        )
        self._inventory = Inventory(config.accelerator_nodes)
        self._containers = NodeManagerCalls(environment.nm, self.tell, clock)
        self._operator = self._make_operator()
        self._link = self._make_link()
        self._executor = self._make_executor()
        self._statistics = AgentStatistics()
        self._ended = EndedApplications(self._environment.rm.report)
        self._agents = self._make_agents()
        self._plugin = self._make_plugin()
        self.documents = StatusDocuments(
            self._core, self._statistics, clock, self._make_about(), self._service, self._plugin.document
        )
        verifier = RequestVerifier(environment.credentials.key_of, not_before_s=registration.at)
        allowed_hosts = (environment.node, *config.rm_webs, *config.page_clients)
        self.admin = self._make_admin()
        self._control_api = ControlApi(
            self._agents, self.admin, verifier, registration.listener, allowed_hosts, plugin=self._plugin
        )
        self._credentials = self._make_credentials()
        self._renewal = self._make_renewal(environment.login)
        self._broken: asyncio.Future[None] | None = None
        self._n_events, self._apply_s = 0, 0.0

    def _make_operator(self) -> OperatorCommands:
        config, rm = self._config, self._environment.rm
        return OperatorCommands(
            rm,
            self.tell,
            self._clock,
            has_slots=config.slots,
            has_attributes=config.attributes,
            application=self.application,
        )

    def _make_link(self) -> SchedulerLink:
        return SchedulerLink(
            self._environment.am,
            self._environment.nm,
            self._inventory,
            self.tell,
            self._clock,
            self.attempt,
            self._address,
            self._before_end,
            self._registration.registered,
            idle_s=self._config.heartbeat_interval_s,
            busy_s=self._config.busy_interval_s,
        )

    def _make_executor(self) -> CommandExecutor:
        return CommandExecutor(
            self._environment.plan,
            self._environment.credentials,
            self._inventory,
            self._link,
            self._containers,
            self._operator,
            self.tell,
            self._clock,
            self._config.retries,
        )

    def _make_agents(self) -> Agents:
        return Agents(
            self._config,
            self._core,
            self._inventory,
            self._statistics,
            self.tell,
            self._clock,
            self.application,
            self.attempt,
            lambda: self.attempt == 1 or self._executor.has_published,
            LateBindingReports(self._environment.credentials.server, self._config.revoked_file),
            self._ended,
        )

    def _make_admin(self) -> Admin:
        about = {"application": self.application, "attempt": self.attempt, "node": self._environment.node}
        return Admin(
            self._core,
            self._operator,
            self._statistics,
            self._inventory,
            self.documents,
            self.tell,
            self._clock,
            about,
        )

    def _make_credentials(self) -> CredentialEndpoint | None:
        config, secret = self._config, self._environment.credentials.server
        if not secret or config.credential_socket == OFF_SOCKET:
            return None
        path = socket_path(config, self._environment.node, str(self.application))
        return CredentialEndpoint(secret, path, grant_rules(config), config.revoked_file)

    def _make_renewal(self, login: KeytabLogin | None) -> TokenRenewal | None:
        if login is None:
            return None
        from yarn_accel.master.token_renewal import TokenRenewal
        from yarn_accel.storage import Store

        uri = tokens_uri(self._config.staging_uri)
        return TokenRenewal(
            login,
            self._environment.rm,
            self._environment.credentials,
            lambda content: Store().write_private(uri, content),
            is_first_attempt=self.attempt == 1,
        )

    def _make_plugin(self) -> MasterPlugin:
        # Without their secret nobody could make a credential for tasks.
        serving = self._agents.serving if self._environment.credentials.server else lambda: ({}, {})
        context = PluginContext(
            self._config,
            self.application,
            self._environment.plan.roles,
            self._inventory,
            self.attempt,
            self.tell,
            self._clock,
            serving,
            self._agents.wanted,
        )
        if self._config.tasks is None:
            return MasterPlugin()
        from yarn_accel.master.tasks.service import make_task_service

        return make_task_service(context)

    def _make_about(self) -> dict[str, Any]:
        """The document's ``about``."""
        proxies = [f"{url.rstrip('/')}/proxy/{self.application}/" for url in self._config.rm_webs]
        return {
            "application": self.application,
            "name": self._config.application_name,
            "user": self._config.user,
            "started_at": time.time(),
            "proxy_url": proxies[0] if proxies else "",
            "version": __version__,
        }

    # ---- startup, main loop, shutdown

    @property
    def port(self) -> int:
        """Where agents, mappers and admins reach it."""
        return self._registration.port

    async def open(self) -> None:
        """Open the HTTP API, and the socket for credentials."""
        self._broken = asyncio.get_running_loop().create_future()
        await self._control_api.open()
        if self._credentials is not None:
            await self._credentials.open()

    async def work(self) -> None:
        """Register and keep the application as it should be, until it is stopped.

        Raises:
            AttemptGoneError: the ResourceManager has given this attempt up.
            AccelError: the ResourceManager refuses us.
        """
        assert self._broken is not None, "open() comes first"
        if self._renewal is not None:
            await self._renewal.begin()
        link = asyncio.create_task(self._link.run(), name="scheduler")
        others = [
            asyncio.create_task(self._operator.work(), name="operator"),
            asyncio.create_task(self._look_at_nodes(), name="nodes"),
            asyncio.create_task(self._ended.run(), name="ended applications"),
            asyncio.create_task(self._stall_detector.watch(), name="stalls"),
            asyncio.create_task(self._terminated(), name="terminated"),
            asyncio.create_task(self._work_of_plugin(), name="plugin"),
        ]
        if self._renewal is not None:
            others.append(asyncio.create_task(self._renewal.work(), name="tokens"))
        waiting: set[asyncio.Future[Any]] = {link, self._broken, *others}
        try:
            self.tell(ev.TimerFired(self._clock()))
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        except AttemptGoneError:
            await self._restore_if_over()
            raise
        finally:
            await _end(link, *others)

    async def _work_of_plugin(self) -> None:
        if self._renewal is not None:
            await self._renewal.until_usable()
        await self._plugin.work()

    async def _terminated(self) -> None:
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        await terminated.wait()
        raise AttemptGoneError("SIGTERM", "YARN ends this process")

    async def _restore_if_over(self) -> None:
        """Restore the nodes if YARN has ended the whole application, in the quarter second that it leaves us.

        The next start does what is not done.
        """
        until_s = self._clock() + _GONE_S
        while self._clock() < until_s:
            with contextlib.suppress(AccelError):
                found = await self._environment.rm.report(self._environment.container.attempt.application)
                if found.state is not None and found.state.is_final:
                    await self._operator.restore(has_drains=False)
                    logger.warning("%s: slots and attributes are restored", found.state.name)
                    return
            await asyncio.sleep(_GONE_PAUSE_S)

    async def cancel_tokens(self) -> None:
        """End the tokens that this master asked for, after the application's end."""
        if self._renewal is not None:
            await self._renewal.finish()

    async def close(self) -> None:
        """Close everything here; containers run on, and the connections to YARN stay open."""
        self._executor.close()
        await self._containers.close()
        await self._control_api.close()
        if self._credentials is not None:
            await self._credentials.close()

    def tell(self, event: ev.Event) -> None:
        """Apply an event to the core, and execute the commands it returns."""
        # Messages that waited during a stall are applied after `Stalled`, or they would count as late.
        self._stall_detector.look()
        self._apply(event)

    def _stalled(self, for_s: float) -> None:
        logger.warning("this process stood still for %.1f s; that is nobody's silence", for_s)
        self._apply(ev.Stalled(for_s, self._clock()))

    def _apply(self, event: ev.Event) -> None:
        began_s = time.perf_counter()
        try:
            commands = self._core.apply(self._annotated(event))
        except Exception as error:
            # An internal error: the state may be wrong.  The next attempt starts from the observed state.
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)
            raise
        self._apply_s += time.perf_counter() - began_s
        self._n_events += 1
        self._executor.carry_out(commands)
        self._plugin.observe(event, commands)
        self.admin.observe(commands)
        if isinstance(event, ev.Registered):
            self._operator.lack(self._link.resource_types)
        elif isinstance(event, ev.Resynced):
            self._operator.resynced()

    def _annotated(self, event: ev.Event) -> ev.Event:
        """The event, with the meaning of our containers' exit codes before YARN's diagnostics."""
        if isinstance(event, ev.ContainerCompleted):
            reason = self._environment.plan.exit_reasons.get(event.exit_status)
            if reason is not None:
                said = failure_line(event.diagnostics)
                return replace(event, diagnostics=f"{reason} ({said})" if said else reason)
        return event

    def _address(self) -> tuple[str, int, str]:
        node = self._environment.node
        return node, self.port, tracking_url(node, self.port)

    async def _look_at_nodes(self) -> None:
        """Report all nodes periodically; the first report also restores the drained nodes."""
        is_first = True
        while True:
            try:
                reports = await self._environment.rm.nodes()
                # The marks of another application's nodes are not ours.
                is_ours = is_first and not await self._operator.other_holder(reports)
            except UnavailableError as error:
                logger.warning("nodes are not known anew: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            for report in reports if is_ours else ():
                if attribute_of(report, DRAINED) == "true":
                    self.tell(ev.DrainRequested(report.node.host, self._clock()))
            is_first = False
            views = self._inventory.complete(reports)
            self._operator.put_back(reports)
            self.tell(ev.NodesReported(views, self._clock(), is_complete=True))
            self._agents.forget()
            await asyncio.sleep(self._config.report_interval_s)

    async def _before_end(self) -> None:
        try:
            await asyncio.wait_for(self._operator.restore(), _RESTORE_LIMIT_S)
        except (AccelError, asyncio.TimeoutError) as error:
            logger.error("slots or attributes of nodes are left as they are: %s", error)

    def _service(self, now_s: float) -> dict[str, Any]:
        """Figures of this process."""
        link = self._link.figures
        used = resource.getrusage(resource.RUSAGE_SELF)
        numbers = {
            "rm_heartbeats": link.heartbeats,
            "rm_failures": link.failed,
            "rm_heartbeat_s": link.last_s,
            "arrival_s": self._registration.took_s,
            "nm_calls": self._containers.n_calls,
            "nm_failures": self._containers.n_failed,
            "events": self._n_events,
            "apply_s": self._apply_s,
            "heartbeats": self._agents.n_heard,
            "stalled_s": self._stall_detector.stalled_s,
            "rss_bytes": _rss_bytes(),
            "cpu_s": used.ru_utime + used.ru_stime,
        }
        if self._renewal is not None:
            numbers["tokens_end_s"] = self._renewal.ends_s
        if link.answered_s:
            numbers["rm_age_s"] = now_s - link.answered_s
        return {"problems": self._problems(), **numbers}

    def _problems(self) -> list[str]:
        """Problems that an admin should know of."""
        texts = {"slots": "slots are not set", "attributes": "bindings are not published as attributes"}
        refusals = self._operator.refusals.items()
        found = [f"{texts[what]}: {why}" for what, why in refusals if why not in ("", OFF)]
        if self._operator.held_by:
            found.append(f"slots and attributes of the nodes are those of {self._operator.held_by}")
        if self._credentials is not None and self._credentials.problem:
            found.append(f"users get no credentials: {self._credentials.problem}")
        if self._renewal is not None and self._renewal.problem:
            found.append(f"the application's tokens are not renewed: {self._renewal.problem}")
        return [*found, "the resource manager does not answer"] if self._link.figures.is_away else found


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they are done: before Python 3.12 `asyncio.wait_for` may swallow a cancellation."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)


def _rss_bytes() -> int:
    """Resident memory now; the largest there was where the kernel does not say."""
    try:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return n_pages * resource.getpagesize()
