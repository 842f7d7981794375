"""Workflows from files: what is read, and that each mistake is one clear error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from yarn_accel.core.dags.model import Dag, DagEdge, DagId, DagTask, Machine, PriorityClass
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.dax import dag_of_dax
from yarn_accel.dags.load import load_dag, load_machines, parse_argument
from yarn_accel.dags.own_file import dag_of_document
from yarn_accel.dags.wfformat import dag_of_wfformat
from yarn_accel.errors import ConfigError
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

WORKFLOWS = Path(__file__).parents[2] / "workflows"


@pytest.mark.parametrize(
    ("name", "n_tasks", "n_edges"),
    [
        ("HEFT_paper.xml", 10, 15),
        ("Montage_25.xml", 25, 45),
        ("CyberShake_30.xml", 30, 52),
        ("Epigenomics_24.xml", 24, 27),
        ("Inspiral_30.xml", 30, 35),
        ("srasearch-chameleon-10a-001.json", 22, 30),
        ("blast-chameleon-small-001.json", 43, 120),
        ("1000genome-chameleon-2ch-100k-001.json", 52, 76),
    ],
)
def test_workflows_of_others(name, n_tasks, n_edges) -> None:
    dag = load_dag(WORKFLOWS / name)
    assert (dag.name, len(dag.tasks), len(dag.edges)) == (Path(name).stem, n_tasks, n_edges)


def test_an_edge_has_the_bytes_of_its_files() -> None:
    dag = load_dag(WORKFLOWS / "HEFT_paper.xml")
    assert {(edge.parent, edge.child): edge.n_bytes for edge in dag.edges}["ID00001", "ID00002"] == 2250


OWN = {
    "inputs": {"raw": 5},
    "tasks": [
        {"id": "a", "runtime_s": 4, "inputs": ["raw"], "outputs": {"x": 10, "y": 20}},
        {"id": "b", "runtime_s": 2, "times_s": {"m": 1}, "inputs": ["x", "y"], "after": {"a": 3}},
        {"id": "c", "runtime_s": 1, "inputs": ["y"], "after": ["b"]},
    ],
}


@pytest.mark.parametrize("name", ["/73/63/a.tsv", "../a.tsv", "https://host/a.tsv?x=..", "C:\\\\a.tsv"])
def test_a_file_of_a_recorded_run_may_have_any_id(name) -> None:
    """As Nextflow's are in WfCommons: paths of the machine on which it ran."""
    recorded = wf14(joined("a", (), ("output", name, 7)), joined("b", (), ("input", name, 7)))
    jobs = [f'<job id="{job}" runtime="1"><uses file="{name}" link="{link}" size="7"/></job>'
            for job, link in (("a", "output"), ("b", "input"))]  # fmt: skip
    for dag in (dag_of_wfformat(recorded, "w", "w.json"), dag_of_dax(dax(*jobs), "w", "w.dax")):
        assert [(edge.parent, edge.child, edge.n_bytes) for edge in dag.edges] == [("a", "b", 7)]


def test_own_yaml() -> None:
    dag = dag_of_document(OWN, "own", "own.yaml")
    edges = {(edge.parent, edge.child): edge.n_bytes for edge in dag.edges}
    assert edges == {("a", "b"): 33, ("b", "c"): 0, ("a", "c"): 20}
    assert dag.tasks[1].seconds_on(Machine(ResourceId("m"), 4)) == 1
    assert dag.tasks[1].seconds_on(Machine(ResourceId("n"), 4)) == 0.5


