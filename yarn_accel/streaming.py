"""Hadoop Streaming jobs from a Python program: submit one, wait, and get its counters and task attempts.

::

    from yarn_accel.streaming import HadoopSite, StreamingJob, run_streaming

    site = HadoopSite.load()
    job = StreamingJob("count", "cat", ["/in"], "/out", reducer="wc -l")
    print(run_streaming(site, job, print).check().counters)

`yarn-accel streaming` is the same from a shell, and adds what a mapper of pipeline servers needs; here a
program adds it by itself: `issue_job_credential`, `client_sources`, `BINDING_FILE`, `SLOT_RESOURCE`, and
`tracking_pages` of the application `APPLICATION_TYPE` for the environment variable ``ACCEL_MASTER``.
"""

from yarn_accel.adapters.credentials import issue_job_credential
from yarn_accel.client.task_servers import BINDING_FILE
from yarn_accel.hadoop.client_archive import client_sources, find_sources, write_archive
from yarn_accel.hadoop.running import APPLICATION_TYPE, tracking_pages
from yarn_accel.hadoop.site import SLOT_RESOURCE, HadoopSite, user_name
from yarn_accel.hadoop.streaming import (
    NLINE_INPUT_FORMAT,
    SEQUENCE_INPUT_FORMAT,
    SEQUENCE_OUTPUT_FORMAT,
    JobResult,
    StreamingJob,
    run_streaming,
)

__all__ = [
    "APPLICATION_TYPE",
    "BINDING_FILE",
    "NLINE_INPUT_FORMAT",
    "SEQUENCE_INPUT_FORMAT",
    "SEQUENCE_OUTPUT_FORMAT",
    "SLOT_RESOURCE",
    "HadoopSite",
    "JobResult",
    "StreamingJob",
    "client_sources",
    "find_sources",
    "issue_job_credential",
    "run_streaming",
    "tracking_pages",
    "user_name",
    "write_archive",
]
