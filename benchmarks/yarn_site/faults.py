"""The faults: what each does to a site, what must follow, and how soon.

Tests perform each once and look at what is left; the benchmark performs each several times and measures.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

from benchmarks.yarn_site.job import RunningJob
from benchmarks.yarn_site.scene import Condition, Look, Scene, Strike
from benchmarks.yarn_site.site import Site
from yarn_accel.client.discovery import discover_servers
from yarn_accel.errors import JobError

__all__ = ["ANSWER", "DETECTED", "FAULTS", "PUBLISHED", "REPLACED", "Fault"]

DETECTED = "detected"
"""The master has noted it."""
ANSWER = "next answer"
"""The first answer that a mapper gets after it, from another server where its own is gone."""
PUBLISHED = "published"
"""The new binding is an attribute of the node."""
REPLACED = "replaced"
"""What was lost is there again, and works."""
_SLOW = "10mbit"
_CUT_S = 6.0


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        title: for tables.
        strike: does it, at once.
        prepare: brings the site into the state in which it can happen; before the job.
        goals: seconds at most, by the name of the consequence.
        needs_links: nodes must have links of their own (netns mode).
        needs_job: a job must be under way.
        is_felt: calls may fail; with the others none does.
        is_lasting: it is made good only when the job is over.
        is_early: it happens with the job's first record.
    """

    title: str
    strike: Callable[[Scene], Strike]
    prepare: Callable[[Scene], None] = lambda scene: None
    goals: Mapping[str, float] = field(default_factory=dict)
    needs_links: bool = False
    needs_job: bool = False
    is_felt: bool = False
    is_lasting: bool = False
    is_early: bool = False


def _now(is_so: object) -> float:
    return time.time() if is_so else 0.0


def _answer(scene: Scene, since: float, *, is_elsewhere: bool = False) -> Condition:
    """The first answer after a time; elsewhere: from another server than the client's own."""

    def first(_: Look) -> float:
        late = (each for each in scene.caller.answers if each["at"] > since)
        found = (each["at"] for each in late if not is_elsewhere or each["node"] != scene.server)
        return float(next(found, 0.0))

    return first


def _published_elsewhere(scene: Scene) -> Condition:
    """Another server is published; which one is the policy's affair where there are several."""
    return lambda look: _now(look.published(scene.client) not in (None, "", scene.server))


def _kill_mapper(scene: Scene) -> Strike:
    job = scene.job
    if job is None:
        raise JobError("a mapper can only be killed while a job runs")
    at = time.time()
    attempt = job.kill_mapper(signal.SIGKILL)
    task = attempt.rsplit("_", 1)[0]
    others = {
        REPLACED: lambda _: _now(any(each.startswith(task) for each in job.mappers().keys() - {attempt}))
    }
    return Strike(at, others)


def _kill_server(scene: Scene) -> Strike:
    host = scene.server
    old = scene.site.container(host, "acct")
    at = scene.site.kill(old)

    def replaced(look: Look) -> float:
        return _now(look.node(host).get("is_serving") and look.container(host, "acct") not in ("", old))

    known = {(each["node"], each["port"]) for some in scene.callers.values() for each in some.answers}

    def answers(_: Look) -> float:
        late = (each for some in scene.callers.values() for each in some.answers if each["at"] > at)
        new = (each["at"] for each in late if each["node"] == host and (host, each["port"]) not in known)
        return min(new, default=0.0)

    awaited = {
        DETECTED: lambda look: look.noted(host, "acct ended", at) or look.noted(host, "server serves no", at),
        ANSWER: _answer(scene, at, is_elsewhere=True),
        PUBLISHED: _published_elsewhere(scene),
        REPLACED: replaced,
    }
    if len(scene.site.servers) <= len(scene.site.others):  # else no node is moved back to it
        awaited["its replacement answers"] = answers
    return Strike(at, awaited)


def _kill_agent(scene: Scene) -> Strike:
    host = scene.client
    old = scene.site.container(host, "agent")
    at = scene.site.kill(old)
    awaited = {
        DETECTED: lambda look: look.noted(host, "agent ended", at),
        REPLACED: lambda look: _now(look.container(host, "agent") not in ("", old)),
    }
    return Strike(at, awaited)


