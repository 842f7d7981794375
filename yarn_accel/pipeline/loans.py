"""Shared memory lent to one connection: which segments it has, and whose turn each is.

A lent segment never serves another connection, because the peer may keep its mapping.  It is with the client
after `Lent`, with the server from a request that names it until that request's answer, and with the client
again.  A segment the server lent unasked, for a result, is the client's until `GiveBack`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.pool import class_bytes

if TYPE_CHECKING:
    from yarn_accel.pipeline.pool import Pool, Segment

__all__ = ["Loan", "Loans"]


@dataclass(slots=True, eq=False)
class Loan:
    """A lent segment.

    Attributes:
        n_users: requests under way whose inputs or outputs lie in it.
        n_leaving: requests whose answer is leaving, perhaps from it.
        is_exclusive: one of them may write into it, so no other may name it.
        is_given_back: the client does not read it any more.
        is_known: the client has its descriptor.
    """

    segment: Segment
    n_users: int = 0
    n_leaving: int = 0
    is_exclusive: bool = False
    is_given_back: bool = False
    is_known: bool = False


class Loans:
    """The lent segments of one connection; safe to use from several threads.

    Args:
        pool: where they come from.
        bound_bytes: so many at most.
    """

    def __init__(self, pool: Pool, bound_bytes: int) -> None:
        self._pool = pool
        self._bound_bytes = bound_bytes
        self._lock = threading.Lock()
        self._loans: dict[int, Loan] = {}
        self._n_bytes = 0
        self._is_over = False

    def __len__(self) -> int:
        return len(self._loans)

    def lend(self, n_bytes: int, for_result: bool = False) -> Loan | None:
        """A segment of at least `n_bytes`; for a result it counts as in use.  None: not now."""
        with self._lock:
            loan = self._returned(n_bytes) or self._fresh(n_bytes)
            if loan is not None:
                loan.is_given_back = False
                if for_result:
                    loan.n_users += 1
                    loan.is_exclusive = True
            return loan

    def use(self, number: int, n_bytes: int, exclusive: bool) -> Loan:
        """Begin a request whose inputs lie in the first `n_bytes` of a segment.

        Raises:
            RejectedError: ``bad-placement``: no such segment, too short, or in use by another request.
        """
        with self._lock:
            loan = self._loans.get(number)
            if loan is None or loan.is_given_back:
                raise RejectedError("bad-placement", f"segment {number} is not lent to this connection")
            if n_bytes > loan.segment.n_bytes:
                raise RejectedError(
                    "bad-placement", f"segment {number} has {loan.segment.n_bytes} bytes, {n_bytes} are named"
                )
            if loan.is_exclusive or (exclusive and loan.n_users):
                raise RejectedError("bad-placement", f"segment {number} is used by another request")
            loan.n_users += 1
            loan.is_exclusive = exclusive
            return loan

    def answered(self, loan: Loan) -> None:
        """A request that uses it is about to be answered: its client may name it from now on.

        The server may read it until `left`.
        """
        with self._lock:
            loan.n_leaving += 1
            self._user_gone(loan)

    def left(self, loan: Loan) -> None:
        """The answer that `answered` announced has left."""
        with self._lock:
            loan.n_leaving -= 1
            self._drop_if_over(loan)

    def done(self, loan: Loan) -> None:
        """End what `use`, or `lend` for a result, began."""
        with self._lock:
            self._user_gone(loan)
            self._drop_if_over(loan)

    def give_back(self, number: int) -> None:
        """The client reads a segment no more; unknown numbers are ignored."""
        with self._lock:
            loan = self._loans.get(number)
            if loan is not None:
                loan.is_given_back = True

    def end(self) -> None:
        """The connection is over: destroy what is not in use now, the rest when its use ends."""
        with self._lock:
            self._is_over = True
            for loan in tuple(self._loans.values()):
                self._drop_if_over(loan)

    # With the lock

    def _user_gone(self, loan: Loan) -> None:
        loan.n_users -= 1
        if not loan.n_users:
            loan.is_exclusive = False

    def _returned(self, n_bytes: int) -> Loan | None:
        """A segment the client gave back, of about the right size."""
        for loan in self._loans.values():
            is_idle = not (loan.n_users or loan.n_leaving)
            if loan.is_given_back and is_idle and n_bytes <= loan.segment.n_bytes <= 4 * n_bytes:
                return loan
        return None

    def _fresh(self, n_bytes: int) -> Loan | None:
        if self._is_over:
            return None
        if self._n_bytes + class_bytes(n_bytes) > self._bound_bytes:
            return None
        segment = self._pool.lend(n_bytes)
        if segment is None:
            return None
        loan = Loan(segment)
        self._loans[segment.id] = loan
        self._n_bytes += segment.n_bytes
        return loan

    def _drop_if_over(self, loan: Loan) -> None:
        if not self._is_over or loan.n_users or loan.n_leaving:
            return
        del self._loans[loan.segment.id]
        self._n_bytes -= loan.segment.n_bytes
        self._pool.end_loan(loan.segment)
