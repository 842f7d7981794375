"""Inference with ONNX models: `infer`, computed by onnxruntime in this process.

A model is read and loaded once and stays, by the digest of its files; the ones used longest ago go first.
Each run has two limits. Memory: while a model is loaded or runs, this process may allocate only so much more
(``RLIMIT_DATA``), and onnxruntime gives up in order. Time: a timer tells onnxruntime to end, which it does
between two nodes of the graph. A single node that does not end is left to whoever watches this process.

Rows of several requests for one model are computed as one batch where the model allows it: the first axis of
all its inputs and outputs is one and the same variable one. A model whose rows depend on each other is called
with ``batch=False``.

Images are decoded, resized (bilinear, as Pillow does it), scaled to 0..1, and normalised by mean and standard
deviation. The row of a bad one is zero, and ``info["rejected"]`` says why, as with `features`.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np
from PIL import Image

from yarn_accel.errors import AccelError, RejectedError, UnavailableError
from yarn_accel.operations import pixels
from yarn_accel.operations.models import LAYOUTS, ModelSource, output_bytes
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.wire import ITEM_BYTES, MAX_DIMENSIONS

Array = Any
Found = TypeVar("Found")
Item = Tuple[List[Array], Params, Place]
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_DTYPES = {
    "tensor(bool)": "|b1",
    "tensor(double)": "<f8",
    "tensor(float)": "<f4",
    "tensor(float16)": "<f2",
    "tensor(int16)": "<i2",
    "tensor(int32)": "<i4",
    "tensor(int64)": "<i8",
    "tensor(int8)": "|i1",
    "tensor(uint16)": "<u2",
    "tensor(uint32)": "<u4",
    "tensor(uint64)": "<u8",
    "tensor(uint8)": "|u1",
}
#: Bytes of the files of all models that a process keeps loaded, beside the one it needs now.
_KEPT_BYTES = 1 << 30
#: A batch that fails is computed one by one; for so many time limits in all.
_LIMITS_OF_A_BATCH = 2
_NO_MEMORY = ("bad_alloc", "bad allocation", "out of memory", "Failed to allocate memory")
_MAX_TEXT = 400
_SILENT = 4
_NEVER = float("inf")
_PAGE_BYTES = resource.getpagesize()
#: One model at a time: the limits are the process's.
_lock = threading.Lock()
_loaded: OrderedDict[Tuple[str, str], LoadedModel] = OrderedDict()


@dataclass
class LoadedModel:
    """A model that onnxruntime has loaded.

    Attributes:
        source: where it came from.
        session: onnxruntime's own.
        inputs: name, element type and shape of each; a variable axis is a name or None.
        outputs: by name the shape of each.
        n_bytes: of its files.
        provider: of onnxruntime, which computes it.
    """

    source: ModelSource
    session: Any
    inputs: List[Tuple[str, str, Sequence[Any]]]
    outputs: Dict[str, Sequence[Any]]
    n_bytes: int
    provider: str

    def takes_any_rows(self, outputs: Sequence[str]) -> bool:
        """Whether all inputs and these outputs have one variable first axis."""
        shapes = [shape for _, _, shape in self.inputs] + [self.outputs[name] for name in outputs]
        firsts = {shape[0] if shape else 0 for shape in shapes}
        return len(firsts) == 1 and not isinstance(next(iter(firsts)), int)


class _Rows(NamedTuple):
    """The input of a model for one request.

    Attributes:
        arrays: the inputs of the model.
        kept: of images, the numbers of those that have a row; None: they are no images.
        n_images: of all of them.
        rejected: number, code and reason of each other one.
        converted: which inputs were converted.
        n_together: requests computed by the same run.
    """

    arrays: List[Array]
    kept: Optional[List[int]] = None
    n_images: int = 0
    rejected: Sequence[List[Any]] = ()
    converted: str = ""
    n_together: int = 1


def infer(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The outputs of a model for these inputs.

    Raises:
        RejectedError: ``bad-model``, ``model-memory``, ``model-time``, ``model-failed``, ``wrong-inputs``,
            ``wrong-shape``, ``wrong-dtype``, ``output-too-large``.
        UnavailableError: there is no onnxruntime here.
    """
    return _infer_one((arrays, params, place), _CPU)


