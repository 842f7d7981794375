"""The verbs of the zipapp: each joins one pure generator to standard input and output.

A runner gives each task a `TaskContext`, and decides whether requests go over a socket or stay in this
process. Standard library only, Python 3.8.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from jobs.factorize.factors_file import FactorsFile
from jobs.factorize.mapper import OUTPUTS, RESIDUALS, Dispatch, FactorizeOptions, factorize
from jobs.factorize.rows import format_row
from jobs.images.mapper import ImagesOptions, map_records
from jobs.images.reducer import ClusterOptions, reduce_features
from jobs.images.rounds import assign_rows, merge_partials, sample_rows, step_rows
from jobs.images.rows import Centroid, parse_lines
from yarn_accel.client import (
    Call,
    CurrentAttempt,
    Reply,
    Reporter,
    TaskFiles,
    TypedBytesReader,
    TypedValue,
    write_typed_pairs,
)
from yarn_accel.errors import AccelError, ConfigError, StartupError

CENTROIDS_FILE = "centroids.tsv"
"""Travels with every round of K-means."""


@dataclass(frozen=True)
class TaskContext:
    """What a runner gives to a task.

    Args:
        map_calls: sends calls, at most so many at once, and yields each with its answer, in any order.
        files: reads URIs, and hands over output files.
        folder: where the files that travelled with the job lie.
    """

    attempt: CurrentAttempt
    map_calls: Callable[[Iterable[Call], int], Iterator[tuple[Call, Reply | AccelError]]]
    files: TaskFiles
    reporter: Reporter
    stdin: BinaryIO
    stdout: BinaryIO
    folder: Path


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line instead of several."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}", cure="see --help")


def parse_verb(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments after the archive's name.

    Raises:
        ConfigError: an unknown verb or option; names the known verbs.
    """
    if not argv or (argv[0] not in VERBS and argv[0] not in ("-h", "--help")):
        reason = "no verb" if not argv else f"unknown verb {argv[0]!r}"
        raise ConfigError(reason, cure="use one of {}".format(", ".join(VERBS)))
    parser = _Parser(
        prog="accel-job", description="A mapper or reducer of cluster-accel; Hadoop Streaming starts it."
    )
    verbs = parser.add_subparsers(dest="verb", parser_class=_Parser)
    for verb in VERBS:
        options = verbs.add_parser(verb)
        options.add_argument("--strict", action="store_true", help="fail at the first bad record")
        options.add_argument("--window", type=int, default=4, help="requests in flight (default 4)")
        options.add_argument("--patience-s", type=float, default=60.0, help="how long to look for a server")
        options.add_argument(
            "--no-fallback", action="store_true", help="never compute on this node's own CPU"
        )
        for name, settings in _OPTIONS.get(verb, {}).items():
            options.add_argument(name, **settings)
    return parser.parse_args(list(argv))


def run_verb(options: argparse.Namespace, context: TaskContext) -> None:
    """Run the verb to the end of its input.

    Raises:
        AccelError: the task failed; a bad record does not raise unless ``--strict``.
    """
    VERBS[options.verb](options, context)
    context.stdout.flush()


def _factorize_map(options: argparse.Namespace, context: TaskContext) -> None:
    lines = (line.decode("utf-8", "surrogateescape") for line in context.stdin)
    with contextlib.ExitStack() as stack:
        output: FactorsFile | None = None
        if options.output == "sequence":
            file = FactorsFile(context.files, context.folder, context.attempt.partition)
            output = stack.enter_context(file)
        rows = factorize(
            lines,
            _dispatch(options, context),
            context.files.read,
            context.attempt,
            FactorizeOptions(options.by == "value", options.strict, options.residual),
            context.reporter.count,
            output.append if output is not None else None,
        )
        for row in rows:
            context.stdout.write(format_row(row).encode("utf-8", "backslashreplace") + b"\n")
            context.stdout.flush()
        if output is not None:
            output.commit()


def _images_map(options: argparse.Namespace, context: TaskContext) -> None:
    settings = ImagesOptions(batch_images=options.batch, bins=options.bins, is_strict=options.strict)
    pairs = map_records(
        TypedBytesReader(context.stdin),
        _dispatch(options, context),
        context.attempt,
        settings,
        context.reporter.count,
    )
    _write(context, pairs)


def _images_reduce(options: argparse.Namespace, context: TaskContext) -> None:
    settings = ClusterOptions(options.k, options.seed, options.max_iterations, options.restarts)
    lines = reduce_features(
        TypedBytesReader(context.stdin),
        _dispatch(options, context),
        context.attempt,
        settings,
        context.reporter.count,
    )
    _write(context, lines)


def _images_sample(options: argparse.Namespace, context: TaskContext) -> None:
    _write(context, sample_rows(TypedBytesReader(context.stdin), options.one_in))


def _images_step(options: argparse.Namespace, context: TaskContext) -> None:
    pairs = step_rows(
        TypedBytesReader(context.stdin),
        _centroids(context),
        _dispatch(options, context),
        context.attempt,
        context.reporter.count,
    )
    _write(context, pairs)


def _images_merge(options: argparse.Namespace, context: TaskContext) -> None:
    _write(context, merge_partials(TypedBytesReader(context.stdin)))


def _images_assign(options: argparse.Namespace, context: TaskContext) -> None:
    lines = assign_rows(
        TypedBytesReader(context.stdin),
        _centroids(context),
        _dispatch(options, context),
        context.attempt,
        context.reporter.count,
    )
    _write(context, lines)


def _dispatch(options: argparse.Namespace, context: TaskContext) -> Dispatch:
    return lambda calls: context.map_calls(calls, options.window)


def _centroids(context: TaskContext) -> Mapping[int, Centroid]:
    path = context.folder / CENTROIDS_FILE
    try:
        with path.open(encoding="utf-8") as lines:
            return parse_lines(lines).centroids
    except OSError as error:
        raise StartupError(f"no readable {CENTROIDS_FILE} ({error.strerror})") from None


def _write(context: TaskContext, pairs: Iterable[tuple[TypedValue, Any]]) -> None:
    write_typed_pairs(context.stdout, pairs)


_CLUSTER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--k": {"type": int, "required": True, "help": "number of clusters"},
    "--seed": {"type": int, "default": 0},
    "--max-iterations": {"type": int, "default": 300},
    "--restarts": {"type": int, "default": 10},
}
_OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "factorize-map": {
        "--by": {"choices": ("reference", "value"), "default": "reference"},
        "--residual": {"choices": RESIDUALS, "default": "sample", "help": "which factors are checked"},
        "--output": {"choices": OUTPUTS, "default": "npz", "help": "where the factors go"},
    },
    "images-map": {
        "--bins": {"type": int, "choices": (59, 256), "default": 59},
        "--batch": {"type": int, "default": 256, "help": "images in one request"},
    },
    "images-reduce": _CLUSTER_OPTIONS,
    "images-sample": {"--one-in": {"type": int, "default": 10}},
}

VERBS: Mapping[str, Callable[[argparse.Namespace, TaskContext], None]] = {
    "factorize-map": _factorize_map,
    "images-map": _images_map,
    "images-reduce": _images_reduce,
    "images-sample": _images_sample,
    "images-step": _images_step,
    "images-merge": _images_merge,
    "images-assign": _images_assign,
}
