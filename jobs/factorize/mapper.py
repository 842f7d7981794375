"""The factorize mapper: manifest lines in, one line per matrix out; the work is done by pipeline servers.

Each line becomes two requests. The first factorizes and lets the server write the factors to the store; the
second (``residual``) reads matrix and factors back from the store and measures them the LAPACK way. Second
requests go out as soon as their factors are there, so a server is never idle between the two.

By reference (the default) only URIs travel and the server reads the matrix; by value this process reads the
file and sends its bytes. Standard library only, Python 3.8.
"""

from collections import deque
from dataclasses import dataclass
from typing import Callable, Deque, Dict, Iterable, Iterator, Tuple, Union

from jobs.factorize.manifest import Entry, key_of, parse_entry, records
from jobs.factorize.rows import STAGES, Done, Reject, Row
from yarn_accel.client.accelerator import is_bad_record
from yarn_accel.client.client import Call, Reference, Reply, Tensor
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.errors import AccelError, RejectedError, StorageError
from yarn_accel.wire import TensorSpec

__all__ = ["Dispatch", "FactorizeOptions", "factorize"]

Answers = Iterator[Tuple[Call, Union[Reply, AccelError]]]
Dispatch = Callable[[Iterable[Call]], Answers]


@dataclass(frozen=True)
class FactorizeOptions:
    """How the mapper works.

    Args:
        is_by_value: read the matrix here and send its bytes, instead of sending its URI.
        is_strict: after a bad record take nothing new and raise for the first one, instead of writing
        rejects.
    """

    is_by_value: bool = False
    is_strict: bool = False


def factorize(
    lines: Iterable[str],
    dispatch: Dispatch,
    read_bytes: Callable[[str], bytes],
    attempt: CurrentAttempt,
    options: FactorizeOptions,
    count: Callable[[str, int], None],
) -> Iterator[Row]:
    """Turn manifest lines into result rows; every record gives exactly one row.

    Args:
        dispatch: sends calls and yields each with its answer, in any order.
        read_bytes: reads a URI, used by value only.
        count: adds to a counter by name.

    Raises:
        AccelError: a failure that is not the record's fault, or with ``is_strict`` the first bad record.
    """
    pending = _PendingRecords(read_bytes, attempt, options, count)
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
    """What this task has sent and not yet finished."""

    def __init__(
        self,
        read_bytes: Callable[[str], bytes],
        attempt: CurrentAttempt,
        options: FactorizeOptions,
        count: Callable[[str, int], None],
    ) -> None:
        self._read_bytes = read_bytes
        self._attempt = attempt
        self._options = options
        self._count = count
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
        else:
            self._count("bytes", entry.n_bytes)
            check = self._residual_call(number, entry)
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
        try:
            entry = parse_entry(line, "manifest line {} of this task".format(number))
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
            output_uri=entry.output_uri,
        )
        self._entries[call.key] = (number, entry)
        return call

    def _residual_call(self, number: int, entry: Entry) -> Call:
        spec = TensorSpec(entry.wire_dtype, entry.shape, entry.order)
        return Call(
            key=self._attempt.request_key(number, "residual"),
            operation="residual",
            params={"operation": entry.operation},
            inputs=(Reference(entry.uri, spec), Reference(entry.output_uri, None)),
        )

    def _sent(self, call: Call) -> Call:
        self._count("sent", 1)
        return call

    def _finish(self, entry: Entry, factored: Reply, checked: Reply) -> None:
        is_fallback = "cpu:fallback" in (factored.device, checked.device)
        self._count("done", 1)
        if is_fallback:
            self._count("cpu_fallback", 1)
        self._rows.append(
            Done(
                key=entry.key,
                operation=entry.operation,
                dtype=entry.dtype,
                shape=entry.shape,
                residual=float(checked.info["residual"]),
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
