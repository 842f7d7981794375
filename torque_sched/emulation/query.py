"""qstat and pbsnodes: what to show to whom."""

from __future__ import annotations

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, Refused, job_order
from torque_sched.emulation.show_job import full_text, full_xml, short_table, wide_table
from torque_sched.emulation.show_node import NodeTexts, list_text
from torque_sched.emulation.show_server import (
    queue_table,
    queue_text,
    server_table,
    server_text,
    summary_table,
)
from torque_sched.emulation.world import World

__all__ = ["Pbsnodes", "qstat"]

_WIDE = frozenset("anriGRs")


def qstat(world: World, call: Call) -> Answer:
    """Jobs, queues (-Q, -q) or the server (-B)."""
    arguments = tuple(word for word in call.arguments if word != "-1")
    options = read_options(arguments, "aeBfGiMnqQrRstu:xW:lc")
    if options.error:
        return Answer(err=f"qstat: {options.error}\nusage: qstat [-f [-1]] [-W site_specific] ...\n", code=2)
    one_line = len(arguments) < len(call.arguments)
    try:
        if options.has("B"):
            return Answer(
                out=server_text(world, one_line=one_line) if options.has("f") else server_table(world)
            )
        if options.has("Q") or options.has("q"):
            return Answer(out=_queues(world, options, one_line))
        return Answer(out=_jobs(world, call, options, one_line))
    except Refused as error:
        return Answer(err=f"qstat: {error.text}\n", code=error.exit_code)


def _queues(world: World, options: Options, one_line: bool) -> str:
    names = list(options.words) or list(world.queues)
    for name in names:
        if name not in world.queues:
            raise Refused(15020, f"Unknown queue {name}")
    if options.has("q"):
        return summary_table(world, names)
    if options.has("f"):
        return "".join(queue_text(world, world.queues[name], one_line=one_line) for name in names)
    return queue_table(world, names)


def _jobs(world: World, call: Call, options: Options, one_line: bool) -> str:
    privileged = world.is_admin(call.user)
    listed = _chosen(world, call, options, privileged)
    if options.has("f"):
        if options.has("x"):
            return full_xml(world, listed, privileged=privileged)
        return full_text(world, listed, privileged=privileged, one_line=one_line)
    if options.has("r"):
        listed = [job for job in listed if job.state in "RSE"]
    if options.has("i"):
        listed = [job for job in listed if job.state in "QHWT"]
    if options.has("x"):
        return full_xml(world, listed, privileged=privileged)
    if _WIDE & options.values.keys() or options.has("u"):
        return wide_table(world, listed, hosts=options.has("n"), one_line=one_line, giga=options.has("G"))
    return short_table(world, listed)


def _chosen(world: World, call: Call, options: Options, privileged: bool) -> list[EmulatedJob]:
    expanded = options.has("t") or options.has("e")
    # `@head`: all jobs of that server, which is this one.
    options = Options(options.values, tuple(word for word in options.words if not word.startswith("@")))
    if options.words:
        found: list[EmulatedJob] = []
        for word in options.words:
            if not word[0].isdigit():
                if word not in world.queues:
                    raise Refused(15020, f"Unknown queue {word}")
                found += [job for job in world.jobs.values() if job.queue == word]
            elif world.full_id(word) in world.jobs:
                found.append(world.jobs[world.full_id(word)])
            else:
                raise Refused(15001, f"Unknown Job Id Error {world.full_id(word)}")
    else:
        found = list(world.jobs.values())
    named = {world.full_id(word) for word in options.words}
    sees_all = privileged or world.server.get("query_other_jobs") == "True"
    users = [name.split("@")[0] for name in options.last("u").split(",")] if options.has("u") else None
    chosen = [
        job
        for job in found
        if (sees_all or job.user == call.user)
        and (users is None or job.user in users)
        and (job.id in named or (not job.members if expanded else not job.parent))
    ]
    return sorted(chosen, key=job_order)


class Pbsnodes:
    """The command ``pbsnodes``, with a store of rendered nodes."""

    def __init__(self) -> None:
        self._texts = NodeTexts()

    def __call__(self, world: World, call: Call) -> Answer:
        """Show nodes, or as an operator set them offline, clear or annotate them."""
        try:
            return self._run(world, call)
        except Refused as error:
            return Answer(err=f"pbsnodes: {error.text}\n", code=1)

    def _run(self, world: World, call: Call) -> Answer:
        arguments = tuple("-l*" if word == "-ln" else word for word in call.arguments)
        with_notes = "-l*" in arguments or "-n" in arguments
        plain = tuple("-l" if word == "-l*" else word for word in arguments if word != "-n")
        options = read_options(plain, "axlocrdqmA:N:s:")
        if options.error:
            return Answer(err=f"pbsnodes: {options.error}\nusage: pbsnodes [-{{c|d|l|o|p|r}}] ...\n", code=1)
        words = list(options.words)
        if options.has("l"):
            wanted = words[0] if words and words[0] not in world.nodes else ""
            return Answer(out=list_text(world, wanted, notes=with_notes))
        nodes = [_node(world, name) for name in words]
        if {"o", "c", "r", "N"} & options.values.keys():
            _change(world, call, options, nodes)
            return Answer()
        shown = nodes or list(world.nodes.values())
        return Answer(
            out=self._texts.xml(world, shown) if options.has("x") else self._texts.text(world, shown)
        )


def _node(world: World, name: str) -> EmulatedNode:
    if name not in world.nodes:
        raise Refused(15064, "Unknown node  MSG=cannot locate specified node")
    return world.nodes[name]


def _change(world: World, call: Call, options: Options, nodes: list[EmulatedNode]) -> None:
    if not world.is_admin(call.user):
        raise Refused(15007, "Unauthorized Request  MSG=error in permissions (PERM_OPorMGR)")
    for node in nodes:
        if options.has("o"):
            node.offline = True
        if options.has("c") or options.has("r"):
            node.offline = False
        if options.has("r"):
            node.marked_down, node.marked_down_s = True, world.now_s
        if options.has("N"):
            node.note = "" if options.last("N") == "n" else options.last("N")
        world.touch_node(node.name)
