"""One site under several settings, each from the same begin."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import torque_sched
from torque_sched.simulate.check import problems
from torque_sched.simulate.live import run_live
from torque_sched.simulate.memory import Rules
from torque_sched.simulate.metrics import figures_of
from torque_sched.simulate.results import Experiment, Result
from torque_sched.simulate.site import Site


def compare(
    site: Site,
    several: Sequence[Rules],
    say: Callable[[str, int, int], None] | None = None,
    *,
    is_checked: bool = False,
) -> Experiment:
    """Simulate a site under each of the settings.

    Args:
        site: with its jobs.
        several: settings with names of their own.
        say: called now and then with name of the settings, jobs that ended, jobs.
        is_checked: check the invariants of each schedule.
    """
    results = []
    for rules in several:
        report = functools.partial(_progress, say, rules.name, len(site.jobs)) if say is not None else None
        if report is not None:
            report(0)
        schedule = run_live(site, rules, report)
        found = tuple(problems(schedule, late_s=_late_s(site, rules))) if is_checked else None
        results.append(Result(schedule, figures_of(schedule), found))
    settings = {rules.name: dict(rules.document) for rules in several}
    return Experiment(site.name, site.workload, tuple(results), settings, this_machine())


def _late_s(site: Site, rules: Rules) -> float:
    """So late a start is still the guaranteed one."""
    ahead = rules.at(site.jobs[0].submit_s if site.jobs else 0.0).backfill.ahead
    return 0.0 if ahead is None else ahead.late_s


def _progress(say: Callable[[str, int, int], None], name: str, n_jobs: int, n_done: int) -> None:
    say(name, n_done, n_jobs)


def this_machine() -> dict[str, object]:
    """The machine and the version that make a result; the commit where this is a clone."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "version": torque_sched.__version__,
        "commit": _commit(Path(torque_sched.__file__).resolve().parents[1]),
    }


def _commit(folder: Path) -> str | None:
    """The commit that is checked out in a clone; None: this is none, or it cannot be read."""
    try:
        git = folder / ".git"
        if git.is_file():
            git = Path(git.read_text(encoding="utf-8").partition("gitdir:")[2].strip())
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:40]
        name = head.removeprefix("ref: ")
        common = git / "commondir"
        shared = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
        for place in (git / name, shared / name):
            if place.is_file():
                return place.read_text(encoding="utf-8").strip()[:40]
        packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0][:40] for line in packed if line.endswith(f" {name}")), None)
    except OSError:
        return None