def _kill_master(scene: Scene) -> Strike:
    site = scene.site
    attempt = site.state()["attempt"]
    at = site.kill(what="master run")

    def whole(look: Look) -> float:
        serve = all(look.node(host).get("is_serving") for host in site.servers)
        return _now(serve and all(look.node(host).get("bound") for host in site.others))

    awaited = {ANSWER: _answer(scene, at), DETECTED: lambda look: _now(look.state["attempt"] > attempt)}
    return Strike(at, {**awaited, REPLACED: whole})


def _restart(scene: Scene, node: str, role: str, back: Condition) -> Strike:
    """Kill a daemon and have it started again, as whoever supervises it does."""
    at = time.time()
    scene.site.cluster.kill(node, role)
    starter = threading.Thread(target=scene.site.cluster.start, args=(node, role), daemon=True)
    starter.start()

    def after_start(look: Look) -> float:
        return 0.0 if starter.is_alive() else back(look)

    return Strike(at, {ANSWER: _answer(scene, at), REPLACED: after_start}, starter.join)


def _kill_resource_manager(scene: Scene) -> Strike:
    site = scene.site
    hosts = set(site.names) - set(site.late)

    def back(look: Look) -> float:
        return _now(hosts <= look.reports.keys() and look.state.get("is_registered"))

    return _restart(scene, "master", "resourcemanager", back)


def _kill_node_manager(scene: Scene) -> Strike:
    site, host = scene.site, scene.server

    def back(look: Look) -> float:
        report = look.reports.get(host)
        size = report.capability if report is not None else None
        return _now(size is not None and size.other.get("acct/slot") != site.options.slots)

    return _restart(scene, site.names[host], "nodemanager", back)


def _kill_data_node(scene: Scene) -> Strike:
    """The one that the server writes to first; it stays away until the job is over."""
    site, node = scene.site, scene.site.names[scene.server]
    job = scene.job
    n_done = job.n_done() if job is not None else 0
    at = time.time()
    site.cluster.kill(node, "datanode")
    awaited: dict[str, Condition] = {ANSWER: _answer(scene, at)}
    if job is not None:
        awaited["records go on"] = lambda _: _now(job.is_over or job.n_done() >= n_done + 2 * job.n_tasks)
    return Strike(at, awaited, lambda: site.cluster.start(node, "datanode"))


def _cut(scene: Scene) -> Strike:
    site, host = scene.site, scene.server
    at = time.time()
    site.cluster.cut(site.names[host])
    awaited = {
        DETECTED: lambda look: look.noted(host, "server serves no", at),
        ANSWER: _answer(scene, at, is_elsewhere=True),
        PUBLISHED: _published_elsewhere(scene),
    }

    def heal() -> None:
        # A shorter cut is bridged by TCP: whatever is in flight just waits.
        time.sleep(max(0.0, at + _CUT_S - time.time()))
        site.cluster.heal(site.names[host])

    return Strike(at, awaited, heal)


def _slow(scene: Scene) -> Strike:
    """The link of a server; it stays slow until the job is over."""
    cluster, node = scene.site.cluster, scene.site.names[scene.server]
    at = time.time()
    cluster.slow(node, _SLOW)
    return Strike(at, {ANSWER: _answer(scene, at)}, lambda: cluster.slow(node, ""))


def _drain(scene: Scene) -> Strike:
    site, host = scene.site, scene.server
    old = site.container(host, "acct")
    at = time.time()
    site.run("drain", host)
    awaited = {
        ANSWER: _answer(scene, at, is_elsewhere=True),
        PUBLISHED: _published_elsewhere(scene),
        "server ended": lambda _: _now(not site.processes(old)),
    }
    return Strike(at, awaited, lambda: _undrain(site, host))


def _undrain(site: Site, host: str) -> None:
    site.run("undrain", host)


