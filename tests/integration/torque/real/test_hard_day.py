"""Hundreds of jobs of all kinds while people and faults interfere; looked at many times a second."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from xml.etree import ElementTree

import pytest

from tests.fixtures.torque_site import Daemon, TorqueSite
from tests.fixtures.waiting import until

Serve = Callable[..., Daemon]
SLOTS = {"node1": 2, "node2": 4, "node3": 8, "node4": 4}
GPUS = {"node4": 2}
USERS = ("alice", "bob", "carol")
N_JOBS = 240
N_DEEDS = 45
USER_LIMIT = 5
SHAPES: tuple[tuple[str, set[str]], ...] = (
    # Options of qsub, and the nodes the job may run on (none named: all).
    ("-l nodes=1", set()),
    ("-l nodes=1:ppn=2", set()),
    ("-l nodes=2:ppn=2", {"node1", "node2", "node3", "node4"}),
    ("-l nodes=1:ppn=4", {"node2", "node3", "node4"}),
    ("-l nodes=1:slow", {"node1"}),
    ("-l nodes=big", {"node3"}),
    ("-l nodes=node2:ppn=3+node4", {"node2", "node4"}),
    ("-q bare -l procs=5", set()),
    ("-q bare -l procs=3,gpus=1", set()),
    ("-l feature=gpunode", {"node4"}),
    ("-l host=node2", {"node2"}),
    ("-l nodes=1:gpus=1", {"node4"}),
    ("-l nodes=1:ppn=2:gpus=2", {"node4"}),
    ("-l gpus=1", {"node4"}),
    ("-l nodes=1,mem=9gb", set()),
    ("-l nodes=1:ppn=2,pmem=5gb", set()),
    ("-n -l nodes=1", set()),
    ("-W x=NACCESSPOLICY:SINGLEJOB -l nodes=1:big", {"node3"}),
    ("-h -l nodes=1", set()),
    ("-t 0-3%2 -l nodes=1", set()),
    ("-t 0-2 -l nodes=1:ppn=2", set()),
)
ALONE = ("-n ", "SINGLEJOB")
ARRAY_LIMIT = 2
PATIENCE_S = 20.0
"""A person waits that long for an answer. 4.2.10 gives none to a qrerun of a job whose mom is dead."""
STUCK_S = 100.0
"""No job lasts a tenth of that, and a mom that found no server tells of an end again after 45 s."""
LOOK_S = 5.0
"""Between the daemon's look and the start it orders after it, on a busy machine."""


@dataclass
class Job:
    """What was asked for, to judge what became of it."""

    options: str
    nodes: set[str]
    user: str


