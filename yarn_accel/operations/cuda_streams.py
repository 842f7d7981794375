"""The way of a batch of requests through a GPU: neighbours of one shape together, three streams in turn.

Small requests of one shape are gathered in pinned memory, copied in at once and computed by one call. Large
ones go one by one: one is copied in and another copied out while a third is computed. Every stream that a
caller uses has three of its own, so the lanes of a worker, each on a stream, overlap in the same way.

Host memory that the GPU copies from is held until an event behind the copy has passed. Where the GPU's memory
is short, what is under way is finished, free blocks are given back and the group is tried once more, alone;
what others use of it is waited for.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import numpy as np

from yarn_accel.errors import AccelError, RejectedError, StartupError, UnavailableError
from yarn_accel.operations.dense import LETTERS
from yarn_accel.operations.gpu_errors import MemoryShortage, MemoryWait, asked_bytes, is_out_of_memory
from yarn_accel.operations.operation import SMALL_ORDER, Outcome, Params, Place, allocate

Array = Any
Item = Tuple[List[Array], Params, Place]
Land = Callable[[], List[Any]]
"""Waits for a group's computation, starts copying its results out, and returns what became of each item."""
_N_STREAMS = 3
_MAX_CALLERS = 64
_MEMORY_POLL_S = 0.05
_GROUP_BYTES = 256 << 20
_SHARE_OF_A_GROUP = 16
"""Inputs of one group: so many bytes at most, and no more than such a part of the memory that this worker may
take. Three lanes each have one, with results, work space and copies of the layout."""
_STAGED_BYTES = 1 << 16
"""Smaller arrays are gathered in pinned memory and copied at once: to launch a copy takes as long as this."""
_T = TypeVar("_T")
_held: Dict[int, List[Tuple[Any, Array]]] = {}
"""By stream: an event behind a copy, and the host memory that is copied from until then."""


@dataclass
class _Patience:
    wait: MemoryWait
    clock: Callable[[], float]
    sleep: Callable[[float], None]


_patience = _Patience(MemoryWait(), lambda: 0.0, lambda _: None)


class GpuMemoryError(UnavailableError):
    """The memory of the GPU is in use; later there may be enough."""

    code = "out-of-memory"


def cupy_module() -> Any:
    """CuPy.

    Raises:
        StartupError: it is not installed or finds no CUDA.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise StartupError(
            "CuPy cannot be imported: {}".format(error),
            cure="pip install 'cluster-accel[gpu]' on a CUDA machine",
        ) from error


def through_streams(items: Sequence[Item], launch: Callable[[List[Item]], Land]) -> List[Any]:
    """Launch a group, and land the one launched ``_N_STREAMS - 1`` groups before it.

    Args:
        items: the requests.
        launch: starts copying a group in and computing it. It and the `Land` it returns are called with the
            group's stream as CuPy's current one.

    Returns:
        An `Outcome` or an `AccelError` for each item, in their order, with all results in place.
    """
    streams = _streams(cupy_module().cuda.get_current_stream().ptr)
    flights: List[Tuple[Any, Land]] = []
    outcomes: List[Any] = []
    n_used = 0
    try:
        for i, group in enumerate(_groups(items, _most_group_bytes())):
            stream = streams[i % _N_STREAMS]
            n_used = i + 1
            land = _launched(stream, group, launch)
            if land is None:
                while flights:
                    outcomes += _land(*flights.pop(0))
                land = _launched_alone(stream, group, launch)
            flights.append((stream, land))
            if len(flights) == _N_STREAMS:
                outcomes += _land(*flights.pop(0))
        while flights:
            outcomes += _land(*flights.pop(0))
    finally:
        # After an error too: nothing may still be copied when the callers' memory is theirs again.
        for stream in streams[:n_used]:
            stream.synchronize()
            _held.pop(stream.ptr, None)
    return outcomes


def set_memory_wait(seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """How long computations of this process wait for memory that others use; at first: not at all."""
    _patience.wait = MemoryWait(seconds)
    _patience.clock, _patience.sleep = clock, sleep


def with_memory(work: Callable[[], _T], held_bytes: int = 0) -> _T:
    """The result of ``work``; where memory was short, after free blocks are given back and on another try.

    What is held up by others is waited for, with nothing held meanwhile: see `set_memory_wait`.

    Args:
        work: computes on the current stream, and may be begun again.
        held_bytes: what the request already has on the device; it does not wait then.

    Raises:
        RejectedError: ``too-large``: it can never have enough, with the figures.
        GpuMemoryError: there is not enough now, with the figures.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    pool = cupy_module().get_default_memory_pool()
    while True:
        # Only here, where no frame of the error holds memory any more.
        cupy_module().cuda.get_current_stream().synchronize()
        pool.free_all_blocks()
        own = _own_memory()
        try:
            with own:
                found = work()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            own_bytes = own.n_bytes if own.n_at_failure is None else own.n_at_failure
            shortage = _shortage(error, held_bytes + max(0, own_bytes))
        else:
            _patience.wait.end()
            return found
        if shortage.is_lasting:
            cure = "send a smaller problem, or to a CPU"
            raise RejectedError("too-large", "the computation {}".format(shortage), cure=cure)
        if held_bytes or not _waited(shortage):
            raise GpuMemoryError("others use the GPU's memory: the computation {}".format(shortage))


