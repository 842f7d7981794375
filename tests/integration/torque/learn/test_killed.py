"""The history file under SIGKILL: whole cycles only, and nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.examples import ALL
from torque_sched.learn.store import Store
from torque_sched.learn.usage import USER, Usage

WRITER = """
import sys
from pathlib import Path
from tests.unit.torque.learn.test_store import balance, ended
from torque_sched.learn.rows import CycleFacts, Use
from torque_sched.learn.store import Store
store = Store(Path(sys.argv[1]))
cycle = store.n_jobs() // 3
while True:
    jobs = tuple(ended(3 * cycle + n) for n in range(3))
    again = tuple(ended(3 * cycle - n) for n in range(1, 3) if cycle)
    uses = {(job.key, "n1"): Use(1) for job in (ended(3 * cycle + 10),)}
    store.record(CycleFacts((*again, *jobs), uses, None, balance(float(cycle)), ("f", cycle), 1e6))
    cycle += 1
    print(cycle, flush=True)
"""


def said_until_killed(program: str, path: Path, longest_s: float, choose: random.Random) -> list[str]:
    """The lines of a writer that was killed after its first one and a moment more."""
    argv = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        time.sleep(choose.uniform(0.0, longest_s))
        os.kill(writer.pid, signal.SIGKILL)
        return [line for line in (*said, *writer.stdout.readlines()) if line.endswith("\n")]


def test_killed_at_random_points_it_holds_whole_cycles_and_nothing_twice(tmp_path: Path) -> None:
    """Writers, each killed with SIGKILL somewhere in its transactions, go on from one another."""
    path = tmp_path / "history.sqlite"
    choose = random.Random(7)
    reached = 0
    for _ in range(15 if ALL else 5):
        lines = said_until_killed(WRITER, path, 0.05, choose)
        store = Store(path)
        numbers = [int(job.key[0].partition(".")[0]) for job in store.ended(1_000_000)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) % 3 == 0
        n_cycles = len(numbers) // 3
        # What the writer was told is written, is; at most the cycle after it came too.
        assert n_cycles >= max(reached, int(lines[-1]))
        assert store.position() == ("f", n_cycles - 1)
        assert len(store.balance()) == n_cycles
        again = Usage(86400.0)
        again.add(store.ended(1_000_000), 1e6)
        assert store.usage()[USER, "ada"].at(1e6, 86400.0).proc_s == pytest.approx(
            again.accounts(1e6)[USER, "ada"].proc_s
        )
        reached = n_cycles
        store.close()
    assert reached > 5


PROMISER = """
import sys
from pathlib import Path
from tests.unit.torque.learn.build import NOW_S, job, snapshot
from tests.unit.torque.learn.test_promises import promised
from torque_sched.learn import History
history, waits = History.open(Path(sys.argv[1])), [job(number) for number in range(50)]
seen = snapshot(*waits)
start_s = max([row.promise.start_s for row in history.promises.rows.values()], default=NOW_S + 1e6)
while True:
    start_s -= 1.0
    history.observe(seen)
    history.decided(seen, [promised(each, start_s) for each in waits], ())
    print(start_s, flush=True)
"""


def test_killed_at_random_points_it_holds_the_promises_of_one_cycle(tmp_path: Path) -> None:
    """What was said to be promised is in the file, all of one cycle, and no promise is later than before."""
    path = tmp_path / "history.sqlite"
    choose = random.Random(5)
    reached_s = float("inf")
    for _ in range(8 if ALL else 4):
        said = said_until_killed(PROMISER, path, 0.1, choose)
        store = Store(path)
        rows = store.promises()
        (start_s,) = {row.promise.start_s for row in rows}
        assert len(rows) == 50
        assert start_s <= min(map(float, said))
        assert start_s < reached_s
        assert all(row.n_better == row.changes[0].to_s - start_s for row in rows if row.changes[0].to_s)
        reached_s = start_s
        store.close()
