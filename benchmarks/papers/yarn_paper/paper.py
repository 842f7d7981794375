"""What the paper did and measured (Li, Zhu, Liu, Qian: accelerators in YARN, sections 3.1 to 3.3), as data.

Its Figures 5 and 6 are pictures: of their curves only what the text says of them is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

N_NODES = 4
N_TASKS = 100
INTENSITIES = (1, 2, 4, 8)
PAYLOADS_MB = (1, 5, 10, 20, 50)
IMAGES = 50_000
#: Nodes with an accelerator, of four.
CLUSTERS: Mapping[str, int] = {"4-0": 0, "4-2": 2, "4-3": 3, "4-4": 4}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of Table 2: one task of intensity 1 on one node.

    Attributes:
        cpu_s, device_s: seconds on the CPU and on the GPU.
    """

    name: str
    cpu_s: float
    device_s: float

    @property
    def speedup(self) -> float:
        """Of one node with its GPU over the same without."""
        return self.cpu_s / self.device_s


KERNELS: Mapping[str, Kernel] = {
    "lu": Kernel("lu", 55.0, 6.2),
    "qr": Kernel("qr", 384.1, 23.2),
    "cholesky": Kernel("cholesky", 60.5, 7.6),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much smaller an operation's tasks are here than in the paper; the same for time and payload.

    Attributes:
        cpu_s: seconds that a task of intensity 1 takes here on a CPU.
    """

    kernel: Kernel
    cpu_s: float

    @property
    def factor(self) -> float:
        """Seconds here for a second of the paper, and bytes for a byte."""
        return self.cpu_s / self.kernel.cpu_s

    def seconds(self, intensity: int) -> tuple[float, float]:
        """Of one task here: on a CPU, on a device."""
        return self.cpu_s * intensity, self.kernel.device_s * self.factor * intensity

    def payload_bytes(self, payload_mb: int) -> int:
        """Bytes that travel here for so many megabytes of the paper."""
        return max(1, round(payload_mb * 1e6 * self.factor))

    def __str__(self) -> str:
        kernel, (cpu_s, device_s) = self.kernel, self.seconds(1)
        return (
            f"emulated {kernel.name}: factor {self.factor:.3g} = 1/{1 / self.factor:.0f} "
            f"(CPU {kernel.cpu_s:g} s -> {cpu_s * 1e3:.1f} ms, device {kernel.device_s:g} s -> "
            f"{device_s * 1e3:.1f} ms, 1 MB -> {self.payload_bytes(1) / 1e3:.1f} kB)"
        )


def expected_speedup(kernel: Kernel, n_accelerators: int, *, is_per_node: bool = True) -> float:
    """Over 4-0, were there nothing but kernels: every node has a quarter of the tasks.

    Args:
        kernel: which.
        n_accelerators: of the four nodes.
        is_per_node: a node's tasks stay together, as the paper binds them; else each goes where it is best.
    """
    share = -(-N_NODES // n_accelerators) if is_per_node else N_NODES / n_accelerators
    return kernel.speedup / share
