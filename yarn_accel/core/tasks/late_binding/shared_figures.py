"""What nodes learned of jobs, put together: each agent says what it measured, and gets what all know.

A name is ``USER/JOB`` and the user is whom a credential names, so nobody's measurements are believed of
another one's jobs. Nodes count alike, however much each has measured: a median over them, so that one that
measures wrongly does not matter where others measure, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from yarn_accel.core.tasks.learning import SharedFigure
from yarn_accel.core.tasks.values import Form

#: Rows in one heartbeat, or in one answer.
MAX_FIGURES = 128
#: What nobody measured again for so long is forgotten.
MAX_FIGURES_AGE_S = 86_400.0
_MOST_ROWS = 10_000
_MOST_OF_USER = 256
_MOST_NODES = 64
_MAX_NAME = 400
_MAX_KIND = 128
_MAX_NUMBER = 1e18
_N_COLUMNS = 9
_FORMS = {form.value: form for form in Form}
_Key = tuple[str, Form, str]


@dataclass(slots=True)
class _Known:
    """One form of one name: what each node reported and when, those that reported last are the last."""

    by_node: dict[str, tuple[SharedFigure, float]] = field(default_factory=dict)
    sequence: int = 0


class ClusterFigures:
    """Of all nodes; those that changed last are the last, and are kept: so many in all and of one user."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._of_user: dict[str, dict[_Key, None]] = {}
        self.sequence = 0

    def report(self, node: str, rows: Iterable[SharedFigure], now_s: float) -> None:
        """Take in what a node measured, in place of what it said before of the same names.

        Args:
            now_s: of the master alone.
        """
        for row in rows:
            key = (row.name, row.form, row.accelerator)
            known = self._known.get(key) or _Known()
            before = known.by_node.pop(node, None)
            known.by_node[node] = (row, now_s)
            if before is not None and before[0] == row:
                continue
            self.sequence += 1
            known.sequence = self.sequence
            while len(known.by_node) > _MOST_NODES:
                del known.by_node[next(iter(known.by_node))]
            self._known.pop(key, None)
            self._known[key] = known
            mine = self._of_user.setdefault(_user(row.name), {})
            mine.pop(key, None)
            mine[key] = None
            self._forget(mine)

    def since(self, sequence: int, node: str, now_s: float) -> tuple[SharedFigure, ...]:
        """What other nodes measured that changed after `sequence`, what changed last first."""
        found: list[SharedFigure] = []
        for key in reversed(self._known):
            known = self._known[key]
            if known.sequence <= sequence or len(found) >= MAX_FIGURES:
                break
            if (row := _merged(known, node, now_s)) is not None:
                found.append(row)
        return tuple(found)

    def _forget(self, mine: dict[_Key, None]) -> None:
        """Keep to the limits: what changed longest ago goes."""
        while len(mine) > _MOST_OF_USER:
            key = next(iter(mine))
            del mine[key], self._known[key]
        while len(self._known) > _MOST_ROWS:
            key = next(iter(self._known))
            others = self._of_user[_user(key[0])]
            del self._known[key], others[key]
            if not others:
                del self._of_user[_user(key[0])]


def _merged(known: _Known, node: str, now_s: float) -> SharedFigure | None:
    """The nodes but this one together; None: none of them has measured in time."""
    said = [
        (row, said_s)
        for name, (row, said_s) in known.by_node.items()
        if name != node and now_s - said_s <= MAX_FIGURES_AGE_S
    ]
    if not said:
        return None
    rows = [row for row, _ in said]
    return replace(
        rows[0],
        split_bytes=median(row.split_bytes for row in rows),
        read_s=median(row.read_s for row in rows),
        compute_s=median(row.compute_s for row in rows),
        n_measured=sum(row.n_measured for row in rows),
        n_nodes=len(rows),
        age_s=now_s - max(said_s for _, said_s in said),
    )


def figures_document(rows: Iterable[SharedFigure]) -> list[list[Any]]:
    """Rows for a heartbeat or its answer."""
    return [
        [
            row.name,
            row.form.value,
            row.accelerator,
            row.split_bytes,
            round(row.read_s, 6),
            round(row.compute_s, 6),
            row.n_measured,
            row.n_nodes,
            round(row.age_s, 3),
        ]
        for row in list(rows)[:MAX_FIGURES]
    ]


def parse_figures(value: Any) -> tuple[SharedFigure, ...]:
    """What `figures_document` made; what is none of it, or would be no figure of a task, is left out."""
    rows = value[:MAX_FIGURES] if isinstance(value, list) else ()
    return tuple(row for each in rows if (row := _parsed(each)) is not None)


def _parsed(row: Any) -> SharedFigure | None:
    if not isinstance(row, list) or len(row) != _N_COLUMNS:
        return None
    name, form, accelerator = row[0], _FORMS.get(str(row[1])), row[2]
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or form is None:
        return None
    if not isinstance(accelerator, str) or len(accelerator) > _MAX_KIND or (accelerator and form is Form.CPU):
        return None
    numbers = row[3:]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        return None
    if not all(0 <= each <= _MAX_NUMBER for each in numbers):
        return None
    split_bytes, read_s, compute_s, n_measured, n_nodes, age_s = numbers
    if read_s + compute_s <= 0 or n_measured < 1 or n_nodes < 1 or (read_s and not split_bytes):
        return None
    return SharedFigure(
        name, form, accelerator, split_bytes, read_s, compute_s, int(n_measured), int(n_nodes), float(age_s)
    )


def _user(name: str) -> str:
    return name.partition("/")[0]
