"""What a site could give to a peer's user: its answer to an `Offer`, which binds nobody."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from torque_sched.core.handshake import Claim, Grant, Piece, SiteId, Token
from torque_sched.core.site import Admission, Denial
from torque_sched.site.books import NodeBooks, Shape
from torque_sched.site.messages import MOST_STEPS, Offer, Offered


def offered(
    books: NodeBooks, admission: Admission, grants: Sequence[Grant], peer: SiteId, asked: Offer, now_s: float
) -> Offered:
    """For each length from when on how many nodes this user could have, and why not as many as asked for.

    Args:
        books: of the last look.
        admission: the rules for peers.
        grants: what is kept for others already.
        peer: who asks.
        asked: what for.
        now_s: seconds since the epoch.
    """
    token, shape = Token(peer, asked.job, 1), Shape(asked.ppn, asked.gpus, asked.properties)
    most_steps = MOST_STEPS // len(asked.lengths_s)

    def denied(n: int, length_s: float) -> str:
        claim = Claim((Piece("", asked.ppn, asked.gpus, n),), now_s, length_s)
        allowed = admission.admit(peer, token, asked.user, claim, grants)
        return allowed.why if isinstance(allowed, Denial) else ""

    def outlook(length_s: float) -> tuple[tuple[float, int], ...]:
        counts = range(1, asked.nodes + 1)
        most = bisect.bisect_left(counts, True, key=lambda n: bool(denied(n, length_s)))
        return tuple(books.outlook(shape, length_s, now_s, most, (peer, asked.job))[:most_steps])

    why = denied(asked.nodes, asked.lengths_s[0])
    return Offered(outlooks=tuple(outlook(length_s) for length_s in asked.lengths_s), why=why[:500])
