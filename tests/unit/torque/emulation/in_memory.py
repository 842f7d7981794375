"""A world without a server process: the verbs are called in place, time moves when told."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from torque_sched.emulation.call import Answer, Call, Verb
from torque_sched.emulation.install import first_world, read_nodes
from torque_sched.emulation.lifecycle import fire
from torque_sched.emulation.mom import report
from torque_sched.emulation.server import verbs_of
from torque_sched.emulation.world import Settings, World

CAPTURES = Path(__file__).resolve().parents[3] / "golden" / "torque"
NODES = "node1 np=2 slow\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"
QUEUES = {
    "gpuq": {
        "Priority": "50",
        "resources_max.walltime": "02:00:00",
        "resources_default.nodes": "1",
        "max_user_run": "2",
    },
    "batch": {"resources_default.nodes": "1", "resources_default.walltime": "01:00:00"},
}
SUBMITTED_S = 1795195731.0
"""When the jobs of the captures were submitted."""


class Bench:
    """One emulated cluster in memory, as in the captures unless told otherwise."""

    def __init__(
        self, nodes: str = NODES, *, version: str = "6.1.3", next_job: int = 44, scheduling: str = "False",
        queues: dict[str, dict[str, str]] | None = None, **settings: object,
    ) -> None:  # fmt: skip
        chosen = Settings(version=version, clock="manual", home="/export/cluster0001/home", **settings)  # type: ignore[arg-type]
        self.world: World = first_world(chosen, SUBMITTED_S, queues or QUEUES, {"scheduling": scheduling})
        for node in read_nodes(nodes):
            self.world.add_node(node)
            report(self.world, node)
        self.world.next_job = next_job
        self.verbs: dict[str, Verb] = verbs_of(self.world)

    def ask(self, *words: str, user: str = "root", stdin: str = "") -> Answer:
        """Run one command."""
        home = f"/export/cluster0001/home/{user}"
        environment = {
            "EMULATED_GROUP": "hpc",
            "PATH": "/opt/torque/bin:/bin",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }
        answer = self.verbs[words[0]](
            self.world, Call(words[0], words[1:], home, environment, user, stdin.encode())
        )
        self.world.do_granted()
        return answer

    def good(self, *words: str, user: str = "root", stdin: str = "") -> str:
        """Run one command that must succeed; its output."""
        answer = self.ask(*words, user=user, stdin=stdin)
        assert (answer.code, answer.err) == (0, ""), answer
        return answer.out

    def submit(self, *arguments: str, user: str = "alice", script: str = "#PBS -j oe\nsleep 9\n") -> str:
        """qsub by an ordinary user; the id."""
        return self.good("qsub", *arguments, user=user, stdin=script).strip()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(self.world.now_s + seconds, fire)

    def state(self, job: str) -> str:
        """The letter."""
        return self.world.job(job).state


def running_bench(version: str = "6.1.3") -> Bench:
    """The situation of the captures `running-*`: jobs 44 to 52, 13 seconds after the start."""
    bench = Bench(version=version)
    bench.submit("-l", "nodes=1:ppn=2", "-N", "cpujob")
    bench.submit("-l", "nodes=1:ppn=2:gpus=1,walltime=00:30:00,mem=2gb,pmem=1gb", "-N", "gpujob", "-p", "10")
    bench.submit("-q", "gpuq", "-l", "nodes=2:ppn=2,walltime=00:20:00", "-N", "multinode", user="bob")
    bench.submit("-t", "0-3%2", "-N", "arr")
    bench.submit("-h", "-N", "userhold")
    bench.submit("-W", "depend=afterok:44.head", "-N", "depjob")
    bench.submit("-a", "12312359", "-N", "waitjob", user="bob")
    queued = ("-l", "nodes=1:ppn=8:big", "-N", "queued", "-A", "proj1", "-l", "software=ansys", "-m", "abe")
    long = "LONGVAR=" + "x" * 200
    bench.submit(*queued, "-M", "bob@head", "-v", f"FOO=bar,{long}", user="bob")
    bench.submit("-l", "procs=3,pvmem=100mb", "-N", "procsjob", user="bob")
    for hosts, job in (
        ("node3:ppn=2", "44"),
        ("node4:ppn=2:gpus=1", "45"),
        ("node2:ppn=2+node3:ppn=2", "46"),
    ):
        bench.good("qrun", "-H", hosts, job)
    bench.advance(1)
    bench.good("qrun", "-H", "node2", "47[0].head")
    bench.good("qrun", "-H", "node2", "47[1].head")
    bench.advance(12)
    return bench


def leaves_of(element: ElementTree.Element) -> list[tuple[str, str]]:
    """Name and text of all that an object has, in order; ``family.name`` of what has parts."""
    found = []
    for leaf in element:
        found += [(f"{leaf.tag}.{each.tag}", each.text or "") for each in leaf]
        if not len(leaf):
            found.append((leaf.tag, leaf.text or ""))
    return found


def capture(name: str) -> str:
    """The text of a captured file."""
    return (CAPTURES / name).read_text(encoding="utf-8")
