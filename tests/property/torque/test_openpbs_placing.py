"""Whatever is decided on vnodes can be ordered: the last guard before ``qrun`` refuses nothing of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.openpbs_outputs import NOW_S, Server, job, outputs_of, vnode
from torque_sched.batch.openpbs.parse.select import amount_of, parse_exec_vnode
from torque_sched.batch.openpbs.pbs import OpenPbs, read_snapshot
from torque_sched.batch.system import OrderKind
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.model.decisions import Start

RESOURCES = b"set resource scratch type = long\nset resource scratch flag = hn\n"
SHARINGS = ("default_shared", "default_shared", "default_shared", "default_excl", "force_excl", "ignore_excl",
            "default_exclhost")  # fmt: skip
PLACES = ("free", "pack", "scatter", "vscatter", "excl", "exclhost", "shared", "pack:excl", "vscatter:excl",
          "scatter:exclhost")  # fmt: skip


@st.composite
def _vnodes(draw: st.DrawFn) -> list[Any]:
    return [
        vnode(
            f"h{host}[{place}]", draw(st.integers(1, 4)), host=f"h{host}",
            mem=f"{draw(st.integers(1, 4))}gb", sharing=draw(st.sampled_from(SHARINGS)),
            resources_available__ngpus=draw(st.integers(0, 2)),
            resources_available__scratch=draw(st.integers(0, 3)),
        )
        for host in range(draw(st.integers(1, 3)))
        for place in range(draw(st.integers(1, 3)))
    ]  # fmt: skip


@st.composite
def _select(draw: st.DrawFn) -> str:
    chunks = []
    for _ in range(draw(st.integers(1, 2))):
        words = [str(draw(st.integers(1, 3))), f"ncpus={draw(st.integers(1, 4))}"]
        words += [f"mem={draw(st.integers(1, 3))}gb"] if draw(st.booleans()) else []
        words += [f"ngpus={draw(st.integers(1, 2))}"] if draw(st.integers(0, 3)) == 0 else []
        words += [f"scratch={draw(st.integers(1, 2))}"] if draw(st.integers(0, 3)) == 0 else []
        chunks.append(":".join(words))
    return "+".join(chunks)


@pytest.mark.parametrize("backfill", ["none", "aged", "conservative"])
@settings(max_examples=25, deadline=None)
@given(
    vnodes=_vnodes(),
    jobs=st.lists(st.tuples(_select(), st.sampled_from(PLACES)), min_size=1, max_size=6),
)
def test_what_is_decided_can_be_ordered(
    backfill: str, vnodes: list[Any], jobs: list[tuple[str, str]]
) -> None:
    asked = [job(n, select, place) for n, (select, place) in enumerate(jobs, 1)]
    outputs = outputs_of(asked, vnodes, resources=RESOURCES)
    rules = Settings(nodes=NodeRules(cores_per_idle_gpu=0), backfill=new_backfill(backfill))
    found, _ = read_snapshot(outputs, NOW_S)

    async def play() -> list[tuple[str, ...]]:
        commands = Server(outputs)
        server = OpenPbs(commands, lambda: NOW_S)
        look = (await server.look()).snapshot
        for each in decide(found, rules, Context()):
            if isinstance(each, Start):
                result = await server.start(look.job_by_id[each.job], each.allocation)
                assert result.kind is OrderKind.STARTED, (each, result)
        return commands.orders

    used = Counter[tuple[str, str]]()
    for order in asyncio.run(play()):
        for element in parse_exec_vnode(order[3]):
            for share in element:
                for name, text in share.words:
                    used[share.vnode, name] += amount_of(text) * len(order[4:])
    has = dict(vnodes)
    for (name, resource), n in used.items():
        assert n <= amount_of(str(has[name]["resources_available"][resource])), (name, resource)