def infer_batch(items: Sequence[Item]) -> List[Union[Outcome, AccelError]]:
    """The outputs of one model for the inputs of several requests, or what is wrong with each."""
    return _infer_all(items, _CPU)


def infer_on_gpu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `infer`, by onnxruntime's CUDA provider; on the CPU where onnxruntime has none."""
    return _infer_one((arrays, params, place), _CUDA)


def infer_batch_on_gpu(items: Sequence[Item]) -> List[Union[Outcome, AccelError]]:
    """As `infer_batch`, likewise."""
    return _infer_all(items, _CUDA)


def _infer_one(item: Item, provider: str) -> Outcome:
    arrays, params, _ = item
    with _lock:
        model = _model(source_of(params), provider)
        names = _output_names(model, params)
        rows = _rows(model, arrays, params)
        results = _run(model, rows.arrays, names)
    return _outcome(model, item, rows, names, results)


def _infer_all(items: Sequence[Item], provider: str) -> List[Union[Outcome, AccelError]]:
    params = items[0][1]
    with _lock:
        try:
            model = _model(source_of(params), provider)
            names = _output_names(model, params)
        except AccelError as error:
            return [error for _ in items]
        together = len(items) > 1 and params.get("batch", True) and model.takes_any_rows(names)
        found: Dict[int, Union[Outcome, AccelError]] = {}
        given: Dict[int, _Rows] = {}
        for number, (arrays, own, _) in enumerate(items):
            try:
                given[number] = _rows(model, arrays, own)
            except AccelError as error:
                found[number] = error
        if together and len(given) > 1:
            with contextlib.suppress(AccelError, ValueError):
                results = _run_together(model, list(given.values()), names)
                n_together = len(given)
                for number, own_results in zip(list(given), results):  # noqa: B905 -- Python 3.8
                    rows = given.pop(number)._replace(n_together=n_together)
                    found[number] = _caught(model, items[number], rows, names, own_results)
        _run_each(model, items, given, names, found)
    return [found[number] for number in range(len(items))]


def _run_together(model: LoadedModel, given: Sequence[_Rows], names: List[str]) -> List[List[Array]]:
    """The results of several requests by one run; by request, then by output.

    Raises:
        RejectedError: the run failed, or gave something else than a row for each row.
    """
    columns = zip(*[rows.arrays for rows in given])  # noqa: B905 -- Python 3.8
    results = _run(model, [np.concatenate(column) for column in columns], names)
    counts = [len(rows.arrays[0]) for rows in given]
    for result in results:
        if not result.ndim or len(result) != sum(counts):
            raise RejectedError("model-failed", "it gives not one row for each")
    ends = np.cumsum(counts)[:-1]
    parts = zip(*[np.split(result, ends) for result in results])  # noqa: B905 -- Python 3.8
    return [list(own) for own in parts]


def _run_each(
    model: LoadedModel,
    items: Sequence[Item],
    given: Mapping[int, _Rows],
    names: List[str],
    found: Dict[int, Union[Outcome, AccelError]],
) -> None:
    """Compute what is left, one by one; a model that takes too long is not waited for again and again."""
    n_late, late = 0, None
    for number, rows in given.items():
        if late is not None and n_late >= _LIMITS_OF_A_BATCH:
            found[number] = late
            continue
        try:
            results = _run(model, rows.arrays, names)
        except AccelError as error:
            found[number] = error
            if error.code == "model-time":
                n_late, late = n_late + 1, error
        else:
            found[number] = _caught(model, items[number], rows, names, results)


def _caught(
    model: LoadedModel, item: Item, rows: _Rows, names: List[str], results: List[Array]
) -> Union[Outcome, AccelError]:
    try:
        return _outcome(model, item, rows, names, results)
    except AccelError as error:
        return error


# Models


