"""momctl and pbsdsh, as far as a person at the head uses them: what a mom says of itself."""

from __future__ import annotations

from torque_sched.emulation.call import Answer, Call, read_options
from torque_sched.emulation.model import EmulatedNode
from torque_sched.emulation.mom import report
from torque_sched.emulation.world import World

_USAGE = "  no command specified\nUSAGE:  momctl <ARGS>\n"
_UNKNOWN = "? 15201"
"""What a mom says of a name that it does not know."""


def momctl(world: World, call: Call) -> Answer:
    """Ask moms (-q), forget a job on them (-c), let them look again (-C) or describe themselves (-d)."""
    options = read_options(call.arguments, "c:Cd:f:h:p:q:r:su", program="momctl")
    if options.error or not {"c", "C", "d", "q"} & options.values.keys():
        wrong = f"momctl: {options.error}\n" if options.error else ""
        return Answer(err=wrong + _USAGE, code=1)
    answer = Answer()
    for name in _hosts(world, options.last("h", "localhost")):
        node = world.nodes.get(name)
        if node is None or node.mom != "up":
            why = "errno=111 (Connection refused)"
            answer.err += f"cannot connect to MOM on node '{name}', {why}\n"
            answer.code = 1
        elif options.has("q"):
            for attribute in options.values["q"]:
                value = f"'{attribute}={_value(world, node, attribute)}'"
                answer.out += f"{name:>12}: {attribute:>12} = {value}\n"
        elif options.has("c"):
            answer.out += f"job clear request successful on {name}\n"
        elif options.has("C"):
            answer.out += f"mom {name} successfully cycled cycle forced\n"
        else:
            answer.out += _described(world, node)
    return answer


def _hosts(world: World, text: str) -> list[str]:
    """``node1,node2``, ``:property`` or ``:ALL``."""
    found: list[str] = []
    for word in text.split(","):
        if word.startswith(":"):
            nodes = world.nodes.values()
            found += [each.name for each in nodes if word == ":ALL" or word[1:] in each.properties]
        else:
            found.append(word)
    return found


def _value(world: World, node: EmulatedNode, name: str) -> str:
    last = report(world, node)
    known = {
        "arch": "linux",
        "opsys": "linux",
        "ncpus": str(node.ncpus or node.np),
        "nsessions": str(len(last.jobs)),
        "physmem": f"{node.physmem_kb}kb",
        "totmem": f"{node.physmem_kb + node.swap_kb}kb",
        "availmem": f"{max(0, node.physmem_kb - last.used_kb) + node.swap_kb}kb",
        "loadave": f"{last.load:.2f}",
    }
    return known.get(name, _UNKNOWN)


def _described(world: World, node: EmulatedNode) -> str:
    last = report(world, node)
    jobs = f"job list:               {','.join(last.jobs)}" if last.jobs else "NOTE:  no local jobs detected"
    return (
        f"\nHost: {node.name}/{node.name}   Version: {world.settings.pbs_version}\n"
        f"Server[0]: {world.settings.server}\n"
        f"  Last Msg To Server:     {max(0, int(world.now_s) - last.at_s)} seconds\n"
        f"{jobs}\n\ndiagnostics complete\n\n"
    )


def pbsdsh(world: World, call: Call) -> Answer:
    """Run a program on all nodes of a job: nobody who asks here is in one."""
    if not call.arguments and not world.settings.is_old:
        return Answer(
            err="pbsdsh(): must specify a program\nusage: pbsdsh [-c copies][-o][-s][-u][-v]\n", code=1
        )
    return Answer(err="pbsdsh(): not executing under PBS\n", code=1)
