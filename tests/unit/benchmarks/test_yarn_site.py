"""What the faults are judged by: the comparison of two runs, and when a consequence counts as seen."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.yarn_faults import SECTIONS, _Account, _fault_rows, _table
from jobs.factorize.manifest import Done
from jobs.runners.step import Outcome, RejectedRecord
from tests.fixtures.yarn_site import SiteOptions, faults
from tests.fixtures.yarn_site.faults import ANSWER, FAULTS, PUBLISHED
from tests.fixtures.yarn_site.job import Result, RunningJob, compare
from tests.fixtures.yarn_site.performing import Performed, Struck, why_not
from tests.fixtures.yarn_site.scene import Look, Scene, Strike, watch
from yarn_accel.errors import ClusterError, JobError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.master.config import MasterConfig
from yarn_accel.testbed.plan import NetworkMode

ADDRESSES = {key: ("rm:1",) for key in ("rm_client", "rm_scheduler", "rm_admin")}


def row(key: str, **facts: Any) -> Done:
    blank = Done(key, "lu", "float64", (4, 4), 0.5, (0.1,) * 5, 128, "w1", "cpu", "w3", "attempt_1")
    return replace(blank, **facts)


def result(
    *rows: Done, factors: dict[str, str] | None = None, rejects: tuple[RejectedRecord, ...] = ()
) -> Result:
    outcome = Outcome(len(rows), rows, rejects, {"resubmitted": 2}, (), 10.0)
    return Result(outcome, {row.key: row.key for row in rows} if factors is None else factors)


GOOD = result(row("a"), row("b"))


def test_where_and_how_fast_a_record_was_done_does_not_matter() -> None:
    other = result(row("b", server="w2", attempt="attempt_2"), row("a", seconds=(9.0,) * 5, residual=0.6))
    assert compare(GOOD, other).is_equal
    assert compare(GOOD, other).words() == "all 2 as undisturbed"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(row("a")), "1 lost (b)"),
        (result(row("a"), row("b"), factors={"a": "a"}), "1 lost (b)"),
        (result(row("a"), row("b"), row("a")), "1 doubled (a)"),
        (result(row("a"), row("b", shape=(5, 4))), "1 changed (b)"),
        (result(row("a", residual=31.0), row("b")), "1 changed (a)"),
        (result(row("a"), row("b"), factors={"a": "a", "b": "other bits"}), "1 changed (b)"),
        (result(row("a"), row("b"), row("c")), "1 strange (c)"),
        (result(row("a"), row("b"), factors={"a": "a", "b": "b", "c": "c"}), "1 strange (c)"),
        (result(row("a"), rejects=(RejectedRecord("b", "nan", "why"),)), "1 lost (b), 1 strange (b)"),
    ],
)
def test_every_difference_is_counted_and_named(other: Result, words: str) -> None:
    compared = compare(GOOD, other)
    assert not compared.is_equal
    assert compared.words() == words


def test_what_a_mapper_computed_itself_is_judged_by_its_residual() -> None:
    factors = {"a": "other bits", "b": "b"}
    assert compare(GOOD, result(row("a", device="cpu:fallback"), row("b"), factors=factors)).is_equal


def test_settings_of_a_site_are_settings_of_the_launcher_and_the_master() -> None:
    options = SiteOptions(
        "x",
        policy="container",
        master={"slots": False},
        pipeline={"workers": 2},
        sections={"server": {"vcores": 2}},
    )
    text = yaml.safe_dump(options.launch(["w1"], "/tmp/x/{node}"))
    config = LaunchConfig.model_validate(yaml.safe_load(text))
    assert (config.server.vcores, config.server.devices, config.pipeline["workers"]) == (2, "none", 2)
    master = MasterConfig.model_validate({**ADDRESSES, **config.master.settings})
    assert (master.policy, master.slots, master.accelerator_nodes) == ("container", False, ("w1",))
    assert SiteOptions("x", late=2).cluster().nodes == 6


class Quiet:
    """A site on which nothing can be asked."""

    def logs(self) -> str:
        return "the logs"


def test_a_consequence_counts_from_the_strike_and_a_missing_one_is_named() -> None:
    site: Any = Quiet()
    seen = watch(site, Strike(100.0, {"soon": lambda _: 100.5, "later": lambda _: 102.0}))
    assert seen == {"soon": 0.5, "later": 2.0}
    with pytest.raises(ClusterError, match=r"never: lost\nthe logs"):
        watch(site, Strike(100.0, {"soon": lambda _: 100.5, "lost": lambda _: 0.0}), limit_s=0.0)


def test_the_masters_notes_tell_when_it_knew() -> None:
    notes = [{"node": "w1", "what": "server ended", "age_s": age_s} for age_s in (50.0, 3.0, 1.0)]
    site: Any = SimpleNamespace(state=lambda: {"nodes": {}, "notes": notes})
    look = Look(site)
    now = look.state["seen_at"]
    assert look.noted("w1", "server", now - 10.0) == pytest.approx(now - 3.0)
    assert look.noted("w2", "server", now - 10.0) == 0.0


def test_the_goals_of_the_issue_are_judged() -> None:
    assert FAULTS["server"].goals == {ANSWER: 0.5, PUBLISHED: 1.5, "replaced": 2.0}
    assert FAULTS["cut"].goals == {ANSWER: 5.0, PUBLISHED: 6.0}
    assert list(SECTIONS)[-1] == "join", "it changes the site for good"
    account = _Account()
    struck = Struck("cut", {ANSWER: 5.1, PUBLISHED: 5.2}, 20, 3, (), 100, 5.1, 0.3)
    account.add_idle(Performed((replace(struck, seconds={ANSWER: 3.0}),), ()))
    account.add(Performed((struck,), (result(row("a")),)), compare(GOOD, result(row("a"))))
    rows = {each.what: each for each in _fault_rows("cut", account, [GOOD])}
    assert [each.ok for each in rows.values() if each.goal] == [True, False, True, False, True, True]
    assert rows["cut: requests of the job resubmitted"].value == 2
    assert rows["cut: job time over undisturbed"].value == 1.0
    assert _table({"cut": account}, [GOOD]).row_count == 1


@pytest.mark.parametrize("mode", NetworkMode)
def test_nodes_have_links_of_their_own_in_all_modes_but_one(mode: NetworkMode) -> None:
    site: Any = SimpleNamespace(cluster=SimpleNamespace(plan=SimpleNamespace(mode=mode)), late=["w5"])
    refused = {name for name in FAULTS if why_not(site, name)}
    assert refused == ({"cut", "slow"} if mode is NetworkMode.LOOPBACK else set())


def test_any_other_server_will_do_for_a_node_whose_own_is_lost() -> None:
    caller: Any = SimpleNamespace(answers=[{"at": 1.0, "node": "w2", "port": 1}])
    site: Any = SimpleNamespace(
        servers=["w1", "w2", "w5"], container=lambda *_: "c1", kill=lambda _: 10.0, others=["w3"]
    )
    awaited = FAULTS["server"].strike(Scene(site, "w3", "w5", {"w3": caller})).awaited
    published = [None, "", "w5", "w2"]
    look: Any = SimpleNamespace(published=lambda host: published[0])
    seen = []
    while published:
        seen.append(bool(awaited[PUBLISHED](look)))
        published.pop(0)
    assert seen == [False, False, False, True]
    caller.answers.append({"at": 11.0, "node": "w5", "port": 1})
    assert not awaited[ANSWER](look)
    caller.answers.append({"at": 12.0, "node": "w2", "port": 1})
    assert awaited[ANSWER](look) == 12.0


class Mapper:
    """A process that sleeps, and that gets SIGSTOP and SIGCONT as a mapper does."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "60"])

    @property
    def is_still(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rsplit(")", 1)[1].split()[0] == "T"

    def until(self, is_still: bool) -> None:
        until_s = time.monotonic() + 60.0
        while self.is_still != is_still:
            assert time.monotonic() < until_s, f"it never stood still: {is_still}"
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def mappers() -> Iterator[list[Mapper]]:
    """Mappers that run; further ones may be added."""
    found = [Mapper()]
    yield found
    for mapper in found:
        mapper.end()


@pytest.fixture
def job(mappers: list[Mapper], monkeypatch: pytest.MonkeyPatch) -> RunningJob:
    """A job with these mappers, all on one node."""

    def running(_: RunningJob) -> dict[str, tuple[int, str]]:
        return {str(at): (mapper.process.pid, "w4") for at, mapper in enumerate(mappers)}

    monkeypatch.setattr(RunningJob, "_mappers", running)
    batch: Any = SimpleNamespace(n_records=160, n_tasks=4, store=None)
    return RunningJob(batch, "", lambda _: Outcome(0, (), (), {}, (), 0.0))


def test_mappers_that_begin_while_all_stand_still_do_so_from_their_start_on(
    job: RunningJob, mappers: list[Mapper]
) -> None:
    with job.standing_still():
        mappers[0].until(is_still=True)
        mappers.append(Mapper())
        mappers[1].until(is_still=True)
    for mapper in mappers:
        mapper.until(is_still=False)


class Joining:
    """A site that a node joins; agents name its server once the server of before is drained."""

    def __init__(self, mappers: list[Mapper]) -> None:
        self.servers, self.others, self.late = ["w1"], ["w3", "w4"], ["w5"]
        self.names = {host: host for host in ("w1", "w3", "w4", "w5")}
        self.drained: list[str] = []
        self.n_drains = 0
        self._mappers = mappers

    def join(self, host: str) -> None:
        # On a busy machine a mapper begins just now.
        self._mappers.append(Mapper())
        self._mappers[-1].until(is_still=True)

    def serves(self, host: str) -> bool:
        return True

    def bound(self, host: str) -> str:
        return "w5" if self.drained or host == "w4" else "w1"

    def run(self, verb: str, host: str) -> None:
        {"drain": self.drained.append, "undrain": self.drained.remove}[verb](host)
        self.n_drains += verb == "drain"

    def until(self, what: str, condition: Callable[[], object]) -> None:
        while not condition():
            time.sleep(0.01)

    def agent_socket(self, host: str) -> str:
        return host


@pytest.fixture
def joining(mappers: list[Mapper], monkeypatch: pytest.MonkeyPatch) -> Joining:
    """A site whose agents can be asked."""
    site = Joining(mappers)

    def found_servers(environ: dict[str, str]) -> Any:
        node = SimpleNamespace(node=site.bound(environ["NM_HOST"]))
        return SimpleNamespace(endpoints=lambda: (node,))

    monkeypatch.setattr(faults, "discover_servers", found_servers)
    return site


def test_a_job_has_work_left_for_a_server_that_joins_and_nobody_else_to_send_it_to(
    joining: Joining, job: RunningJob, mappers: list[Mapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    site: Any = joining
    # Four mappers had four requests each in flight: the one after these is the new server's.
    monkeypatch.setattr(
        RunningJob, "n_done", lambda _: 10 if any(mapper.is_still for mapper in mappers) else 27
    )
    FAULTS["join"].strike(Scene(site, "w3", "w1", {}, job)).heal()
    assert len(mappers) == 2
    assert joining.n_drains == 1
    assert not joining.drained


def test_a_job_without_work_left_for_a_server_that_joins_is_reported(
    joining: Joining, job: RunningJob, mappers: list[Mapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    site: Any = joining
    monkeypatch.setattr(RunningJob, "n_done", lambda _: 144)
    with pytest.raises(JobError, match="too little left"):
        FAULTS["join"].strike(Scene(site, "w3", "w1", {}, job)).heal()
    for mapper in mappers:
        mapper.until(is_still=False)
    assert not joining.drained
