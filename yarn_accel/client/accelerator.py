"""The object a mapper works with: calls to pipeline servers by the name of an operation, or by a method.

`yarn_accel.client.connect` makes one. How its calls reach a server is the business of `Dispatcher`; this
module gives calls their keys, counts them for Hadoop, says which record an error belongs to, and lends a
dispatcher to each use: a ``map`` within the loop of another, or in another thread, has its own connection.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from yarn_accel.client import operation_calls as calls_of
from yarn_accel.client.calls import Call, Outcome, Reference, Reply
from yarn_accel.client.dispatch import FALLBACK_DEVICE, Dispatcher, calls_in, not_a_call
from yarn_accel.client.operation_calls import (
    LU,
    QR,
    SVD,
    ChainResult,
    CholeskyFactor,
    Clusters,
    Determinant,
    EigenDecomposition,
    Factors,
    ImageFeatures,
    Inference,
    Inverse,
    MatrixProduct,
    Neighbours,
    PackedQR,
    ResidualCheck,
    SeparateLU,
    Solution,
)
from yarn_accel.client.reporter import CounterBatch, Reporter
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import (
    UNKNOWN_STORAGE,
    AccelError,
    LocalProtocolError,
    RejectedError,
    StartupError,
    StorageError,
)
from yarn_accel.wire import TensorSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

    from yarn_accel.client.submission import Submitter


class CallKeys:
    """Idempotency keys: the same for the same record in every attempt at a task, different for all others.

    A key is ``PREFIX/POSITION/OPERATION``. The prefix is the id of the task, which has its job's and differs
    from other tasks', and is the same in every attempt; a second accelerator of the same process adds its
    number. The position counts the calls of this accelerator, from 1, in the order in which they are made:
    a mapper that makes them in the order of its input makes the same ones again. If it does not, a server
    refuses the key as used for another request, and the call is sent once more under a key that nobody has.

    Args:
        prefix: of all keys.
    """

    def __init__(self, prefix: str) -> None:
        self._positions = itertools.count(1)
        self._made = "{}/".format(prefix)
        self._token = os.urandom(8).hex()

    def give(self, call: Call) -> None:
        """Give a call that has no key its own; the position of one that has one stays unused."""
        position = next(self._positions)
        if not call.key:
            # The caller keeps the object to recognize the outcome by; nobody else has seen it yet.
            object.__setattr__(call, "key", "{}{}/{}".format(self._made, position, call.operation))

    def other(self, call: Call, error: AccelError) -> Optional[Call]:
        """The call under a key of this object alone, if the error is that its key was used otherwise."""
        is_reused = isinstance(error, RejectedError) and error.code == "key-reused"
        if not is_reused or not call.key.startswith(self._made):
            return None
        key = "{}/{}".format(self._token, call.key)
        return Call(
            key, call.operation, call.params, call.inputs, call.output_uri, call.deadline_s, call.priority
        )


class Accelerator:
    """Calls to whichever pipeline server answers; use it as a context manager, from any thread.

    Made by `connect`. Every outcome is the same wherever it was computed; ``reply`` says where that was.

    >>> from yarn_accel.client import connect
    >>> with connect("inline") as accel:
    ...     found = accel.lu([[4.0, 3.0], [6.0, 3.0]])
    ...     found.lu.tolist(), found.piv.tolist()
    ([[6.0, 3.0], [0.6666666666666666, 1.0]], [1, 1])

    An input is an array (numpy's, any contiguous buffer, a list of numbers), which travels with the call, or
    a URI, which the server reads by itself; with ``output=URI`` it writes the results there, as one ``.npz``.
    Every method takes, besides what it names, the arguments of `Call.of` (``output``, ``key``,
    ``deadline_s``, ``priority``) and the parameters of the operation.

    A call without a key gets one that every attempt at this task gives the same record; see `CallKeys`.

    Raises (each method):
        RejectedError: this record is bad and stays so: ``code`` says why, ``place`` which one it is.
        StorageError: a URI could not be read or written.
        UnavailableError: no server answers, and there is no fallback.
        AuthenticationError, RemoteProtocolError: no server takes this credential, or this version.
        LocalProtocolError: it is closed, or belongs to another process: after a fork, connect in the child.

    Args:
        new_dispatcher: makes one more dispatcher to the same servers.
        keys: for calls without one.
        window, pack: see `map`.
        reporter: where counters and status go.
        counts_calls: every call is a record: ``records_in`` = ``done`` + ``rejected`` + ``failed`` (for
            reasons that are not the record's) + ``cancelled``.
        resources: closed at the end.

    Attributes:
        reporter: for a mapper's own counters and status; silent outside Hadoop Streaming.
    """

    def __init__(
        self,
        new_dispatcher: Callable[[], Dispatcher],
        keys: CallKeys,
        *,
        window: int,
        pack: Union[int, str],
        reporter: Reporter,
        counts_calls: bool,
        resources: contextlib.ExitStack,
    ) -> None:
        self.reporter = reporter
        self._new_dispatcher, self._keys = new_dispatcher, keys
        self._window, self._pack = window, pack
        self._counts_calls, self._resources = counts_calls, resources
        self._counters = CounterBatch(reporter)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: List[Dispatcher] = []
        self._reported: Dict[int, Mapping[str, int]] = {}
        #: By thread, the dispatchers of its open `map`s: what it allocates meanwhile goes where they send.
        self._mapping: Dict[int, List[Dispatcher]] = {}
        self._submitter: Optional[Submitter] = None
        self._is_closed = False

    def __enter__(self) -> Accelerator:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(cancel=kind is not None)

    def close(self, cancel: bool = False) -> None:
        """Close the connections, after the outcomes of all that was submitted; closing again does nothing.

        A ``map`` that is open elsewhere ends with an error at its next step.

        Args:
            cancel: do not wait: the futures of calls without an outcome are cancelled.
        """
        if self._pid != os.getpid():
            return  # What is open belongs to the parent.
        with self._lock:
            submitter, was_closed = self._submitter, self._is_closed
            self._is_closed = True
        if was_closed:
            return
        try:
            if submitter is not None:
                submitter.close(cancel)
            for dispatcher in self._free:
                self._report(dispatcher)
                dispatcher.close()
        finally:
            self.flush_counters()
            self._resources.close()

    def flush_counters(self) -> None:
        """Write the counters that wait to be written, as happens about once per second and at the end."""
        if self._pid == os.getpid():
            self._counters.flush()

    # Any operation

    def call(self, operation: Union[str, Call], /, *inputs: Any, **options: Any) -> Reply:
        """One call, start to end.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     reply = accel.call("gemm", [[1.0, 2.0]], [[3.0], [4.0]])
        ...     reply.arrays()["c"].tolist()
        [[11.0]]

        Args:
            operation: its name; or a `Call`, with nothing else.
            inputs: arrays, buffers, lists of numbers, URIs.
            options: the arguments of `Call.of`, and the operation's parameters.
        """
        call = _as_call(operation, inputs, options)
        dispatcher = self._take()
        try:
            self._prepare(call)
            outcome = self._settled(call, dispatcher.outcome(call))
        finally:
            self._give_back(dispatcher)
        if isinstance(outcome, AccelError):
            raise outcome
        return outcome

    def map(
        self,
        calls: Iterable[Call],
        window: Optional[int] = None,
        *,
        ordered: bool = False,
        pack: Union[int, str, None] = None,
    ) -> Generator[Tuple[Call, Outcome], None, None]:
        """Every call with its reply, or with the error that it ended with, as they finish.

        >>> from yarn_accel.client import Call, connect
        >>> matrices = {"good": [[4.0]], "bad": [[-1.0]]}
        >>> with connect("inline") as accel:
        ...     calls = (Call.of("cholesky", a, tag=name) for name, a in matrices.items())
        ...     for call, outcome in accel.map(calls, ordered=True):
        ...         print(call.tag, getattr(outcome, "code", "done"))
        good done
        bad not-positive-definite

        A lost server's calls go to another one, with their keys. Leaving the loop early cancels what is under
        way.

        Args:
            calls: taken one by one, when there is space for the next.
            window: calls under way at once.
            ordered: in the order of the calls, not in that of completion.
            pack: how many consecutive small calls of the same form (operation, params, shapes) may travel
                as one request, or "auto"; each still gets its own outcome.

        Raises:
            LocalProtocolError: `calls` are no calls, or window or pack no number from 1; or this object is
                closed.
            Exception: what `calls` themselves raise, or a signal handler, unchanged; the object stays usable.
        """
        window = self._window if window is None else window
        pack = self._pack if pack is None else pack
        dispatcher = self._take()
        mapping = self._mapping.setdefault(threading.get_ident(), [])
        mapping.append(dispatcher)
        try:
            outcomes: Any = dispatcher.map(self._prepared(calls), window, ordered=ordered, pack=pack)
            with contextlib.closing(outcomes):
                for call, outcome in outcomes:
                    self._report(dispatcher)
                    yield call, self._settled(call, outcome)
                    self._check_open()
        finally:
            mapping.remove(dispatcher)
            self._give_back(dispatcher)

    def submit(self, operation: Union[str, Call], /, *inputs: Any, **options: Any) -> Future[Reply]:
        """As `call`, but returns at once, with a future of the reply.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     futures = [accel.submit("gemm", [[2.0]], [[float(i)]]) for i in range(3)]
        ...     [future.result().arrays()["c"].item() for future in futures]
        [0.0, 2.0, 4.0]

        Thousands may be submitted at once: as many as ``window`` says are under way, the others wait here,
        with their inputs. Cancelling a future recalls its call from the server. `close` waits for all.
        """
        call = _as_call(operation, inputs, options)
        self._check_open()
        with self._lock:
            if self._submitter is None:
                from yarn_accel.client.submission import Submitter

                dispatcher = self._new()
                settle = functools.partial(self._settle_submitted, dispatcher)
                self._submitter = Submitter(dispatcher, self._window, self._pack, settle)
        self._prepare(call)
        future = self._submitter.submit(call)
        future.add_done_callback(self._note_cancelled)
        return future

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "f8", order: str = "C") -> Any:
        """An array of arbitrary content, as numpy's, in memory shared with a server of this node.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     a = accel.empty((2, 2))
        ...     a[...] = [[4.0, 3.0], [6.0, 3.0]]
        ...     accel.lu(a).piv.tolist()
        [1, 1]

        As the input of a call it is not copied, nor are parts of it: of two inputs make one array, and give
        its parts. It must stay unchanged until the call has its answer. Elsewhere (another thread, `submit`,
        another node, no server) it is an array like any other. It stays good for as long as it is held,
        whatever becomes of server and accelerator; after a fork both processes see the same memory.

        Raises:
            StartupError: numpy is not there.
            RejectedError: no array of that kind can travel.
        """
        self._check_open()
        try:
            import numpy as np
        except ImportError as error:
            raise StartupError("an array needs numpy", cure="pip install numpy") from error
        sides = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        spec = TensorSpec(np.dtype(dtype).newbyteorder("<").str, sides, order)
        mapping = self._mapping.get(threading.get_ident())
        if mapping:
            return mapping[-1].empty(spec).array()
        dispatcher = self._take()
        try:
            return dispatcher.empty(spec).array()
        finally:
            self._give_back(dispatcher)

    # Operations by name

    def lu(self, a: Any, **options: Any) -> LU:
        """PA = LU with partial pivoting, of a matrix ``(m, n)`` or a stack of them.

        ``form="separate"`` is `separate_lu`.
        """
        return self._run(calls_of.lu(a, options))

    def separate_lu(self, a: Any, **options: Any) -> SeparateLU:
        """As `lu`, with L and U as two matrices."""
        return self._run(calls_of.separate_lu(a, options))

    def qr(self, a: Any, **options: Any) -> QR:
        """A = QR in the economic form."""
        return self._run(calls_of.qr(a, options))

    def packed_qr(self, a: Any, **options: Any) -> PackedQR:
        """As `qr`, in LAPACK's packed form: Q as Householder's vectors."""
        return self._run(calls_of.packed_qr(a, options))

    def cholesky(self, a: Any, **options: Any) -> CholeskyFactor:
        """A = LL' of a symmetric positive definite matrix, or with ``triangle="lower"`` of its triangle."""
        return self._run(calls_of.cholesky(a, options))

    def solve(self, a: Any, b: Any, **options: Any) -> Solution:
        """x of Ax = b, the least-squares x for the factors of `qr`.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     accel.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).x.tolist()
        [1.0, 0.5]

        Args:
            a: the square matrix, or a stack: one request, no factors back. Or what `lu`, `qr` or `cholesky`
                returned, also with an ``output``.
            b: ``(m,)`` or ``(m, n_right)``.
            options: with the matrix, ``positive_definite`` among others; ``reply.info`` then has ``residual``
                and ``precision``.
        """
        return self._run(calls_of.solve(a, b, options))

    def lstsq(self, a: Any, b: Any, **options: Any) -> Solution:
        """The x that makes norm(b - Ax) least, for A ``(m, n)`` of rank n <= m, in one request."""
        return self._run(calls_of.lstsq(a, b, options))

    def inv(self, a: Any, **options: Any) -> Inverse:
        """The inverse of a square matrix; ``positive_definite`` is an option. To solve systems, `solve`."""
        return self._run(calls_of.inv(a, options))

    def slogdet(self, a: Any, **options: Any) -> Determinant:
        """Sign and logarithm of the determinant of a square matrix; ``positive_definite`` is an option."""
        return self._run(calls_of.slogdet(a, options))

    def svd(self, a: Any, **options: Any) -> SVD:
        """A = USV' in the economic form, or with ``vectors=False`` the singular values alone."""
        return self._run(calls_of.svd(a, options))

    def eigh(self, a: Any, **options: Any) -> EigenDecomposition:
        """A = VWV' of a symmetric or Hermitian matrix, or with ``vectors=False`` the eigenvalues alone.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     accel.eigh([[2.0, 0.0], [0.0, 1.0]]).w.tolist()
        [1.0, 2.0]
        """
        return self._run(calls_of.eigh(a, options))

    def gemm(self, a: Any, b: Any, **options: Any) -> MatrixProduct:
        """C = AB, each read transposed with ``transpose_a=True`` or ``transpose_b=True``."""
        return self._run(calls_of.gemm(a, b, options))

    def residual(self, a: Any, factors: Factors, **options: Any) -> ResidualCheck:
        """How exact factors, singular values or eigenvalues are, in LAPACK's own ratios."""
        return self._run(calls_of.residual(a, factors, options))

    def features(self, images: Union[str, Reference, Sequence[bytes]], **options: Any) -> ImageFeatures:
        """Texture and colour histograms of encoded images (JPEG, PNG); a bad image costs its own row only.

        Args:
            images: the bytes of each; or the URI of an ``.npz`` with all bytes and the length of each.
            options: ``bins``, ``hsv_bins``, ``root``, ``max_pixels`` among others.
        """
        return self._run(calls_of.features(images, options))

    def kmeans(self, points: Any, k: int, **options: Any) -> Clusters:
        """k clusters of points ``(n, d)``.

        Args:
            options: ``seed``, ``max_iterations``, ``tolerance``, ``restarts`` among others.
        """
        return self._run(calls_of.kmeans(points, k, options))

    def knn(self, points: Any, references: Any, labels: Any = None, **options: Any) -> Neighbours:
        """The nearest of reference points ``(m, d)`` for each point ``(n, d)``.

        >>> from yarn_accel.client import connect
        >>> with connect("inline") as accel:
        ...     accel.knn([[1.0]], [[9.0], [2.0], [0.5]], k=2).neighbours.tolist()
        [[2, 1]]

        Args:
            labels: whole numbers ``(m,)``: each point gets the most frequent one of its neighbours.
            options: ``k`` (5) among others.
        """
        return self._run(calls_of.knn(points, references, labels, options))

    def infer(self, model: Union[str, os.PathLike[str]], inputs: Any, **options: Any) -> Inference:
        """The outputs of an ONNX model, which the server reads by itself.

        Args:
            model: the URI, or the path on this machine, of an ``.onnx`` file.
            inputs: one array, a list of arrays in the order of the model's inputs, or a mapping by their
                names; with ``image_size`` encoded images, as for `features`.
            options: ``outputs``, ``batch``, ``image_size``, ``image_mean``, ``image_std``, ``output_bytes``
                among others.
        """
        return self._run(calls_of.infer(model, inputs, options))

    def chain(self, steps: Sequence[Any], *inputs: Any, **options: Any) -> ChainResult:
        """Several operations in one request; what lies between them does not travel, nor leave a GPU.

        >>> from yarn_accel.client import connect, step
        >>> with connect("inline") as accel:
        ...     steps = ["lu", step("solve", "lu", "piv", 1)]
        ...     accel.chain(steps, [[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).outputs["x"].tolist()
        [1.0, 0.5]

        Args:
            steps: what `step` makes, or names of operations.
            inputs: arrays and URIs, which steps name by their numbers.
            options: ``output_bytes`` among others.
        """
        return self._run(calls_of.chain(steps, inputs, options))

    def _run(self, prepared: calls_of.PreparedCall[calls_of.R]) -> calls_of.R:
        return prepared.result(self.call(prepared.call))

    # Around a call

    def _prepared(self, calls: Iterable[Call]) -> Iterator[Call]:
        for call in calls_in(calls):
            self._prepare(call)
            yield call

    def _prepare(self, call: Call) -> None:
        self._keys.give(call)
        if self._counts_calls:
            self._counters.add(records_in=1, sent=1)

    def _settled(self, call: Call, outcome: Outcome) -> Outcome:
        """The outcome as the caller gets it."""
        other = self._keys.other(call, outcome) if isinstance(outcome, AccelError) else None
        if other is not None:
            dispatcher = self._take()
            try:
                outcome = dispatcher.outcome(other)
            except AccelError as error:
                reraise_from_signal(error)
                outcome = error
            finally:
                self._give_back(dispatcher)
        self._settle(call, outcome)
        return outcome

    def _settle_submitted(self, dispatcher: Dispatcher, call: Call, outcome: Outcome) -> Optional[Call]:
        """As `_settled`, but the call to send again is given back."""
        self._report(dispatcher)
        other = self._keys.other(call, outcome) if isinstance(outcome, AccelError) else None
        if other is None:
            self._settle(call, outcome)
        return other

    def _note_cancelled(self, future: Future[Reply]) -> None:
        if future.cancelled() and self._counts_calls:
            self._counters.add(cancelled=1)

    def _settle(self, call: Call, outcome: Outcome) -> None:
        """Name the record, and count it."""
        if isinstance(outcome, AccelError):
            outcome.place = outcome.place or _place(call)
        if not self._counts_calls:
            return
        if isinstance(outcome, Reply):
            is_own = outcome.device == FALLBACK_DEVICE
            self._counters.add(done=1, bytes=outcome.bytes_in, cpu_fallback=int(is_own))
        elif is_bad_record(outcome):
            self._counters.add(rejected=1)
        else:
            self._counters.add(failed=1)

    # Dispatchers

    def _take(self) -> Dispatcher:
        self._check_open()
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._new()

    def _new(self) -> Dispatcher:
        dispatcher = self._new_dispatcher()
        self._reported[id(dispatcher)] = dict(dispatcher.counts)
        return dispatcher

    def _give_back(self, dispatcher: Dispatcher) -> None:
        if self._pid != os.getpid():
            return
        self._report(dispatcher)
        with self._lock:
            if not self._is_closed:
                self._free.append(dispatcher)
                return
        dispatcher.close()

    def _report(self, dispatcher: Dispatcher) -> None:
        reported = self._reported[id(dispatcher)]
        if dispatcher.counts != reported:
            more = {name: amount - reported[name] for name, amount in dispatcher.counts.items()}
            self._counters.add(**more)
            self._reported[id(dispatcher)] = dict(dispatcher.counts)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise LocalProtocolError(
                "this accelerator belongs to process {}, of which this one is a copy".format(self._pid),
                cure="connect() in each process, after the fork",
            )
        if self._is_closed:
            raise LocalProtocolError("this accelerator is closed")


def is_bad_record(error: BaseException) -> bool:
    """Whether `error` belongs to one record for good, so that trying the task again cannot help."""
    if isinstance(error, StorageError):
        return not error.transient and error.code != UNKNOWN_STORAGE
    return isinstance(error, RejectedError)


def _as_call(operation: Union[str, Call], inputs: Sequence[Any], options: Mapping[str, Any]) -> Call:
    if isinstance(operation, str):
        return Call.of(operation, *inputs, **options)
    if not isinstance(operation, Call):
        raise not_a_call(operation)
    if inputs or options:
        raise LocalProtocolError("a Call has its inputs and options already: give it alone")
    return operation


def _place(call: Call) -> str:
    uris = [item.uri for item in call.inputs if isinstance(item, Reference)]
    return "{} ({})".format(call.key, ", ".join(uris)) if uris else call.key
