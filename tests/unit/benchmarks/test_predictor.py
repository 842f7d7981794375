"""The replay of logs: any log the archive could hold is read, and no kind of log favours the paper's rule."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.papers import predictor
from benchmarks.papers.predictor import WARM_UP, read_log, replay, rows
from benchmarks.result import Report
from tests.examples import first
from torque_sched.errors import ConfigError
from torque_sched.learn.ensemble import PREDICTORS
from torque_sched.simulate.swf import SwfTrace, parse_swf

_N, _LEARNT = 2400, 1000
Maker = Callable[[random.Random, int, dict[object, float]], Mapping[str, float]]


def log_lines(kind: Maker, n: int = _N, seed: int = 5) -> list[str]:
    """A log of ``n`` jobs; the kind says what differs from the usual: user, exe, procs, limit, share."""
    rng, memory, at_s = random.Random(seed), dict[object, float](), 0.0
    lines = []
    for number in range(1, n + 1):
        at_s += rng.expovariate(1 / 60)
        user = rng.randrange(20)
        usual: dict[str, float] = {
            "user": user,
            "exe": 5 * user + rng.randrange(5),
            "procs": 4,
            "limit": 3600,
        }
        made = {**usual, **kind(rng, number, {**usual, "at": at_s, "memory": memory})}  # type: ignore[dict-item]
        share = min(1.0, max(0.0, made["share"]))
        run_s = max(1, int(10 ** (2 + 2 * share)))
        procs, limit = made["procs"], made["limit"]
        lines.append(
            f"{number} {at_s:.0f} 5 {run_s} {procs:.0f} {share * run_s:.3f} {10 ** (3 + 3 * share):.0f} "
            f"{procs:.0f} {limit:.0f} -1 1 {made['user']:.0f} 1 {made['exe']:.0f} 1 -1 -1 -1"
        )
    return lines


def _level(about: Mapping[object, object], key: object, rng: random.Random) -> float:
    memory: dict[object, float] = about["memory"]  # type: ignore[assignment]
    return memory.setdefault(key, rng.random())


def _walk(rng: random.Random, about: Mapping[object, object]) -> float:
    memory: dict[object, float] = about["memory"]  # type: ignore[assignment]
    level = min(1.0, max(0.0, _level(about, about["user"], rng) + rng.gauss(0, 0.02)))
    memory[about["user"]] = level
    return level


_ONE = {"user": 1, "exe": 1}
KINDS: dict[str, Maker] = {
    "constant jobs": lambda rng, i, of: {**_ONE, "share": 0.9},
    "noise": lambda rng, i, of: {"share": rng.random()},
    "noise of one user": lambda rng, i, of: {**_ONE, "share": rng.random()},
    "nothing known of any job": lambda rng, i, of: {
        "user": -1, "exe": -1, "procs": -1, "limit": -1, "share": rng.random()
    },
    "users drift": lambda rng, i, of: {"share": _walk(rng, of)},
    "one user, many programs": lambda rng, i, of: {
        "user": 1, "exe": i % 30, "share": (i % 30 + rng.gauss(0, 1)) / 30
    },
    "no program twice": lambda rng, i, of: {"exe": i, "share": (of["user"] + rng.gauss(0, 2)) / 20},
    "no program twice, and noise": lambda rng, i, of: {"exe": i, "share": rng.random()},
    "programs with a mean and noise": lambda rng, i, of: {
        "share": 0.5 * _level(of, of["exe"], rng) + 0.5 * rng.random()
    },
    "every shape once": lambda rng, i, of: {
        "user": rng.randrange(200), "exe": i % 8, "procs": rng.randrange(1, 512),
        "limit": rng.randrange(60, 86400), "share": _level(of, i % 8, rng) + rng.gauss(0, 0.15),
    },
    "two ways to end": lambda rng, i, of: {"share": rng.choice([0.1, 0.95])},
    "to and fro": lambda rng, i, of: {**_ONE, "share": 0.1 if i % 2 else 0.95},
    "another world half way": lambda rng, i, of: {"share": 0.1 if i > _N / 2 else 0.9},
    "day and night": lambda rng, i, of: {"share": 0.5 + 0.5 * math.sin(of["at"] / 13_750)},
    "heavy tails": lambda rng, i, of: {"share": rng.paretovariate(1.2) / 10},
}  # fmt: skip


@pytest.mark.parametrize("kind", first(5, KINDS))
def test_no_kind_of_log_is_predicted_much_better_by_the_papers_own_rule(kind: str) -> None:
    jobs = parse_swf(log_lines(KINDS[kind])).jobs
    seed, chain = (replay(jobs, "cpu", PREDICTORS[name](), _LEARNT) for name in ("seed", "chain"))
    assert chain.mean_error <= 1.02 * seed.mean_error + 1e-9
    assert chain.coverage >= 0.85


def _usual(n: int = 30) -> list[str]:
    return ["; Version: 2", "; Computer: any", *log_lines(KINDS["noise"], n)]


@pytest.mark.parametrize("name", ["a.swf.gz", "a.swf"])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_compressed_or_not_whatever_the_name_says(tmp_path: Path, name: str, is_compressed: bool) -> None:
    data = ("\n".join(_usual()) + "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if is_compressed else data)
    assert len(read_log(tmp_path / name).jobs) == 30


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no job in 0 lines"),
        (b"; only: a header\n", "no job in 0 lines"),
        (b"what is this\n" * 3, "no job in 3 lines, the first: line 1 is no job"),
        (gzip.compress(b"1 2 3\n")[:-4], "Compressed file ended"),
        (b"\x1f\x8bno gzip at all", "a.swf.gz"),
    ],
)
def test_what_is_no_log_is_one_clear_error(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.swf.gz").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_log(tmp_path / "a.swf.gz")
    assert words in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_log(tmp_path / "b.swf")


@pytest.mark.parametrize(
    ("column", "target"), [(6, "memory"), (5, "cpu"), (3, "runtime")], ids=["memory", "cpu", "run time"]
)
def test_a_column_without_information_is_reported(column: int, target: str) -> None:
    lines = []
    for line in log_lines(KINDS["noise"], 40):
        words = line.split()
        words[column] = "-1"
        lines.append(" ".join(words))
    [row] = rows(parse_swf(lines), "x", target)
    assert row.n == 0
    assert "knows it of 0 of its 40 jobs" in row.note


def test_the_order_of_the_lines_is_nobodys_business() -> None:
    lines = log_lines(KINDS["users drift"], WARM_UP + 300)
    shuffled = random.Random(3).sample(lines, len(lines))
    first, second = (rows(parse_swf(each), "x", "cpu") for each in (lines, shuffled))
    assert first == second
    assert [row.ok for row in first if row.goal == "<= 1.02"] == [True]


def test_a_short_log_is_scored_as_soon_as_something_is_left_to_score() -> None:
    lines = log_lines(KINDS["constant jobs"], WARM_UP + 100)
    assert rows(parse_swf(lines[1:]), "x", "cpu")[0].note.startswith("not measured")
    ratio = next(row for row in rows(parse_swf(lines), "x", "cpu") if "over seed" in row.what)
    assert (ratio.ok, ratio.value) == (True, pytest.approx(1.0, abs=1e-3))


def test_a_log_with_every_field_unknown_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "empty.swf"
    path.write_text("\n".join(" ".join(["-1"] * 18) for _ in range(50)))
    report = Report("predictor")
    predictor.run(False, lambda line: None, report, path)
    assert [row.n for row in report.rows] == [0, 0, 0]
    assert isinstance(read_log(path), SwfTrace)
