"""The default predictor: a chain of kinds of jobs, short windows, and the weight of whoever was right.

The paper's own rule is asked, too, and answers instead wherever it was the better one lately: jobs that
change are better served by short windows, jobs that only scatter by the mean over all of them. So on no kind
of log is the chain much worse than that rule. This is the only contest of predictors.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass

from torque_sched.learn.predictors import Estimate, Fingerprint, Key, SeedPredictor, finite

#: In the order of `RecentValues.answers`.
RULES = ("last", "median of last 3", "moving average", "median of last 10")
_RECENT_VALUES = 10
_VALUE_DECAY = 0.9
_LEVEL_DECAY = 0.999
#: An error no smaller than this, or a rule that was exact twice would outvote everybody.
_FLOOR = 1e-3
_POWER = 4
#: The contest with the paper's rule: how fast old checks fade, for how many of its own the mean of all levels
#: counts at each level, and how many there must be at all.
_CONTEST_DECAY = 0.998
_CONTEST_DOUBT = 50.0
_CONTEST_LEAST = 50.0
#: Of the upper bound: misses kept, steps of its level, its growth beyond them, bounds of its level.
_KEPT = 400
_STEP = 0.01
_GROWTH = 2.0
_LEAST, _MOST = 0.3, 0.999


class RecentValues:
    """A short window over the values of one kind of job.

    Old runs pollute a mean over all of them; each rule here forgets within ten jobs, and which of
    them suits this kind of job shows in its error.
    """

    __slots__ = ("_answers", "_average", "_values", "errors", "n", "weight")

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT_VALUES)
        self._average = 0.0
        self._answers: tuple[float, float, float, float] | None = None
        self.n = 0
        self.errors = [0.0] * len(RULES)
        """Sums of absolute errors by rule, the older the less."""
        self.weight = 0.0
        """Of how many checks these are, the older the less."""

    def answers(self) -> tuple[float, float, float, float]:
        """What each of `RULES` expects next; there must be a value."""
        if self._answers is None:
            self._answers = self._answered()
        return self._answers

    def _answered(self) -> tuple[float, float, float, float]:
        values = self._values
        last = values[-1]
        recent = last
        if len(values) == 2:
            recent = (last + values[0]) / 2
        elif len(values) > 2:
            recent = sorted((last, values[-2], values[-3]))[1]
        ordered = sorted(values)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return last, recent, self._average, median

    def add(self, value: float) -> tuple[float, ...]:
        """Check the rules against a value, then take it in; returns their errors (none for the first)."""
        errors: tuple[float, ...] = ()
        if self.n:
            errors = tuple(abs(answer - value) for answer in self.answers())
            self.errors = [_VALUE_DECAY * old + new for old, new in zip(self.errors, errors, strict=True)]
            self.weight = _VALUE_DECAY * self.weight + 1
        self._average = (self._average + value) / 2 if self.n else value
        self._values.append(value)
        self._answers = None
        self.n += 1
        return errors


class UpperBound:
    """A quantile of recent misses whose level follows how often it was right (adaptive conformal prediction).

    Raw quantiles of past values covered between 0.84 and 1.00 of the outcomes of real logs instead of 0.90:
    what comes next differs from what was. So after each outcome above the bound the level rises, and falls a
    little after each below, such that both balance at `coverage`. Where even the largest recent miss is too
    little (a cluster whose use rises all morning), the bound grows beyond it in steps of the misses' range.

    Args:
        coverage: share of outcomes that should not exceed the bound, 0 to 1.
    """

    def __init__(self, coverage: float = 0.9) -> None:
        self._coverage = coverage
        self._level = coverage
        self._beyond = 0.0
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def bound(self, value: float, scale: float) -> float:
        """The bound above an expected `value` whose usual error is `scale`."""
        if not self._sorted:
            return value + scale
        place = min(int(self._level * len(self._sorted)), len(self._sorted) - 1)
        return value + (self._sorted[place] + self._beyond) * scale

    def observe(self, outcome: float, value: float, scale: float, bound: float) -> None:
        """Learn from an outcome of which `value` was expected and `bound` said."""
        miss = (outcome - value) / scale
        insort(self._sorted, miss)
        self._order.append(miss)
        if len(self._order) > _KEPT:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        is_covered = outcome <= bound
        step = _STEP * (self._coverage - (1.0 if is_covered else 0.0))
        if self._level >= _MOST and (self._beyond or step > 0):
            spread = self._sorted[-1] - self._sorted[0]
            self._beyond = max(0.0, self._beyond + _GROWTH * step * spread)
        else:
            self._level = min(_MOST, max(_LEAST, self._level + step))


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """How a chain learns.

    Attributes:
        coverage: share of jobs that should stay within `Estimate.upper`.
        doubt: checks as many of a rule's own as its level's mean error counts; large: a new kind of job is
            judged by how its level does elsewhere.
        max_kinds: kinds of jobs kept; the one not seen for longest goes first. Bounds the memory.
    """

    coverage: float = 0.9
    doubt: float = 20.0
    max_kinds: int = 200_000


class _Level:
    """How the rules do over all kinds of one level, the older the less."""

    __slots__ = ("errors", "weight")

    def __init__(self) -> None:
        self.errors = [0.0] * len(RULES)
        self.weight = 0.0

    def add(self, errors: tuple[float, ...]) -> None:
        self.errors = [_LEVEL_DECAY * old + new for old, new in zip(self.errors, errors, strict=True)]
        self.weight = _LEVEL_DECAY * self.weight + 1


class _Contest:
    """How the chain and the paper's rule did at one level, the older the less."""

    __slots__ = ("chain", "seed", "weight")

    def __init__(self) -> None:
        self.chain = self.seed = self.weight = 0.0

    def add(self, chain: float, seed: float) -> None:
        self.chain = _CONTEST_DECAY * self.chain + chain
        self.seed = _CONTEST_DECAY * self.seed + seed
        self.weight = _CONTEST_DECAY * self.weight + 1


