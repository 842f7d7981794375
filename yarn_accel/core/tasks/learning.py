"""What is believed of applications: declared by their owners, measured, and corrected by what happens.

Figures belong to the *name* of an application, so its next run starts with them. Of each form, and of each
kind of accelerator, the last measurements are kept. Compute seconds do not depend on who else reads: believed
is their median, so up to half of them may be wrong, and what an owner declares counts as the oldest of them.

Read seconds do. Believed is the median of the tasks that read alone, with a declaration as the oldest, and no
more than the median of those that did not: others can only make a task read longer. Where nothing is declared
and none was alone, it is the lower quartile of the others. Dividing by the stretch that equation (3) predicts
would be wrong: that stretch follows from the figure itself, and an error of the equation would grow with each
task. So a declaration that is too short stands until a task reads alone.

At most `MAX_NAMES` names are kept, those that were measured last.

What others measured of a name, and this store did not, stands where a declaration would where there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from yarn_accel.core.late_binding_reports import SharedFigure
from yarn_accel.core.tasks.contention import Profile, profile_of
from yarn_accel.core.tasks.durations import DurationStore
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.values import AppSpec, Form, FormFigures
from yarn_accel.errors import ConfigError

#: Of applications; a name and its forms are some 500 bytes of a document.
MAX_NAMES = 1000
_WINDOW = 15
_MOST_CARRIED = 3
_SHORTEST_TASK_S = 1e-3
_MOST = 1e18
_VERSION = 1
_Kind = tuple[Form, str]
_KEYS = {"form", "accelerator", "split_bytes", "read_s", "compute_s", "n_measured"}


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of one form of an application, beside what happened.

    Attributes:
        n_measured: tasks that were measured, in this run and before.
        predicted_s: mean of the predictions of the tasks that ended; None without any.
        happened_s: mean of what the same tasks took.
        mean_error: mean of |happened / predicted - 1| over them.
    """

    name: str
    form: Form
    accelerator: str
    split_bytes: float
    read_s: float
    compute_s: float
    n_measured: int
    predicted_s: float | None
    happened_s: float | None
    mean_error: float | None


def _window() -> deque[float]:
    return deque(maxlen=_WINDOW)


