"""The emulation, in memory, as a cluster that scenarios can be played on."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.unit.torque.emulation.in_memory import QUEUES, Bench
from tests.unit.torque.emulation.transcript import FIRST_JOB, HOME, State
from torque_sched.emulation.call import Call
from torque_sched.emulation.core import VERSIONED
from torque_sched.emulation.install import gone_answer
from torque_sched.emulation.server import version_answer

_SERVER = {
    "keep_completed": "300",
    "query_other_jobs": "True",
    "scheduler_iteration": "600",
    "job_stat_rate": "45",
    "operators": "root@head",
}
_OLD = {"log_events": "511"}


class Played:
    """A fresh emulated cluster, set up as the recorded real ones were."""

    def __init__(self, version: str) -> None:
        self._bench = Bench(version=version, next_job=FIRST_JOB, queues=QUEUES, report_s=1.0)
        for name in ("submit_hosts", "allow_node_submit"):
            self._bench.world.server.pop(name, None)
        self._is_gone = False
        self._bench.world.assigned.clear()
        self._bench.world.server.update(_SERVER, **(_OLD if version.startswith("4") else {}))

    def run(self, user: str, argv: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        """Ask the verb in place; a submitted job runs as long as its script says."""
        world = self._bench.world
        home = str(HOME / (user if user != "root" else "alice"))
        environment = {
            "EMULATED_GROUP": "hpc", "EMULATED_HOME": home, "HOME": home, "USER": user, "LOGNAME": user,
            "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "SHELL": "/bin/bash",
        }  # fmt: skip
        verb = self._bench.verbs.get(argv[0])
        if self._is_gone and "--version" not in argv:
            code, text = gone_answer(argv[0], world.settings.server, is_old=world.settings.is_old)
            return code, "", text
        if verb is None:
            return 127, "", f"{argv[0]}: not emulated\n"
        is_version = argv[0] in VERSIONED and "--version" in argv
        call = Call(argv[0], argv[1:], home, environment, user, stdin.encode())
        answer = version_answer(world) if is_version else verb(world, call)
        world.do_granted()
        if argv[0] == "qsub" and re.match(r"\d", answer.out):
            self._let_run(answer.out.strip(), stdin)
        self._is_gone = argv[0] == "qterm" and answer.code == 0
        return answer.code, answer.out, answer.err

    def _let_run(self, name: str, script: str) -> None:
        slept = re.search(r"^ *sleep (\d+)", script, re.MULTILINE)
        ended = re.search(r"^ *exit (\d+)", script, re.MULTILINE)
        job = self._bench.world.jobs.get(name)
        for each in [job, *(self._bench.world.jobs[m] for m in job.members)] if job is not None else []:
            each.runtime_s = float(slept[1]) if slept else 0.0
            each.exit_with = int(ended[1]) if ended else 137 if "kill -9 $$" in script else 0

    def wait(self, seconds: float) -> None:
        """Move the clock."""
        self._bench.advance(seconds)

    def settle(self, look: Callable[[], State]) -> None:
        """A second passes between commands, as about it did when recording."""
        self._bench.advance(1.0)

    def events(self) -> list[int]:
        """What the server would have sent."""
        sent = list(self._bench.world.events)
        self._bench.world.events.clear()
        return sent