def _own_memory() -> Any:
    """A hook of CuPy's, entered by a thread: counts what this thread takes, and no other lane.

    What it had when it asked in vain is kept: as the error leaves, some of that is given back.
    """

    class OwnMemory(cupy_module().cuda.MemoryHook):  # type: ignore[misc]
        def __init__(self) -> None:
            self.name = "own memory {}".format(id(self))
            self.n_bytes = 0
            self.n_at_failure: Optional[int] = None

        def malloc_postprocess(self, **facts: Any) -> None:
            if facts["mem_ptr"]:
                self.n_bytes += facts["mem_size"]
            else:
                self.n_at_failure = self.n_bytes

        def free_postprocess(self, **facts: Any) -> None:
            self.n_bytes -= facts["mem_size"]

    return OwnMemory()


def _shortage(error: BaseException, own_bytes: int) -> MemoryShortage:
    cupy = cupy_module()
    pool = cupy.get_default_memory_pool()
    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    return MemoryShortage(
        own_bytes, asked_bytes(error), pool.get_limit(), free_bytes, total_bytes, pool.total_bytes()
    )


def _waited(shortage: MemoryShortage) -> bool:
    """Wait until there may be memory; False: it was waited for long enough."""
    cupy = cupy_module()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    while _patience.wait.may_go_on(_patience.clock()):
        _patience.sleep(_MEMORY_POLL_S)
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        if not shortage.asked or free_bytes + pool.free_bytes() >= shortage.needed:
            return True
    return False


class Residents:
    """Results that stay on the device because the next step of a chain takes them there.

    Each has memory on the host, too, by whose address it is known; nothing is in that until `fetch`.
    """

    def __init__(self) -> None:
        self._expected: Dict[int, Array] = {}
        self._on_device: Dict[int, Tuple[Array, Array]] = {}

    def place(self, name: str, shape: Tuple[int, ...], dtype: str, order: str) -> Array:
        """Memory for a result that is to stay on the device if it is of floating-point numbers."""
        host = allocate(name, shape, dtype, order)
        if host.dtype.kind in "fc" and host.size:
            self._expected[_address(host)] = host
        return host

    def keep(self, host: Array, on_device: Array) -> bool:
        """Keep a result for this host memory; False: it was not asked for, and is to be copied."""
        placed = self._expected.get(_address(host))
        if placed is None or placed.nbytes != host.nbytes:
            return False
        self._on_device[_address(host)] = placed, on_device
        return True

    def find(self, host: Array) -> Optional[Array]:
        """The result on the device, of the shape of that array; None: it lies on the host."""
        _, found = self._on_device.get(_address(host), (None, None))
        return found if found is not None and found.shape == host.shape else None

    def fetch(self, arrays: Sequence[Array]) -> None:
        """Copy to the host what of these is on the device alone."""
        for array in arrays:
            placed, found = self._on_device.pop(_address(array), (None, None))
            if placed is not None:
                is_writeable, placed.flags.writeable = placed.flags.writeable, True
                placed[...] = found.get()
                placed.flags.writeable = is_writeable


