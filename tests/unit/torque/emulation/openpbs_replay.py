"""The session in which OpenPBS was captured, played again on the emulation, and its answers side by side.

Each step is a command of the session with what must have happened before it. What no two servers print alike
(times, process numbers, what a job used, the version) is masked in both.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torque_sched.emulation import EmulatedOpenPbs
from torque_sched.emulation.call import Answer, Call
from torque_sched.emulation.openpbs.server import OpenPbsServer

CAPTURES = Path(__file__).parents[3] / "golden" / "openpbs"
_BEGAN_S = 1795356748
"""When the first job was submitted: Sun Nov 22 14:12:28 2026 UTC."""
_NODES = """
node3 np=8 gpus=2 ncpus=2 physmem=32gb resources_available.mem=32gb \
resources_available.feature=gpunode,fast resources_available.big=True
node1 np=2 ncpus=2 physmem=8gb resources_available.mem=8gb resources_available.feature=slow
node2 np=4 ncpus=2 physmem=16gb resources_available.mem=16gb
"""
_QUEUES = {
    "workq": {},
    "gpuq": {
        "Priority": "50", "max_queued": "[u:PBS_GENERIC=100]", "resources_max.walltime": "24:00:00",
        "resources_default.walltime": "01:00:00",
        "max_run": "[o:PBS_ALL=10],[u:PBS_GENERIC=2],[u:alice=3]",
        "max_run_res.ncpus": "[u:PBS_GENERIC=8]",
    },
    "routeq": {"queue_type": "Route", "route_destinations": "workq"},
    "stopq": {"started": "False"},
}  # fmt: skip
_FIRST_JOBS = """
alice -N one -l select=1:ncpus=2:mem=1gb -l walltime=00:30:00 s.sh
alice -N plain s.sh
bob -N multi -l select=2:ncpus=1:mem=512mb+1:ncpus=2 -l place=scatter -l walltime=01:00:00 s.sh
bob -N packexcl -l select=2:ncpus=1 -l place=pack:excl s.sh
carol -N gpu -q gpuq -l select=1:ncpus=1:ngpus=1:mem=2gb s.sh
carol -N gpus2 -q gpuq -l select=1:ncpus=2:ngpus=2 s.sh
alice -N arr -J 0-5%2 -l select=1:ncpus=1 -l walltime=00:10:00 s.sh
alice -N arrstep -J 1-9:2 -l ncpus=1 s.sh
bob -N old -l nodes=2:ppn=2 -l mem=4gb s.sh
bob -N oldncpus -l ncpus=4 -l mem=4gb s.sh
bob -N held -h -l select=1:ncpus=1 s.sh
carol -N dep -W depend=afterok:0.head -l select=1:ncpus=1 s.sh
carol -N waiting -a 202612312359 -l select=1:ncpus=1 s.sh
carol -N nodespec -l select=1:ncpus=1:vnode=node2 s.sh
carol -N feat -l select=1:ncpus=1:feature=fast+1:ncpus=1:host=node1 -l place=free:shared s.sh
alice -N big -l select=1:ncpus=64 s.sh
alice -N stopped -q stopq s.sh
alice -N routed -q routeq -l select=1:ncpus=1:mpiprocs=2:ompthreads=2 -p 100 -A acct1 \
-l software=matlab -v 'A=b c,D=1' s.sh
alice -N exclhost -l select=1:ncpus=1 -l place=exclhost s.sh
alice -N group -l select=2:ncpus=1 -l place=scatter:group=feature s.sh
"""
"""As the captured Submit_arguments have them, without their ``-j oe``."""
_LATER_JOBS = {
    20: "-l select=2:ncpus=1 -l place=pack:excl", 21: "-l select=1:ncpus=1", 22: "-l select=3:ncpus=1",
    23: "-l select=1:ncpus=4:mem=4gb", 24: "-l select=1:ncpus=2:mem=1gb", 25: "-l select=2:ncpus=1",
    26: "-l select=1:ncpus=4", 27: "-N m3 -l select=3:ncpus=1", 28: "-l select=1:ncpus=1",
    29: "-l select=1:ncpus=1", 30: "-l select=1:ncpus=1", 31: "-l select=1:ncpus=1", 34: "-l ncpus=1",
    460: "-l select=1:ncpus=1", 495: "-N susp -l select=1:ncpus=2:ngpus=1",
}  # fmt: skip
_MASKS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d \d{4}", "TIME"),
        (r"at (Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z][a-z] \d\d at \d\d:\d\d", "at TIME"),
        (r"(queue_rank|session_id|timestamp|last_\w+_time)(\"?)( = |:|=)\"?\d+\"?", r"\1\2\3N"),
        (r"23\.06\.06(-emulated)?", "VERSION"),
        (
            r"(\"(?:cput|mem|vmem|walltime)\"):\"[\d:]+(kb)?\"(?=,?\n\s+(\"ncpus|\"vmem|\"walltime|\}))",
            r"\1:USED",
        ),
        (r"resources_used\.\w+ = .*", "USED"),
        (r" +last_used_time = .*\n", ""),
        (r",\n +\"last_used_time\":N", ""),
    )
)


def masked(text: str) -> str:
    """Without what differs from server to server."""
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer beside the captured one, both masked."""

    name: str
    real: str
    mine: str

    @property
    def is_equal(self) -> bool:
        """Whether they are the same."""
        return self.real == self.mine


