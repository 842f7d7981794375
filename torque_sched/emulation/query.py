"""qstat and pbsnodes: what to show to whom."""

from __future__ import annotations

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, Refused, job_order
from torque_sched.emulation.show_job import full_text, full_xml, short_table, wide_table
from torque_sched.emulation.show_node import STATES, NodeTexts, list_text
from torque_sched.emulation.show_server import (
    queue_table,
    queue_text,
    server_table,
    server_text,
    summary_table,
)
from torque_sched.emulation.world import World

__all__ = ["Pbsnodes", "qstat"]

_WIDE = frozenset("anriGMRs")
_USAGE = "usage: qstat [-f [-1]] [-W site_specific] ...\n"


def qstat(world: World, call: Call) -> Answer:
    """Jobs, queues (-Q, -q) or the server (-B)."""
    options = read_options(call.arguments, "aeBfGiMnqQrRstu:xW:lc1")
    if options.error:
        return Answer(err=f"qstat: {options.error}\n{_USAGE}", code=2)
    if options.has("B") and (options.has("Q") or options.has("q")):
        detail = " -B incompatible with one or more options. Read qstat man page"
        return Answer(err=f"qstat: conflicting options.\n{detail}\n{_USAGE}", code=2)
    one_line = options.has("1")
    try:
        if options.has("B"):
            return Answer(
                out=server_text(world, one_line=one_line) if options.has("f") else server_table(world)
            )
        if options.has("Q") or options.has("q"):
            return Answer(out=_queues(world, options, one_line))
        return _jobs(world, call, options, one_line)
    except Refused as error:
        return Answer(err=f"qstat: {error.text}\n", code=error.exit_code)


def _queues(world: World, options: Options, one_line: bool) -> str:
    names = list(options.words) or list(world.queues)
    for name in names:
        if name not in world.queues:
            raise Refused(15020, f"Unknown queue MSG=cannot locate queue {name}")
    if options.has("q"):
        return summary_table(world, names)
    if options.has("f"):
        return "".join(queue_text(world, world.queues[name], one_line=one_line) for name in names)
    return queue_table(world, names)


def _jobs(world: World, call: Call, options: Options, one_line: bool) -> Answer:
    answer = Answer()
    found: dict[str, EmulatedJob] = {}
    # `@head`: all jobs of that server, which is this one.
    words = [word for word in options.words if not word.startswith("@")]
    for word in words or [""]:
        try:
            found.update((job.id, job) for job in _named(world, call, options, word))
        except Refused as error:
            answer.err += f"qstat: {error.text}\n"
            answer.code = error.exit_code
    if found or not answer.err:
        viewer = "" if world.is_admin(call.user) else call.user
        answer.out = _shown(world, options, sorted(found.values(), key=job_order), viewer, one_line)
    return answer


def _shown(world: World, options: Options, listed: list[EmulatedJob], viewer: str, one_line: bool) -> str:
    if options.has("f"):
        if options.has("x"):
            return full_xml(world, listed, viewer=viewer)
        return full_text(world, listed, viewer=viewer, one_line=one_line)
    if options.has("r"):
        listed = [job for job in listed if job.state in "RSE"]
    if options.has("i"):
        listed = [job for job in listed if job.state in "QHWT"]
    if options.has("x"):
        return full_xml(world, listed, viewer=viewer)
    if _WIDE & options.values.keys() or options.has("u"):
        unit = "G" if options.has("G") else "M" if options.has("M") else ""
        return wide_table(
            world, listed, hosts=options.has("n"), comments=options.has("s"), one_line=one_line, unit=unit
        )
    return short_table(world, listed)


def _named(world: World, call: Call, options: Options, word: str) -> list[EmulatedJob]:
    """The jobs that one word of the command line means; all without a word."""
    expanded = options.has("t") or options.has("e")
    sees_all = world.is_admin(call.user) or world.server.get("query_other_jobs") == "True"
    pool = list(world.jobs.values())
    if word and not word[0].isdigit():
        name = word.split("@")[0]
        if name not in world.queues:
            raise Refused(15020, f"Unknown queue destination {name}")
        pool = [job for job in pool if job.queue == name]
    elif word:
        job = world.jobs.get(world.full_id(word))
        if job is None:
            raise Refused(15001, f"Unknown Job Id Error {world.full_id(word)}")
        if not (sees_all or job.user == call.user):
            if world.settings.is_old:
                return []
            raise Refused(15007, f"Unauthorized Request  {job.id}")
        if not job.members:
            return [job]
        # Seen on real servers: an array's own id without -t means everything.
        pool = [world.jobs[name] for name in job.members if name in world.jobs] if expanded else pool
    users = [name.split("@")[0] for name in options.last("u").split(",")] if options.has("u") else None
    return [
        job
        for job in pool
        if (sees_all or job.user == call.user)
        and (users is None or job.user in users)
        and (not job.members if expanded else not job.parent)
    ]


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
        options = read_options(plain, "axlocrdpqmA:N:s:")
        if options.error:
            return Answer(err=f"pbsnodes: {options.error}\nusage:\tpbsnodes [-{{c|d|l|o|p|r}}] ...\n", code=1)
        words = list(options.words)
        if {"o", "c", "r", "N", "d"} & options.values.keys() and words:
            return _change(world, call, options, words)
        if options.has("l"):
            wanted = words[0] if words else ""
            if wanted and wanted not in STATES:
                raise _unknown()
            return Answer(out=list_text(world, wanted, notes=with_notes))
        if {"o", "c", "r", "N", "d"} & options.values.keys():
            return Answer()
        shown = [node for word in words for node in _nodes(world, word)] or list(world.nodes.values())
        return Answer(
            out=self._texts.xml(world, shown) if options.has("x") else self._texts.text(world, shown)
        )


def _unknown() -> Refused:
    return Refused(15064, "Unknown node  MSG=cannot locate specified node")


def _nodes(world: World, word: str) -> list[EmulatedNode]:
    if word.startswith(":"):
        return [node for node in world.nodes.values() if word[1:] in node.properties]
    if word not in world.nodes:
        raise _unknown()
    return [world.nodes[word]]


def _change(world: World, call: Call, options: Options, words: list[str]) -> Answer:
    """Change nodes one by one. The client tells what was refused, and exits with 0 all the same."""
    answer = Answer()
    doing = "setting note attribute for" if options.has("N") or not world.settings.is_old else "marking node"
    for word in words:
        node = world.nodes.get(word)
        if node is None:
            answer.err += f"Error {doing} {word} - Unknown node \n"
        elif not world.is_admin(call.user):
            denied = "Unauthorized Request  MSG=error in permissions (PERM_OPorMGR)"
            answer.err += f"Error {doing} {word} - {denied}\n"
        else:
            _mark(world, options, node)
    return answer


def _mark(world: World, options: Options, node: EmulatedNode) -> None:
    if options.has("o"):
        node.offline = True
    if options.has("c") or options.has("r"):
        node.offline = False
    if options.has("r"):
        node.marked_down, node.marked_down_s = True, world.now_s
    if options.has("N"):
        node.note = "" if options.last("N") == "n" else options.last("N")
    world.touch_node(node.name)
