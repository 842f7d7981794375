"""``whatif -l``: every resource of qsub's that is read, what contradicts itself, and what cannot be read."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.fixtures.torque_builders import NOW_S, node
from torque_sched.batch.torque.asked import asked_job, joined, note_on
from torque_sched.batch.torque.parse.request import HEEDED
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Queue, QueueName, Server
from torque_sched.model.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.model.snapshot import Snapshot

SNAPSHOT = Snapshot(
    NOW_S, Server(name="head", default_queue="batch"), (Queue(name=QueueName("batch")),), (node("n1"),), ()
)
READ: dict[str, tuple[str, str, object]] = {
    "nodes": ("2:ppn=4:gpus=1:big", "chunks", (Chunk(2, 4, 1, ("big",)),)),
    "procs": ("6", "procs", 6),
    "ncpus": ("3", "ncpus", 3),
    "walltime": ("1:30:00", "walltime_s", 5400.0),
    "cput": ("90", "cput_s", 90.0),
    "mem": ("8gb", "mem_bytes", 8 << 30),
    "pmem": ("512mb", "pmem_bytes", 512 << 20),
    "vmem": ("9gb", "vmem_bytes", 9 << 30),
    "pvmem": ("1tb", "pvmem_bytes", 1 << 40),
    "gres": ("matlab:2", "gres", (GenericResource("matlab", 2),)),
    "tokens": ("matlab:1.5", "tokens", (("matlab", 1.5),)),
    "host": ("node7", "host", "node7"),
    "feature": ("big:fast", "features", ("big", "fast")),
    "naccesspolicy": ("singlejob", "access", AccessPolicy.SINGLE_JOB),
    "software": ("gauss", "software", "gauss"),
    "qos": ("high", "qos", "high"),
    "arch": ("x86_64", "arch", "x86_64"),
    "opsys": ("linux", "opsys", "linux"),
}
"""A resource of ``-l``: its text, where the request has it, and as what."""


def asked(*submits: str, walltime: str | None = None) -> Request:
    """What the options are understood as."""
    return asked_job(SNAPSHOT, joined(submits, walltime), user="ann").request


@pytest.mark.parametrize("name", sorted(READ))
def test_a_resource_is_read_and_nothing_else_changes(name: str) -> None:
    text, place, value = READ[name]
    made, plain = asked(f"{name}={text}"), asked("software=none")
    assert getattr(made, place) == value
    others = {each.name for each in fields(Request)} - {place, "software", "nodes_text"}
    assert {each: getattr(made, each) for each in others} == {each: getattr(plain, each) for each in others}
    assert note_on(f"{name}={text}") == ""


def test_no_resource_that_is_read_is_left_out_here() -> None:
    assert set(READ) == HEEDED


def test_all_at_once_is_the_same_as_one_by_one() -> None:
    texts = [f"{name}={text}" for name, (text, *_) in READ.items()]
    assert asked(*texts) == asked(",".join(texts))
    assert asked("nodes=1", walltime="10:00").walltime_s == 600.0
    assert asked("walltime=3600,nodes=1", walltime="3600").walltime_s == 3600.0, "no contradiction"
    assert note_on("nodes=1,foo=bar,pmen=1gb").startswith("note: foo, pmen make no difference")


@pytest.mark.parametrize(
    ("submits", "walltime", "told"),
    [
        (("nodes=1,walltime=1:00:00",), "2:00:00", "walltime is asked for twice"),
        (("walltime=60", "walltime=61"), None, "walltime is asked for twice"),
        (("mem=1gb,nodes=1,mem=2gb",), None, "mem is asked for twice"),
        (("nodes=1", "nodes=2"), None, "nodes is asked for twice"),
        (("gpus=1,gres=matlab:1",), None, "gres is asked for twice"),
    ],
)
def test_a_contradiction_names_the_resource(
    submits: tuple[str, ...], walltime: str | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as found:
        asked(*submits, walltime=walltime)
    assert found.value.cure == "leave one of them"


@pytest.mark.parametrize(
    ("submit", "told"),
    [
        ("much", "'much' is not resource=value"),
        ("nodes=", "'nodes=' is not resource=value"),
        ("nodes=1,,mem=1gb", "'1,' is not understood"),
        ("nodes=0", "nodes=0"),
        ("nodes=1:ppn=0", "nodes=1:ppn=0"),
        ("nodes=1:ppn=x", "nodes=1:ppn=x"),
        ("nodes=2000000", "more than 1000000 nodes"),
        ("procs=-1", "procs: -1 is negative"),
        ("procs=two", "procs: "),
        ("ncpus=1.5", "ncpus: "),
        ("walltime=tomorrow", "walltime: "),
        ("walltime=1:2:3:4:5", "walltime: "),
        ("cput=-5", "cput: "),
        ("mem=lots", "mem: "),
        ("pmem=1xb", "pmem: "),
        ("vmem=-1gb", "vmem: "),
        ("pvmem=gb", "pvmem: "),
        ("gres=gpus:many", "gres: "),
        ("tokens=matlab", "tokens=matlab"),
        ("naccesspolicy=mine", "naccesspolicy"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(submit: str, told: str) -> None:
    with pytest.raises(ConfigError) as found:
        asked(submit)
    assert told in found.value.message
    assert found.value.cure


def test_a_queue_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no queue 'night'") as found:
        asked_job(SNAPSHOT, "nodes=1", user="ann", queue="night")
    assert found.value.cure == "known are batch"
