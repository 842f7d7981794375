"""``server_priv/jobs``: the scripts of submitted jobs, one ``JOB.SC`` each, as real servers keep them."""

from __future__ import annotations

import os
from pathlib import Path

from torque_sched.emulation.world import World


class ScriptFiles:
    """The script files of one server; those of jobs it has forgotten go.

    Args:
        folder: made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = {path.name.removesuffix(".SC") for path in folder.glob("*.SC")}

    def keep(self, world: World, job_id: str) -> None:
        """Write the script of a job that was just submitted; readable for its owner alone."""
        job = world.jobs.get(job_id)
        if job is None:
            return
        # Plain system calls: this stands between a qsub and its answer.
        temporary = f"{self._place}/.{job_id}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, job.script.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)
        os.rename(temporary, f"{self._place}/{job_id}.SC")  # noqa: PTH104 -- see above
        self._kept.add(job_id)

    def tidy(self, world: World) -> None:
        """Remove those of jobs that are gone."""
        for job_id in [each for each in self._kept if each not in world.jobs]:
            (self._folder / f"{job_id}.SC").unlink(missing_ok=True)
            self._kept.discard(job_id)
