"""What a run of DAGs amounts to, simulated or live, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.core.dags.slowdown import slowdown_at_end, unfairness


@dataclass(frozen=True, slots=True)
class DagTaskOutcome:
    """A task that ran to its end: seconds, and why it ran there."""

    dag: str
    task: str
    machine: str
    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class DagOutcome:
    """A DAG that ended."""

    arrival_s: float
    end_s: float
    own_makespan_s: float

    @property
    def makespan_s(self) -> float:
        """M_multi: from its arrival to its end."""
        return self.end_s - self.arrival_s

    @property
    def slowdown(self) -> float:
        """SD by equation (2)."""
        return slowdown_at_end(self.own_makespan_s, self.makespan_s)


@dataclass(frozen=True, slots=True)
class DagRunOutcome:
    """A whole run.

    Attributes:
        utilisation: share of the machines' time from the first arrival to the last end in which they worked
            on tasks that ended there; of a machine that joined later or left, of its time there.
        moved: how often a task went from the queue of one machine's worker to another's.
        interrupted: attempts that were lost with a machine.
        slowdowns: by DAG, from its arrival to its end: seconds, and SD by equation (3) at the decision then;
            in long runs at some of the decisions.
    """

    policy: str
    dags: Mapping[str, DagOutcome]
    tasks: tuple[DagTaskOutcome, ...]
    utilisation: float
    moved: int
    interrupted: int
    slowdowns: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return max(d.end_s for d in self.dags.values()) - min(d.arrival_s for d in self.dags.values())

    @property
    def unfairness(self) -> float:
        """Equation (1) over the slowdowns of equation (2)."""
        return unfairness([each.slowdown for each in self.dags.values()])

    def as_json(self) -> dict[str, Any]:
        """Fit for `json.dumps`; docs/mps.md describes it. Times are seconds."""
        return {
            "makespan": self.makespan_s,
            "unfairness": self.unfairness,
            "utilisation": self.utilisation,
            "moved": self.moved,
            "dags": {
                name: {
                    "arrival": each.arrival_s,
                    "end": each.end_s,
                    "makespan": each.makespan_s,
                    "own_makespan": each.own_makespan_s,
                    "sd": each.slowdown,
                }
                for name, each in self.dags.items()
            },
            "tasks": [
                {
                    "dag": each.dag,
                    "task": each.task,
                    "machine": each.machine,
                    "start": each.start_s,
                    "end": each.end_s,
                    "reason": each.reason,
                }
                for each in self.tasks
            ],
        }
