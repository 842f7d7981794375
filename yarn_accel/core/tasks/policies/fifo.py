"""`fifo`: applications in the order of their starts; each task takes a GPU where one is free, else a core."""

from __future__ import annotations

from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.values import Key, OpenPlace, TaskChoice
from yarn_accel.core.tasks.values import Form


class FifoPolicy(QueueingPolicy):
    """First come, first served, within each priority."""

    name = "fifo"

    def keys(self, form: Form) -> tuple[Key, ...]:
        """The start of the application alone."""
        return (Key("earliest start", lambda app, place: app.start_s),)

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """The first application that can use anything here, on a GPU if it can."""
        resource = place.resource
        for level in self.state.levels:
            for app in level.in_order():
                if app.gpu_demand is not None and resource.fits(app.gpu_demand):
                    return TaskChoice(app, Form.GPU, "first in order, a GPU is free")
                if app.cpu_demand is not None and resource.fits(app.cpu_demand):
                    return TaskChoice(app, Form.CPU, "first in order, a core is free")
        return None
