"""qmgr, and the programs that start and stop queues."""

from __future__ import annotations

import re

from torque_sched.emulation.call import Answer, Call, read_options
from torque_sched.emulation.lifecycle import COMMANDS
from torque_sched.emulation.model import EmulatedNode, EmulatedQueue, Refused
from torque_sched.emulation.show_server import (
    SERVER_ORDER,
    list_node,
    list_queue,
    list_server,
    print_node,
    print_queue,
    print_server,
)
from torque_sched.emulation.world import World

__all__ = ["qmgr", "qterm", "switch_queue"]

_DENIED = "Unauthorized Request  MSG=error in permissions (PERM_OPorMGR)"
_KINDS = {"server": "server", "s": "server", "queue": "queue", "q": "queue", "node": "node", "n": "node"}
_LISTS = frozenset(
    (
        "managers", "operators", "acl_hosts", "submit_hosts", "properties", "acl_users", "acl_groups",
        "route_destinations", "tokens",
    )
)  # fmt: skip
_EXTRA_SERVER = ("resources_default", "resources_max", "acl_roots", "server_name", "comment", "default_node")


def qmgr(world: World, call: Call) -> Answer:
    """Run the commands of -c, or of standard input."""
    options = read_options(call.arguments, "aec:nz", permute=False)
    if options.error:
        return Answer(err=f"qmgr: {options.error}\nusage: qmgr [-c cmd] [server] ...\n", code=1)
    if options.has("c"):
        lines = [options.last("c")]
    elif call.stdin is None:
        return Answer(wants_stdin=True)
    else:
        lines = call.stdin.decode("utf-8", "replace").splitlines()
    answer = Answer()
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            answer.out += _one(world, call, line.strip())
        except Refused as error:
            answer.err += f"{error.text}\n"
            answer.code = 2
    return answer


def _one(world: World, call: Call, line: str) -> str:
    match = re.match(r"(\w+)\s+(\w+)\s*(.*)$", line, re.DOTALL)
    if not match or match[2] not in _KINDS:
        raise Refused(15005, f"qmgr: Syntax error - cannot locate attribute\n{line}")
    verb, kind, rest = match[1], _KINDS[match[2]], match[3]
    if verb in ("p", "print", "l", "list"):
        return _show(world, "print" if verb[0] == "p" else "list", kind, rest)
    names = ""
    if kind != "server":
        names, _, rest = rest.partition(" ")
    if not world.is_admin(call.user, manager=verb in ("create", "c", "delete", "d")):
        raise Refused(15007, f"qmgr obj={names} svr=default: {_DENIED}")
    for name in names.split(",") if names else [""]:
        _change(world, verb, kind, name, rest.strip())
    return ""


def _show(world: World, verb: str, kind: str, rest: str) -> str:
    name = rest.split()[0] if rest.split() else ""
    if kind == "server":
        return print_server(world) if verb == "print" else list_server(world)
    table: dict[str, object] = {**world.queues} if kind == "queue" else {**world.nodes}
    names = list(table) if name in ("", "@default") else name.split(",")
    for each in names:
        if each not in table:
            word = "Unknown queue" if kind == "queue" else "Unknown node"
            raise Refused(15020, f"qmgr obj={each} svr=default: {word} ")
    if kind == "queue":
        return print_queue(world, names) if verb == "print" else list_queue(world, names)
    return print_node(world, names) if verb == "print" else list_node(world, names)


def _change(world: World, verb: str, kind: str, name: str, rest: str) -> None:
    if verb in ("create", "c"):
        _create(world, kind, name)
    elif verb in ("delete", "d"):
        _delete(world, kind, name)
        return
    elif verb not in ("set", "s", "unset", "u"):
        raise Refused(15005, f"qmgr: Syntax error - unknown command {verb}")
    for part in _assignments(rest):
        match = re.match(r"([\w.]+)\s*(\+=|-=|=)?\s*(.*)$", part, re.DOTALL)
        if not match:
            raise Refused(15005, f"qmgr: Syntax error\n{part}")
        sign = "unset" if verb.startswith("u") else match[2] or "="
        _assign(world, kind, name, match[1], sign, match[3].strip().strip('"'))


def _assignments(rest: str) -> list[str]:
    """``a=1,b=2`` -> two; a comma followed by something without ``=`` belongs to the value."""
    parts: list[str] = []
    for piece in rest.split(","):
        if not parts or re.match(r"\s*[\w.]+\s*[+-]?=", piece):
            parts.append(piece.strip())
        else:
            parts[-1] += f",{piece}"
    return [part for part in parts if part]