class ChainPredictor:
    """Every kind of job in a fingerprint's chain answers by every rule; the weighted median of all is taken.

    An answer's weight falls with the fourth power of the error that rule had for that kind (drawn to its
    level's mean while there are few checks). So a user's own last runs decide where they repeat, what the
    script does for others where they do not, and no single wild answer moves the result.
    """

    def __init__(self, settings: ChainSettings | None = None) -> None:
        self._settings = settings or ChainSettings()
        self._windows: OrderedDict[Key, RecentValues] = OrderedDict()
        self._levels: dict[str, _Level] = {}
        self._upper = UpperBound(self._settings.coverage)
        self._seed = SeedPredictor(max_scripts=self._settings.max_kinds)
        self._contests: dict[str, _Contest] = {}
        self._contest = _Contest()

    def __len__(self) -> int:
        """Kinds of jobs known."""
        return len(self._windows)

    def predict(self, job: Fingerprint, fallback: float = 0.0) -> Estimate:
        """As `Predictor.predict`."""
        known = self._known(job)
        if not known:
            return Estimate(fallback)
        value, error = self._middle(known)
        key, window = known[0]
        if self._seed_is_better(key[0]):
            said = self._seed.predict(job)
            bound = self._upper.bound(said.value, error)
            return Estimate(said.value, bound, said.n_similar, said.evidence, error)
        return Estimate(value, self._upper.bound(value, error), window.n, key[0], error)

    def _known(self, job: Fingerprint) -> list[tuple[Key, RecentValues]]:
        """The kinds of its chain that were seen, the closest first."""
        return [(key, window) for key in job.chain() if (window := self._windows.get(key)) is not None]

    def _seed_is_better(self, level: str) -> bool:
        """Whether the paper's rule did better lately where this level is the closest known."""
        all_of = self._contest
        if all_of.weight < _CONTEST_LEAST:
            return False
        own = self._contests.get(level) or _Contest()
        doubt = _CONTEST_DOUBT / all_of.weight
        return own.seed + doubt * all_of.seed < own.chain + doubt * all_of.chain

    def _middle(self, known: list[tuple[Key, RecentValues]]) -> tuple[float, float]:
        """The weighted median of all answers, and the error to expect of it."""
        answers: list[tuple[float, float]] = []
        error = weights = 0.0
        doubt = self._settings.doubt
        for key, window in known:
            level = self._levels.get(key[0])
            for rule, answer in enumerate(window.answers()):
                typical = level.errors[rule] / level.weight if level is not None else 1.0
                expected = (window.errors[rule] + doubt * typical) / (window.weight + doubt) + _FLOOR
                weight = expected**-_POWER
                answers.append((answer, weight))
                error += weight * expected
                weights += weight
        answers.sort()
        half, middle = weights / 2, answers[-1][0]
        for answer, weight in answers:
            half -= weight
            if half <= 0:
                middle = answer
                break
        return middle, error / weights

    def observe(self, job: Fingerprint, value: float, predicted: Estimate | None = None) -> None:
        """As `Predictor.observe`."""
        finite(value)
        said = predicted if predicted is not None else self.predict(job)
        if said.upper is not None and said.error is not None:
            self._upper.observe(value, said.value, said.error, said.upper)
        self._hold_contest(job, value)
        for key in job.chain():
            window = self._windows.get(key)
            if window is None:
                window = self._windows[key] = RecentValues()
            else:
                self._windows.move_to_end(key)
            errors = window.add(value)
            if errors:
                level = self._levels.get(key[0])
                if level is None:
                    level = self._levels[key[0]] = _Level()
                level.add(errors)
        while len(self._windows) > self._settings.max_kinds:
            self._windows.popitem(last=False)

    def _hold_contest(self, job: Fingerprint, value: float) -> None:
        """Check both against a value, by what they would say now, then teach the paper's rule."""
        known = self._known(job)
        if known:
            chain = abs(self._middle(known)[0] - value)
            seed = abs(self._seed.predict(job).value - value)
            self._contest.add(chain, seed)
            self._contests.setdefault(known[0][0][0], _Contest()).add(chain, seed)
        self._seed.observe(job, value)