@dataclass
class Day:
    """What was done so far, and what was seen to be wrong."""

    site: TorqueSite
    chance: random.Random
    jobs: dict[str, Job] = field(default_factory=dict)
    """By id; of an array without index."""
    reruns: Counter[str] = field(default_factory=Counter)
    limited_s: float = float("inf")
    """Since when max_user_run is in force."""
    wrong: list[str] = field(default_factory=list)
    n_samples: int = 0
    dead_mom: str = ""
    said: list[str] = field(default_factory=list)
    memory_gib: float = 0.0
    """Of each node."""
    n_resumed: int = 0
    is_over: bool = False
    """Long after anybody interfered."""
    kills_s: list[float] = field(default_factory=list)
    """When the server was killed."""
    suspended_s: dict[str, float] = field(default_factory=dict)
    """When a job was suspended."""
    taken_back: Counter[str] = field(default_factory=Counter)
    """How often the server was seen to have a job back that it had running.

    4.2.10 holds running jobs that others depend on, and does not know after its next start that they run.
    """
    purged: set[str] = field(default_factory=set)
    """Jobs that ran for ever; 4.2.10 keeps no record of their end."""
    moms_killed_s: list[float] = field(default_factory=list)
    """When a mom was killed."""

    # -- jobs

    def tell(self, *words: str) -> bool | None:
        """Give an order; whether it was obeyed, None: nobody knows, for there was no answer in time."""
        try:
            return self.site.run(*words, timeout_s=PATIENCE_S).returncode == 0
        except subprocess.TimeoutExpired:
            print(f"no answer: {words}", flush=True)
            return None

    def submit(self, options: str, nodes: set[str], seconds: float) -> str:
        """A job of somebody; a server that is gone takes none."""
        user = self.chance.choice(USERS)
        words = ("qsub", "-o", "/dev/null", "-e", "/dev/null", *options.split())
        done = self.site.run(*words, user=user, text=f"sleep {seconds:.1f}\n")
        name = done.stdout.strip()
        if done.returncode == 0 and name:
            self.jobs[name] = Job(options, nodes, user)
        return name

    def any_job(self, seconds: float | None = None) -> str:
        """A job of some kind, sometimes one that waits for another."""
        options, nodes = self.chance.choice(SHAPES)
        others = [name for name in self.jobs if "[" not in name]
        if others and self.chance.random() < 0.08:
            options += f" -W depend=afterany:{self.chance.choice(others)}"
        length_s = self.chance.uniform(0.5, 4.0) if seconds is None else seconds
        return self.submit(options, nodes, length_s)

    def of(self, name: str) -> Job | None:
        """What was asked for by a job or a member of an array."""
        return self.jobs.get(re.sub(r"\[\d+\]", "[]", name))

    def some(self, states: str) -> str:
        """A job in one of these states, empty without any."""
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            found = [name for name, job in self.site.jobs().items() if job["job_state"] in states]
            return self.chance.choice(found) if found else ""
        return ""

    def was_lost(self, record: str) -> bool:
        """Whether a start was recorded, and the server killed before it had kept the job's new state."""
        at_s = time.mktime(time.strptime(record.split(";")[0], "%m/%d/%Y %H:%M:%S"))
        return record.split(";")[1] == "S" and any(-1.0 <= kill_s - at_s <= 2.0 for kill_s in self.kills_s)

    # -- what is looked at

    def watch(self, stop: threading.Event) -> None:
        """Look until told to stop; what is wrong twice in a row is wrong."""
        before: set[str] = set()
        ran: set[str] = set()
        while not stop.wait(0.1):
            try:
                jobs = self.site.jobs()
            except (RuntimeError, ElementTree.ParseError, subprocess.SubprocessError):
                before = set()
                continue  # no server
            waiting = {name for name, job in jobs.items() if job["job_state"] in "QHW"}
            self.taken_back.update(ran & waiting)
            ran = ran - waiting | {name for name, job in jobs.items() if job["job_state"] in "RSE"}
            now = set(self._faults(jobs))
            self.n_samples += 1
            self.wrong += sorted(now & before)
            before = now

    def _faults(self, jobs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        holding = {
            name: job
            for name, job in jobs.items()
            if "[]" not in name and job["job_state"] in "RS" and "exec_host" in job
        }
        places = {name: slots(job["exec_host"]) for name, job in holding.items()}
        for node, n in SLOTS.items():
            here = [name for name in places if node in places[name]]
            if sum(places[name][node] for name in here) > n:
                yield f"{node} has {n} slots and {here}"
            if sum(memory_gib(self.of(name), places[name], node) for name in here) > self.memory_gib:
                yield f"{node} has {self.memory_gib} GiB and {here}"
            for name in here:
                job = self.of(name)
                if job is not None and len(here) > 1 and any(word in job.options for word in ALONE):
                    yield f"{name} wants {node} alone and {here} are there"
        yield from self._misplaced(holding, places)
        yield from self._beyond(jobs, holding)

    def _misplaced(
        self, holding: Mapping[str, Mapping[str, str]], places: Mapping[str, Counter[str]]
    ) -> Iterator[str]:
        yield from self._gpus(holding)
        for name in holding:
            job = self.of(name)
            if job is not None and job.nodes and not set(places[name]) <= job.nodes:
                yield f"{name} {job.options} runs on {sorted(places[name])}"
            if job is not None and "gpus" in job.options and "exec_gpus" not in holding[name]:
                yield f"{name} {job.options} has no GPU"

    def _gpus(self, holding: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """Jobs on nodes without a GPU that was free, and GPUs given twice; in the order of starts."""
        given: dict[str, dict[str, str]] = {node: {} for node in GPUS}
        users = [name for name in holding if "exec_gpus" in holding[name]]
        for name in sorted(users, key=lambda each: int(holding[each]["start_time"])):
            mine = holding[name]["exec_gpus"].split("+")
            for node, held in given.items():
                here = [slot for slot in mine if slot.startswith(f"{node}-gpu/")]
                if len(held) + len(here) > GPUS[node]:
                    yield f"{name} is started on {node}, whose GPUs {held} have"
                for slot in here:
                    other = held.get(slot)
                    if other is not None and not self._may_share(holding[other], holding[name]):
                        yield f"{slot} is given to {other} and {name}"
                held.update(dict.fromkeys(here, name))

    def _may_share(self, first: Mapping[str, str], second: Mapping[str, str]) -> bool:
        """Whether the server gave a GPU away again of its own accord: a scheduler cannot say which one."""
        at_s = [float(job["start_time"]) for job in (first, second)]
        # 4.2.10 does not know after its start which GPUs its jobs have.
        is_forgotten = self.site.torque.version.startswith("4.") and any(
            at_s[0] - 1.0 <= kill_s <= at_s[1] + 1.0 for kill_s in self.kills_s
        )
        # Both versions take a suspended job's GPU for free; this one was suspended after the daemon's look.
        suspended_s = self.suspended_s.get(first["Job_Id"], 0.0)
        return is_forgotten or -1.0 <= at_s[1] - suspended_s <= LOOK_S

    def _beyond(
        self, jobs: Mapping[str, Mapping[str, str]], holding: Mapping[str, Mapping[str, str]]
    ) -> Iterator[str]:
        members = Counter(name.partition("[")[0] for name in holding if "[" in name)
        for name, job in tuple(self.jobs.items()):
            if "%2" in job.options and not self.is_over and members[name.partition("[")[0]] > ARRAY_LIMIT:
                yield f"{members[name.partition('[')[0]]} members of {name} run"
        if time.time() > self.limited_s + 15.0:  # what ran before had time to end
            users = Counter(job["euser"] for job in jobs.values() if job["job_state"] == "R")
            for user, n in users.items():
                if n > USER_LIMIT + self.n_resumed:
                    yield f"{user} has {n} running jobs"


def slots(exec_host: str) -> Counter[str]:
    """Slots by node of ``node/0-1+node2/0`` (6.x) or ``node/1+node/0`` (4.x)."""
    found: Counter[str] = Counter()
    for part in exec_host.split("+"):
        node, _, numbers = part.partition("/")
        for piece in numbers.split(","):
            first, _, last = piece.partition("-")
            found[node] += int(last or first) - int(first) + 1
    return found


def memory_gib(job: Job | None, places: Mapping[str, int], node: str) -> float:
    """What a job asked for of a node."""
    if job is None:
        return 0.0
    whole = re.search(r"[ ,]mem=(\d+)gb", job.options)
    each = re.search(r"pmem=(\d+)gb", job.options)
    of_all = float(whole[1]) * places[node] / sum(places.values()) if whole else 0.0
    return max(of_all, float(each[1]) * places[node] if each else 0.0)


# -- what people and faults do


def hold(day: Day) -> None:
    if name := day.some("Q"):
        day.tell("qhold", name)


def release(day: Day) -> None:
    if name := day.some("H"):
        day.tell("qrls", name)


def delete(day: Day) -> None:
    if name := day.some("RQ"):
        day.tell("qdel", name)


def rerun(day: Day) -> None:
    name = day.some("R")
    if name and day.tell("qrerun", name) is not False:
        day.reruns[name] += 1


def suspend(day: Day) -> None:
    if name := day.some("R"):
        day.suspended_s[name] = time.time()
        day.tell("qsig", "-s", "suspend", name)


def resume(day: Day) -> None:
    if name := day.some("S"):
        day.n_resumed += 1
        day.tell("qsig", "-s", "resume", name)


def offline(day: Day) -> None:
    day.tell("pbsnodes", "-o", "-N", "a fan", day.chance.choice([*SLOTS]))


def online(day: Day) -> None:
    for node in SLOTS:
        day.tell("pbsnodes", "-c", node)


def stop_queue(day: Day) -> None:
    which = day.chance.choice(("started", "enabled"))
    day.tell("qmgr", "-c", f"set queue batch {which} = False")


def start_queue(day: Day) -> None:
    day.tell("qmgr", "-c", "set queue batch started = True")
    day.tell("qmgr", "-c", "set queue batch enabled = True")


def limit(day: Day) -> None:
    if day.tell("qmgr", "-c", f"set server max_user_run = {USER_LIMIT}"):
        day.limited_s = min(day.limited_s, time.time())


def unlimit(day: Day) -> None:
    day.limited_s = float("inf")
    day.tell("qmgr", "-c", "unset server max_user_run")


def kill_mom(day: Day) -> None:
    if not day.dead_mom:
        day.dead_mom = day.chance.choice([*SLOTS])
        day.moms_killed_s.append(time.time())
        day.site.stop_mom(day.dead_mom)


def revive_mom(day: Day) -> None:
    if day.dead_mom:
        time.sleep(0.3)  # the kernel has to give its ports back
        day.site.start_mom(day.dead_mom)
        day.dead_mom = ""


def kill_server(day: Day) -> None:
    day.kills_s.append(time.time())
    day.site.signal_server(signal.SIGKILL)
    time.sleep(day.chance.uniform(0.2, 1.5))
    day.site.start_server()


def more(day: Day) -> None:
    for _ in range(6):
        day.any_job()


DEEDS: tuple[tuple[Callable[[Day], None], int], ...] = (
    (hold, 3), (release, 4), (delete, 3), (rerun, 3), (suspend, 3), (resume, 3), (offline, 2), (online, 2),
    (stop_queue, 1), (start_queue, 2), (limit, 1), (unlimit, 1), (kill_mom, 1), (revive_mom, 3), (more, 8),
    (kill_server, 1),
)  # fmt: skip


def heal(day: Day) -> None:
    """All that was done is undone."""
    for deed in (revive_mom, online, start_queue, unlimit):
        deed(day)
    for node, state in day.site.node_states().items():
        if "down" in state:
            # Seen on 6.1.3: after three failed calls a node is down for 300 s, whatever its mom reports.
            day.tell("qmgr", "-c", f"set node {node} state = free")
    for name, job in day.site.jobs().items():
        if job["job_state"] == "S":
            day.tell("qsig", "-s", "resume", name)
        if job["job_state"] == "H" and not has_ended(job):
            let_go(day, name, set(job.get("Hold_Types", "")))
        if day.is_over and is_stuck(day, name, job):
            print(f"stuck in {job['job_state']}: {name}", flush=True)
            if day.tell("qdel", "-p", name) is not False:
                day.purged.add(name)


def let_go(day: Day, name: str, kinds: set[str]) -> None:
    """A job's holds are taken off."""
    # Torque itself lays the system's hold on what failed to start.
    if kinds & set("uos"):
        day.tell("qrls", "-h", "uos", name)
    if "l" in kinds and day.is_over:
        # After holds and crashes Torque may never take this hold off by itself.
        day.tell("qalter", "-t", "%4", re.sub(r"\[\d+\]", "[]", name))
    if kinds <= {"n"}:
        # Seen on 4.2.10: after a crash an array's member is held, and nobody knows any more by whom.
        day.tell("qalter", "-h", "n", name)


def has_ended(job: Mapping[str, str]) -> bool:
    """Whether it is held by the system after its end.

    Seen on 4.2.10: an ended job others depended on can show this, and a release makes it run once more.
    """
    return job["job_state"] == "H" and "comp_time" in job


def is_stuck(day: Day, name: str, job: Mapping[str, str]) -> bool:
    """Whether a job whose seconds are long over will run for ever, as server and mom disagree about its end.

    Seen on 6.1.3 after a kill of the server just after a qrerun. An administrator purges such a job.
    """
    if job["job_state"] not in "RE" or "start_time" not in job or "[]" in name:
        return False
    began_s = float(job["start_time"])
    disturbed = any(kill_s > began_s - 2.0 for kill_s in (*day.kills_s, *day.moms_killed_s))
    return time.time() > began_s + STUCK_S and (disturbed or day.reruns[name] > 0)


@pytest.fixture
def day(site: TorqueSite) -> Iterator[Day]:
    seed = int(os.environ.get("HARD_DAY_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed: HARD_DAY_SEED={seed}")
    made = Day(site, random.Random(seed))
    kib = int(re.search(r"physmem=(\d+)kb", site.must("pbsnodes", "-a"))[1])  # type: ignore[index]
    made.memory_gib = kib / 1024**2
    yield made
    heal(made)
    until(lambda: not re.search("down|offline", ",".join(site.node_states().values())), "all nodes up")


def test_nothing_is_started_twice_nor_forgotten_nor_given_away_twice(day: Day, serve: Serve) -> None:
    began_s = time.monotonic()
    daemon = serve(
        timer_s=2, back_off={name: {"first_s": 1, "longest_s": 8} for name in ("job", "pair", "node")}
    )
    stop = threading.Event()
    watcher = threading.Thread(target=day.watch, args=(stop,))
    watcher.start()
    try:
        while len(day.jobs) < N_JOBS // 2:
            day.any_job()
        deeds = [deed for deed, weight in DEEDS for _ in range(weight)]
        for number in range(N_DEEDS):
            deed = day.chance.choice(deeds)
            day.said.append(deed.__name__)
            print(f"{time.monotonic() - began_s:.1f} {deed.__name__}", flush=True)
            deed(day)
            time.sleep(day.chance.uniform(0.0, 0.8))
            if number == N_DEEDS // 2:
                daemon.end(signal.SIGKILL)
                daemon.start()
        finish(day)
    finally:
        stop.set()
        watcher.join(300)
    print(f"{len(day.jobs)} submissions, {day.n_samples} looks, {time.monotonic() - began_s:.0f} s")
    assert not day.wrong, day.wrong[:5]
    check_starts(day)


def finish(day: Day) -> None:
    """Nobody interferes any more, and in the end nothing is left."""
    end_s = time.monotonic() + 240.0
    while True:
        day.is_over = time.monotonic() > end_s - 200.0
        heal(day)
        left = {
            name: job
            for name, job in day.site.jobs().items()
            if job["job_state"] != "C" and "[]" not in name and not has_ended(job)
        }
        if not left:
            return
        told = [f"{n} {job['job_state']} {job.get('comment', '')} {day.of(n)}" for n, job in left.items()]
        assert time.monotonic() < end_s, "\n".join(told)
        time.sleep(1.0)


def check_starts(day: Day) -> None:
    """By the server's accounting: one start for each time a job was to run."""
    records = Counter(tuple(line.split(";", 3)[1:3]) for line in day.site.accounting())
    ended = day.purged | {name for kind, name in records if kind in {"E", "D", "A"}}
    # A server that is killed loses the record of a job's end, and remembers the job all the same.
    ended |= {name for name, job in day.site.jobs().items() if job["job_state"] == "C"}
    for name in day.jobs:
        stem, array, _ = name.partition("[]")
        own = [each for each in ended if each == name or (array and each.startswith(f"{stem}["))]
        told = [line for line in day.site.accounting() if line.split(";")[2] == name]
        assert own, f"{name} {day.jobs[name]} was forgotten: {told}"
    for (kind, name), n in records.items():
        if kind == "S" and day.of(name) is not None:
            told = [line for line in day.site.accounting() if line.split(";")[2] == name]
            lost = day.reruns[name] + records["R", name] + sum(map(day.was_lost, told))
            excused = max(lost, day.taken_back[name])
            assert n <= 1 + excused, (name, told)