class Session:
    """The emulated cluster of the session, its clock in our hand.

    Args:
        directory: an empty folder.
    """

    def __init__(self, directory: Path) -> None:
        server = {
            "scheduling": "False", "operators": "sched@head", "managers": "root@head,root@*",
        }  # fmt: skip
        settings = {"admins": ("root",), "queues": _QUEUES, "server": server, "report_s": 30.0}
        cluster = EmulatedOpenPbs.create(directory, nodes=_NODES, clock="manual", **settings)
        self._clock = cluster.home / "clock"
        self.now_s = float(_BEGAN_S - 60)
        self._set_clock()
        self.server = OpenPbsServer(cluster.home)
        self._cwd = directory / "cwd"
        self._cwd.mkdir()
        (self._cwd / "s.sh").write_text("sleep 600\n", encoding="utf-8")

    def _set_clock(self) -> None:
        self._clock.write_text(f"{self.now_s:.6f}\n", encoding="ascii")

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self._set_clock()
        self.server.tick()

    def run(self, line: str, user: str = "root") -> Answer:
        """One command line as that user."""
        words = shlex.split(line)
        if words[0] == "timeout":
            del words[:2]
        call = Call(words[0], tuple(words[1:]), str(self._cwd), {"EMULATED_USER": user, "TZ": "UTC"}, user)
        answer = self.server.perform(call)
        self.server.finish()
        self.pass_s(0.01)
        return answer

    def submit(self, line: str, user: str) -> None:
        """``qsub -j oe LINE``; every job of the session was submitted so."""
        answer = self.run(f"qsub -j oe {line}", user)
        assert answer.code == 0, answer.err

    def submit_as(self, number: int, line: str, user: str = "bob") -> None:
        """A job of that number, as there were others in between."""
        self.server.world.next_job = number
        self.submit(f"{line} s.sh", user)

    def clear(self) -> None:
        """Delete what is left."""
        for job in [
            each for each in self.server.world.jobs.values() if not each.parent and each.state != "F"
        ]:
            self.run(f"qdel {job.id}")


def looks(session: Session, names: dict[str, str]) -> Iterator[Compared]:
    """Captured outputs of commands at one moment: file -> command (``user: command``)."""
    for name, line in names.items():
        user, sign, command = line.rpartition(": ")
        answer = session.run(command, user if sign else "root")
        real = (CAPTURES / name).read_text(encoding="utf-8")
        yield Compared(name, masked(real), masked(answer.out))