def own(**task):
    return {**OWN, "tasks": [*OWN["tasks"], {"id": "d", "runtime_s": 1, **task}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"tasks": []}, "has no tasks"),
        ({"tasks": [{"id": "a"}]}, "task a: has no time; give runtime_s"),
        (own(id="a"), "task a is given twice"),
        (own(after=["e"]), "task d names e, which is no task of it"),
        (own(after=["d"]), "has a cycle: d -> d"),
        ({"tasks": [{"id": x, "runtime_s": 1, "after": [y]} for x, y in ("ab", "bc", "ca")]}, "a cycle: "),
        (own(runtime_s=-1), "tasks.3 (d).runtime_s: must be at least 0"),
        (own(runtime_s=float("nan")), "tasks.3 (d).runtime_s: must be "),
        (own(times_s={"m": -1}), "tasks.3 (d).times_s.m: must be at least 0"),
        (own(inputs=["z"]), "task d: reads z, which nobody makes: declare it as an input"),
        (own(inputs=["z"], outputs={"z": 1}), "task d: reads z, which only it makes"),
        (own(outputs={"raw": 1}), "task d: makes raw, which is an input of the DAG"),
        (own(outputs={"/etc/passwd": 1}), "file '/etc/passwd' is absolute or has `..`"),
        (own(outputs={"a/../../b": 1}), "file 'a/../../b' is absolute or has `..`"),
        (own(outputs={"z": -1}), "tasks.3 (d).outputs.z: must be at least 0"),
        (own(speed=1), "tasks.3 (d).speed: unknown key; known: after, arguments, command, environment"),
        ({**OWN, "tasks": OWN["tasks"] * 50_000}, "more than 100000 tasks"),
    ],
)
def test_mistakes_in_own_yaml(document, message) -> None:
    with pytest.raises(ConfigError) as caught:
        dag_of_document(document, "own", "own.yaml")
    assert str(caught.value).startswith("own.yaml: ")
    assert message in str(caught.value)


def test_a_list_that_aliases_make_large_is_refused(tmp_path) -> None:
    path = tmp_path / "dag.yaml"
    names = ", ".join(f"f{n}" for n in range(30_000))
    tasks = "\n".join(f"- {{id: t{n}, runtime_s: 1, inputs: *all}}" for n in range(100))
    path.write_text(f"inputs: {{}}\ntasks:\n- {{id: first, runtime_s: 1, inputs: &all [{names}]}}\n{tasks}\n")
    with pytest.raises(ConfigError, match="more than 100000 tasks or 2000000 files and edges"):
        load_dag(path)


def wf15(**changes):
    tasks = [
        {
            "id": "a",
            "name": "a",
            "parents": [],
            "children": ["b"],
            "inputFiles": ["raw"],
            "outputFiles": ["x"],
        },
        {"id": "b", "name": "b", "parents": ["a"], "children": [], "inputFiles": ["x"]},
    ]
    files = [{"id": "raw", "sizeInBytes": 7}, {"id": "x", "sizeInBytes": 11}]
    specification = {"tasks": tasks, "files": files, **changes.pop("specification", {})}
    ran = [{"id": "a", "runtimeInSeconds": 3.5}, {"id": "b", "runtimeInSeconds": 1}]
    execution = {"tasks": ran, **changes.pop("execution", {})}
    return {
        "schemaVersion": "1.5",
        "workflow": {"specification": specification, "execution": execution},
        **changes,
    }


def wf14(*tasks):
    return {"schemaVersion": "1.4", "workflow": {"tasks": list(tasks)}}


def joined(name, parents=(), *files, runtime=1):
    linked = [{"link": link, "name": file, "sizeInBytes": size} for link, file, size in files]
    return {"name": name, "runtimeInSeconds": runtime, "parents": list(parents), "files": linked}


def test_wfformat_1_5_and_1_4() -> None:
    of_15 = dag_of_wfformat(wf15(), "w", "w.json")
    first = joined("a", (), ("input", "raw", 7), ("output", "x", 11), runtime=3.5)
    of_14 = dag_of_wfformat(wf14(first, joined("b", ["a"], ("input", "x", 11))), "w", "w.json")
    assert of_15 == of_14
    assert [(edge.parent, edge.child, edge.n_bytes) for edge in of_15.edges] == [("a", "b", 11)]
    assert of_15.tasks[0].runtime_s == 3.5


