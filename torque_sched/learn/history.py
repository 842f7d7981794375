"""The memory of the scheduler: what happened is taken in each cycle, and says what to expect."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from pathlib import Path

from torque_sched.batch.accounting import read_on
from torque_sched.decide.context import Measured, PendingStart, PlacedLoad
from torque_sched.decide.fair_share import DEFAULT_GPU_WEIGHT
from torque_sched.decide.rules import Rates
from torque_sched.errors import RecordError, StartupError
from torque_sched.learn.expectations import ExpectationBook
from torque_sched.learn.figures import amounts_of, cpu_rate
from torque_sched.learn.predictions import LearnedPredictions
from torque_sched.learn.promises import Change, Outcome, PromiseBook
from torque_sched.learn.rows import BalanceRow, CycleFacts, EndedJob, JobKey, PauseRow, Use, said_text
from torque_sched.learn.salvage import is_damaged, salvage
from torque_sched.learn.samples import (
    Reading,
    amounts_from,
    balance_of,
    job_use,
    placed_of,
    reading_of,
    without_ended,
)
from torque_sched.learn.store import Store, is_damage
from torque_sched.learn.unreadable import UNREADABLE
from torque_sched.learn.usage import USER, Run, Usage
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import Decision
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState

logger = logging.getLogger(__name__)

_UNSAVED = 20_000
_TIDY_S = 3600.0
_DAY_S = 86400.0
_NAMED_PROBLEMS = 5
"""Damaged records of accounting that the log names in one cycle."""
_SHOWN_LONGEST = 100_000
"""More jobs that have ended than any server shows at once."""


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """How much is kept and how it is used.

    Attributes:
        predictors: names of predictors; the first answers, the others are recorded beside it.
        max_jobs: ended jobs kept in the file, the oldest go first.
        rebuild_jobs: of these so many are learned from when the daemon starts (about 0.3 ms each).
        min_similar: jobs of the same script that must have ended before memory admission looks at them.
        sample_lag_s: a sample contains a job started so long before it, as `NodeRules.sample_lag_s`.
        balance_every_s: the cluster's balance is noted so often, for `report`.
        accounting_days: of old accounting files so many days are learned from at the first start.
        half_life_s: fair-share usage counts half after this time.
        gpu_weight: so many processor seconds a GPU second counts in it.
        zone: the server's time zone, for accounting; None: this host's.
    """

    predictors: tuple[str, ...] = ("chain", "seed")
    max_jobs: int = 200_000
    rebuild_jobs: int = 5_000
    min_similar: int = 3
    sample_lag_s: float = 60.0
    balance_every_s: float = 60.0
    accounting_days: int = 60
    half_life_s: float = 86400.0
    gpu_weight: float = DEFAULT_GPU_WEIGHT
    zone: tzinfo | None = None


class History:
    """Keeps the history file and the predictors that learn from it; used by one thread at a time."""

    def __init__(
        self, store: Store, settings: HistorySettings, rates: Mapping[str, Rates], accounting: Path | None
    ) -> None:
        self._store = store
        self._settings = settings
        self._rates = rates
        self._accounting = accounting
        self._zone = settings.zone or datetime.now().astimezone().tzinfo or timezone.utc
        self._learned = LearnedPredictions(settings.predictors, settings.min_similar)
        remembered = store.ended(settings.rebuild_jobs)
        self._learned.learn(remembered)
        self.used = Usage(settings.half_life_s, settings.gpu_weight)
        """What users, groups and accounts had of the cluster."""
        self.used.put(store.usage())
        self._uses = store.uses()
        self._pending = store.pending()
        self._position = store.position()
        self._counted: set[JobKey] = set()
        self._unsaved: dict[JobKey, EndedJob] = {}
        self._learned_unsaved: set[JobKey] = set()
        self._balance_s = self._tidied_s = -_DAY_S
        self._readings: dict[NodeName, Reading] = {}
        self.promises = PromiseBook.of(store.promises())
        self.expectations = ExpectationBook(store.expected())
        """When jobs were expected to start, and how far off that was."""
        self.settled: tuple[Outcome, ...] = ()
        """Promises whose jobs were first seen running in the last `observe`."""
        self.outcomes: dict[JobKey, Outcome] = {}
        """What became of promises to jobs that the last snapshot shows."""
        self._has_outcomes = False
        self.pauses = store.pauses()
        """What failed and was left alone when the file was last written."""
        self._reservations: tuple[Reservation, ...] | None = None
        self._is_copy = False
        self._damage = self._lost = ""
        self._n_damaged = 0
        self.lasting_trouble = ""
        """Why there is no file at all, though one is wanted."""
        self.trouble = ""
        """Why the file could not be written in the last cycle; empty: all is well."""

    @classmethod
    def open(
        cls,
        path: Path | None,
        settings: HistorySettings | None = None,
        rates: Mapping[str, Rates] | None = None,
        accounting: Path | None = None,
        *,
        lasting_trouble: str = "",
    ) -> History:
        """Open a history file, and learn from what it holds.

        A damaged file is put aside, and a new one goes on with those of its rows that can be read.

        Args:
            path: the file; None: in memory only.
            settings: how much is kept.
            rates: speed of nodes by name or property, as `NodeRules.rates`.
            accounting: ``$PBS_HOME/server_priv/accounting``, where readable; None: only completed jobs in
                qstat count.
            lasting_trouble: `troubles` names it as long as this lives.

        Raises:
            NoSpaceError: the disk is full.
            StartupError: the file is of a newer release, or its folder cannot be written.
        """
        chosen = settings or HistorySettings()
        lost = salvage(path) if path is not None and is_damaged(path) else ""
        history = cls._readable(path, chosen, rates or {}, accounting)
        if path is not None and history is None:
            # SQLite can read its pages, and something else stands in rows of them.
            lost = salvage(path)
            history = cls._readable(path, chosen, rates or {}, accounting)
        if path is not None and history is None:
            lost = salvage(path, with_rows=False)
        history = history or cls(
            Store(path, chosen.max_jobs, chosen.half_life_s), chosen, rates or {}, accounting
        )
        history._lost = lost
        history._begin_usage()
        history.lasting_trouble = lasting_trouble
        return history

    @classmethod
    def _readable(
        cls, path: Path | None, settings: HistorySettings, rates: Mapping[str, Rates], accounting: Path | None
    ) -> History | None:
        """The history in a file; None: what is damaged in it is its rows."""
        store = Store(path, settings.max_jobs, settings.half_life_s)
        try:
            history = cls(store, settings, rates, accounting)
            if not store.unreadable.words:
                return history
        except (sqlite3.Error, *UNREADABLE) as error:
            if path is None or not is_damage(error):
                store.close()
                raise
        store.close()
        return None

    @classmethod
    def copy_of(
        cls, path: Path, settings: HistorySettings | None = None, rates: Mapping[str, Rates] | None = None
    ) -> History:
        """What a history file teaches, apart from it: for looking, beside the daemon that writes the file.

        Raises:
            StartupError: there is none, or it cannot be read.
        """
        chosen = settings or HistorySettings()
        with Store.looked_at(path) as source:
            history = cls(source, chosen, rates or {}, None)
            history.reservations(time.time())
            # Those that qstat still shows are known from the file already.
            history._counted = source.newest(_SHOWN_LONGEST)
            accounts = source.usage()
        history._is_copy = True
        history._store = Store(None, chosen.max_jobs, chosen.half_life_s)
        history._store.put_usage(accounts)
        return history

    def use(self, settings: HistorySettings, rates: Mapping[str, Rates]) -> None:
        """Weigh usage and samples by other settings from now on; what is learned by stays as it is.

        What was used before counts as it would after a restart: by the new half-life since the last job that
        was charged to its account.
        """
        self._settings = replace(
            self._settings, sample_lag_s=settings.sample_lag_s,
            half_life_s=settings.half_life_s, gpu_weight=settings.gpu_weight,
        )  # fmt: skip
        self._rates = rates
        self.used.half_life_s, self.used.gpu_weight = settings.half_life_s, settings.gpu_weight
        self._store.half_life_s = settings.half_life_s

    @property
    def troubles(self) -> list[str]:
        """Trouble with the file now, and damage in it and in accounting since the start, a sentence each."""
        texts = (self.lasting_trouble, self.trouble, self._lost, *self._store.unreadable.words, self._damage)
        return [each for each in texts if each]

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def _begin_usage(self) -> None:
        """A file of an older release has jobs, and no usage yet."""
        try:
            self._store.begin_usage(time.time())
            self.used.put(self._store.usage())
        except sqlite3.Error as error:
            self._complain(str(error))

    # -- the daemon's cycle

    def observe(self, snapshot: Snapshot) -> int:
        """Learn from a snapshot and accounting; once in each cycle, before the others are asked.

        Trouble with the file never stops a cycle: see `trouble`. What could not be written is kept and
        written in a later cycle.

        Returns:
            How many jobs that ended were counted.
        """
        self._readings = {
            node.name: reading for node in snapshot.nodes if (reading := reading_of(node)) is not None
        }
        uses = self._take_samples(snapshot, self._readings)
        said = self._note_started(snapshot)
        ended, position = self._ended(snapshot)
        starts = {job.key: job.start_s for job in ended}
        self.settled = tuple(self.promises.observe(snapshot, starts))
        self.expectations.observe(snapshot, starts)
        facts = CycleFacts(
            (*self._unsaved.values(), *ended), uses, said, self._balance(snapshot), position, snapshot.now_s,
            *self.expectations.facts(),
        )  # fmt: skip
        self._keep_outcomes(snapshot)
        n_ended = self._write_and_learn(facts, ended, (*snapshot.running, *snapshot.suspended))
        self.used.see(snapshot)
        self._learned.rate = self._usual_rate(snapshot)
        self._learned.forget_all_but(job.id for job in snapshot.jobs)
        return n_ended

    def _keep_outcomes(self, snapshot: Snapshot) -> None:
        """Of a daemon started anew those in the file, too."""
        present = {_key(job) for job in snapshot.jobs if job.state is not JobState.QUEUED}
        found = self.settled
        if not self._has_outcomes and not self._is_copy:
            with suppress(sqlite3.Error):
                found = (*self._store.outcomes_of(job for job, _ in present), *found)
                self._has_outcomes = True
        self.outcomes |= {each.key: each for each in found}
        self.outcomes = {key: each for key, each in self.outcomes.items() if key in present}

    def predictions(self) -> LearnedPredictions:
        """What is known now; it changes only in `observe`."""
        return self._learned

    def measured(self, snapshot: Snapshot) -> dict[NodeName, Measured]:
        """Loads by the shipped sampler, and by the node where a job ended since; others need none."""
        return without_ended(snapshot, self._readings, self._learned, self._settings.sample_lag_s)

    def placed(self, snapshot: Snapshot, pending: Iterable[PendingStart] = ()) -> tuple[PlacedLoad, ...]:
        """Predicted loads that no sample contains yet, from the snapshot alone.

        So a daemon started anew knows them, too.
        """
        lag_s = self._settings.sample_lag_s
        return placed_of(snapshot, self._readings, self._learned, tuple(pending), lag_s)

    def usage(self, now_s: float, pending: Iterable[Run] = ()) -> dict[str, float]:
        """Allocated processor seconds by user with GPU seconds weighed in, decayed to now, for fair share.

        Args:
            now_s: that of the last snapshot.
            pending: starts that it does not show yet (`learn.usage.pending_runs`).
        """
        return self.used.by_kind(now_s, pending)[USER]

    def reservations(self, now_s: float) -> tuple[Reservation, ...]:
        """Nodes kept for somebody by ``reserve`` or the grid; those of before while the file cannot be read.

        A copy tells what there was when it was made.
        """
        if not self._is_copy:
            try:
                live = self._store.reservations().live(now_s)
                self._reservations = tuple(each.value() for each in live)
            except StartupError as error:
                logger.error("%s", error)
        return self._reservations or ()

    def decided(
        self, snapshot: Snapshot, decisions: Iterable[Decision], pauses: Iterable[PauseRow]
    ) -> list[tuple[JobId, Change]]:
        """Write promises and pauses before anybody reads of them; returns the promises that changed."""
        changes = self.promises.decided(snapshot, decisions)
        self.remember(pauses)
        return changes

    def remember(self, pauses: Iterable[PauseRow]) -> None:
        """Write what is left alone, and promises not written yet; nothing where nothing changed."""
        now = tuple(pauses)
        promises = self.promises.facts()
        if not promises and now == self.pauses:
            return
        try:
            self._store.record(CycleFacts(), promises, now)
        except sqlite3.Error as error:
            self._complain(str(error))
            return
        self.promises.saved()
        self.pauses = now

    def take_over_usage(self, usage: Mapping[str, float], at_s: float) -> bool:
        """Count fair-share usage of the scheduler before this one, as of ``at_s``.

        Returns:
            Whether it was taken; where accounting is read, those jobs are counted from there already.
        """
        is_taken = self._accounting is None
        try:
            self._store.put_usage_before(usage if is_taken else {}, at_s)
            self.used.put(self._store.usage())
        except sqlite3.Error as error:
            self._complain(str(error))
            return False
        return is_taken

    # -- what the snapshot shows

    def _take_samples(
        self, snapshot: Snapshot, readings: Mapping[NodeName, Reading]
    ) -> dict[tuple[JobKey, str], Use]:
        telling = {
            node.name for node in snapshot.nodes
            if (reading := readings.get(node.name)) and (reading.jobs or node.gpu_report is not None)
        }  # fmt: skip
        changed: dict[tuple[JobKey, str], Use] = {}
        for job in snapshot.running if telling else ():
            for name in job.slots_by_node():
                if name in telling:
                    key = (_key(job), name)
                    before = self._uses.get(key, Use())
                    use = job_use(job, snapshot.node_by_name[name], readings[name], before)
                    if use is not None:
                        changed[key] = use
        self._uses.update(changed)
        return changed

    def _note_started(self, snapshot: Snapshot) -> dict[JobKey, str]:
        """What is expected of jobs seen running for the first time; checked when they end."""
        noted: dict[JobKey, str] = {}
        for job in snapshot.running:
            key = _key(job)
            if key not in self._pending:
                noted[key] = said_text(self._learned.said(job))
        self._pending.update(noted)
        return noted

    def _ended(self, snapshot: Snapshot) -> tuple[list[EndedJob], tuple[str, int] | None]:
        done = [job for job in snapshot.jobs if job.state is JobState.COMPLETED and not job.is_array_parent]
        present = {_key(job) for job in done}
        ended: dict[JobKey, EndedJob] = {}
        for job in done:
            if _key(job) not in self._counted:
                self._end(job, "qstat", snapshot, ended)
        self._counted = present
        position = None
        if self._accounting is not None:
            try:
                part = read_on(
                    self._accounting, self._position, zone=self._zone, oldest=self._oldest(snapshot)
                )
            except OSError as error:
                logger.debug("accounting is not read: %s", error)
            else:
                for job in part.jobs:
                    self._end(job, "accounting", snapshot, ended)
                position = part.position
                self._note_damage(part.problems)
        return list(ended.values()), position

    def _note_damage(self, problems: tuple[RecordError, ...]) -> None:
        """Name records of accounting that were left out, each once; `troubles` has their number."""
        for problem in problems[:_NAMED_PROBLEMS]:
            logger.warning("left out: %s", problem)
        if problems:
            self._n_damaged += len(problems)
            count = "1 record" if self._n_damaged == 1 else f"{self._n_damaged} records"
            self._damage = f"accounting: {count} left out, the last: {problems[-1]}"

    def _oldest(self, snapshot: Snapshot) -> str:
        at_s = max(0.0, snapshot.now_s - self._settings.accounting_days * _DAY_S)
        return datetime.fromtimestamp(at_s, self._zone).strftime("%Y%m%d")

    def _end(self, job: Job, source: str, snapshot: Snapshot, ended: dict[JobKey, EndedJob]) -> None:
        key = _key(job)
        if key in ended or key in self._unsaved or job.is_array_parent:
            return
        slots = job.slots_by_node()
        uses = {node: use for node in slots if (use := self._uses.get((key, node))) is not None}
        rates = [cpu_rate(node, self._rates) for name in slots if (node := snapshot.node_by_name.get(name))]
        used = amounts_of(job, amounts_from(uses, slots), min(rates, default=1.0))
        if used is None:
            return
        said = self._pending.get(key) or said_text(self._learned.said(job))
        ended[key] = EndedJob.of(job, used, source, said)

    def _balance(self, snapshot: Snapshot) -> BalanceRow | None:
        if snapshot.now_s - self._balance_s < self._settings.balance_every_s:
            return None
        self._balance_s = snapshot.now_s
        return balance_of(snapshot, self._readings)

    def _usual_rate(self, snapshot: Snapshot) -> float:
        if not self._rates or not snapshot.nodes:
            return 1.0
        return sum(cpu_rate(node, self._rates) for node in snapshot.nodes) / len(snapshot.nodes)

    # -- keeping it

    def _write_and_learn(self, facts: CycleFacts, ended: list[EndedJob], running: Iterable[Job]) -> int:
        try:
            new = self._store.record(facts, self.promises.facts())
            if new or self._unsaved:
                self.used.put(self._store.usage())
            if facts.now_s - self._tidied_s >= _TIDY_S:
                self._tidied_s = facts.now_s
                self._store.tidy(facts.now_s)
                self._tidy(running)
        except sqlite3.Error as error:
            return self._go_on_unsaved(facts, ended, str(error))
        if self.trouble:
            logger.warning("the history is written again")
        self.trouble = ""
        self.promises.saved()
        self.expectations.saved()
        learned = [job for job in facts.ended if job.key in new and job.key not in self._learned_unsaved]
        self._unsaved.clear()
        self._learned_unsaved.clear()
        if facts.position is not None:
            self._position = facts.position
        return self._learn(learned)

    def _tidy(self, running: Iterable[Job]) -> None:
        """Forget jobs that went without being seen to end."""
        present = {_key(job) for job in running}
        self._pending = {key: said for key, said in self._pending.items() if key in present}
        self._uses = {key: use for key, use in self._uses.items() if key[0] in present}

    def _go_on_unsaved(self, facts: CycleFacts, ended: list[EndedJob], why: str) -> int:
        """The file cannot be written: learn all the same, and keep the jobs for a later cycle."""
        self._complain(why)
        for job in ended:
            if len(self._unsaved) < _UNSAVED:
                self._unsaved[job.key] = job
                self._learned_unsaved.add(job.key)
        self.used.add(ended, facts.now_s)
        return self._learn(ended)

    def _complain(self, why: str) -> None:
        if why != self.trouble:
            logger.error("the history cannot be written (%s); learning goes on in memory", why)
        self.trouble = why

    def _learn(self, jobs: list[EndedJob]) -> int:
        self._learned.learn(jobs)
        for job in jobs:
            self._pending.pop(job.key, None)
            for node in job.nodes:
                self._uses.pop((job.key, node), None)
        return len(jobs)


def _key(job: Job) -> JobKey:
    return job.id, job.ctime_s or 0.0