def orders() -> dict[str, dict[str, str]]:
    """The captured orders by name."""
    text = (CAPTURES / "orders.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["name"]: {key: value or "" for key, value in row.items()} for row in rows}


def order(session: Session, row: dict[str, str]) -> Compared:
    """One captured order: exit code, output and errors."""
    match = re.fullmatch(r"(?:\(as user (\w+)\) )?(.*)", row["command"])
    assert match is not None
    line = match[2].replace("-H  17", "-H '' 17")
    answer = session.run(line, match[1] or "root")
    limit = re.match(r"timeout (\d+)", line)
    hangs = limit is not None and answer.delay_s > float(limit[1])
    code = 124 if hangs else answer.code
    texts = [each.rstrip("\n").replace("\n", "\\n").replace("\t", "\\t") for each in (answer.out, answer.err)]
    real = f"exit {row['exit']}\n{row['stdout']}\n{row['stderr']}"
    return Compared(row["name"], masked(real), masked(f"exit {code}\n{texts[0]}\n{texts[1]}"))


def play(session: Session) -> Iterator[Compared]:
    """The whole session in its order."""
    rows = orders()

    def do(*names: str) -> Iterator[Compared]:
        for name in names:
            yield order(session, rows[name])

    yield from looks(session, {
        "qstat-version.txt": "qstat --version", "qmgr-print-server.txt": "qmgr -c 'print server'",
        "pbsnodes-unknown-node.txt": "pbsnodes -F json nosuch",
        "idle-pbsnodes-av-json.txt": "pbsnodes -av -F json", "idle-pbsnodes-av.txt": "pbsnodes -av",
        "idle-pbsnodes-avS.txt": "pbsnodes -avS", "idle-pbsnodes-av-dsv.txt": "pbsnodes -av -F dsv",
        "idle-pbsnodes-l.txt": "pbsnodes -l", "idle-qstat-f-json.txt": "qstat -f -F json",
        "idle-qstat-Qf-json.txt": "qstat -Qf -F json", "idle-qstat-Bf-json.txt": "qstat -Bf -F json",
    })  # fmt: skip
    yield from do("pbsnodes-x", "qstat-f-t-x-torque-form")
    session.pass_s(_BEGAN_S - session.now_s)
    for line in _FIRST_JOBS.strip().splitlines():
        user, _, rest = line.partition(" ")
        session.submit(rest, user)
    yield from looks(session, {
        "queued-qstat-f-json.txt": "qstat -f -F json", "queued-qstat-f-t-json.txt": "qstat -f -t -F json",
        "queued-qstat-f.txt": "qstat -f",
    })  # fmt: skip
    session.pass_s(30)
    yield from do(
        "qrun-plain-no-scheduler", "qrun-one", "qrun-multi", "qrun-gpu", "qrun-subjob", "qrun-nodeonly",
        "qrun-as-user",
    )  # fmt: skip
    session.pass_s(24)
    yield from looks(session, {
        "running-qstat-f-t-json.txt": "qstat -f -t -F json", "running-qstat-f-json.txt": "qstat -f -F json",
        "running-pbsnodes-av-json.txt": "pbsnodes -av -F json", "running-pbsnodes-av.txt": "pbsnodes -av",
        "running-pbsnodes-aSj.txt": "pbsnodes -aSj", "running-qstat-Qf-json.txt": "qstat -Qf -F json",
        "running-qstat-Bf-json.txt": "qstat -Bf -F json",
    })  # fmt: skip
    session.pass_s(50)
    yield from do(
        "err-qrun-over-ncpus", "err-qrun-over-mem", "err-qrun-over-gpus", "err-qrun-array-limit",
        "err-qrun-array-limit3", "err-qrun-array-parent", "err-qrun-array-range", "err-qrun-already-running",
        "err-qrun-array-already", "err-qrun-unknown-job", "err-qrun-bad-id", "err-qrun-unknown-node",
        "err-qrun-unknown-resource", "err-qrun-bad-spec", "err-qrun-held", "err-qrun-dep",
        "err-qrun-waiting", "err-qrun-stopped-queue", "err-qrun-excl", "err-qrun-exclhost",
        "err-qrun-wrong-vnode", "err-qrun-no-args", "err-qrun-empty-H",
    )  # fmt: skip
    session.pass_s(3)
    yield from looks(session, {
        "oversub-pbsnodes-av-json.txt": "pbsnodes -av -F json", "oversub-pbsnodes-aSj.txt": "pbsnodes -aSj",
    })  # fmt: skip
    session.pass_s(35)
    session.clear()
    yield from looks(session, {
        "history-qstat-xt.txt": "qstat -x -t", "history-qstat-x-f-json.txt": "qstat -x -f -F json",
    })  # fmt: skip
    yield from _chunks(session, do)
    yield from _nodes_out_of_use(session, do)
    yield from _the_rest(session, do)


Do = Callable[..., Iterator[Compared]]


def _chunks(session: Session, do: Do) -> Iterator[Compared]:
    for name, number in (
        ("chunks-2-as-2", 20), ("excl-occupied-qrun", 21), ("chunks-3-as-3", 22), ("less-than-asked", 23),
        ("no-parenthesis", 24), ("bare-two", 25), ("chunks-1-as-2", 26),
    ):  # fmt: skip
        session.submit_as(number, _LATER_JOBS[number])
        if name == "chunks-3-as-3":
            session.run("qdel 20.head")
        yield from do(name)
    session.clear()
    session.submit_as(27, _LATER_JOBS[27])
    yield from do("chunks-3-as-1")
    session.pass_s(2)
    yield from looks(session, {"chunks-3-as-1-qstat.txt": "qstat -f -F json 27.head"})
    for name in ("chunks-3-joined", "chunks-3-as-2"):
        yield from do(name)
        session.pass_s(2)
    session.clear()


def _nodes_out_of_use(session: Session, do: Do) -> Iterator[Compared]:
    yield from do("offline-set")
    yield from looks(session, {
        "offline-pbsnodes-av-json.txt": "pbsnodes -av -F json", "offline-pbsnodes-l.txt": "pbsnodes -l",
    })  # fmt: skip
    session.submit_as(28, _LATER_JOBS[28])
    yield from do("err-qrun-offline", "offline-clear", "qmgr-node-offline-op")
    session.run("pbsnodes -r -C '' node2")
    yield from do("qmgr-sched-set-op", "qmgr-set-as-user")
    session.clear()
    session.run("emulated node node1 mom=stopped")
    yield from looks(session, {"down-node-pbsnodes-av-json.txt": "pbsnodes -av -F json"})
    session.submit_as(29, _LATER_JOBS[29])
    yield from do("err-qrun-down", "err-qrun-down-a", "qmgr-server-scheduling-op")
    session.run("emulated node node1 mom=hanging")
    for number, name in ((30, "err-qrun-hung"), (31, "err-qrun-hung-a")):
        session.submit_as(number, _LATER_JOBS[number])
        yield from do(name)
    session.run("emulated node node1 mom=up")
    session.clear()


def _the_rest(session: Session, do: Do) -> Iterator[Compared]:
    session.submit_as(34, _LATER_JOBS[34])
    yield from do("qalter-comment-op", "qhold-s-op", "qhold-o-op", "qalter-comment-user")
    session.run("qmgr -c 'create hook notify'")
    session.run("""qmgr -c 'set hook notify event = "queuejob,postqueuejob"'""")
    (session._cwd / "hook.py").write_text("raise ValueError\n", encoding="utf-8")
    session.run("qmgr -c 'import hook notify application/x-python default hook.py'")
    yield from do("hook-exception-qsub")
    session.run("qmgr -c 'delete hook notify'")
    session.clear()
    session.submit_as(460, _LATER_JOBS[460])
    yield from do("sched2-cross-partition")
    session.clear()
    for number in (492, 493):
        session.submit_as(number, "-l select=1:ncpus=1")
        session.run(f"qrun -a -H '(node3:ncpus=1)' {number}")
    session.submit_as(495, _LATER_JOBS[495])
    session.run("qrun -a -H '(node3:ncpus=2:ngpus=1)' 495")
    yield from do("qsig-suspend-op")
    yield from looks(session, {"suspended-qstat-f-json.txt": "qstat -f -F json 495.head"})
    yield from do("qrun-resume-suspended", "qsig-resume-op")
    session.clear()
    session.submit_as(494, "-N exit3 -v EMULATED_RUNTIME=1,EMULATED_EXIT=3")
    session.run("qrun -a -H '(node3:ncpus=1)' 494")
    session.pass_s(2)
    yield from do("qstat-f-finished", "err-qsub-resource", "err-qsub-too-much-walltime", "err-qsub-both")
    session.submit_as(1016, r"-N nan2 '-vA=back\slash,B=5.,C=new" + "\nline,D=x=y,E=a@@@b,F=p|q'")
    yield from looks(session, {"text-odd-values.txt": "qstat -f -w"})
    session.clear()
    session.submit_as(498, "-N fail -l select=3:ncpus=1")
    for _ in range(30):
        session.run("qrun -a -H '(node3:ncpus=3)' 498")
        session.pass_s(2.5)
    yield from looks(session, {"too-many-attempts-qstat-f-json.txt": "qstat -f -F json 498.head"})
