"""Of `hdas_live` and `mps_live`: a task service on a real cluster, and runs that are kept one by one."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from benchmarks.result import Report, current_commit
from yarn_accel.errors import ConfigError, JobError

if TYPE_CHECKING:
    from tests.fixtures.yarn_site import Site
    from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
    from yarn_accel.hadoop.control import Control
    from yarn_accel.storage import Store

Say = Callable[[str], None]
FOLDER = "hdfs:///live"
"""In which all that these benchmarks write to HDFS lies."""
_POLL_S = 0.2
Run = TypeVar("Run")
Key = TypeVar("Key")
Measured = TypeVar("Measured")


# ---- the service


def start_tasks(site: Site, n_workers: int, what: str, say: Say) -> None:
    """Have the task service run by the site's settings, all its workers waiting."""

    def n_waiting() -> int:
        workers = site.control("tasks-status", patience_s=60.0)["workers"]
        return sum(not worker["is_expected"] for worker in workers.values())

    began_s = time.monotonic()
    site.run("tasks", "start", "--config", str(site.settings))
    site.until("all workers wait", lambda: n_waiting() == n_workers, _POLL_S)
    say(f"{what}: {n_workers} workers wait after {time.monotonic() - began_s:.1f} s")


@dataclass(frozen=True)
class Submission:
    """An application for the service.

    Attributes:
        name: in the service, which remembers those that have ended; so each run needs names of its own.
        arrival_s: when it is submitted, after the first one.
    """

    name: str
    document: Mapping[str, Any]
    arrival_s: float = 0.0


class Done(NamedTuple):
    """What became of applications, by the names that the caller has for them.

    Attributes:
        submitted_s: when each submission began, by this machine's monotonic clock.
        answers: what the service knows of each (``tasks-outcome``), with all rows.
    """

    submitted_s: dict[str, float]
    answers: dict[str, dict[str, Any]]


def run_applications(
    site: Site, store: Store, submissions: Mapping[str, Submission], limit_s: float, poll_s: float
) -> Done:
    """Submit applications, each when it is to arrive, and wait for the end of all.

    Raises:
        JobError: one failed, or they take longer than `limit_s`.
    """
    from yarn_accel.hadoop.control import Control, RetainedApplication
    from yarn_accel.launch.outcomes import ask_outcomes

    application = site.application
    secret = RetainedApplication.of(str(application), site.environ).secret()
    names = [each.name for each in submissions.values()]

    async def work(manager: ResourceManager) -> Done:
        async with Control(site.rm_client, manager, application, secret, 30.0) as control:
            submitted_s = await _submit(control, store, submissions)
            await _wait(control, names, limit_s, poll_s)
            answers = await ask_outcomes(control, names)
            return Done(submitted_s, {key: answers[each.name] for key, each in submissions.items()})

    return site.ask(work)


async def _submit(control: Control, store: Store, submissions: Mapping[str, Submission]) -> dict[str, float]:
    """Submit one after the other; when each submission began."""
    folder = (await control.ask("tasks-status"))["submit_to"]
    contents = {key: json.dumps(each.document).encode() for key, each in submissions.items()}
    began_s, submitted_s = time.monotonic(), {}
    for key, each in sorted(submissions.items(), key=lambda item: item[1].arrival_s):
        await asyncio.sleep(max(0.0, began_s + each.arrival_s - time.monotonic()))
        submitted_s[key] = time.monotonic()
        uri = f"{folder}/{each.name}.json"
        store.write_atomic(uri, [contents[key]])
        await control.ask("tasks-submit", {"uri": uri})
    return submitted_s


async def _wait(control: Control, names: Collection[str], limit_s: float, poll_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while (answer := await control.ask("tasks-status"))["apps"].keys() & set(names):
        if time.monotonic() > until_s:
            raise JobError(f"{', '.join(names)}: not done after {limit_s:.0f} s: {answer['apps']}")
        await asyncio.sleep(poll_s)
    for name in names:
        ended = answer["ended"].get(name, {"state": "forgotten", "error": ""})
        if ended["state"] != "done":
            raise JobError(f"{name}: {ended['state']}: {ended['error']}")


# ---- the runs


def in_time(
    keys: Sequence[Key], until_s: float, say: Say, left_s: Callable[[Sequence[Key]], float] | None = None
) -> Iterator[Key]:
    """The keys of runs, each when it is to begin, with a line of progress.

    Args:
        until_s: of the monotonic clock; no run begins later.
        left_s: about how long these runs take.

    Raises:
        JobError: the time is over, and runs are left.
    """
    for number, key in enumerate(keys):
        if time.monotonic() > until_s:
            raise JobError(f"the time is over, and {len(keys) - number} runs are left; --resume runs them")
        left = f", {left_s(keys[number:]) / 60:.0f} minutes left" if left_s else ""
        say(f"{key}: {number + 1} of {len(keys)}{left}")
        yield key


class Recording(Generic[Measured]):
    """All runs of a report, kept in its file after every run: one that is killed goes on from there.

    Args:
        setting: what runs are made with; noted in the report.
        kinds: the classes of runs, by the name of their series.
        measured: the series and the class of what is measured before all runs.
        is_resumed: take over what the report's file has.

    Raises:
        ConfigError: that was recorded with another setting.

    Attributes:
        runs: of each series, by key.
        measured: None: not measured yet.
    """

    def __init__(
        self,
        report: Report,
        setting: Mapping[str, Any],
        kinds: Mapping[str, Any],
        measured: tuple[str, Callable[..., Measured]],
        *,
        is_resumed: bool,
    ) -> None:
        report.setting |= setting
        known = _known_series(report, setting) if is_resumed else {}
        self.report = report
        self.runs: dict[str, dict[Any, Any]] = {
            series: {run.key: run for run in map(kind.from_mapping, known.get(series, ()))}
            for series, kind in kinds.items()
        }
        self._series, kind = measured
        self.measured = kind(**known[self._series]) if self._series in known else None

    def has(self, key: object) -> bool:
        """Whether this run is there already."""
        return any(key in runs for runs in self.runs.values())

    def add(self, series: str, run: Any) -> None:
        """Take a run, and keep all."""
        self.runs[series][run.key] = run
        self.note()

    def note(self) -> None:
        """Keep what there is."""
        if self.measured is not None:
            self.report.series[self._series] = asdict(self.measured)  # type: ignore[call-overload]
        for series, runs in self.runs.items():
            self.report.series[series] = [each.to_mapping() for each in runs.values()]
        self.report.save()

    def note_load(self) -> None:
        """Note the median load average of runs when they began; of now, if there are none."""
        loads = [each.load_average for runs in self.runs.values() for each in runs.values()]
        self.report.setting["load_average"] = round(statistics.median(loads or os.getloadavg()[:1]), 1)


def _known_series(report: Report, setting: Mapping[str, Any]) -> Mapping[str, Any]:
    """The series that a killed run left in the report's file."""
    if report.path is None or not report.path.exists():
        return {}
    document = json.loads(report.path.read_text(encoding="utf-8"))
    recorded = document.get("machine", {})
    for name, value in setting.items():
        if recorded.get(name, value) != value:
            raise ConfigError(
                f"{report.path} was recorded with {name} {recorded[name]}, this would be with {value}",
                cure="give --resume the options of the run that it goes on with, or another file",
            )
    return dict(document.get("series", {}))


def stamped(run: Run) -> Run:
    """A run with the version that made it, and when."""
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return replace(run, commit=current_commit(), at=at)  # type: ignore[type-var]
