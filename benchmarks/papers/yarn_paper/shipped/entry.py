"""What the zipapp of this benchmark runs on a node: our own verb, or a verb of `jobs` with times taken.

``paper-map --mappers N`` runs `tasks.play`. Any other verb is that of `jobs`, with two additions: the folder
that the job property ``accel.paper.folder`` names gets a file with the first request's and the last answer's
time, and with ``accel.paper.image`` (JSON: ``cpu_s``, ``device_s``) features are emulated. Streaming gives a
mapper the job's properties as variables, with underscores for dots.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers.yarn_paper.shipped.emulation import LOCK_FOLDER_VARIABLE, PREFIX
from benchmarks.papers.yarn_paper.shipped.tasks import StartBarrier, play, warm_up
from jobs import entry
from jobs.entry import TaskContext, parse_verb, run_verb
from yarn_accel.client.calls import Call, Reply
from yarn_accel.errors import AccelError
from yarn_accel.operations import load_more

Answers = Iterator[tuple[Call, Reply | AccelError]]
MapCalls = Callable[[Iterable[Call], int], Answers]

VERB = "paper-map"
BARRIER_FOLDER = "barrier"
EMULATED_IMAGE_VARIABLE = "accel_paper_image"
#: Where the agents listen, with ``{node}``; unset: where mappers look anyway.
AGENTS_VARIABLE = "accel_paper_agents"
_CPU_OPERATIONS = "benchmarks.papers.yarn_paper.shipped.emulation:CPU_OPERATIONS"
#: One BLAS thread for each mapper: the nodes of this cluster share the cores.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str]) -> int:
    """Run one verb; the exit code is that of `jobs.entry`."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    if AGENTS_VARIABLE in os.environ:
        os.environ["ACCEL_AGENT"] = os.environ[AGENTS_VARIABLE].format(node=os.environ.get("NM_HOST", ""))
    load_more([_CPU_OPERATIONS], entry_points=False)
    return entry.main(argv, parse=_parse, run=_run)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    if not argv or argv[0] != VERB:
        return parse_verb(argv)
    parser = argparse.ArgumentParser(prog=f"accel-job {VERB}")
    parser.add_argument("verb")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--mappers", type=int, default=0, help="how many wait for each other; 0: nobody")
    parser.add_argument("--patience-s", type=float, default=60.0)
    parser.add_argument("--no-fallback", action="store_true")
    return parser.parse_args(list(argv))


def _run(options: argparse.Namespace, context: TaskContext) -> None:
    folder = os.environ.get(LOCK_FOLDER_VARIABLE, "")
    if options.verb == VERB:
        _play(options, context, Path(folder))
    elif options.verb == "images-map":
        _images(options, context, Path(folder) if folder else None)
    else:
        run_verb(options, context)


def _play(options: argparse.Namespace, context: TaskContext, folder: Path) -> None:
    lines = (line.decode() for line in context.stdin)
    barrier = StartBarrier(folder / BARRIER_FOLDER, options.mappers)

    def dispatch(calls: Iterable[Call]) -> Answers:
        return context.map_calls(calls, options.window)

    for row in play(lines, dispatch, context.attempt, barrier, context.reporter.count):
        context.stdout.write(row.format().encode() + b"\n")
    context.stdout.flush()


def _images(options: argparse.Namespace, context: TaskContext, folder: Path | None) -> None:
    emulated = json.loads(os.environ.get(EMULATED_IMAGE_VARIABLE, "null"))
    times = Times(context.map_calls, emulated)
    warm_up(lambda calls: context.map_calls(calls, 1), context.attempt)
    run_verb(options, replace(context, map_calls=times.map_calls))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        # The last attempt at a task is the one that counts; all of one task write the same file.
        path = folder / f"times-{context.attempt.task_id}.json"
        path.write_text(json.dumps({"sent_s": times.first_sent_s, "done_s": times.last_done_s}))


class Times:
    """Passes calls on, as emulated ones if wanted, and remembers the first sent and the last done.

    Args:
        map_calls: where they go.
        emulated: parameters of an emulated image; None: they stay as they are.
        clock: Unix seconds.
    """

    def __init__(
        self,
        map_calls: MapCalls,
        emulated: Mapping[str, Any] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._map_calls = map_calls
        self._emulated = emulated
        self._clock = clock
        self.first_sent_s = 0.0
        self.last_done_s = 0.0

    def map_calls(self, calls: Iterable[Call], window: int) -> Answers:
        """Every call as it came, with its answer."""
        originals: dict[str, Call] = {}

        def sending() -> Iterator[Call]:
            for call in calls:
                self.first_sent_s = self.first_sent_s or self._clock()
                originals[call.key] = call
                yield call if self._emulated is None else _emulated(call, self._emulated)

        for sent, answer in self._map_calls(sending(), window):
            self.last_done_s = self._clock()
            yield originals.pop(sent.key), answer


def _emulated(call: Call, params: Mapping[str, Any]) -> Call:
    return replace(call, operation=PREFIX + call.operation, params={**call.params, **params})