def _create(world: World, kind: str, name: str) -> None:
    if kind == "queue":
        if name in world.queues:
            raise Refused(15027, f"qmgr obj={name} svr=default: Queue already exists ")
        world.queues[name] = EmulatedQueue(name, {"enabled": "False", "started": "False"}, int(world.now_s))
        world.touch("queue", name)
    elif kind == "node":
        if name in world.nodes:
            raise Refused(15068, f"qmgr obj={name} svr=default: Node name already exists ")
        world.add_node(EmulatedNode(name, 1))


def _delete(world: World, kind: str, name: str) -> None:
    if kind == "queue":
        if any(job.queue == name and job.state != "C" for job in world.jobs.values()):
            raise Refused(15029, f"qmgr obj={name} svr=default: Cannot delete busy queue ")
        if world.queues.pop(name, None) is None:
            raise Refused(15020, f"qmgr obj={name} svr=default: Unknown queue ")
        world.touch("queue", name)
    elif kind == "node":
        if name not in world.nodes or world.jobs_on(name):
            raise Refused(15064, f"qmgr obj={name} svr=default: Unknown node ")
        del world.nodes[name], world.slots[name], world.gpu_slots[name]
        world.touch("node", name)


def _assign(world: World, kind: str, name: str, key: str, sign: str, value: str) -> None:
    if kind == "node":
        _assign_node(world, name, key, sign, value)
        return
    if kind == "queue":
        queue = world.queues.get(name)
        if queue is None:
            raise Refused(15020, f"qmgr obj={name} svr=default: Unknown queue ")
        queue.mtime_s = int(world.now_s)
        _store(queue.attributes, key, sign, value)
        world.touch("queue", name)
        return
    if key.split(".")[0] not in (*SERVER_ORDER, *_EXTRA_SERVER):
        raise Refused(15002, "qmgr obj= svr=default: Undefined attribute  MSG=cannot locate attribute")
    _store(world.server, key, sign, value)
    world.touch("server", "")
    if key == "scheduling" and world.server.get(key) == "True":
        world.notify(COMMANDS["cmd" if world.was_scheduling else "first"])
        world.was_scheduling = True


def _store(table: dict[str, str], key: str, sign: str, value: str) -> None:
    if value.lower() in ("true", "t", "y", "1") and key in (
        "scheduling",
        "enabled",
        "started",
        "query_other_jobs",
    ):
        value = "True"
    elif value.lower() in ("true", "false"):
        value = value.capitalize()
    if sign == "unset":
        table.pop(key, None)
    elif sign == "=" or key not in _LISTS:
        table[key] = value
    else:
        table[key] = ",".join(_listed(table.get(key, ""), sign, value))


def _listed(old: str, sign: str, value: str) -> list[str]:
    kept = [each for each in old.split(",") if each]
    changed = [each.strip() for each in value.split(",")]
    if sign == "+=":
        return kept + [each for each in changed if each not in kept]
    return [each for each in kept if each not in changed]


def _assign_node(world: World, name: str, key: str, sign: str, value: str) -> None:
    node = world.nodes.get(name)
    if node is None:
        raise Refused(15064, f"qmgr obj={name} svr=default: Unknown node ")
    if key in ("np", "gpus") and value.isdigit():
        setattr(node, key, int(value))
        world.resize_node(node)
    elif key == "properties":
        node.properties = _listed(",".join(node.properties), sign, value) if sign != "=" else value.split(",")
    elif key == "note":
        node.note = value
    elif key == "state":
        node.offline = "offline" in value if sign != "-=" else False
    else:
        raise Refused(15002, f"qmgr obj={name} svr=default: Undefined attribute  MSG=cannot locate attribute")
    world.touch_node(name)


def qterm(world: World, call: Call) -> Answer:
    """End the server, jobs go on; the server itself does that once this was answered."""
    options = read_options(call.arguments, "lt:", permute=False)
    if options.error or options.last("t", "quick").lower() != "quick":
        return Answer(err="Usage: qterm [-t quick] [server ...]\n", code=1)
    if not world.is_admin(call.user):
        return Answer(err="qterm: Unauthorized Request \n", code=2)
    return Answer()


def switch_queue(world: World, call: Call) -> Answer:
    """qstart, qstop, qenable, qdisable."""
    key, value = {
        "qstart": ("started", "True"),
        "qstop": ("started", "False"),
        "qenable": ("enabled", "True"),
        "qdisable": ("enabled", "False"),
    }[call.name]
    if not world.is_admin(call.user):
        return Answer(err=f"{call.name}: Unauthorized Request \n", code=15007 % 256)
    for name in call.arguments:
        if name not in world.queues:
            return Answer(err=f"{call.name}: Unknown queue {name}\n", code=15020 % 256)
        world.queues[name].attributes[key] = value
        world.touch("queue", name)
    return Answer()
