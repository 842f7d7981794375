"""The decisions of a task service: which applications run, who has which attempt, what the journal says.

`TaskService` takes events and gives commands; `journal` is what its records look like on a disk.
"""

from yarn_accel.core.tasks.service.service import TaskService
from yarn_accel.core.tasks.service.settings import ServiceSettings, WorkerSize

__all__ = ["ServiceSettings", "TaskService", "WorkerSize"]
