"""Hadoop Streaming's protocol, as a mapper sees it: its environment, and what it says on standard error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from yarn_accel.core.tasks.attempt_orders import AttemptOrder, OutputFile, attempt_names, unfinished_uri
from yarn_accel.core.tasks.worker_messages import MAX_COUNTERS, MAX_LINE, Counter
from yarn_accel.worker.attempt_log import AttemptLog

#: What commands inherit of the worker's environment; all else, such as its credentials' file, is its own.
_INHERITED = (
    "HADOOP_COMMON_HOME",
    "HADOOP_CONF_DIR",
    "HADOOP_HDFS_HOME",
    "HADOOP_HOME",
    "HADOOP_MAPRED_HOME",
    "HADOOP_USER_NAME",
    "HADOOP_YARN_HOME",
    "HOME",
    "JAVA_HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NM_HOST",
    "PATH",
    "TZ",
    "USER",
)
#: Hadoop's former names of the same properties.
_FORMER = {
    "mapreduce_job_id": "mapred_job_id",
    "mapreduce_task_id": "mapred_tip_id",
    "mapreduce_task_attempt_id": "mapred_task_id",
    "mapreduce_task_partition": "mapred_task_partition",
    "mapreduce_task_ismap": "mapred_task_is_map",
    "mapreduce_map_input_file": "map_input_file",
    "mapreduce_map_input_start": "map_input_start",
    "mapreduce_map_input_length": "map_input_length",
    "mapreduce_task_output_dir": "mapred_work_output_dir",
}
#: The variables that each attempt has for itself.
ATTEMPT_NAMES = frozenset(
    {
        *_FORMER,
        *_FORMER.values(),
        "mapreduce_job_name",
        "mapreduce_output_fileoutputformat_outputdir",
        "CUDA_VISIBLE_DEVICES",
        "PWD",
        "TMPDIR",
    }
)
_REPORTER = b"reporter:"
_COUNTER, _STATUS, _READ = "counter:", "status:", "read:"
#: A longer line is cut: its rest is another line.
_MAX_LINE_BYTES = 64 * 1024
_MAX_COUNTERS_BYTES = 4096
_MAX_VALUE = 2**53
_MAX_GROUP, _MAX_NAME = 128, 64
_READING = re.compile(r"([0-9]{1,15}),([0-9]{1,9}(?:\.[0-9]{1,9})?)(,done)?\Z", re.ASCII)


def attempt_folder(order: AttemptOrder, output: OutputFile) -> str:
    """Where the output of an attempt lies until it is committed, and its side files."""
    return f"{unfinished_uri(output.folder)}/{order.attempt}"


def streaming_environment(
    order: AttemptOrder, devices: tuple[str, ...], folder: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a command.

    Args:
        devices: the names of its GPUs; without any it sees none.
        folder: its working folder.
        inherited: the worker's own environment.
    """
    names = attempt_names(order.attempt)
    found = {name: inherited[name] for name in _INHERITED if name in inherited}
    properties = {
        "mapreduce_job_id": names.job,
        "mapreduce_job_name": order.app,
        "mapreduce_task_id": names.task,
        "mapreduce_task_attempt_id": order.attempt,
        "mapreduce_task_partition": str(names.partition),
        "mapreduce_task_ismap": "true",
    }
    if order.input is not None:
        properties["mapreduce_map_input_file"] = order.input.uri
        properties["mapreduce_map_input_start"] = str(order.input.start)
        properties["mapreduce_map_input_length"] = str(order.input.length)
    if order.output is not None:
        properties["mapreduce_task_output_dir"] = attempt_folder(order, order.output)
        properties["mapreduce_output_fileoutputformat_outputdir"] = order.output.folder
    former = {_FORMER[name]: value for name, value in properties.items() if name in _FORMER}
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    own = {"PWD": folder, "TMPDIR": f"{folder}/tmp"}
    return {**found, **properties, **former, **own, **dict(order.environment), **visible}


class OwnReading(NamedTuple):
    """What a command says that it has read, of ``reporter:read:BYTES,SECONDS`` with ``,done`` at its end."""

    n_bytes: int
    seconds: float
    is_done: bool


class ErrorLines:
    """Reads standard error: counters, status, and the log of all else.

    Attributes:
        status: of the last ``reporter:status:``.
        last_line: the last line with text that is not for us; often the diagnosis.
        n_lines: how many lines came.
        reading: what it said last that it has read; None: nothing.
    """

    def __init__(self, log: AttemptLog) -> None:
        self._log = log
        self._rest = b""
        self._counters: dict[tuple[str, str], int] = {}
        self._counters_bytes = 0
        self.status = ""
        self.last_line = ""
        self.n_lines = 0
        self.reading: OwnReading | None = None

    @property
    def counters(self) -> tuple[Counter, ...]:
        """What was counted, in the order in which it began."""
        return tuple(Counter(*name, value) for name, value in self._counters.items())

    def feed(self, text: bytes) -> None:
        """Take what was read."""
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            self._take(line)
        while len(self._rest) > _MAX_LINE_BYTES:
            self._take(self._rest[:_MAX_LINE_BYTES])
            self._rest = self._rest[_MAX_LINE_BYTES:]

    def close(self) -> None:
        """There is no more; a last line without an end counts as well."""
        if self._rest:
            self._take(self._rest)
        self._log.close()

    def _take(self, line: bytes) -> None:
        self.n_lines += 1
        text = line.rstrip(b"\r")
        if text.startswith(_REPORTER) and self._report(text[len(_REPORTER) :].decode("utf-8", "replace")):
            return
        self._log.write(line + b"\n")
        if text.strip():
            self.last_line = printable(text.decode("utf-8", "replace"))

    def _report(self, text: str) -> bool:
        if text.startswith(_STATUS):
            self.status = printable(text[len(_STATUS) :])
            return True
        if match := text.startswith(_READ) and _READING.match(text[len(_READ) :]):
            self.reading = OwnReading(int(match[1]), float(match[2]), match[3] is not None)
            return True
        parts = text[len(_COUNTER) :].split(",")
        if not text.startswith(_COUNTER) or len(parts) != 3:
            return False
        try:
            amount = int(parts[2]) if len(parts[2]) <= 20 else None
        except ValueError:
            amount = None
        return amount is not None and self._count(parts[0][:_MAX_GROUP], parts[1][:_MAX_NAME], amount)

    def _count(self, group: str, name: str, amount: int) -> bool:
        key = group.replace("\0", ""), name.replace("\0", "")
        if key not in self._counters:
            n_bytes = len(json.dumps(key))
            if len(self._counters) >= MAX_COUNTERS or self._counters_bytes + n_bytes > _MAX_COUNTERS_BYTES:
                return False
            self._counters_bytes += n_bytes
        total = self._counters.get(key, 0) + amount
        self._counters[key] = max(-_MAX_VALUE, min(total, _MAX_VALUE))
        return True


def printable(text: str) -> str:
    """One line of limited length, without characters that a terminal acts on."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * MAX_LINE])
    return " ".join(shown.split())[:MAX_LINE]