def source_of(params: Params) -> ModelSource:
    """The parameter ``model`` as a server, or a client's own computation, has completed it."""
    model = params["model"]
    if not isinstance(model, dict):
        raise RejectedError("bad-parameter", "model: its file was not read")
    return ModelSource(**model)


def _model(source: ModelSource, provider: str) -> LoadedModel:
    """The model, loaded; kept for the next request."""
    key = source.digest, provider
    model = _loaded.get(key)
    if model is None:
        model = _load(source, provider)
        n_bytes = sum([each.n_bytes for each in _loaded.values()])
        while _loaded and n_bytes > _KEPT_BYTES:
            n_bytes -= _loaded.popitem(last=False)[1].n_bytes
        _loaded[key] = model
    _loaded.move_to_end(key)
    model.source = source
    return model


def _load(source: ModelSource, provider: str) -> LoadedModel:
    contents = source.contents()
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError(
            "this node has no onnxruntime: {}".format(error), cure="pip install 'cluster-accel[inference]'"
        ) from None
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = source.n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    # What a run has taken goes back to the system, so that the limit is of one run.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.load_model_format", "ONNX")
    content = contents.pop("")
    if contents:
        names = list(contents)
        values = [contents[name] for name in names]
        options.add_external_initializers_from_files_in_memory(names, values, list(map(len, values)))
    providers: List[Any] = [_CPU]
    if provider == _CUDA and _CUDA in onnxruntime.get_available_providers():
        limits = {"gpu_mem_limit": source.max_bytes, "arena_extend_strategy": "kSameAsRequested"}
        providers = [(_CUDA, limits), _CPU]
    session = _within_limits(
        source,
        "to load",
        lambda: options.set_load_cancellation_flag(True),
        lambda: onnxruntime.InferenceSession(content, options, providers=providers),
    )
    inputs = [(each.name, _DTYPES.get(each.type, each.type), each.shape) for each in session.get_inputs()]
    outputs = {each.name: each.shape for each in session.get_outputs()}
    for each in (*session.get_inputs(), *session.get_outputs()):
        if each.type not in _DTYPES:
            raise _bad(source, "{!r} has elements of {}, which do not travel".format(each.name, each.type))
    n_bytes = len(content) + sum(map(len, contents.values()))
    return LoadedModel(source, session, inputs, outputs, n_bytes, session.get_providers()[0])


def _output_names(model: LoadedModel, params: Params) -> List[str]:
    names = list(params.get("outputs") or model.outputs)
    for name in names:
        if name not in model.outputs:
            raise RejectedError(
                "bad-parameter",
                "outputs: model {} has no {!r}; it has {}".format(
                    model.source.uri, name, ", ".join(model.outputs)
                ),
            )
    return names


# Inputs


def _rows(model: LoadedModel, arrays: List[Array], params: Params) -> _Rows:
    """The input of a model for a request."""
    if params.get("image_size") is not None:
        return _image_rows(model, arrays, params)
    names = params.get("inputs") or [name for name, _, _ in model.inputs]
    known = {name: (number, dtype) for number, (name, dtype, _) in enumerate(model.inputs)}
    if len(arrays) != len(model.inputs) or set(names) != set(known):
        raise RejectedError(
            "wrong-inputs",
            "model {} takes {}, found {} arrays{}".format(
                model.source.uri,
                ", ".join(known),
                len(arrays),
                " for " + ", ".join(names) if params.get("inputs") else "",
            ),
        )
    ordered: List[Array] = [None] * len(arrays)
    changes = []
    for name, array in zip(names, arrays):  # noqa: B905 -- Python 3.8
        number, dtype = known[name]
        if array.dtype.str != dtype:
            if not np.can_cast(array.dtype, dtype, "same_kind"):
                raise RejectedError(
                    "wrong-dtype",
                    "input {!r} of model {}: expected {}, found {}".format(
                        name, model.source.uri, dtype, array.dtype.str
                    ),
                )
            changes.append("input {}: {} to {}".format(number, array.dtype.str, dtype))
            array = array.astype(dtype)
        ordered[number] = np.ascontiguousarray(array).reshape(array.shape)
    return _Rows(ordered, converted="; ".join(changes))


