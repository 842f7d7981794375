"""The emulation in the situation of the captures prints what real servers printed, field by field and in
shape."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.unit.torque.emulation.in_memory import Bench, capture, leaves_of, running_bench
from torque_sched.emulation.show_job import fold

# What no emulation can know: session and rank numbers, exact memory, paths of that machine.
_FREE = {"session_id", "queue_rank", "submit_args", "Variable_List", "mtime", "Error_Path", "Output_Path"}


@pytest.fixture(scope="module")
def running() -> Bench:
    return running_bench()


def shape(text: str) -> list[str]:
    """A listing with what differs from run to run blanked out: ids of sessions, times on the clock."""
    text = re.sub(r"(?<= )\d{5}(?= )", "NNNNN", text)
    text = re.sub(r"\d\d:\d\d:\d\d(?= R batch|$)", "TT:TT:TT", text, flags=re.MULTILINE)
    return text.splitlines()


def test_every_captured_attribute_folds_as_captured() -> None:
    pattern = re.compile(r"^    ([\w.]+) = (.*(?:\n\t.*)*)", re.MULTILINE)
    seen = 0
    for name in ("running-qstat-f.txt", "running-qstat-f-t.txt", "v42-qstat-f-t.txt", "idle-qstat-B-f.txt"):
        for match in pattern.finditer(capture(name)):
            assert fold(match[1], match[2].replace("\n\t", "")) == match[0]
            seen += 1
    assert seen > 500


def blocks(text: str) -> dict[str, list[str]]:
    """Head line -> attribute names in order."""
    return {head: list(each) for head, each in values(text).items()}


def unused(names: list[str]) -> list[str]:
    """Names of what does not depend on when a mom last spoke."""
    return [name for name in names if not name.startswith("resources_used")]


def values(text: str) -> dict[str, dict[str, str]]:
    """Head line -> attribute -> value."""
    found = {}
    for block in re.split(r"\n\n", text.replace("\n\t", "")):
        head, *lines = block.strip("\n").split("\n")
        if head:
            found[head] = dict(line.strip().split(" = ", 1) for line in lines)
    return found


@pytest.mark.parametrize("options", ["-f -t", "-f", "-f -1"])
def test_qstat_f(running: Bench, options: str) -> None:
    mine = running.good("qstat", *options.split())
    real = capture(f"running-qstat-{options.removeprefix('-').replace(' ', '')}.txt")
    assert blocks(mine).keys() == blocks(real).keys()
    for head, names in blocks(real).items():
        assert unused(blocks(mine)[head]) == unused(names), head
        for name, value in values(real)[head].items():
            if name not in _FREE and not name.startswith("resources_used"):
                assert values(mine)[head][name] == value, (head, name)


def flat(text: str) -> dict[str, list[tuple[str, str]]]:
    """Job id -> (path, text) of all leaves in order."""
    found = map(leaves_of, ElementTree.fromstring(text))
    return {each[0][1]: [pair for pair in each if not pair[0].startswith("resources_used")] for each in found}


@pytest.mark.parametrize("name", ["f-x", "f-t-x"])
def test_qstat_xml(running: Bench, name: str) -> None:
    text = running.good("qstat", *[f"-{letter}" for letter in name.split("-")])
    assert text.startswith('<?xml version="1.0"?>\n<Data><Job><Job_Id>')
    assert text.count("\n") == 2
    mine, real = flat(text), flat(capture(f"running-qstat-{name}.txt"))
    assert list(mine) == list(real)
    for job, leaves in real.items():
        assert [tag for tag, _ in mine[job]] == [tag for tag, _ in leaves], job


@pytest.mark.parametrize("options", ["", "-t", "-n", "-n -1", "-a", "-G", "-r", "-i", "-e"])
def test_qstat_tables(running: Bench, options: str) -> None:
    name = "running-qstat" + options.replace(" ", "") + ".txt"
    real = capture(name)
    mine = running.good("qstat", *options.split())
    assert [without_use(line) for line in shape(mine)] == [without_use(line) for line in shape(real)]


def without_use(line: str) -> str:
    """The column `Time Use` depends on when a mom last spoke."""
    return re.sub(r"(TT:TT:TT|00:00:00|       0)(?= [A-Z] \w+ *$)", "USE", line)


@pytest.mark.parametrize(
    ("name", "words"), [("running-qstat-Q-f-1", "qstat -Q -f -1"), ("running-qstat-Q-f-x", "qstat -Q -f -x")]
)
def test_queues_and_selections_are_the_same_text(running: Bench, name: str, words: str) -> None:
    real = re.sub(r"mtime = \d+", "mtime = T", capture(f"{name}.txt"))
    assert re.sub(r"mtime = \d+", "mtime = T", running.good(*words.split())) == real


@pytest.mark.parametrize("name", ["Q", "q", "B"])
def test_idle_tables_are_the_same_text(name: str) -> None:
    assert Bench().good("qstat", f"-{name}") == capture(f"idle-qstat-{name}.txt")


def test_idle_server(running: Bench) -> None:
    assert Bench().good("qstat", "-B", "-f") == of_server("idle-qstat-B-f", "9 1 0")
    # Job 53 was submitted and gone before that capture.
    real = of_server("running-qstat-B-f-x", "17 2 1").replace("next_job_number = 54", "next_job_number = 53")
    assert running.good("qstat", "-B", "-f", "-x") == real


def of_server(name: str, counter: str) -> str:
    """A capture as a server prints it that is emulated and new."""
    return capture(f"{name}.txt").replace("6.1.3.h5", "6.1.3.h5-emulated").replace(counter, "0 0 0")


def test_print_server_is_the_same_text() -> None:
    assert Bench().good("qmgr", "-c", "print server") == capture("qmgr-print-server.txt")
    assert Bench().good("qmgr", "-c", "list server") == of_server("qmgr-list-server", "15 2 1")
    queue = (Bench().good("qmgr", "-c", "list queue batch"), capture("qmgr-list-queue.txt"))
    mine, real = (re.sub("mtime = .*|\tresources_assigned.nodect = 0\n", "", text) for text in queue)
    assert mine == real


_SEEN = re.compile(
    r"(idletime|availmem|netload|rectime|macaddr|loadave|ncpus|nsessions|nusers)=[^,\n<]*|"
    r"(?<=,)sessions=[^,]*,|5\.14\.0-\w+|6\.1\.3\.h5(-emulated)?"
)


def blanked(text: str) -> str:
    """Node texts without what depends on the machine; an absent list of sessions counts as a present one."""
    return _SEEN.sub(lambda match: "" if match[0].startswith("sessions") else "~", text)


@pytest.mark.parametrize(("name", "words"), [("a", "pbsnodes -a"), ("x", "pbsnodes -x")])
def test_running_nodes(name: str, words: str) -> None:
    bench = running_bench()
    bench.advance(45)
    mine = blanked(bench.good(*words.split()))
    assert mine == blanked(capture(f"running-pbsnodes-{name}.txt"))


def test_lists_of_nodes() -> None:
    bench = running_bench()
    assert bench.good("pbsnodes", "-l") == ""
    assert Bench().good("pbsnodes", "-l", "all") == capture("idle-pbsnodes-l-all.txt")
    assert Bench().good("pbsnodes", "-l", "free") == capture("idle-pbsnodes-l-free.txt")
    bench.good("pbsnodes", "-o", "-N", "fan broken, ticket 42 <&>", "node2")
    bench.good("emulated", "node", "node1", "mom=stopped")
    bench.good("qrun", "-H", "node3:ppn=3", "52")
    bench.advance(200)
    for name, words in (
        ("l", "-l"),
        ("ln", "-ln"),
        ("l-down", "-l down"),
        ("l-offline", "-l offline"),
        ("l-up", "-l up"),
    ):
        assert bench.good("pbsnodes", *words.split()) == capture(f"down-pbsnodes-{name}.txt"), name
    mine = blanked(bench.good("pbsnodes", "-a"))
    assert mine == blanked(capture("down-pbsnodes-a.txt"))
    assert "fan broken, ticket 42 &lt;&amp;&gt;" in bench.good("pbsnodes", "-x", "node2")


def test_completed_job() -> None:
    bench = Bench(next_job=64)
    variables = "EMULATED_RUNTIME=8.314668,EMULATED_EXIT=3"
    bench.submit("-l", "nodes=1:ppn=2,walltime=00:01:00", "-N", "burn", "-v", variables)
    bench.good("qrun", "-H", "node1:ppn=2", "64")
    bench.advance(20)
    names = blocks(capture("completed-qstat-f.txt"))["Job Id: 64.head"]
    assert blocks(bench.good("qstat", "-f", "64"))["Job Id: 64.head"] == names
    mine, real = flat(bench.good("qstat", "-f", "-x", "64.head")), flat(capture("completed-qstat-f-x.txt"))
    assert [tag for tag, _ in mine["64.head"]] == [tag for tag, _ in real["64.head"]]
    got = dict(mine["64.head"])
    assert (got["exit_status"], got["substate"], got["job_state"]) == ("3", "59", "C")
    assert got["total_runtime"] == "8.314668"


def test_gpu_status() -> None:
    node = "node4 np=4 gpus=2 gpunode # has_nvml gpu_stray=0:37\n"
    bench = Bench(node, next_job=60)
    real = capture("gpu-idle-pbsnodes.txt")

    def fields(text: str) -> str:
        line = next(line for line in text.splitlines() if "gpu_status" in line)
        return re.sub(
            r"(gpu_memory_used|gpu_memory_utilization|gpu_temperature|timestamp)=[^;,]*", r"\1", line
        )

    bench.advance(60)
    assert fields(bench.good("pbsnodes", "node4")) == fields(real)
    bench.submit("-l", "nodes=1:gpus=1")
    bench.good("qrun", "-H", "node4:ppn=1:gpus=1", "60")
    bench.advance(60)
    assert fields(bench.good("pbsnodes", "node4")) == fields(capture("gpu-1job-pbsnodes.txt"))


def test_old_dialect() -> None:
    nodes = "node1 np=2 slow # ncpus=2\nnode2 np=4 gpus=2 gpunode # ncpus=2\n"
    queues = {"batch": {"resources_default.nodes": "1", "resources_default.walltime": "01:00:00"}}
    bench = Bench(nodes, version="4.2.10", next_job=19, queues=queues)
    bench.submit("-l", "nodes=1:ppn=2:gpus=1", "-N", "gpujob")
    bench.submit("-t", "0-2", "-N", "arr")
    bench.submit("-h", "-N", "sleeper")
    bench.submit("-l", "nodes=2:ppn=1", "-N", "two")
    bench.good("qrun", "-H", "node2:ppn=2:gpus=1", "19")
    bench.good("qrun", "-H", "node1", "20[0].head")
    bench.good("qrun", "-H", "node2", "20[1].head")
    bench.advance(13)
    mine, real = bench.good("qstat", "-f", "-t"), capture("v42-qstat-f-t.txt")
    shown = [
        {h: [n for n in unused(ns) if n != "Join_Path"] for h, ns in blocks(t).items()} for t in (mine, real)
    ]
    assert shown[0] == shown[1]
    assert values(mine)["Job Id: 19.head"]["exec_host"] == "node2/0+node2/1"
    assert values(mine)["Job Id: 19.head"]["exec_port"] == "15003+15003"
    assert shape(bench.good("qstat", "-n", "-1", "-t")) == shape(capture("v42-qstat-n-1.txt"))
    bench.advance(45)
    assert blanked(bench.good("pbsnodes", "-a")) == blanked(capture("v42-pbsnodes-a.txt"))
    real = capture("v42-qstat-B-f.txt")
    mine = bench.good("qstat", "-B", "-f")
    assert blocks(mine) == blocks(real)
