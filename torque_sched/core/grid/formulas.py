"""How much longer a job runs when it is split over several clusters: T'(f, p) / T by name.

The grid paper's own formula (its equation 1) is lost in the text that is left. What is known: it depends on
the number of blocks f and on an overhead factor p, and p = 0.4 makes a job more than 70 % longer (section 4).
``power`` (1.741 at f = 4) and ``harmonic`` (1.733) say so; ``linear`` generalises what Ernemann et al. took,
``constant`` is theirs. Every formula must leave a whole job as it is (f = 1), cost nothing at p = 0, and
never fall in f or p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torque_sched.errors import ConfigError

SplitFormula = Callable[[int, float], float]
"""``(f, p) -> T'/T`` for f >= 1 blocks and the overhead factor p >= 0."""

_MOST_BLOCKS = 64
"""How far a new formula is tried, and how far factors are kept."""
_TRIED_P = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)


def _power(f: int, p: float) -> float:
    return float(f**p)


def _linear(f: int, p: float) -> float:
    return 1.0 + p * (f - 1)


def _harmonic(f: int, p: float) -> float:
    return 1.0 + p * sum(1.0 / k for k in range(1, f))


def _constant(f: int, p: float) -> float:
    return 1.0 + p if f > 1 else 1.0


SPLIT_FORMULAS: dict[str, SplitFormula] = {
    "power": _power,
    "linear": _linear,
    "harmonic": _harmonic,
    "constant": _constant,
}


@dataclass(frozen=True, slots=True)
class SplitCost:
    """What splitting costs, and when it is worth it.

    Attributes:
        formula: a name of `SPLIT_FORMULAS`.
        p: the overhead factor.
        max_blocks: the cap on f; a job that so many blocks cannot hold anywhere takes the fewest that can.
        min_gain: lambda of the gain rule: splitting must end the job earlier by lambda * (T' - T). 0 is the
            rule of Ernemann et al.: any earlier end counts.
    """

    formula: str = "power"
    p: float = 0.4
    max_blocks: int = 4
    min_gain: float = 1.0
    factors: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """T'/T by f; index 0 is not used."""

    def __post_init__(self) -> None:
        if self.formula not in SPLIT_FORMULAS:
            known = ", ".join(sorted(SPLIT_FORMULAS))
            raise ConfigError(f"no split formula {self.formula!r}", cure=f"known: {known}")
        for name, value, least in (("p", self.p, 0), ("lambda", self.min_gain, 0), ("f", self.max_blocks, 1)):
            if not least <= value < float("inf"):
                raise ConfigError(f"grid: {name} = {value}", cure=f"give a number of at least {least}")
        formula = SPLIT_FORMULAS[self.formula]
        factors = (1.0, *(formula(f, self.p) for f in range(1, _MOST_BLOCKS + 1)))
        object.__setattr__(self, "factors", factors)

    def length_s(self, whole_s: float, n_blocks: int) -> float:
        """T' of a job that runs ``whole_s`` in one block."""
        return whole_s * self.factors[n_blocks]

    def score_s(self, start_s: float, length_s: float) -> float:
        """What is compared: the end, plus lambda times the length; the smallest is run.

        The same as the gain rule: of two runs, the one with more blocks (and T' - T more length) has the
        smaller score just when it ends earlier by more than lambda * (T' - T). A tie is not worth a split.
        """
        return start_s + (1.0 + self.min_gain) * length_s