_chain = threading.local()


@contextlib.contextmanager
def residents() -> Iterator[Residents]:
    """Those of the chain that this thread computes, while it does."""
    _chain.residents = made = Residents()
    try:
        yield made
    finally:
        _chain.residents = None


def _residents() -> Optional[Residents]:
    found: Optional[Residents] = getattr(_chain, "residents", None)
    return found


def _address(host: Array) -> int:
    address: int = host.__array_interface__["data"][0]
    return address


def upload(arrays: Sequence[Array], n_axes: int) -> Array:
    """Equal arrays of ``n_axes`` axes, or equal stacks of such, as one stack on the device.

    Rows come first as on the host, but columns lie together in memory where they do there.
    """
    cupy = cupy_module()
    first = arrays[0]
    is_columns = first.ndim == n_axes == 2 and first.flags.f_contiguous
    hosts = [array.T if is_columns else array for array in arrays]
    on_device = cupy.empty((len(hosts), *hosts[0].shape), dtype=first.dtype)
    chain = _residents()
    found = chain.find(first) if chain is not None and len(hosts) == 1 else None
    if found is not None:
        on_device[0][...] = found.T if is_columns else found
    elif len(hosts) == 1 or first.nbytes > _STAGED_BYTES:
        for i, host in enumerate(hosts):
            _copy_in(on_device[i], np.ascontiguousarray(host))
    else:
        _copy_in(on_device, np.stack(hosts, out=_pinned(on_device)))
    stack = on_device.reshape(-1, *hosts[0].shape[-n_axes:])
    return stack.swapaxes(-1, -2) if is_columns else stack


def download(result: Array, target: Array) -> None:
    """Start copying a device stack ``(b, ...)`` to the host array of one request, on the current stream."""
    download_each(result, [target])


def download_each(result: Array, targets: Sequence[Optional[Array]]) -> Callable[[], None]:
    """Start copying the equal parts of a device stack ``(b, ...)`` to the host arrays of their requests.

    Args:
        result: on the device.
        targets: equal arrays, or None for a request that wants no part; at least one is there.

    Returns:
        What is to be called once the current stream was waited for.
    """
    cupy = cupy_module()
    hosts = {i: target for i, target in enumerate(targets) if target is not None}
    first = next(iter(hosts.values()))
    is_rows = first.flags.c_contiguous
    value = result if is_rows else result.swapaxes(-1, -2)
    if not is_rows:
        hosts = {i: host.T for i, host in hosts.items()}
    shape = (len(targets), *next(iter(hosts.values())).shape)
    contiguous = with_memory(
        lambda: cupy.ascontiguousarray(value.reshape(shape), dtype=first.dtype), result.nbytes
    )
    stream = cupy.cuda.get_current_stream()
    chain = _residents()
    if (
        chain is not None
        and len(targets) == 1
        and chain.keep(first, contiguous[0] if is_rows else contiguous[0].T)
    ):
        return lambda: None
    if len(targets) == 1 or first.nbytes > _STAGED_BYTES:
        for i, host in hosts.items():
            contiguous[i].get(stream=stream, out=host, blocking=False)
        return lambda: None
    staged = _pinned(contiguous)
    contiguous.get(stream=stream, out=staged, blocking=False)

    def hand_out() -> None:
        for i, host in hosts.items():
            host[...] = staged[i]

    return hand_out


def library(name: str, array: Array) -> Tuple[Any, int, str]:
    """CuPy's binding, this thread's handle (which follows the current stream), LAPACK's letter."""
    device = importlib.import_module("cupy.cuda.device")
    binding = importlib.import_module("cupy_backends.cuda.libs." + name)
    handle: int = getattr(device, "get_{}_handle".format(name))()
    return binding, handle, LETTERS[array.dtype.str]