def _leave_one_server(scene: Scene) -> None:
    """All nodes use one server, so that another one is worth having."""
    site = scene.site
    for host in site.servers:
        if host != scene.server:
            site.run("drain", host)
    # The policy gives a new server the nodes bound last; made anew, these are not the drained ones.
    site.run("rebind")
    site.until("all are bound to one", lambda: {site.bound(host) for host in site.others} == {scene.server})


def _join(scene: Scene) -> Strike:
    """An accelerator node that YARN has never seen; it stays, and the drained ones are taken back."""
    site = scene.site
    before, host = tuple(site.servers), site.late[0]
    at = time.time()
    executor = ThreadPoolExecutor(1, "join")
    joining = executor.submit(_bring, scene, host)
    executor.shutdown(wait=False)

    def answer(_: Look) -> float:
        found = [caller.after(at, node=host) for caller in scene.callers.values()]
        return min((float(each["at"]) for each in found if each), default=0.0)

    def heal() -> None:
        try:
            joining.result()
        finally:
            for server in before:
                _undrain(site, server)

    awaited = {
        DETECTED: lambda look: look.noted(host, "node joined", at),
        "serves": lambda look: _now(look.node(host).get("is_serving")),
        ANSWER: answer,
        PUBLISHED: lambda look: _now(any(look.published(each) == host for each in site.others)),
    }
    return Strike(at, awaited, heal)


def _bring(scene: Scene, host: str) -> None:
    """Have a node join; meanwhile the job's mappers stand still."""
    site, job = scene.site, scene.job
    with job.standing_still() if job is not None else nullcontext():
        site.join(host)
        site.until("the new server serves", lambda: site.serves(host))
        if job is None:
            return
        n_done = _leave_the_rest(scene, job, host)
    site.until("the job uses the new server", lambda: job.is_over or job.n_done() > n_done)


def _leave_the_rest(scene: Scene, job: RunningJob, host: str) -> int:
    """See to it that what the job has not sent yet goes to one server, on a machine of any speed.

    Which nodes a newcomer gets is the policy's affair: those bound last, be they without a mapper, or with
    one that has nothing left to send. So the server of before goes.

    Returns:
        When more records than these are done, that server has done some.
    """
    site = scene.site
    site.run("drain", scene.server)
    n_done = job.n_done() + job.n_in_flight
    if n_done >= job.n_records:
        raise JobError("the job has too little left for a server that joins", cure="give it more records")
    site.until("all mappers are told to use it", lambda: _are_told(site, job.hold(), host))
    return n_done


def _are_told(site: Site, nodes: set[str], server: str) -> bool:
    """Whether the agents of all these nodes, one at least, name a server first."""

    def named(node: str) -> str:
        found = discover_servers({"NM_HOST": node, "ACCEL_AGENT": site.agent_socket(node)}).endpoints()
        return found[0].node if found else ""

    return bool(nodes) and all(named(node) == server for node in nodes)


FAULTS: Mapping[str, Fault] = {
    "mapper": Fault("a mapper is killed", _kill_mapper, needs_job=True),
    "acct": Fault(
        "an AcCt is killed",
        _kill_server,
        goals={ANSWER: 0.5, PUBLISHED: 1.5, REPLACED: 2.0},
        is_felt=True,
    ),
    "agent": Fault("an agent is killed", _kill_agent),
    "master": Fault("the ApplicationMaster is killed", _kill_master),
    "resourcemanager": Fault("the ResourceManager is killed", _kill_resource_manager),
    "nodemanager": Fault("the NodeManager of an accelerator node is killed", _kill_node_manager),
    "datanode": Fault("a DataNode is killed", _kill_data_node, is_lasting=True),
    "cut": Fault(
        "an accelerator node is cut off",
        _cut,
        goals={ANSWER: 5.0, PUBLISHED: 6.0},
        needs_links=True,
        is_felt=True,
    ),
    "slow": Fault(
        f"the link of an accelerator node carries {_SLOW}", _slow, needs_links=True, is_lasting=True
    ),
    "drain": Fault("an accelerator node is drained", _drain),
    "join": Fault("an accelerator node is added", _join, prepare=_leave_one_server, is_early=True),
}
"""By name, in the order in which they are performed: the last one changes the site for good."""