def test_wfformat_1_4_names_parents_by_name_or_id() -> None:
    first = {**joined("a"), "id": "ID1", "children": ["b"]}
    dag = dag_of_wfformat(wf14(first, {**joined("b"), "id": "ID2"}), "w", "w.json")
    assert [(edge.parent, edge.child) for edge in dag.edges] == [("ID1", "ID2")]


SPECIFIED = {"id": "c", "parents": [], "children": []}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no WfFormat"),
        ({"schemaVersion": "1.5"}, "no WfFormat"),
        (wf15(schemaVersion="1.3"), "schemaVersion is '1.3'; known: 1.4, 1.5"),
        (
            wf15(specification={"tasks": [{**SPECIFIED, "parents": ["z"]}]}, execution={"tasks": []}),
            "task c: execution",
        ),
        (
            wf15(
                specification={"tasks": [{**SPECIFIED, "parents": ["z"]}]},
                execution={"tasks": [{"id": "c", "runtimeInSeconds": 1}]},
            ),
            "task c names z, which is no task of this workflow",
        ),
        (wf15(specification={"tasks": [SPECIFIED, SPECIFIED]}), "task c is given twice"),
        (
            wf15(specification={"files": [{"id": "x", "sizeInBytes": 1}]}),
            "task a: reads raw, which nobody makes",
        ),
        (wf15(specification={"files": [{"id": "x", "sizeInBytes": 1}] * 2}), "file x is given twice"),
        (
            wf15(specification={"files": [{"id": "x" * 5000, "sizeInBytes": 1}]}),
            "a file is called 'xxxx",
        ),
        (
            wf15(specification={"files": [{"id": "x", "sizeInBytes": -1}]}),
            "files.0 (x).sizeInBytes: must be at least 0",
        ),
        (
            wf15(execution={"tasks": [{"id": "a", "runtimeInSeconds": -1}]}),
            "runtimeInSeconds: must be at least 0",
        ),
        (
            wf15(execution={"tasks": [{"id": "a", "runtimeInSeconds": 1}] * 2}),
            "execution: task a is given twice",
        ),
        (wf14(joined("a"), joined("a")), "task a is given twice"),
        (wf14(joined("a", ["b"]), joined("b", ["a"])), "has a cycle: "),
        (wf14(joined("a", (), ("both", "x", 1))), "task a: file x: link is 'both'"),
        (wf14(joined("a", (), ("input", "x\0", 1))), "a file is called 'x\\x00'"),
    ],
)
def test_mistakes_in_wfformat(document, message) -> None:
    with pytest.raises(ConfigError) as caught:
        dag_of_wfformat(document, "w", "w.json")
    assert str(caught.value).startswith("w.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"a": NaN}', "NaN is no number of JSON"),
    ],
)
def test_what_is_no_json(tmp_path, text, message) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_dag(path)


def dax(*inner: str) -> bytes:
    return ('<adag xmlns="http://pegasus.isi.edu/schema/DAX">' + "".join(inner) + "</adag>").encode()


RAW, X = '<uses file="raw" link="input" size="5"/>', '<uses file="x" link="output" size="9"/>'
A = f'<job id="a" runtime="2">{RAW}{X}</job>'
B = '<job id="b" runtime="1"><uses name="x" link="input" size="8"/></job>'
CHILD = '<child ref="b"><parent ref="a"/></child>'


def test_dax() -> None:
    dag = dag_of_dax(dax(A, B, CHILD), "d", "d.xml")
    assert [(edge.parent, edge.child, edge.n_bytes) for edge in dag.edges] == [("a", "b", 9)]
    profile = '<job id="c"><profile namespace="pegasus" key="runtime"> 7.5 </profile></job>'
    assert dag_of_dax(dax(profile), "d", "d.xml").tasks[0].runtime_s == 7.5


