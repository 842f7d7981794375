"""The program of the zipapp, which runs on nodes: find the servers and the credential, then run one verb.

Each verb joins one pure generator to standard input and output. A runner gives each task a `TaskContext`, and
decides whether requests go over a socket or stay in this process.

Start-up failures are diagnosed in one line, the first on stderr, because that line is all a Hadoop user sees
of a failed attempt. Exit codes: 0 fine, 1 failed, 2 usage, 3 could not start. Standard library only, Python
3.8.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Optional, TextIO

from jobs.factorize.manifest import format_row
from jobs.factorize.mapper import OUTPUTS, RESIDUALS, Dispatch, FactorizeOptions, FactorsFile, factorize
from jobs.images.clustering import (
    ClusterOptions,
    assign_rows,
    merge_partials,
    reduce_features,
    sample_rows,
    step_rows,
)
from jobs.images.mapper import ImagesOptions, map_records
from jobs.images.rows import Centroid, parse_lines
from yarn_accel.client import (
    COUNTER_GROUP,
    Accelerator,
    Call,
    CurrentAttempt,
    Reply,
    Reporter,
    TaskFiles,
    TypedBytesReader,
    TypedValue,
    connect,
    write_typed_pairs,
)
from yarn_accel.errors import AccelError, ConfigError, StartupError

_COUNTER = f"reporter:counter:{COUNTER_GROUP},"
CENTROIDS_FILE = "centroids.tsv"
"""Travels with every round of K-means."""


@dataclass(frozen=True)
class TaskContext:
    """The things that a runner gives to a task.

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
    settings = ImagesOptions(
        batch_images=options.batch,
        bins=options.bins,
        is_strict=options.strict,
        model=options.model,
        side_px=options.side_px,
    )
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
        "--model": {"default": "", "help": "an ONNX model in the place of histograms"},
        "--side-px": {"type": int, "default": 64, "help": "height and width of the images that it gets"},
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


def main(
    argv: Sequence[str],
    environ: Optional[Mapping[str, str]] = None,
    stdin: Optional[BinaryIO] = None,
    stdout: Optional[BinaryIO] = None,
    stderr: Optional[TextIO] = None,
    parse: Callable[[Sequence[str]], argparse.Namespace] = parse_verb,
    run: Callable[[argparse.Namespace, TaskContext], None] = run_verb,
) -> int:
    """Run one verb; every expected failure becomes one line on stderr and an exit code.

    Args:
        parse, run: another table of verbs than `VERBS`.
    """
    errors = sys.stderr if stderr is None else stderr
    environ = os.environ if environ is None else environ
    try:
        options = parse(argv)
        reporter = Reporter(errors)
        accel = connect(
            "hadoop",
            fallback=not options.no_fallback,
            patience_s=options.patience_s,
            count_calls=False,
            reporter=reporter,
            environ=environ,
        )
        with accel, reporter.keep_alive(reporter.progress):
            run(options, _context(accel, environ, stdin or sys.stdin.buffer, stdout or sys.stdout.buffer))
    except AccelError as error:
        errors.write("accel-job: {}\n".format(" ".join(str(error).split())))
        errors.flush()
        return error.exit_code
    return 0


def _context(
    accel: Accelerator, environ: Mapping[str, str], stdin: BinaryIO, stdout: BinaryIO
) -> TaskContext:
    return TaskContext(
        attempt=CurrentAttempt.from_environ(environ),
        map_calls=accel.map,
        files=TaskFiles(environ),
        reporter=accel.reporter,
        stdin=stdin,
        stdout=stdout,
        folder=Path.cwd(),
    )


def parse_stderr(text: str) -> tuple[dict[str, int], str]:
    """Our counters, and the first ordinary line, of what a task wrote on stderr; as Hadoop reads it."""
    counters: Counter[str] = Counter()
    first_line = ""
    for line in text.splitlines():
        if line.startswith(_COUNTER):
            name, amount = line[len(_COUNTER) :].rsplit(",", 1)
            counters[name] += int(amount)
        elif not line.startswith("reporter:") and line.strip() and not first_line:
            first_line = line.strip()
    return dict(counters), first_line
