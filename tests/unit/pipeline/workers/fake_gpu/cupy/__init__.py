"""As much of CuPy as a worker touches, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy import cuda

__all__ = ["cuda", "get_default_memory_pool", "zeros"]
__version__ = "0.fake"

zeros = np.zeros


class _Pool:
    def free_all_blocks(self) -> None: ...

    def set_limit(self, size: int) -> None: ...


def get_default_memory_pool() -> Any:
    return _Pool()
