"""Worker processes: who computes, where they run, and what happens when one is lost."""

from yarn_accel.pipeline.workers.jobs import (
    EXPIRED,
    Area,
    Job,
    JobDone,
    JobError,
    Lost,
    Measured,
    WorkerChange,
    WorkerDown,
    WorkerUp,
)
from yarn_accel.pipeline.workers.pool import WorkerPool

__all__ = [
    "EXPIRED",
    "Area",
    "Job",
    "JobDone",
    "JobError",
    "Lost",
    "Measured",
    "WorkerChange",
    "WorkerDown",
    "WorkerPool",
    "WorkerUp",
]
