from __future__ import annotations

from typing import Any

__all__ = ["Stream", "memory", "runtime"]

n_entered = 0


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

    class CUDARuntimeError(RuntimeError): ...

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
    def runtimeGetVersion() -> int:
        return 12000
