"""The program that ``spark-submit`` runs for the runner `spark`: tasks do what those of Hadoop Streaming do.

The verb gets its lines on standard input and writes rows to standard output, in the executor; counters, which
it writes as Streaming wants them, become accumulators. Only what the zip of the job holds is imported in
tasks, since this file itself stays on the driver.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def split_lines(text: bytes, lines_per_map: int) -> list[bytes]:
    """The inputs of tasks: so many lines each (0: all in one), without those that are empty or comments."""
    lines = [line for line in text.split(b"\n") if line.strip() and not line.strip().startswith(b"#")]
    size = lines_per_map or max(1, len(lines))
    return [b"".join(line + b"\n" for line in lines[at : at + size]) for at in range(0, len(lines), size)]


def run_task(
    argv: Sequence[str], counters: Any, application_id: str, inputs: Iterable[bytes]
) -> Iterator[str]:
    """Run the verb over what this partition holds; yields its rows.

    Raises:
        JobError: it failed; the message is the first line that it wrote.
    """
    from pyspark import TaskContext

    from jobs.entry import main as run_verb
    from jobs.entry import parse_stderr
    from yarn_accel.errors import JobError

    context = TaskContext.get()
    part = "{}_{}_m_{:06d}".format(
        application_id.replace("application_", ""), context.stageId(), context.partitionId()
    )
    environ = {
        **os.environ,
        "mapreduce_job_id": application_id,
        "mapreduce_task_id": "task_" + part,
        "mapreduce_task_attempt_id": f"attempt_{part}_{context.attemptNumber()}",
        "mapreduce_task_partition": str(context.partitionId()),
    }
    for content in inputs:
        stdin, stdout, stderr = io.BytesIO(content), io.BytesIO(), io.StringIO()
        code = run_verb(argv, environ, stdin, stdout, stderr)
        counted, first_line = parse_stderr(stderr.getvalue())
        if code != 0:
            raise JobError(first_line or f"exit code {code}")
        counters.add(counted)
        for line in stdout.getvalue().splitlines():
            yield line.decode("utf-8")


def main(argv: Sequence[str]) -> int:
    """Run the job in the Spark that started this program."""
    from pyspark.sql import SparkSession

    from yarn_accel.spark import SparkCounters

    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", nargs="+", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("verb", nargs="+")
    options = parser.parse_args(argv)
    session = SparkSession.builder.getOrCreate()
    context = session.sparkContext
    counters = SparkCounters(session)
    texts = context.binaryFiles(",".join(options.inputs)).values().collect()
    tasks = [part for text in texts for part in split_lines(text, options.lines)]
    run = functools.partial(run_task, options.verb, counters, context.applicationId)
    context.parallelize(tasks, max(1, len(tasks))).mapPartitions(run).saveAsTextFile(options.output)
    found = {"application": context.applicationId, "counters": counters.value}
    options.result.write_text(json.dumps(found))
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
