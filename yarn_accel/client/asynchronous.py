"""The same object for asyncio: coroutines over the futures of `Accelerator.submit`."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import (
    Any,
    AsyncIterable,
    AsyncIterator,
    Dict,
    Iterable,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from yarn_accel.client import operation_calls as calls_of
from yarn_accel.client.accelerator import Accelerator
from yarn_accel.client.calls import Call, Outcome, Reference, Reply
from yarn_accel.client.dispatch import calls_in, check_window, not_a_call
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
    ResidualCheck,
    Solution,
)
from yarn_accel.client.runners import connect
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import AccelError, LocalProtocolError


def connect_async(runner: str = "", **options: Any) -> AsyncAccelerator:
    """As `connect`, for ``async with``.

    >>> import asyncio
    >>> from yarn_accel.client import connect_async
    >>> async def main():
    ...     async with connect_async("inline") as accel:
    ...         products = (accel.gemm([[2.0]], [[float(i)]]) for i in range(3))
    ...         return [found.c.item() for found in await asyncio.gather(*products)]
    >>> asyncio.run(main())
    [0.0, 2.0, 4.0]
    """
    return AsyncAccelerator(functools.partial(connect, runner, **options))


class AsyncAccelerator:
    """`Accelerator` for one event loop; cancelling a task recalls its call from the server.

    Args:
        source: what to use, which stays open at the end; or what makes it, as `connect_async` says.
    """

    def __init__(self, source: Union[Accelerator, functools.partial[Accelerator]]) -> None:
        self._source = source
        self._accel: Optional[Accelerator] = source if isinstance(source, Accelerator) else None

    async def __aenter__(self) -> AsyncAccelerator:
        if not isinstance(self._source, Accelerator):
            self._accel = await asyncio.get_running_loop().run_in_executor(None, self._source)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(self._source, Accelerator):
            close = functools.partial(self.accelerator.close, cancel=kind is not None)
            await asyncio.get_running_loop().run_in_executor(None, close)

    @property
    def accelerator(self) -> Accelerator:
        """The one without coroutines."""
        if self._accel is None:
            raise LocalProtocolError("not connected yet", cure="async with connect_async(...) as accel:")
        return self._accel

    async def call(self, operation: Union[str, Call], /, *inputs: Any, **options: Any) -> Reply:
        """See `Accelerator.call`."""
        return await asyncio.wrap_future(self.accelerator.submit(operation, *inputs, **options))

    async def map(
        self,
        calls: Union[Iterable[Call], AsyncIterable[Call]],
        window: int = 64,
        *,
        ordered: bool = False,
    ) -> AsyncIterator[Tuple[Call, Outcome]]:
        """See `Accelerator.map`.

        Args:
            calls: taken one by one; an asynchronous one may wait for more.
            window: how many are submitted at once; as many as `connect` says are under way.
        """
        check_window(window)
        source = _iterate(calls)
        tasks: Dict[asyncio.Future[Any], Call] = {}
        following: Optional[asyncio.Future[Any]] = asyncio.ensure_future(_next(source))
        try:
            while tasks or following is not None:
                waiting = list(tasks)[: 1 if ordered else window]
                if following is not None and len(tasks) < window:
                    waiting.append(following)
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done]:
                    yield tasks.pop(task), task.result()
                if following is not None and following in done:
                    call, following = following.result(), None
                    if call is not None:
                        tasks[asyncio.ensure_future(self._outcome(call))] = call
                        following = asyncio.ensure_future(_next(source))
        finally:
            left = [*tasks, *([following] if following is not None else ())]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def lu(self, a: Any, **options: Any) -> LU:
        """See `Accelerator.lu`."""
        return await self._run(calls_of.lu(a, options))

    async def qr(self, a: Any, **options: Any) -> QR:
        """See `Accelerator.qr`."""
        return await self._run(calls_of.qr(a, options))

    async def cholesky(self, a: Any, **options: Any) -> CholeskyFactor:
        """See `Accelerator.cholesky`."""
        return await self._run(calls_of.cholesky(a, options))

    async def solve(self, a: Any, b: Any, **options: Any) -> Solution:
        """See `Accelerator.solve`."""
        return await self._run(calls_of.solve(a, b, options))

    async def lstsq(self, a: Any, b: Any, **options: Any) -> Solution:
        """See `Accelerator.lstsq`."""
        return await self._run(calls_of.lstsq(a, b, options))

    async def inv(self, a: Any, **options: Any) -> Inverse:
        """See `Accelerator.inv`."""
        return await self._run(calls_of.inv(a, options))

    async def slogdet(self, a: Any, **options: Any) -> Determinant:
        """See `Accelerator.slogdet`."""
        return await self._run(calls_of.slogdet(a, options))

    async def svd(self, a: Any, **options: Any) -> SVD:
        """See `Accelerator.svd`."""
        return await self._run(calls_of.svd(a, options))

    async def eigh(self, a: Any, **options: Any) -> EigenDecomposition:
        """See `Accelerator.eigh`."""
        return await self._run(calls_of.eigh(a, options))

    async def gemm(self, a: Any, b: Any, **options: Any) -> MatrixProduct:
        """See `Accelerator.gemm`."""
        return await self._run(calls_of.gemm(a, b, options))

    async def residual(self, a: Any, factors: Factors, **options: Any) -> ResidualCheck:
        """See `Accelerator.residual`."""
        return await self._run(calls_of.residual(a, factors, options))

    async def features(self, images: Union[str, Reference, Sequence[bytes]], **options: Any) -> ImageFeatures:
        """See `Accelerator.features`."""
        return await self._run(calls_of.features(images, options))

    async def kmeans(self, points: Any, k: int, **options: Any) -> Clusters:
        """See `Accelerator.kmeans`."""
        return await self._run(calls_of.kmeans(points, k, options))

    async def knn(self, points: Any, references: Any, labels: Any = None, **options: Any) -> Neighbours:
        """See `Accelerator.knn`."""
        return await self._run(calls_of.knn(points, references, labels, options))

    async def infer(self, model: Union[str, os.PathLike[str]], inputs: Any, **options: Any) -> Inference:
        """See `Accelerator.infer`."""
        return await self._run(calls_of.infer(model, inputs, options))

    async def chain(self, steps: Sequence[Any], *inputs: Any, **options: Any) -> ChainResult:
        """See `Accelerator.chain`."""
        return await self._run(calls_of.chain(steps, inputs, options))

    async def _run(self, prepared: calls_of.PreparedCall[calls_of.R]) -> calls_of.R:
        return prepared.result(await self.call(prepared.call))

    async def _outcome(self, call: Call) -> Outcome:
        try:
            return await self.call(call)
        except AccelError as error:
            reraise_from_signal(error)
            return error


async def _iterate(calls: Union[Iterable[Call], AsyncIterable[Call]]) -> AsyncIterator[Call]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            if not isinstance(call, Call):
                raise not_a_call(call)
            yield call
    else:
        for call in calls_in(calls):
            yield call


async def _next(source: AsyncIterator[Call]) -> Optional[Call]:
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return None
