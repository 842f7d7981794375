"""The lines that the factorize mapper prints: one for each matrix, done or rejected.

::

    key  done      operation  dtype  shape  residual  read_s  queue_s  compute_s  write_s  total_s  bytes
    server  device  node  attempt key  rejected  code       message
    node  attempt

Standard library only, Python 3.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Union

STAGES = ("read", "queue", "compute", "write", "total")
DONE_FIELDS = (
    *("key", "status", "operation", "dtype", "shape", "residual"),
    *(stage + "_s" for stage in STAGES),
    *("bytes", "server", "device", "node", "attempt"),
)
NOT_CHECKED = "-"
REJECT_FIELDS = ("key", "status", "code", "message", "node", "attempt")


@dataclass(frozen=True)
class Done:
    """A matrix whose factors are on the store.

    ``residual`` is the largest LAPACK ratio (below 30 is good), None: not checked; ``seconds`` follow
    `STAGES`, ``n_bytes`` is the size of the matrix file.
    """

    key: str
    operation: str
    dtype: str
    shape: tuple[int, int]
    residual: Optional[float]
    seconds: tuple[float, ...]
    n_bytes: int
    server: str
    device: str
    node: str
    attempt: str

    @property
    def proven_residual(self) -> float:
        """The residual; infinite when it was not checked."""
        return math.inf if self.residual is None else self.residual


@dataclass(frozen=True)
class Reject:
    """A record that could not be done, with the reason."""

    key: str
    code: str
    message: str
    node: str
    attempt: str


Row = Union[Done, Reject]


def format_row(row: Row) -> str:
    """One line without its end; TABs and line ends inside a message become spaces."""
    if isinstance(row, Reject):
        fields = [row.key, "rejected", row.code, " ".join(row.message.split()), row.node, row.attempt]
    else:
        shape = "{}x{}".format(*row.shape)
        fields = [row.key, "done", row.operation, row.dtype, shape, _format_residual(row.residual)]
        fields += [f"{seconds:.4f}" for seconds in row.seconds]
        fields += [str(row.n_bytes), row.server, row.device, row.node, row.attempt]
    return "\t".join(fields)


def parse_row(line: str) -> Row:
    """The inverse of `format_row`, up to its rounding.

    Raises:
        ValueError: the line is not one of ours.
    """
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) == len(REJECT_FIELDS) and fields[1] == "rejected":
        key, _, code, message, node, attempt = fields
        return Reject(key, code, message, node, attempt)
    if len(fields) != len(DONE_FIELDS) or fields[1] != "done":
        raise ValueError(f"not a line of the factorize job: {line[:120]!r}")
    rows, columns = fields[4].split("x")
    return Done(
        key=fields[0],
        operation=fields[2],
        dtype=fields[3],
        shape=(int(rows), int(columns)),
        residual=_parse_residual(fields[5]),
        seconds=tuple(float(text) for text in fields[6:11]),
        n_bytes=int(fields[11]),
        server=fields[12],
        device=fields[13],
        node=fields[14],
        attempt=fields[15],
    )


def _format_residual(residual: Optional[float]) -> str:
    return NOT_CHECKED if residual is None else f"{residual:.4g}"


def _parse_residual(text: str) -> Optional[float]:
    if text == NOT_CHECKED:
        return None
    residual = float(text)
    return math.inf if math.isnan(residual) else residual
