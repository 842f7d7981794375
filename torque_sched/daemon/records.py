"""What a cycle leaves behind: lines in pbs_sched's log, the state file, the journal and figures."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torque_sched.adapters.journal import Journal
from torque_sched.adapters.log_file import Event, LogFile
from torque_sched.adapters.metrics import Figures
from torque_sched.adapters.state_file import write_atomic
from torque_sched.batch.documents import hosts_text, plain
from torque_sched.batch.system import Look, OrderKind
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.journal_form import line_of
from torque_sched.errors import TorqueSchedError
from torque_sched.learn.figures import Figure
from torque_sched.learn.predictions import RecentError
from torque_sched.learn.promises import BETTER, MADE, UNEXPLAINED
from torque_sched.model.cluster import JobId
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.reasons import log_text_for

logger = logging.getLogger(__name__)

_STATE_VERSION = 1
_NAMED_PROBLEMS = 20
"""Damaged records of a look that log and state name."""
_MOST_UNWRITTEN = 2
"""Cycles that wait to be written into the journal; further ones are dropped as a whole."""


class Records:
    """Writes what cycles did; trouble with writing is logged once and stops nothing.

    Args:
        log: pbs_sched's log.
        state: the state file.
        journal: None: none is kept.
        figures: counted for Prometheus.
        config: goes into the journal; it may change between cycles.
        c_texts: pbs_sched's files, for the journal.
        mode: ``serve``, ``shadow`` or ``dry-run``.
        trouble: sentences about what is wrong beside, such as the history's.
        errors: how wrong predictions were, for Prometheus.
    """

    def __init__(
        self,
        log: LogFile,
        state: Path,
        journal: Journal | None,
        figures: Figures,
        config: Config,
        c_texts: Mapping[str, str],
        mode: str,
        trouble: Callable[[], list[str]] = list,
        errors: Callable[[], Mapping[Figure, RecentError]] = dict,
    ) -> None:
        self._log = log
        self._state = state
        self._journal = journal
        self._figures = figures
        self.config = config
        self._c_texts = dict(c_texts)
        self._mode = mode
        self._trouble = trouble
        self._errors = errors
        self._reasons: dict[JobId, str] = {}
        self._last_decisions: Any = None
        self._failed: set[str] = set()
        self._logged: set[str] = set()
        self._left_out: set[str] = set()
        self._writing: asyncio.Task[None] | None = None
        self._n_unwritten = 0
        self.n_cycles = 0

    def cycle(self, report: CycleReport, cause: str) -> None:
        """A cycle with a snapshot ended."""
        began_s = time.monotonic()
        self.n_cycles += 1
        self._log_jobs(report)
        self._log_promises(report)
        self._log_cycle(report, cause)
        self._figures.cycle(
            report.total_s,
            report.decide_s,
            Counter(result.kind.value for result in report.results.values()),
            Counter(_kind(each) for each in report.decisions),
            Counter(each.reason.value for each in report.decisions if not isinstance(each, Start)),
        )
        self._figures.prediction_errors = {
            figure.value: (each.mean, each.recent, each.has_drifted)
            for figure, each in self._errors().items()
        }
        self._figures.promised(
            _n_promises(report),
            Counter(change.kind for _, change in report.promises),
            [(each.first_error_s, each.last_error_s) for each in report.settled],
        )
        self._write("state", lambda: write_atomic(self._state, json.dumps(self._state_of(report))))
        self._keep(report, cause)
        self._figures.phases({**report.phases_s, "record": time.monotonic() - began_s})

    def failure(self, error: TorqueSchedError) -> None:
        """There was no snapshot."""
        self._figures.failure()
        state = {
            "version": _STATE_VERSION, "pid": os.getpid(), "now_s": self._log.now_s(), "mode": self._mode,
            "last_cycle": None, "jobs": {}, "back_off": {}, "trouble": [str(error), *self._trouble()],
        }  # fmt: skip
        self._write("state", lambda: write_atomic(self._state, json.dumps(state)))

    async def finish(self) -> None:
        """Wait for what is being written."""
        if self._writing is not None:
            await self._writing

    def _log_jobs(self, report: CycleReport) -> None:
        record = self._log.record
        kept: dict[JobId, str] = {}
        for decision in report.reported:
            job = decision.job
            result = report.results.get(job)
            if result is not None and result.kind is OrderKind.STARTED:
                record(Event.SCHED, "Job", job, "Job Run")
                continue
            if result is not None:
                text = f"Not Running - PBS Error: {result.text}"
            elif isinstance(decision, Start):
                continue
            else:
                text = log_text_for(decision.reason, decision.details)
            kept[job] = text
            if self._reasons.get(job) != text:
                record(Event.SCHED, "Job", job, text)
        self._reasons = kept
        for finding in report.findings:
            if finding.kind != "start-confirmed":
                kind = "Job" if finding.kind.startswith("start") else "Node"
                record(Event.SCHED, kind, finding.subject, finding.text)

    def _log_promises(self, report: CycleReport) -> None:
        """A line for each promise that was not kept; better ones stand in comments only."""
        for job, change in report.promises:
            if change.kind in {MADE, BETTER}:
                continue
            if change.kind == UNEXPLAINED:
                logger.error("the guaranteed start of %s was put off without a reason, a fault of ours", job)
            became = "withdrawn" if change.to_s is None else f"put off to {_moment(change.to_s)}"
            text = f"Guaranteed start {_moment(change.from_s)} {became}: {change.why or change.kind}"
            self._log.record(Event.SCHED, "Job", job, text)

    def _log_cycle(self, report: CycleReport, cause: str) -> None:
        counts = Counter(_kind(each) for each in report.decisions)
        if report.stopped_by is not None:
            logger.error("starting was given up in this cycle: %s", report.stopped_by.text)
        if not report.decisions:
            return
        text = (
            f"{len(report.decisions)} jobs considered, {len(report.started_s)} started, "
            f"{counts['reserve']} reserved, {report.n_failed} refused, {report.n_commented} commented, "
            f"{report.total_s * 1000:.0f} ms ({cause})"
        )
        self._log.record(Event.DEBUG, "Svr", "cycle", text)

    def _state_of(self, report: CycleReport) -> dict[str, Any]:
        assert report.look is not None
        counts = Counter(_kind(each) for each in report.decisions)
        wall_ms = {
            "snapshot": round(report.query_total_s * 1000, 1),
            "decide": round(report.decide_s * 1000, 1),
            "enact": round((report.total_s - report.query_total_s - report.decide_s) * 1000, 1),
        }
        return {
            "version": _STATE_VERSION,
            "pid": os.getpid(),
            "now_s": report.at_s,
            "mode": self._mode,
            "transport": report.look.transport or "commands",
            "last_cycle": {
                "n_jobs": len(report.decisions),
                "n_started": len(report.started_s),
                "n_held": counts["hold"],
                "n_reserved": counts["reserve"],
                "n_guaranteed_starts": _n_promises(report),
                "wall_ms": wall_ms,
            },
            "jobs": {each.job: _decision(each, report) for each in report.reported},
            "back_off": plain(report.context.back_off) if report.context is not None else {},
            "trouble": [
                *self._damaged(report.look),
                *self._clocks(report.look),
                *self._dropped(),
                *self._trouble(),
            ],
        }

    def _damaged(self, look: Look) -> list[str]:
        """Records that were left out: each once in the log, and in `status` as long as it is there."""
        named = [str(each) for each in look.problems[:_NAMED_PROBLEMS]]
        for text in named:
            if text not in self._left_out:
                logger.warning("left out: %s", text)
        self._left_out = set(named)
        n_more = len(look.problems) - len(named)
        return [*named, *([f"{n_more} more records were damaged and left out"] if n_more else ())]

    def _dropped(self) -> list[str]:
        n_cycles = self._figures.n_journal_dropped
        return (
            [f"journal: {n_cycles} cycles are not in it, the disk was too slow for them"] if n_cycles else []
        )

    def _clocks(self, look: Look) -> list[str]:
        """Once in the log, and by `status` as long as it lasts."""
        found = list(look.clock_troubles(self.config.rules()[0].dead_after_s))
        kinds = {text.partition(":")[0] for text in found}
        for text in found:
            if text.partition(":")[0] not in self._logged:
                logger.warning("%s", text)
        self._logged = kinds
        return found

    def _keep(self, report: CycleReport, cause: str) -> None:
        """Into the journal, unless nothing happened that the last line does not tell."""
        if self._journal is None:
            return
        decided = [(each.job, _kind(each), getattr(each, "reason", None)) for each in report.decisions]
        happened = report.results or report.findings or report.promises or report.settled
        if decided == self._last_decisions and not happened:
            return
        if self._n_unwritten >= _MOST_UNWRITTEN:
            # Each holds a whole look; the next one that is written has the decisions of then.
            self._figures.n_journal_dropped += 1
            return
        self._last_decisions = decided
        self._n_unwritten += 1
        number = self.n_cycles
        before = self._writing

        async def write() -> None:
            if before is not None:
                await before
            try:
                await asyncio.to_thread(self._append, report, number, cause)
            finally:
                self._n_unwritten -= 1

        self._writing = asyncio.ensure_future(write())

    def _append(self, report: CycleReport, number: int, cause: str) -> None:
        def append() -> None:
            assert self._journal is not None
            self._journal.append(
                line_of(report, number, self.config, self._c_texts, mode=self._mode, cause=cause)
            )

        self._write("journal", append)

    def _write(self, what: str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if what not in self._failed:
                logger.error("the %s cannot be written: %s", what, error)
            self._failed.add(what)
        else:
            self._failed.discard(what)


def _n_promises(report: CycleReport) -> int:
    """Waiting jobs that have a promise."""
    return sum(isinstance(each, Reserve) and each.promise is not None for each in report.decisions)


def _moment(at_s: float | None) -> str:
    """A moment in this host's time, for people."""
    if at_s is None or not math.isfinite(at_s):
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _kind(decision: Decision) -> str:
    return {Start: "start", Reserve: "reserve", Hold: "hold"}[type(decision)]


def _decision(decision: Decision, report: CycleReport) -> dict[str, Any]:
    shown: dict[str, Any] = {"decision": _kind(decision)}
    if isinstance(decision, Start):
        result = report.results.get(decision.job)
        shown |= {"nodes": hosts_text(decision.allocation), "result": result.kind.value if result else None}
        return shown
    shown |= {"reason": decision.reason.value, "comment": decision.comment}
    if isinstance(decision, Reserve):
        shown |= {"start_s": decision.start_s, "nodes": [share.node for share in decision.allocation]}
        if decision.promise is not None:
            shown["guaranteed_start_s"] = decision.promise.start_s
    return shown