BOMB = b'<!DOCTYPE adag [<!ENTITY a "x"><!ENTITY b "&a;&a;&a;">]><adag><job id="&b;" runtime="1"/></adag>'
OUTSIDE = b'<!DOCTYPE adag [<!ENTITY a SYSTEM "file:///etc/passwd">]><adag>&a;</adag>'


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (BOMB, "line 1: has a document type or an entity"),
        (OUTSIDE, "line 1: has a document type or an entity"),
        (b'<!DOCTYPE adag SYSTEM "http://example.org/d.dtd"><adag/>', "line 1: has a document type"),
        (b"<adag><a>", "not XML"),
        (b"", "not XML"),
        (b"<html/>", "the outermost element is <html>, not <adag>"),
        (b"<adag>" + b"<a>" * 100, "nested more than 64 deep"),
        (dax(), "has no jobs"),
        (dax(A, A), "job a is given twice"),
        (dax('<job id="a"/>'), "job a: has no runtime"),
        (dax('<job runtime="1"/>'), "a <job> has no id"),
        (dax('<job id="a" runtime="-1"/>'), "job a: runtime: expected a number from 0 to 1e+09, found '-1'"),
        (dax('<job id="a" runtime="inf"/>'), "job a: runtime: expected a number from 0"),
        (dax('<job id="a" runtime="x"/>'), "job a: runtime: 'x' is no number"),
        (dax(A, '<child ref="z"/>'), "child z is no job of this workflow"),
        (dax(A, '<child ref="a"><parent ref="z"/></child>'), "job a: its parent z is no job"),
        (dax('<parent ref="z"/>'), "a <parent> stands outside of a <child>"),
        (dax(A, B, CHILD, '<child ref="a"><parent ref="b"/></child>'), "has a cycle: "),
        (
            dax('<job id="a" runtime="1"><uses file="y" link="input"/></job>'),
            "task a: reads y, which nobody makes",
        ),
        (
            dax(f'<job id="a" runtime="1"><uses file="{"y" * 5000}" link="input"/></job>'),
            "a file is called 'yyyy",
        ),
        (
            dax('<job id="a" runtime="1"><uses file="y" link="output" size="-1"/></job>'),
            "size of y: expected",
        ),
    ],
)
def test_mistakes_in_dax(document, message) -> None:
    with pytest.raises(ConfigError) as caught:
        dag_of_dax(document, "d", "d.xml")
    assert str(caught.value).startswith("d.xml: ")
    assert message in str(caught.value)


def test_forms_are_recognized_without_an_ending(tmp_path) -> None:
    for text in (dax(A, B, CHILD).decode(), json.dumps(wf15()), yaml.safe_dump(OWN)):
        (tmp_path / "workflow").write_text(text)
        assert load_dag(tmp_path / "workflow").name == "workflow"


@pytest.mark.parametrize("name", ["none.yaml", "none.xml", "none"])
def test_a_file_that_is_not_there(tmp_path, name) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_dag(tmp_path / name)


