"""``python -m yarn_accel.worker.operation_task RUNNER OPERATION PARAMS``: a map task that is an operation.

Each line of standard input is a record: the URIs of its inputs, separated by TABs. This process reads them,
so the I/O is that of its own node, and sends their content to the pipeline server that the node's agent
names; with the runner ``inline`` it computes by itself. A record becomes one line, in the input's order::

    URI...  done      {"info": {...}, "results": {NAME: VALUES, ...}}
    URI...  rejected  CODE  MESSAGE

Results of more than `MAX_VALUES` elements, and complex ones, go to an ``.npz`` beside the task's output,
which ``file`` names in place of ``results``. A bad record costs itself only; what is not the record's fault
fails the task. No fallback: a task that was placed on a GPU does not compute on a core instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from yarn_accel.client import Call, Reply, Tensor, connect, is_bad_record
from yarn_accel.errors import AccelError, RejectedError
from yarn_accel.formats import BytesInMemory, describe, is_array_file, load, name_plain_bytes
from yarn_accel.storage import Store
from yarn_accel.uris import split_member, split_uri
from yarn_accel.wire import TensorSpec
from yarn_accel.worker.operation_program import DEFAULT_FS_VARIABLE

MAX_VALUES = 4096
_MAX_FILE_BYTES = 1 << 32
_REPORT_S = 0.25

Map = Callable[[Iterable[Call]], Iterator[tuple[Call, "Reply | AccelError"]]]
KeepFile = Callable[[int, Reply], str]


class InputReader:
    """Reads the files of records, and says to the worker how much and for how long.

    The last record's files stay: what each line names again, such as a model, is read once.

    Args:
        log: standard error.
    """

    def __init__(self, store: Store, log: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._last: dict[str, tuple[Tensor, ...]] = {}
        self._reported_s = -_REPORT_S
        self._seconds = 0.0
        self._n_bytes = 0

    def tensors(self, uris: Sequence[str]) -> tuple[Tensor, ...]:
        """The arrays of these files, in this order.

        Raises:
            RejectedError: a file is no array file, though it is named like one, or it is too large.
            StorageError: it cannot be read.
        """
        began_s = self._clock()
        self._last = {uri: self._last.get(uri) or self._read(uri) for uri in uris}
        now_s = self._clock()
        self._seconds += now_s - began_s
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            self._report("")
        return tuple(tensor for uri in uris for tensor in self._last[uri])

    def close(self) -> None:
        """Say that nothing more is read."""
        self._report(",done")

    def _report(self, end: str) -> None:
        self._log.write(f"reporter:read:{self._n_bytes},{self._seconds:.6f}{end}\n")
        self._log.flush()

    def _read(self, uri: str) -> tuple[Tensor, ...]:
        file_uri = split_member(uri)[0]
        split_uri(file_uri)
        content = self._store.read_bytes(file_uri, _MAX_FILE_BYTES)
        self._n_bytes += len(content)
        if not is_array_file(uri):
            return (Tensor(TensorSpec("|u1", (len(content),)), content),)
        source, found = BytesInMemory(content), []
        for array in describe(source, uri):
            data = bytearray(array.spec.nbytes)
            load(array, source, memoryview(data))
            found.append(Tensor(array.spec, data))
        return tuple(found)


def run_records(
    lines: Iterable[str],
    operation: str,
    params: Mapping[str, Any],
    send: Map,
    reader: InputReader,
    keep: KeepFile,
) -> Iterator[str]:
    """The line of each record, in the order of the input.

    Args:
        send: yields each call with its outcome, in any order.
        keep: writes results that are too large for a line, by the record's number; returns the file's name.

    Raises:
        AccelError: a failure that is not a record's fault.
    """
    rows: dict[int, str] = {}
    n_given = 0

    def calls() -> Iterator[Call]:
        for number, line in enumerate(_records(lines)):
            try:
                inputs = reader.tensors(_uris(line))
            except AccelError as error:
                rows[number] = _rejected(line, error)
            else:
                yield Call("", operation, params, inputs, tag=(number, line))
        reader.close()

    for call, outcome in send(calls()):
        number, line = call.tag
        if isinstance(outcome, AccelError):
            rows[number] = _rejected(line, outcome)
        else:
            rows[number] = f"{line}\tdone\t{json.dumps(_shown(number, outcome, keep), sort_keys=True)}"
        while n_given in rows:
            yield rows.pop(n_given)
            n_given += 1
    for number in sorted(rows):
        yield rows[number]


def _records(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            yield text


def _uris(line: str) -> list[str]:
    return [each.strip() for each in line.split("\t")]


def _rejected(line: str, error: AccelError) -> str:
    if not is_bad_record(error):
        raise error
    if isinstance(error, RejectedError):
        error = name_plain_bytes(error, _uris(line))
    code = error.code if isinstance(error, RejectedError) else "storage"
    return f"{line}\trejected\t{code}\t{' '.join(error.message.split())}"


def _shown(number: int, reply: Reply, keep: KeepFile) -> dict[str, Any]:
    tensors = reply.tensors.values()
    n_values = sum(tensor.spec.nbytes // max(1, int(tensor.spec.dtype[2:])) for tensor in tensors)
    if n_values > MAX_VALUES or any(tensor.spec.dtype[1] == "c" for tensor in tensors):
        return {"info": dict(reply.info), "file": keep(number, reply)}
    return {
        "info": dict(reply.info),
        "results": {name: tensor.array().tolist() for name, tensor in reply.tensors.items()},
    }


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the task; the exit status."""
    runner, operation, params = argv
    store = Store(default_fs=environ.get(DEFAULT_FS_VARIABLE, ""))
    folder = environ.get("mapreduce_task_output_dir", f"file://{Path.cwd()}")
    partition = int(environ.get("mapreduce_task_partition", "0"))

    def keep(number: int, reply: Reply) -> str:
        name = f"results-{partition:05d}-{number:06d}.npz"
        store.write_atomic(f"{folder}/{name}", [reply.npz()])
        return name

    try:
        is_inline = runner == "inline"
        # The next record travels while one is computed; more would take other tasks' part of the GPU.
        window = None if "ACCEL_WINDOW" in environ else 2
        with connect(runner, fallback=is_inline, window=window, environ=environ) as accel:
            reader = InputReader(store, sys.stderr)
            rows = run_records(sys.stdin, operation, json.loads(params), accel.map, reader, keep)
            for row in rows:
                sys.stdout.write(row + "\n")
    except AccelError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
