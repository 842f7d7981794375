"""`hadoop`: cores alone, in the order of applications' starts; what the paper's speed-ups are relative to."""

from __future__ import annotations

from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.values import Key, OpenPlace
from yarn_accel.core.tasks.records import AppRecord, PriorityLevel
from yarn_accel.core.tasks.values import Form


class HadoopPolicy(QueueingPolicy):
    """Hadoop without accelerators: first come, first served on cores."""

    name = "hadoop"
    uses_gpus = False

    def keys(self, form: Form) -> tuple[Key, ...]:
        """The start of the application alone."""
        return (Key("earliest start", lambda app, place: app.start_s),)

    def allowed(
        self, apps: list[AppRecord], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[AppRecord]:
        """All on cores, none on GPUs."""
        return apps if form is Form.CPU else []

    def withheld(self, app: AppRecord, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """That GPUs are not used."""
        return "Hadoop alone uses no GPU"
