"""Rows in batches through an ONNX model, one result for each row: what `predict_in_pandas` does in a task.

Nothing here is Spark's.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from yarn_accel.client import operation_calls
from yarn_accel.client.accelerator import Accelerator
from yarn_accel.client.calls import Call, Reply
from yarn_accel.errors import AccelError, RejectedError
from yarn_accel.spark.records import RecordResult, TaskRecords, count_reply

#: Codes that one row may bring on all rows of its batch, such as an index that is out of bounds.
_OF_ONE_ROW = frozenset({"model-failed", "wrong-shape"})


@dataclasses.dataclass(frozen=True)
class InputColumn:
    """A column that is an input of the model.

    Attributes:
        at: its number in a row.
        column: its name.
        name: of the input; empty: the inputs are in the model's order.
        shape: of one row, which its numbers are given; None: as they come.
    """

    at: int
    column: str
    name: str = ""
    shape: tuple[int, ...] | None = None

    def value(self, row: Any) -> Any:
        """The numbers of a row, as an array.

        Raises:
            RejectedError: nothing, no numbers, or not as many as the shape takes.
        """
        import numpy as np

        array = _array(row[self.at], self.column)
        if self.shape is None:
            return array
        try:
            return array.reshape(self.shape)
        except ValueError:
            shape = "x".join(map(str, self.shape))
            what = f"column {self.column}: {np.size(array)} numbers are no {shape}"
            raise RejectedError("wrong-shape", what) from None


def _array(value: Any, column: str) -> Any:
    """The numbers of a value; lists of lists are arrays of several axes."""
    import numpy as np

    try:
        array = np.asarray(value)
        if array.dtype == object and array.ndim:
            array = np.array([_array(each, column) for each in array])
    except ValueError:
        raise RejectedError("invalid-record", f"column {column}: its lists differ in length") from None
    if array.dtype.kind not in "biuf":
        found = "null" if value is None else type(value).__name__
        raise RejectedError("invalid-record", f"column {column}: expected numbers, found {found}")
    return array


@dataclasses.dataclass
class _RowBatch:
    """Rows that are one request, with the values of each for the inputs."""

    rows: list[Any] = dataclasses.field(default_factory=list)
    values: list[list[Any]] = dataclasses.field(default_factory=list)
    result: Callable[[Reply], operation_calls.Inference] = operation_calls.Inference.of


@dataclasses.dataclass(frozen=True)
class BatchPredictor:
    """Makes requests of rows and predictions of replies; travels from the driver to the tasks.

    Attributes:
        model: URI of an ONNX model.
        inputs: at least one.
        outputs: by the model's names; whether each is a list in a row, not a number.
        batch_size: the most rows of a request.
        mode: see `check_mode`.
        window: as `Accelerator.map`.
        options: of `Accelerator.infer`, such as ``image_size``, with which the one input is encoded images.
    """

    model: str
    inputs: Sequence[InputColumn]
    outputs: Mapping[str, bool]
    batch_size: int
    mode: str = "PERMISSIVE"
    window: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def results(
        self, accel: Accelerator, records: Iterable[Any], count: Callable[[str, int], None]
    ) -> Iterator[RecordResult]:
        """One result for each row, batch by batch as they finish; a value has the outputs by their names.

        Args:
            count: adds to a counter; of rows, but ``sent`` and ``cpu_fallback`` are of requests.

        Raises:
            RejectedError: a row is bad, and the mode is FAILFAST.
            AccelError: a failure that is no row's: Spark shall try the task again.
        """
        return _RowBatches(self, records, count).results(accel, self.window)

    def values(self, row: Any) -> list[Any]:
        """Of a row, for the inputs."""
        if self.options.get("image_size") is None:
            return [each.value(row) for each in self.inputs]
        (column,) = self.inputs
        image = row[column.at]
        if not isinstance(image, (bytes, bytearray)):
            what = f"column {column.column}: expected an encoded image, found {type(image).__name__}"
            raise RejectedError("invalid-record", what)
        return [bytes(image)]

    def call(self, batch: _RowBatch) -> Call:
        """The request of a batch."""
        import numpy as np

        inputs: Any
        if self.options.get("image_size") is not None:
            inputs = [values[0] for values in batch.values]
        else:
            inputs = [np.stack(column) for column in zip(*batch.values)]  # noqa: B905 -- Python 3.8
            if self.inputs[0].name:
                names = [each.name for each in self.inputs]
                inputs = dict(zip(names, inputs))  # noqa: B905 -- Python 3.8
        options = {**self.options, "outputs": list(self.outputs)}
        prepared = operation_calls.infer(self.model, inputs, options)
        batch.result = prepared.result
        return dataclasses.replace(prepared.call, tag=batch)

    def predictions(self, batch: _RowBatch, reply: Reply) -> Iterator[Mapping[str, Any] | RejectedError]:
        """The prediction of each row of a batch, or why it has none.

        Raises:
            RejectedError: the outputs do not have a row for each.
        """
        found = batch.result(reply)
        for name, output in found.outputs.items():
            if not output.ndim or len(output) != len(batch.rows):
                what = f"output {name} has shape {tuple(output.shape)} for {len(batch.rows)} rows"
                raise RejectedError("output-shape", what, cure="take a model that gives one row for each")
            if not self.outputs[name] and output[0].size != 1:
                what = f"output {name}: {output[0].size} numbers for a row, and its column has one"
                raise RejectedError("output-shape", what, cure="declare the column as an array")
        for at in range(len(batch.rows)):
            yield found.rejected.get(at) or {
                name: output[at].tolist() if self.outputs[name] else output[at].item()
                for name, output in found.outputs.items()
            }


class _RowBatches(TaskRecords):
    """A call for each batch of rows; batches that fail by one row are tried again row by row."""

    def __init__(
        self, predictor: BatchPredictor, rows: Iterable[Any], count: Callable[[str, int], None]
    ) -> None:
        super().__init__(rows, predictor.mode, count, most_bad=predictor.batch_size)
        self._predictor = predictor
        self._again: deque[_RowBatch] = deque()

    @property
    def is_exhausted(self) -> bool:
        return self.are_all_taken and not self._again

    def calls(self) -> Iterator[Call]:
        """A request for each full batch, and for the rest."""
        while self._again:
            yield self._sent(self._again.popleft())
        batch, form = _RowBatch(), None
        for row in self.taken():
            try:
                values = self._predictor.values(row)
            except RejectedError as error:
                if self.reject(row, error):
                    break
                continue
            # Rows of another form are a batch of their own: one that does not fit the model spoils no other.
            its_form = [(each.dtype.str, each.shape) for each in values if not isinstance(each, bytes)]
            if batch.rows and its_form != form:
                yield self._sent(batch)
                batch = _RowBatch()
            form = its_form
            batch.rows.append(row)
            batch.values.append(values)
            if len(batch.rows) == self._predictor.batch_size:
                yield self._sent(batch)
                batch = _RowBatch()
        if batch.rows:
            yield self._sent(batch)

    def _sent(self, batch: _RowBatch) -> Call:
        call = self._predictor.call(batch)
        self.count("sent", 1)
        return call

    def settle(self, tag: Any, outcome: Reply | AccelError) -> Iterator[RecordResult]:
        """The results of the rows of a batch; none yet where each of them is tried alone."""
        found: Sequence[Mapping[str, Any] | AccelError]
        if isinstance(outcome, AccelError):
            if outcome.code in _OF_ONE_ROW and len(tag.rows) > 1:
                pairs = zip(tag.rows, tag.values)  # noqa: B905 -- Python 3.8
                self._again.extend(_RowBatch([row], [values]) for row, values in pairs)
                return
            found = [outcome] * len(tag.rows)
        else:
            count_reply(outcome, self.count)
            try:
                found = list(self._predictor.predictions(tag, outcome))
            except RejectedError as error:
                found = [error] * len(tag.rows)
        for row, each in zip(tag.rows, found):  # noqa: B905 -- Python 3.8
            yield self.rejected(row, each) if isinstance(each, AccelError) else self.done(row, each)