@pytest.mark.parametrize(
    ("ending", "n_bytes"), [(".yaml", (16 << 20) + 1), (".json", (256 << 20) + 1), (".xml", (256 << 20) + 1)]
)
def test_a_file_that_is_too_large_is_not_read(tmp_path, ending, n_bytes) -> None:
    path = tmp_path / f"large{ending}"
    with path.open("wb") as stream:
        stream.truncate(n_bytes)
    with pytest.raises(ConfigError, match="more than"):
        load_dag(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.xml", ("a.xml", 0, PriorityClass.BASIC)),
        ("a.xml@5", ("a.xml", 5, PriorityClass.BASIC)),
        ("a@b.xml@2.5:high", ("a@b.xml", 2.5, PriorityClass.HIGH)),
        ("a.xml@:preemptive", ("a.xml", 0, PriorityClass.PREEMPTIVE)),
    ],
)
def test_an_argument(text, expected) -> None:
    path, *rest = parse_argument(text)
    assert (str(path), *rest) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.xml@x", "the arrival is 'x'"),
        ("a.xml@-1", "the arrival is '-1'"),
        ("a.xml@inf:high", "the arrival is 'inf'"),
        ("a.xml@1:urgent", "no class is called 'urgent'; known: preemptive, high, basic"),
    ],
)
def test_an_argument_that_is_wrong(text, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_argument(text)


MACHINES = {"bandwidth_bytes_per_s": 1e6, "machines": [{"name": "a"}]}


def machine(**values):
    return {**MACHINES, "machines": [{"name": "a", **values}]}


@pytest.mark.parametrize("wrong", [1e308, -1e308, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("document", "place"),
    [
        (lambda x: own(runtime_s=x), "tasks.3 (d).runtime_s"),
        (lambda x: own(times_s={"m": x}), "tasks.3 (d).times_s.m"),
        (lambda x: own(after={"a": x}), "tasks.3 (d).after"),
        (lambda x: own(outputs={"z": x}), "tasks.3 (d).outputs.z"),
        (lambda x: own(time_limit_s=x), "tasks.3 (d).time_limit_s"),
        (lambda x: {**OWN, "inputs": {"raw": x}}, "inputs.raw.bytes"),
        (lambda x: {**OWN, "time_limit_s": x}, "time_limit_s"),
        (lambda x: {**OWN, "silence_limit_s": x}, "silence_limit_s"),
        (lambda x: {**MACHINES, "bandwidth_bytes_per_s": x}, "bandwidth_bytes_per_s"),
        (lambda x: machine(speed=x), "machines.0 (a).speed"),
        (lambda x: machine(joins_s=x), "machines.0 (a).joins_s"),
        (lambda x: machine(leaves_s=x), "machines.0 (a).leaves_s"),
    ],
)
def test_a_number_that_no_clock_adds_up_is_one_error(tmp_path, document, place, wrong) -> None:
    path, values = tmp_path / "x.yaml", document(wrong)
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        (load_dag if "tasks" in values else load_machines)(path)
    assert str(caught.value).startswith(f"{path}: {place}")
    assert "; " not in str(caught.value)


@pytest.mark.parametrize(
    ("bandwidth", "speed", "runtime_s", "n_bytes", "message"),
    [
        (1e6, 1e-6, 1e9, 0.0, "task b: its runtime_s 1e+09 is more than 1e+09 s on machine m of speed 1e-06"),
        (1e-3, 1.0, 1.0, 1e9, "1e+09 bytes from task a to b take more than 1e+09 s at bandwidth_bytes_per_s"),
    ],
)
def test_numbers_that_only_together_are_too_large(bandwidth, speed, runtime_s, n_bytes, message) -> None:
    tasks = (DagTask("a", 1.0), DagTask("b", runtime_s))
    arrival = DagArrival(DagId("d"), Dag("d", tasks, (DagEdge("a", "b", n_bytes),)))
    with pytest.raises(ConfigError, match=re.escape(message)):
        DagWorld(bandwidth, (MachineStay(Machine(ResourceId("m"), speed)),), (arrival,))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"machines": [{"name": "a"}]}, "bandwidth_bytes_per_s: missing"),
        ({"bandwidth_bytes_per_s": 0, "machines": [{"name": "a"}]}, "must be at least 0.001, not 0"),
        ({"bandwidth_bytes_per_s": 1, "machines": []}, "machines: must be 1 or more in number"),
        ({"bandwidth_bytes_per_s": 1, "machines": [{"name": "a"}] * 2}, "machine a is given twice"),
        (
            {"bandwidth_bytes_per_s": 1, "machines": [{"name": "a", "speed": 0}]},
            "m.yaml: machines.0 (a).speed: must be at least 1e-06, not 0",
        ),
        ({"bandwidth_bytes_per_s": 1, "machines": [{"name": "a", "cores": 2}]}, "cores: unknown key"),
    ],
)
def test_mistakes_in_machines(tmp_path, document, message) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError) as caught:
        load_machines(path)
    assert message in str(caught.value)