@dataclass(slots=True)
class _Measured:
    """The last measurements of one form, oldest first: alone_s and shared_s are read seconds."""

    split_bytes: deque[float] = field(default_factory=_window)
    alone_s: deque[float] = field(default_factory=_window)
    shared_s: deque[float] = field(default_factory=_window)
    compute_s: deque[float] = field(default_factory=_window)
    n_measured: int = 0
    n_predicted: int = 0
    predicted_s: float = 0.0
    happened_s: float = 0.0
    errors: float = 0.0

    def split(self) -> float:
        """What a task reads, as measured."""
        return median(self.split_bytes)

    def believed(self, declared: FormFigures | None) -> FormFigures:
        """What is believed of the form, with what its owner said."""
        read_s = self._read_s(declared)
        compute = list(self.compute_s)
        if declared is not None and len(compute) < _WINDOW:
            compute.append(declared.compute_s)
        return FormFigures(read_s, max(median(compute), _SHORTEST_TASK_S - read_s))

    def _read_s(self, declared: FormFigures | None) -> float:
        alone, shared = list(self.alone_s), sorted(self.shared_s)
        if alone:
            if declared is not None and len(alone) < _WINDOW:
                alone.append(declared.read_s)
            read_s = median(alone)
        elif declared is None:
            return shared[len(shared) // 4]
        else:
            read_s = declared.read_s
        return min(read_s, median(shared)) if shared else read_s


class FigureStore:
    """The figures of all applications by name.

    Attributes:
        durations: how long tasks of DAGs take.
    """

    def __init__(self) -> None:
        self.durations = DurationStore()
        #: Name -> form and kind of accelerator -> measurements; names that were measured last are the last.
        self._measured: dict[str, dict[_Kind, _Measured]] = {}
        #: Names that were measured since this store was made.
        self._own: set[str] = set()
        #: Name -> form and kind of accelerator -> what others measured, and until when it is believed.
        self._others: dict[str, dict[_Kind, tuple[SharedFigure, float]]] = {}
        self._n_observed = 0
        #: How often anything that is believed has changed, and the number of the last change of a name.
        self.n_changes = 0
        self._changed_at: dict[str, int] = {}
        self._all_changed_at = 0

    @property
    def n_observed(self) -> int:
        """Measurements so far, durations too."""
        return self._n_observed + self.durations.n_observed

    def version(self, name: str) -> int:
        """Another number as soon as something else may be believed of a name."""
        return self._changed_at.get(name, self._all_changed_at)

    def profile(self, spec: AppSpec, form: Form, accelerator: str) -> Profile | None:
        """What is believed of a form on a kind of node; None if it was neither declared nor measured."""
        measured = self._of(spec.name, form, accelerator)
        declared = spec.declared.of(form, accelerator) if spec.declared else None
        others = self._of_others(spec.name, form, accelerator)
        if spec.declared is None and others is not None:
            declared = FormFigures(others.read_s, others.compute_s)
        figures = measured.believed(declared) if measured else declared
        if figures is None:
            return None
        if spec.declared is not None:
            return profile_of(figures, spec.declared.split_bytes)
        if measured is not None:
            return profile_of(figures, measured.split())
        assert others is not None
        return profile_of(figures, others.split_bytes)

    def alone_s(self, spec: AppSpec, form: Form, accelerator: str) -> float | None:
        """T_base, seconds of a task that nobody disturbs; None unless declared, or one was read alone."""
        profile, measured = self.profile(spec, form, accelerator), self._of(spec.name, form, accelerator)
        is_declared = spec.declared is not None and spec.declared.of(form, accelerator) is not None
        is_known = is_declared or (measured is not None and bool(measured.alone_s))
        if profile is None or (profile.read_s and not is_known):
            return None
        return profile.alone_s

    def observe(
        self,
        spec: AppSpec,
        form: Form,
        accelerator: str,
        measurement: TaskMeasurement,
        predicted_s: float | None,
    ) -> None:
        """Learn from a task that ended well.

        Args:
            spec: its application.
            form: the form it ran in.
            accelerator: the kind of the node's GPUs; of no account for the form cpu.
            measurement: what it took.
            predicted_s: seconds that were predicted when it was placed; None if nothing was known.
        """
        kinds = self._measured[spec.name] = self._measured.pop(spec.name, {})
        measured = kinds.setdefault(_kind(form, accelerator), _Measured())
        self._own.add(spec.name)
        self._n_observed += 1
        self._changed(spec.name)
        self._forget()
        read_s = measurement.read_s if measurement.read_bytes else 0.0
        (measured.alone_s if measurement.alone else measured.shared_s).append(read_s)
        measured.split_bytes.append(measurement.read_bytes)
        measured.compute_s.append(measurement.compute_s)
        measured.n_measured += 1
        if predicted_s is not None:
            happened_s = measurement.read_s + measurement.compute_s
            measured.n_predicted += 1
            measured.predicted_s += predicted_s
            measured.happened_s += happened_s
            measured.errors += abs(happened_s / predicted_s - 1.0)

    def believe_others(self, rows: Iterable[SharedFigure], until_s: float) -> frozenset[str]:
        """Take in what others measured, in place of what they said before; the names that this concerns.

        Args:
            until_s: when what is new now, age 0, is to be forgotten.
        """
        names = set()
        for row in rows:
            kinds = self._others[row.name] = self._others.pop(row.name, {})
            kinds[_kind(Form(row.form), row.accelerator)] = row, until_s - row.age_s
            names.add(row.name)
            self._changed(row.name)
        while len(self._others) > MAX_NAMES:
            del self._others[next(iter(self._others))]
        return frozenset(names)

    def forget_others(self, now_s: float) -> None:
        """Believe no more what others measured too long ago."""
        for name, kinds in list(self._others.items()):
            self._others[name] = {kind: each for kind, each in kinds.items() if each[1] > now_s}
            if len(self._others[name]) < len(kinds):
                self._changed(name)
            if not self._others[name]:
                del self._others[name]

    def of_others(self) -> tuple[SharedFigure, ...]:
        """What others measured, by name and form."""
        return tuple(row for _, kinds in sorted(self._others.items()) for row, _ in kinds.values())

    def measured_last(self, n_names: int) -> tuple[SharedFigure, ...]:
        """What was measured here of the names that were measured last, the last one first."""
        names = list(self._measured)[: -n_names - 1 : -1]
        return tuple(
            SharedFigure(
                each.name,
                each.form.value,
                each.accelerator,
                each.split_bytes,
                each.read_s,
                each.compute_s,
                each.n_measured,
            )
            for name in names
            for each in self._beliefs_of(name)
        )

    def beliefs(self, names: Collection[str] | None = None) -> tuple[Belief, ...]:
        """What was measured, by name and form: what is believed beside what happened.

        Args:
            names: of applications; default: all.
        """
        return tuple(
            belief
            for name in sorted(self._measured if names is None else self._measured.keys() & set(names))
            for belief in self._beliefs_of(name)
        )

    @property
    def measured_here(self) -> frozenset[str]:
        """The names that were measured since this store was made."""
        return frozenset(self._own)

    def _beliefs_of(self, name: str) -> Iterator[Belief]:
        kinds = self._measured[name]
        for form, accelerator in sorted(kinds, key=lambda kind: (kind[0].value, kind[1])):
            measured = kinds[form, accelerator]
            n = measured.n_predicted
            means = (
                (measured.predicted_s / n, measured.happened_s / n, measured.errors / n) if n else (None,) * 3
            )
            figures, split_bytes = measured.believed(None), measured.split()
            read_s, compute_s = figures.read_s, figures.compute_s
            yield Belief(name, form, accelerator, split_bytes, read_s, compute_s, measured.n_measured, *means)

    def to_document(self) -> dict[str, Any]:
        """What a file keeps: of every form the figures believed, and of how many tasks they are."""
        applications = {
            name: [
                {
                    "form": belief.form.value,
                    "accelerator": belief.accelerator,
                    "split_bytes": belief.split_bytes,
                    "read_s": belief.read_s,
                    "compute_s": belief.compute_s,
                    "n_measured": belief.n_measured,
                }
                for belief in self._beliefs_of(name)
            ]
            for name in self._measured
        }
        durations = self.durations.to_document()
        return {"version": _VERSION, "applications": applications, "durations": durations}

    @classmethod
    def from_document(cls, document: Any) -> FigureStore:
        """The store that a document describes, of our own or written by hand.

        Raises:
            ConfigError: names the application and the key that is missing, unknown or out of range.
        """
        store = cls()
        if not isinstance(document, Mapping) or document.get("version") != _VERSION:
            raise ConfigError(f"figures: expected a document of version {_VERSION}")
        applications = document.get("applications", {})
        if not isinstance(applications, Mapping):
            raise ConfigError("figures: applications: expected a name with a list of forms each")
        for name, entries in applications.items():
            if not isinstance(name, str) or not isinstance(entries, list):
                raise ConfigError(f"figures of {name!r}: expected a list of forms")
            for entry in entries:
                store._load(name, entry)
        store._forget()
        store.durations.take_over(document.get("durations", {}))
        return store

    def take_over(self, document: Any) -> None:
        """Believe a document, but for the names that were measured here: these are newer.

        Raises:
            ConfigError: as `from_document`; nothing was changed.
        """
        others = FigureStore.from_document(document)
        own = {name: kinds for name, kinds in self._measured.items() if name in self._own}
        self._measured = {name: kinds for name, kinds in others._measured.items() if name not in own} | own
        self.durations.take_over(document.get("durations", {}))
        self._all_changed()
        self._forget()

    def _changed(self, name: str) -> None:
        self.n_changes += 1
        self._changed_at[name] = self.n_changes
        if len(self._changed_at) > 2 * MAX_NAMES:
            self._all_changed()

    def _all_changed(self) -> None:
        self.n_changes += 1
        self._all_changed_at = self.n_changes
        self._changed_at.clear()

    def _forget(self) -> None:
        """Keep to the limit: the names that were measured longest ago go."""
        while len(self._measured) > MAX_NAMES:
            name = next(iter(self._measured))
            del self._measured[name]
            self._own.discard(name)
            self._changed(name)

    def _load(self, name: str, entry: Any) -> None:
        if not isinstance(entry, Mapping) or not entry.keys() <= _KEYS:
            raise ConfigError(
                f"figures of {name!r}: expected the keys {', '.join(sorted(_KEYS))}, found {entry!r}"
            )
        forms = {form.value: form for form in Form}
        form, accelerator = forms.get(str(entry.get("form"))), entry.get("accelerator", "")
        if form is None:
            raise ConfigError(f"figures of {name!r}, form: expected cpu or gpu, found {entry.get('form')!r}")
        if not isinstance(accelerator, str) or (accelerator and form is Form.CPU):
            raise ConfigError(
                f"figures of {name!r}, accelerator: expected a kind of GPU, found {accelerator!r}"
            )
        place = f"figures of {name!r}, {form.value}"
        split_bytes = _number(place, entry, "split_bytes")
        read_s, compute_s = _number(place, entry, "read_s"), _number(place, entry, "compute_s")
        n_measured = entry.get("n_measured", 1)
        if isinstance(n_measured, bool) or not isinstance(n_measured, int) or n_measured < 1:
            raise ConfigError(f"{place}, n_measured: expected a whole number from 1, found {n_measured!r}")
        if split_bytes == 0 < read_s:
            raise ConfigError(f"{place}, split_bytes: expected a number above 0, as read_s is, found 0")
        if read_s + compute_s <= 0:
            raise ConfigError(
                f"{place}: read_s and compute_s are both 0; a task takes time, give one of them"
            )
        kinds = self._measured.setdefault(name, {})
        if (form, accelerator) in kinds:
            raise ConfigError(f"{place}: given twice")
        # Several, so that the first measurement of a new run does not turn over what many runs agreed on.
        measured = _Measured(n_measured=n_measured)
        for _ in range(min(n_measured, _MOST_CARRIED)):
            measured.split_bytes.append(split_bytes)
            measured.alone_s.append(read_s)
            measured.compute_s.append(compute_s)
        kinds[form, accelerator] = measured

    def _of_others(self, name: str, form: Form, accelerator: str) -> SharedFigure | None:
        found = self._others.get(name, {}).get(_kind(form, accelerator))
        return found[0] if found is not None else None

    def _of(self, name: str, form: Form, accelerator: str) -> _Measured | None:
        return self._measured.get(name, {}).get(_kind(form, accelerator))


def _kind(form: Form, accelerator: str) -> _Kind:
    return form, accelerator if form is Form.GPU else ""


def _number(place: str, entry: Mapping[str, Any], key: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ConfigError(f"{place}, {key}: expected a number from 0 to {_MOST:g}, found {value!r}")
    return float(value)
