from __future__ import annotations

import os
from typing import Any

__all__ = ["VISIBLE", "Stream", "memory", "runtime"]

n_entered = 0
#: As CUDA reads it: once, when it is loaded.
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")


class Stream:
    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Any:
        global n_entered
        n_entered += 1
        return self

    def __exit__(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


class memory:
    class OutOfMemoryError(MemoryError): ...


class runtime:
    OutOfMemoryError = memory.OutOfMemoryError
    PINNED: set[int] = set()  # noqa: RUF012

    class CUDARuntimeError(RuntimeError):
        status = 214  # cudaErrorECCUncorrectable

    @staticmethod
    def hostRegister(address: int, n_bytes: int, flags: int) -> None:
        runtime.PINNED.add(address)

    @staticmethod
    def hostUnregister(address: int) -> None:
        runtime.PINNED.remove(address)

    @staticmethod
    def getDeviceProperties(index: int) -> dict[str, Any]:
        return {"name": b"fake"}

    @staticmethod
    def memGetInfo() -> tuple[int, int]:
        return 1 << 34, 1 << 34

    @staticmethod
    def runtimeGetVersion() -> int:
        return 12000
