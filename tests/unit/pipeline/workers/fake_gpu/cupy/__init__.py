"""As much of CuPy as a worker touches, without a GPU."""

import numpy as np

from cupy import cuda

__all__ = ["cuda", "get_default_memory_pool", "zeros"]
__version__ = "0.fake"

zeros = np.zeros


class _Pool:
    def free_all_blocks(self): ...

    def set_limit(self, size): ...

    def total_bytes(self):
        return 0


def get_default_memory_pool():
    return _Pool()
