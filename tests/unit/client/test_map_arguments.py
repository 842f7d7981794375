"""`map` says what it takes: no argument makes it yield nothing without an error."""

import asyncio
import io

import numpy as np
import pytest

from yarn_accel.client import Call, connect, connect_async
from yarn_accel.errors import LocalProtocolError


def _ended():
    calls = (Call.of("lu", [[1.0]]) for _ in range(2))
    list(calls)
    return calls


@pytest.mark.parametrize(
    "calls",
    [
        *("", "file:///a.npy", b"", None, {}, {"a": Call.of("lu", [[1.0]])}, 5, Call.of("lu", [[1.0]])),
        *([None], ["lu"], np.array([]), io.StringIO(), _ended()),
    ],
)
def test_map_says_what_it_takes_instead_of_yielding_nothing(calls):
    with connect("inline") as accel, pytest.raises(LocalProtocolError, match="map takes an iterable"):
        list(accel.map(calls))


def test_map_within_the_generator_of_its_own_calls_says_so():
    def calls():
        yield from accel.map(running)

    running = calls()
    with connect("inline") as accel, pytest.raises(LocalProtocolError, match="calls is running already"):
        list(accel.map(running))


@pytest.mark.parametrize("window", [0, -1, 1.5, True, "4"])
def test_a_window_that_is_no_number_from_1_is_named(window):
    call = Call.of("gemm", [[1.0]], [[1.0]])

    async def main():
        async with connect_async("inline") as accel:
            return [pair async for pair in accel.map([call], window=window)]

    with connect("inline") as accel, pytest.raises(LocalProtocolError, match="window is"):
        list(accel.map([call], window=window))
    with pytest.raises(LocalProtocolError, match="window is"):
        asyncio.run(main())


def test_no_calls_are_no_error():
    with connect("inline") as accel:
        assert list(accel.map([])) == list(accel.map(iter(()))) == []
