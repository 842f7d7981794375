"""What the faults are judged by: the comparison of two runs, and when a consequence counts as seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.yarn_faults import SECTIONS, _Account, _fault_rows, _table
from benchmarks.yarn_site import SiteOptions
from benchmarks.yarn_site.faults import ANSWER, FAULTS, PUBLISHED
from benchmarks.yarn_site.job import Result, compare
from benchmarks.yarn_site.performing import Performed, Struck
from benchmarks.yarn_site.scene import Look, Strike, watch
from jobs.factorize.rows import Done
from jobs.outcome import Outcome, Rejected
from yarn_accel.errors import ClusterError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.master.config import MasterConfig

ADDRESSES = {key: ("rm:1",) for key in ("rm_client", "rm_scheduler", "rm_admin")}


def row(key: str, **facts: Any) -> Done:
    blank = Done(key, "lu", "float64", (4, 4), 0.5, (0.1,) * 5, 128, "w1", "cpu", "w3", "attempt_1")
    return replace(blank, **facts)


def result(*rows: Done, factors: dict[str, str] | None = None, rejects: tuple[Rejected, ...] = ()) -> Result:
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
        (result(row("a"), rejects=(Rejected("b", "nan", "why"),)), "1 lost (b), 1 strange (b)"),
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
        sections={"acct": {"vcores": 2}},
    )
    text = yaml.safe_dump(options.launch(["w1"], "/tmp/x/{node}"))
    config = LaunchConfig.model_validate(yaml.safe_load(text))
    assert (config.acct.vcores, config.acct.devices, config.pipeline["workers"]) == (2, "none", 2)
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
    notes = [{"node": "w1", "what": "acct ended", "age_s": age_s} for age_s in (50.0, 3.0, 1.0)]
    site: Any = SimpleNamespace(state=lambda: {"nodes": {}, "notes": notes})
    look = Look(site)
    now = look.state["seen_at"]
    assert look.noted("w1", "acct", now - 10.0) == pytest.approx(now - 3.0)
    assert look.noted("w2", "acct", now - 10.0) == 0.0


def test_the_goals_of_the_issue_are_judged() -> None:
    assert FAULTS["acct"].goals == {ANSWER: 0.5, PUBLISHED: 1.5, "replaced": 2.0}
    assert FAULTS["cut"].goals == {ANSWER: 5.0, PUBLISHED: 6.0}
    assert list(SECTIONS)[-1] == "join", "it changes the site for good"
    account = _Account()
    struck = Struck("cut", {ANSWER: 5.1, PUBLISHED: 5.2}, 20, 3, 100, 5.1, 0.3)
    account.add_idle(Performed((replace(struck, seconds={ANSWER: 3.0}),), ()))
    account.add(Performed((struck,), (result(row("a")),)), compare(GOOD, result(row("a"))))
    rows = {each.what: each for each in _fault_rows("cut", account, [GOOD])}
    assert [each.ok for each in rows.values() if each.goal] == [True, False, True, False, True, True]
    assert rows["cut: requests of the job resubmitted"].value == 2
    assert rows["cut: job time over undisturbed"].value == 1.0
    assert _table({"cut": account}, [GOOD]).row_count == 1
