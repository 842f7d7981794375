"""The factorize mapper: manifest lines in, one line per matrix out; the work is done by pipeline servers.

Each line becomes a request, which factorizes and lets the server write the factors to the store, as one file
for each matrix; or gives them to this process, which keeps them in one file for all (see `FactorsFile`). For
the records that are checked a second request (``residual``) reads matrix and factors back and measures them
the LAPACK way. Second requests go out as soon as their factors are there, so a server is never idle between
the two.

By reference (the default) only URIs travel and the server reads the matrix; by value this process reads the
file and sends its bytes. Standard library only, Python 3.8.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Deque, Dict, Iterable, Iterator, Optional, Set, Tuple, Union

from jobs.factorize.manifest import (
    STAGES,
    Done,
    Entry,
    Reject,
    Row,
    UniqueEntries,
    key_of,
    parse_entry,
    records,
)
from yarn_accel.client import (
    Call,
    CurrentAttempt,
    Reference,
    Reply,
    SequenceFileWriter,
    TaskFiles,
    Tensor,
    TensorSpec,
    is_bad_record,
)
from yarn_accel.errors import AccelError, RejectedError, StorageError

RESIDUALS = ("none", "sample", "all")
OUTPUTS = ("npz", "sequence")
FACTORS_PREFIX = "factors-"
"""Names of files of factors begin so, beside the parts of the job's output."""
#: A sample is the first record of a task and each so many after it: the same in every attempt.
SAMPLE_ONE_IN = 16

FALLBACK_DEVICE = "cpu:fallback"
Answers = Iterator[Tuple[Call, Union[Reply, AccelError]]]
Dispatch = Callable[[Iterable[Call]], Answers]
KeepFactors = Callable[[str, Reply], None]


@dataclass(frozen=True)
class FactorizeOptions:
    """How the mapper works.

    Args:
        is_by_value: read the matrix here and send its bytes, instead of sending its URI.
        is_strict: after a bad record take nothing new and raise for the first one, instead of writing
        rejects.
        residual: of which records the factors are checked: one of `RESIDUALS`.
    """

    is_by_value: bool = False
    is_strict: bool = False
    residual: str = "sample"

    def is_checked(self, position: int) -> bool:
        """Whether the factors of that record of the task, counted from 0, are checked."""
        return self.residual == "all" or (self.residual == "sample" and position % SAMPLE_ONE_IN == 0)


def factorize(
    lines: Iterable[str],
    dispatch: Dispatch,
    read_bytes: Callable[[str], bytes],
    attempt: CurrentAttempt,
    options: FactorizeOptions,
    count: Callable[[str, int], None],
    keep: Optional[KeepFactors] = None,
) -> Iterator[Row]:
    """Turn manifest lines into result rows; every record gives exactly one row.

    Args:
        dispatch: sends calls and yields each with its answer, in any order.
        read_bytes: reads a URI, used by value only.
        count: adds to a counter by name.
        keep: gets the factors of every record that is done; None: the server writes them to its output URI.

    Raises:
        AccelError: a failure that is not the record's fault, or with ``is_strict`` the first bad record.
    """
    pending = _PendingRecords(read_bytes, attempt, options, count, keep)
    for call, answer in dispatch(pending.calls(lines)):
        pending.take(call, answer)
        yield from pending.finished()
    while pending.is_pending():
        for call, answer in dispatch(pending.calls(())):
            pending.take(call, answer)
            yield from pending.finished()
    yield from pending.finished()
    pending.raise_first_bad()