def _image_rows(model: LoadedModel, arrays: List[Array], params: Params) -> _Rows:
    """Encoded images as rows of the one input of the model, float32 ``(n, 3, h, w)`` or ``(n, h, w, 3)``.

    Without a single good one the model is given one black image, so that the results have their shape.
    """
    if len(model.inputs) != 1 or model.inputs[0][1] not in ("<f4", "<f2", "<f8"):
        raise RejectedError(
            "wrong-inputs",
            "model {} takes {}; images need one input of floating-point numbers".format(
                model.source.uri, ", ".join("{} ({})".format(name, dtype) for name, dtype, _ in model.inputs)
            ),
        )
    height, width = params["image_size"]
    mean = np.asarray(params.get("image_mean", [0.0] * 3), np.float32)
    deviation = np.asarray(params.get("image_std", [1.0] * 3), np.float32)
    kept, rejected, images = [], [], []
    blob, lengths = arrays
    limit = params.get("max_pixels", pixels.MAX_PIXELS)
    for number, image in enumerate(pixels.decode_all(blob, lengths, limit)):
        if isinstance(image, RejectedError):
            rejected.append([number, image.code, image.message])
            continue
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
        images.append((np.asarray(resized, np.float32) / np.float32(255) - mean) / deviation)
        kept.append(number)
    rows = np.stack(images) if images else np.zeros((1, height, width, 3), np.float32)
    if params.get("image_layout", LAYOUTS[0]) == "NCHW":
        rows = rows.transpose(0, 3, 1, 2)
    array = np.ascontiguousarray(rows, dtype=model.inputs[0][1])
    return _Rows([array], kept, int(lengths.size), rejected)


# Runs


def _run(model: LoadedModel, arrays: List[Array], names: List[str]) -> List[Array]:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = _SILENT
    feed = {name: array for (name, _, _), array in zip(model.inputs, arrays)}  # noqa: B905 -- Python 3.8

    def end() -> None:
        options.terminate = True

    def run() -> List[Array]:
        found: List[Array] = model.session.run(names, feed, options)
        return found

    return _within_limits(model.source, "to run", end, run)


class _Alarm:
    """Calls a function when a time is over, in a thread that stays: most runs end before and wake nobody."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._end: Optional[Callable[[], None]] = None
        self._due_s = self._wakes_s = _NEVER

    def set(self, after_s: float, end: Callable[[], None]) -> None:
        """Call `end` after so many seconds, in place of what was set before."""
        with self._changed:
            self._end, self._due_s = end, time.monotonic() + after_s
            # In a forked process the thread is gone.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="model-time", daemon=True)
                self._thread.start()
            elif self._due_s < self._wakes_s:
                self._changed.notify()

    def clear(self) -> None:
        """Call nothing from now on."""
        with self._changed:
            self._end = None

    def _run(self) -> None:
        with self._changed:
            while True:
                left_s = _NEVER if self._end is None else self._due_s - time.monotonic()
                if self._end is not None and left_s <= 0.0:
                    end, self._end = self._end, None
                    end()
                    continue
                self._wakes_s = _NEVER if self._end is None else self._due_s
                self._changed.wait(None if self._end is None else left_s)


_alarm = _Alarm()


def _within_limits(
    source: ModelSource, purpose: str, end: Callable[[], None], compute: Callable[[], Found]
) -> Found:
    """Load or run a model within its limits, and put its errors into our words.

    Args:
        end: called in another thread when the time is over.
        compute: loads or runs it.
    """
    is_over = False

    def ring() -> None:
        nonlocal is_over
        is_over = True
        end()

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most_bytes = _least(_data_bytes() + source.max_bytes, before)
    _alarm.set(source.max_s, ring)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, before[1]))
        return compute()
    except AccelError:
        raise
    except MemoryError:
        raise _too_much(source, purpose) from None
    except Exception as error:
        text = str(error)
        if is_over:
            raise RejectedError(
                "model-time",
                "model {}: it did not end within {:g} s {}".format(source.uri, source.max_s, purpose),
                cure="send fewer rows in a call, or raise model_time_s of the server",
            ) from None
        if any(words in text for words in _NO_MEMORY):
            raise _too_much(source, purpose) from None
        if type(error).__module__.partition(".")[0] != "onnxruntime" and not isinstance(error, ValueError):
            raise
        raise _in_our_words(source, purpose, error) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        _alarm.clear()


def _in_our_words(source: ModelSource, purpose: str, error: Exception) -> RejectedError:
    text = _first_line(str(error))
    if purpose == "to load":
        return _bad(source, text)
    if type(error).__name__ == "InvalidArgument" or isinstance(error, ValueError):
        return RejectedError("wrong-shape", "model {}: {}".format(source.uri, text))
    return RejectedError("model-failed", "model {}: {}".format(source.uri, text))


def _bad(source: ModelSource, text: str) -> RejectedError:
    return RejectedError(
        "bad-model",
        "model {}: onnxruntime does not load it: {}".format(source.uri, text),
        cure="check it by onnx.checker.check_model; export it with an operator set that onnxruntime knows",
    )


def _too_much(source: ModelSource, purpose: str) -> RejectedError:
    return RejectedError(
        "model-memory",
        "model {}: it needs more than {} bytes {}".format(source.uri, source.max_bytes, purpose),
        cure="send fewer rows in a call, or raise model_memory_bytes of the server",
    )


def _first_line(text: str) -> str:
    text = text.strip().partition("\n")[0]
    return text[:_MAX_TEXT] if text else "it says no more"


def _data_bytes() -> int:
    """The bytes that count towards ``RLIMIT_DATA`` now: private memory that may be written to, the stack."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 -- read often
        return int(file.read().split()[5]) * _PAGE_BYTES