@lru_cache(maxsize=4)
def kernels(text: str, dtype: str) -> Any:
    """Our own kernels of a text of `cuda_source`, for real numbers of that element type."""
    real = {"<f4": "float", "<f8": "double"}[dtype]
    return cupy_module().RawModule(code=text, options=("-DREAL=" + real,))


def addresses(stack: Array) -> Array:
    """Where on the device each item of a contiguous stack begins, itself on the device."""
    step = stack[0].nbytes
    start = stack.data.ptr
    return cupy_module().arange(start, start + step * len(stack), step, dtype=np.uintp)


def attempt(work: Callable[[], Any]) -> Any:
    """The outcome, or the error that says why there is none."""
    try:
        return work()
    except AccelError as error:
        return error


def only(outcomes: List[Any]) -> Outcome:
    """The outcome of the only request."""
    if isinstance(outcomes[0], AccelError):
        raise outcomes[0]
    outcome: Outcome = outcomes[0]
    return outcome


def _pinned(like: Array) -> Array:
    return importlib.import_module("cupyx").empty_pinned(like.shape, dtype=like.dtype)


def _copy_in(on_device: Array, host: Array) -> None:
    cupy = cupy_module()
    stream = cupy.cuda.get_current_stream()
    on_device.set(host, stream=stream)
    _hold(stream, host)


def _hold(stream: Any, host: Array) -> None:
    """Keep host memory until what was asked of the stream so far is done, and let go of what is."""
    still = [(event, memory) for event, memory in _held.get(stream.ptr, ()) if not event.done]
    event = cupy_module().cuda.Event(disable_timing=True)
    event.record(stream)
    _held[stream.ptr] = [*still, (event, host)]


def _launched(stream: Any, group: List[Item], launch: Callable[[List[Item]], Land]) -> Any:
    """The `Land` of a group; None: memory was short."""
    try:
        with stream:
            return launch(group)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _launched_alone(stream: Any, group: List[Item], launch: Callable[[List[Item]], Land]) -> Land:
    """The `Land` of a group for which memory was short; where it still is, that of each item by itself."""
    with stream:
        found = attempt(partial(with_memory, partial(launch, group)))
    if isinstance(found, AccelError):
        if len(group) == 1:
            return lambda: [found]
        return lambda: [_land(stream, _launched_alone(stream, [item], launch))[0] for item in group]
    land: Land = found
    return land


def _land(stream: Any, land: Land) -> List[Any]:
    with stream:
        return land()


@lru_cache(maxsize=_MAX_CALLERS)
def _streams(caller: int) -> Tuple[Any, ...]:
    return tuple(cupy_module().cuda.Stream(non_blocking=True) for _ in range(_N_STREAMS))


def _most_group_bytes() -> int:
    """Inputs of a group on this GPU."""
    cupy = cupy_module()
    limit = cupy.get_default_memory_pool().get_limit() or cupy.cuda.runtime.memGetInfo()[1]
    return min(_GROUP_BYTES, int(limit) // _SHARE_OF_A_GROUP)


def _groups(items: Sequence[Item], most_bytes: int) -> Iterator[List[Item]]:
    """Neighbours of one shape, element type, order and parameters together if they are small, else alone."""

    def key(numbered: Tuple[int, Item]) -> Tuple[Any, ...]:
        number, (arrays, params, _) = numbered
        is_small = all(max(array.shape[-2:]) <= SMALL_ORDER for array in arrays)
        looks = [(array.shape, array.dtype.str, array.flags.f_contiguous) for array in arrays]
        return (-1 if is_small else number, looks, sorted(params.items()))

    for _, neighbours in groupby(enumerate(items), key):
        group = [item for _, item in neighbours]
        n_items = max(1, most_bytes // max(1, sum(array.nbytes for array in group[0][0])))
        for start in range(0, len(group), n_items):
            yield group[start : start + n_items]