class _PendingRecords:
    """The records that this task has sent and not yet finished."""

    def __init__(
        self,
        read_bytes: Callable[[str], bytes],
        attempt: CurrentAttempt,
        options: FactorizeOptions,
        count: Callable[[str, int], None],
        keep: Optional[KeepFactors],
    ) -> None:
        self._keep = keep
        self._n_read = 0
        self._unique = UniqueEntries(has_output=keep is None)
        self._read_bytes = read_bytes
        self._attempt = attempt
        self._options = options
        self._count = count
        self._checked: Set[int] = set()
        self._entries: Dict[str, Tuple[int, Entry]] = {}
        self._factored: Dict[str, Reply] = {}
        self._next: Deque[Call] = deque()
        self._rows: Deque[Row] = deque()
        self._bad: Dict[int, RejectedError] = {}

    def calls(self, lines: Iterable[str]) -> Iterator[Call]:
        """First requests of `lines`, each time preceded by the second requests that became possible."""
        for number, line in records(lines):
            if self._bad:
                break
            self._count("records_in", 1)
            if self._options.is_checked(self._n_read):
                self._checked.add(number)
            self._n_read += 1
            while self._next:
                yield self._sent(self._next.popleft())
            call = self._first_call(number, line)
            if call is not None:
                yield self._sent(call)
        while self._next:
            yield self._sent(self._next.popleft())

    def take(self, call: Call, answer: Union[Reply, AccelError]) -> None:
        """Note an answer: a row is finished, or its second request is due."""
        number, entry = self._entries.pop(call.key)
        if isinstance(answer, AccelError):
            self._factored.pop(call.key, None)
            self._reject(number, entry.key, answer)
        elif call.operation == "residual":
            self._finish(entry, self._factored.pop(call.key), answer)
        elif number not in self._checked:
            self._count("bytes", entry.n_bytes)
            self._finish(entry, answer, None)
        else:
            self._count("bytes", entry.n_bytes)
            check = self._residual_call(number, entry, answer)
            self._entries[check.key] = (number, entry)
            self._factored[check.key] = answer
            self._next.append(check)

    def is_pending(self) -> bool:
        """Whether a second request waits to be sent."""
        return bool(self._next)

    def raise_first_bad(self) -> None:
        """Raise for the bad record that comes first in the input; answers may have come in another order."""
        if self._bad:
            raise self._bad[min(self._bad)]

    def finished(self) -> Iterator[Row]:
        """The rows that became final since the last call."""
        while self._rows:
            yield self._rows.popleft()

    def _first_call(self, number: int, line: str) -> Union[Call, None]:
        place = "manifest line {} of this task".format(number)
        try:
            entry = parse_entry(line, place, self._keep is None)
            self._unique.check(entry, number, place)
            return self._factor_call(number, entry)
        except (RejectedError, StorageError) as error:
            self._reject(number, key_of(line), error)
            return None

    def _factor_call(self, number: int, entry: Entry) -> Call:
        spec = TensorSpec(entry.wire_dtype, entry.shape, entry.order)
        matrix: Union[Tensor, Reference] = Reference(entry.uri, spec)
        if self._options.is_by_value:
            data = self._read_bytes(entry.uri)
            if len(data) != entry.n_bytes:
                raise RejectedError(
                    "wrong-length",
                    "{} has {} bytes, {} {}x{} needs {}".format(
                        entry.uri, len(data), entry.dtype, entry.shape[0], entry.shape[1], entry.n_bytes
                    ),
                    cure="correct the shape or the dtype in the manifest",
                )
            matrix = Tensor(spec, data)
        call = Call(
            key=self._attempt.request_key(number, entry.operation),
            operation=entry.operation,
            params={},
            inputs=(matrix,),
            output_uri=entry.output_uri if self._keep is None else "",
        )
        self._entries[call.key] = (number, entry)
        return call

    def _residual_call(self, number: int, entry: Entry, factored: Reply) -> Call:
        spec = TensorSpec(entry.wire_dtype, entry.shape, entry.order)
        factors: Tuple[Union[Tensor, Reference], ...] = (Reference(entry.output_uri),)
        if self._keep is not None:
            factors = tuple(factored.tensors.values())
        return Call(
            key=self._attempt.request_key(number, "residual"),
            operation="residual",
            params={"operation": entry.operation},
            inputs=(Reference(entry.uri, spec), *factors),
        )

    def _sent(self, call: Call) -> Call:
        self._count("sent", 1)
        return call

    def _finish(self, entry: Entry, factored: Reply, checked: Optional[Reply]) -> None:
        is_fallback = FALLBACK_DEVICE in (factored.device, checked.device if checked is not None else "")
        if self._keep is not None:
            self._keep(entry.key, factored)
        self._count("done", 1)
        if is_fallback:
            self._count("cpu_fallback", 1)
        self._rows.append(
            Done(
                key=entry.key,
                operation=entry.operation,
                dtype=entry.dtype,
                shape=entry.shape,
                residual=None if checked is None else float(checked.info["residual"]),
                seconds=tuple(float(factored.seconds.get(stage, 0.0)) for stage in STAGES),
                n_bytes=entry.n_bytes,
                server=factored.server,
                device=factored.device,
                node=self._attempt.node,
                attempt=self._attempt.attempt_id,
            )
        )

    def _reject(self, number: int, key: str, error: AccelError) -> None:
        if not is_bad_record(error):
            raise error
        code = error.code if isinstance(error, RejectedError) else "storage"
        if self._options.is_strict:
            message = "record {} ({}): {}".format(key, code, error.message)
            self._bad[number] = RejectedError(code, message, cure=error.cure)
            return
        self._count("rejected", 1)
        self._rows.append(Reject(key, code, str(error), self._attempt.node, self._attempt.attempt_id))


class FactorsFile:
    """The factors of a whole task in one SequenceFile of Text and BytesWritable: a key, and an ``.npz``.

    A file for each matrix costs the NameNode calls and memory for each; a file for each task does not. It is
    written to the node's own disk, and complete when Hadoop commits the attempt.

    Args:
        files: hands it over to Hadoop.
        folder: the task's own.
        partition: the task's number within its job.
    """

    def __init__(self, files: TaskFiles, folder: Path, partition: int) -> None:
        files.check_output()
        self._files = files
        self._name = f"{FACTORS_PREFIX}{partition:05d}.seq"
        self._path = folder / self._name

    def __enter__(self) -> FactorsFile:
        self._stream = self._path.open("wb")
        self._writer = SequenceFileWriter(self._stream)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()
        self._path.unlink()

    def append(self, key: str, reply: Reply) -> None:
        """Add the factors of a matrix."""
        self._writer.append(key, reply.npz())

    def commit(self) -> None:
        """Hand the complete file over."""
        self._stream.flush()
        self._files.commit_with_task(self._path, self._name)