def _least(wanted: int, limits: Tuple[int, int]) -> int:
    return min([wanted, *(each for each in limits if each != resource.RLIM_INFINITY)])


# Results


def _outcome(model: LoadedModel, item: Item, rows: _Rows, names: List[str], results: List[Array]) -> Outcome:
    arrays, params, place = item
    info: Dict[str, Any] = {"outputs": names, "model": model.source.digest}
    if rows.kept is not None:
        results = [_with_rejected(result, rows) for result in results]
        info.update(n=rows.n_images, rejected=list(rows.rejected))
    if rows.converted:
        info["converted"] = rows.converted
    info["provider"] = model.provider
    info["computed_together"] = rows.n_together
    for name, result in zip(names, results):  # noqa: B905 -- Python 3.8
        if (
            not isinstance(result, np.ndarray)
            or result.dtype.str not in ITEM_BYTES
            or result.ndim > MAX_DIMENSIONS
        ):
            kind = result.dtype if isinstance(result, np.ndarray) else type(result).__name__
            raise _bad(model.source, "output {!r} is {}, which does not travel".format(name, kind))
    n_bytes = sum([result.nbytes for result in results])
    most_bytes = output_bytes(arrays, params)
    if n_bytes > most_bytes:
        raise RejectedError(
            "output-too-large",
            "model {}: {} bytes of results, {} are reserved".format(model.source.uri, n_bytes, most_bytes),
            cure="pass output_bytes={}".format(n_bytes),
        )
    found = {}
    for number, result in enumerate(results):
        name = "output_{}".format(number)
        found[name] = place(name, result.shape, result.dtype.str, "C")
        found[name][...] = result
    return Outcome(found, info)


def _with_rejected(result: Array, rows: _Rows) -> Array:
    """A result with a row of zeros for each image that has none."""
    assert rows.kept is not None
    n_given = max(1, len(rows.kept))
    if not result.ndim or len(result) != n_given:
        raise RejectedError(
            "wrong-shape",
            "{} rows for {} images: the model must take any number of images".format(
                result.shape[0] if result.ndim else 0, n_given
            ),
        )
    if len(rows.kept) == rows.n_images:
        return result
    found = np.zeros((rows.n_images, *result.shape[1:]), result.dtype)
    found[rows.kept] = result[: len(rows.kept)]
    return found
