"""Tests here are coroutines: each runs in an event loop of its own, in bounded time."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 120))
    gc.collect()  # an unclosed socket would warn, and a warning is an error
    return True
