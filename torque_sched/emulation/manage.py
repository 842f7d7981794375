"""qmgr, and the programs that start and stop queues."""

from __future__ import annotations

import re

from torque_sched.emulation.attributes import (
    FAMILIES,
    LISTS,
    NUMBERS,
    OPERATORS_MAY_NOT,
    READ_ONLY,
    is_queue_attribute,
    is_server_attribute,
    kept_value,
)
from torque_sched.emulation.call import DENIED, Answer, Call, Options, read_options, unknown_host
from torque_sched.emulation.lifecycle import COMMANDS, requeue
from torque_sched.emulation.model import EmulatedNode, EmulatedQueue, Refused
from torque_sched.emulation.show_server import (
    list_node,
    list_queue,
    list_server,
    print_node,
    print_queue,
    print_server,
)
from torque_sched.emulation.submit import RESOURCES
from torque_sched.emulation.world import World

_VERBS = ("active", "create", "delete", "list", "print", "set", "unset")
_KINDS = {"server": "server", "s": "server", "queue": "queue", "q": "queue", "node": "node", "n": "node"}
_STAY = frozenset(("scheduler_iteration", "node_check_rate", "tcp_timeout"))
"""Attributes that an ``unset`` was seen to leave as they are."""
_UNKNOWN_NODE = "Unknown node  MSG=cannot locate specified node"


def qmgr(world: World, call: Call) -> Answer:
    """Run the command of -c, or those of standard input, which are echoed; -n only reads, -z says nothing."""
    options = read_options(call.arguments, "aec:nz", program="qmgr")
    if options.error:
        return Answer(
            err=f"qmgr: {options.error}\nUsage: qmgr [-a] [-c command] [-e] [-n] [-z] [server...]\n", code=1
        )
    for host in options.words:
        if host not in (world.settings.server, "localhost"):
            return Answer(err=_no_server(world, host), code=3)
    answer = Answer()
    if options.has("c"):
        _perform(world, call, options, options.last("c"), answer)
    elif call.stdin is None:
        return Answer(wants_stdin=True)
    else:
        answer.out = "Max open servers: 9\n"
        for line in call.stdin.decode("utf-8", "replace").splitlines():
            if not line.strip():
                continue
            answer.out += f"{line}\n"
            if not line.lstrip().startswith("#") and _perform(world, call, options, line, answer):
                break
    if options.has("z"):
        answer.err = ""
    return answer


def _perform(world: World, call: Call, options: Options, line: str, answer: Answer) -> bool:
    """Run one command; whether that was the last one."""
    is_one = options.has("c")
    if is_one and options.has("e"):
        answer.out += f"{line}\n"
    if line.strip() and line.split()[0] in ("quit", "exit"):
        return True
    if options.has("n"):
        return False
    try:
        answer.out += _one(world, call, line)
    except Refused as error:
        answer.err += f"{error.text}\n"
        answer.code = 2 if error.code and (is_one or options.has("a")) else 0
    return bool(answer.code)


def _no_server(world: World, host: str) -> str:
    text = unknown_host(host, 1, is_old=world.settings.is_old)
    return f"{text}qmgr: cannot connect to server {host} (errno=15010) {DENIED}\n"


def _one(world: World, call: Call, line: str) -> str:
    words = line.split(None, 2)
    if not words:
        raise Refused(15004, "qmgr obj= svr=default: Invalid request MSG=Invalid object type")
    verb = next((whole for whole in _VERBS if whole.startswith(words[0].lower())), "")
    if not verb:
        raise Refused(15005, f"qmgr: Illegal operation: {words[0]}\nTry 'help' if you are having trouble.")
    if len(words) < 2:
        raise Refused(15005, "qmgr: No object type given")
    kind = _KINDS.get(words[1].lower())
    if kind is None:
        raise Refused(15005, f"qmgr: Illegal object type: {words[1]}.")
    rest = words[2].strip() if len(words) > 2 else ""
    if verb == "active":
        return "" if rest else f"Active {kind}s:\n" + ("default\n" if kind == "server" else "")
    if verb in ("print", "list"):
        return _show(world, verb, kind, rest)
    return _command(world, call, line, verb, kind, rest)


def _command(world: World, call: Call, line: str, verb: str, kind: str, rest: str) -> str:
    names = ""
    if kind != "server":
        if not rest or "=" in rest.split(None, 1)[0]:
            if verb in ("set", "unset") and not rest:
                _check_syntax(line, verb, kind, rest)
            raise Refused(0, f"No Active {kind.capitalize()}s, nothing done.")
        names, _, rest = rest.partition(" ")
    if verb in ("set", "unset"):
        _check_syntax(line, verb, kind, rest)
    makes = verb in ("create", "delete")
    if not world.is_admin(call.user, manager=makes):
        needed = "PERM_MANAGER" if makes else "PERM_OPorMGR"
        detail = f"MSG=error in permissions ({needed})"
        raise Refused(15007, f"qmgr obj={names} svr=default: Unauthorized Request  {detail}")
    everyone = {"queue": list(world.queues), "node": list(world.nodes)}
    chosen = everyone.get(kind, [""]) if names == "@default" else names.split(",")
    for name in chosen:
        _change(world, call, verb, kind, name, rest.strip())
    return ""


def _check_syntax(line: str, verb: str, kind: str, rest: str) -> None:
    """What the client sees of a command by itself; a mark shows where."""
    if not rest.strip():
        raise Refused(
            15005, f"qmgr: Syntax error - attribute required for operation\n{line}\n{'^':>{len(line) + 1}}"
        )
    for part in _assignments(rest):
        match = re.match(r"([\w.]+)\s*([+-]?=)?\s*(.*)", part, re.DOTALL)
        has_value = match is not None and match[2] is not None and match[3]
        known = match is not None and (
            kind != "server" or is_server_attribute(match[1]) or match[1] in READ_ONLY
        )
        if match is None or (verb == "set" and not has_value) or not known:
            sign = match[2] if match is not None and match[2] and not known else ""
            place = line.find(sign, line.find(rest)) if sign else len(line)
            what = "cannot locate attribute" if verb == "set" else "attribute required for operation"
            raise Refused(15005, f"qmgr: Syntax error - {what}\n{line}\n{'^':>{place + 1}}")


def _show(world: World, verb: str, kind: str, rest: str) -> str:
    name = rest.split()[0] if rest.split() else ""
    only = rest.split()[1].split(",") if len(rest.split()) > 1 else []
    if kind == "server":
        return _show_server(world, verb, name)
    if not name:
        raise Refused(0, f"No Active {kind.capitalize()}s, nothing done.")
    table: dict[str, object] = {**world.queues} if kind == "queue" else {**world.nodes}
    names = list(table) if name == "@default" else name.split(",")
    for each in names:
        if each not in table:
            word = f"Unknown queue MSG=cannot locate queue {each}" if kind == "queue" else _UNKNOWN_NODE
            raise Refused(15020, f"qmgr obj={each} svr=default: {word}")
    if kind == "node":
        return print_node(world, names) if verb == "print" else list_node(world, names)
    if not all(is_queue_attribute(each) or each in READ_ONLY for each in only):
        text = "Undefined attribute  MSG=status_queue failed"
        raise Refused(15002, f"qmgr obj={names[0]} svr=default: {text}")
    if verb == "list":
        return list_queue(world, names, only)
    if name == "@default":
        return print_queue(world, names, only)
    return "".join(print_queue(world, [each], only) for each in names)


def _show_server(world: World, verb: str, name: str) -> str:
    if name and not is_server_attribute(name) and name not in READ_ONLY:
        # It is taken for names of servers.
        hosts = [each for each in name.split(",") if each not in (world.settings.server, "@default")]
        if hosts:
            raise Refused(15010, "".join(_no_server(world, host) for host in hosts).rstrip("\n"))
        name = ""
    return print_server(world, name) if verb == "print" else list_server(world, name)


def _change(world: World, call: Call, verb: str, kind: str, name: str, rest: str) -> None:
    if verb == "create":
        _create(world, kind, name)
    elif verb == "delete":
        _delete(world, kind, name)
        return
    heard: set[str] = set()
    for part in _assignments(rest):
        match = re.match(r"([\w.]+)\s*(\+=|-=|=)?\s*(.*)$", part, re.DOTALL)
        if not match:
            raise Refused(15005, f"qmgr: Syntax error\n{part}")
        if kind == "node" and match[1] in heard:
            # Seen on real servers: what one command says of an attribute a second time is not heard.
            continue
        heard.add(match[1])
        if match[1] in READ_ONLY and kind != "node":
            text = "Cannot set attribute, read only or insufficient permission "
            raise Refused(15003, f"qmgr obj={name} svr=default: {text} {match[1]}")
        if kind == "server" and match[1] in OPERATORS_MAY_NOT and not world.is_admin(call.user, manager=True):
            raise Refused(
                15003,
                "qmgr obj= svr=default: Cannot set attribute, read only or insufficient permission  "
                + match[1],
            )
        sign = "unset" if verb == "unset" else match[2] or "="
        _assign(world, kind, name, match[1], sign, match[3].strip().strip("\"'"))


def _assignments(rest: str) -> list[str]:
    """``a=1,b=2`` -> two; only within quotes does a comma belong to the value."""
    parts = (piece.strip() for piece in re.split(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""", rest))
    return [part for part in parts if part]


def _create(world: World, kind: str, name: str) -> None:
    if kind == "queue":
        if name in world.queues:
            raise Refused(15027, f"qmgr obj={name} svr=default: Queue already exists ")
        world.queues[name] = EmulatedQueue(name, {}, int(world.now_s))
        world.touch("queue", name)
    elif kind == "node":
        if name in world.nodes:
            raise Refused(15068, f"qmgr obj={name} svr=default: Node name already exists ")
        world.add_node(EmulatedNode(name, 1, listed_s=world.now_s))


def _delete(world: World, kind: str, name: str) -> None:
    if kind == "queue":
        if any(job.queue == name and job.state != "C" for job in world.jobs.values()):
            raise Refused(15029, f"qmgr obj={name} svr=default: Cannot delete busy queue ")
        if world.queues.pop(name, None) is None:
            raise Refused(15020, f"qmgr obj={name} svr=default: Unknown queue ")
        world.touch("queue", name)
    elif kind == "node":
        if name not in world.nodes:
            raise Refused(15064, f"qmgr obj={name} svr=default: Unknown node ")
        if not world.settings.is_old:
            for job in [world.jobs[each] for each in world.jobs_on(name)]:
                requeue(world, job)
        for node in [] if world.settings.is_old else world.nodes.values():
            # The moms get a new list of nodes, and are heard with the next report.
            if node.listed_s:
                node.listed_s, node.marked_down, node.marked_down_s = 0.0, True, world.now_s + 1.0
            world.touch_node(node.name)
        del world.nodes[name], world.slots[name], world.gpu_slots[name]
        world.standing.pop(name, None)
        world.touch("node", name)


def _assign(world: World, kind: str, name: str, key: str, sign: str, value: str) -> None:
    if kind == "node":
        _assign_node(world, name, key, sign, value)
        return
    if kind == "queue":
        queue = world.queues.get(name)
        if queue is None:
            raise Refused(15020, f"qmgr obj={name} svr=default: Unknown queue ")
        if not is_queue_attribute(key):
            raise Refused(15002, f"qmgr obj={name} svr=default: Undefined attribute  {key}")
        queue.mtime_s = int(world.now_s)
        _store(world, name, queue.attributes, key, sign, value)
        world.touch("queue", name)
        return
    _store(world, "", world.server, key, sign, value)
    world.touch("server", "")
    if key == "next_job_number":
        world.next_job = int(world.server.pop(key))
    if key == "scheduling" and world.server.get(key) == "True":
        world.notify(COMMANDS["cmd" if world.was_scheduling else "first"])
        world.was_scheduling = True


def _store(world: World, owner: str, table: dict[str, str], key: str, sign: str, value: str) -> None:
    gap = "  " if world.settings.is_old else " "
    family, _, resource = key.partition(".")
    if family in FAMILIES and resource not in RESOURCES:
        raise Refused(15035, f"qmgr obj={owner} svr=default: Unknown resource type  {key}")
    if sign == "unset":
        if key not in _STAY:
            table.pop(key, None)
        return
    _check_value(owner, key, sign, value)
    if sign == "-=" and key in NUMBERS:
        value = str(int(table.get(key, "0")) - int(value))
    try:
        kept = kept_value(key, value)
    except Refused as error:
        what = "" if key in ("queue_type", "disallowed_types") else gap + key
        raise Refused(error.code, f"qmgr obj={owner} svr=default: {error.text}{what}") from error
    table[key] = kept if sign == "=" or key not in LISTS else _list_text(key, table.get(key, ""), sign, kept)


def _check_value(owner: str, key: str, sign: str, value: str) -> None:
    if key in ("managers", "operators") and any("@" not in each for each in value.split(",")):
        raise Refused(15010, f"qmgr obj={owner} svr=default: {DENIED}")
    if sign == "+=" and key in NUMBERS:
        # Seen on both: numbers can be lowered, not raised.
        raise Refused(15011, f"qmgr obj={owner} svr=default: PBS server internal error {key}")


def _list_text(key: str, old: str, sign: str, value: str) -> str:
    changed = _listed(old, sign, value)
    if key == "acl_hosts" and sign == "+=":
        # Seen on real servers: the newest comes first.
        changed = list(dict.fromkeys([*value.split(","), *changed]))
    return ",".join(sorted(changed) if key in ("managers", "operators") else changed)


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
    if sign == "unset":
        raise Refused(15004, f"qmgr obj={name} svr=default: Invalid request")
    if key in ("np", "gpus"):
        if not value.isdigit() or not int(value):
            gap = "  " if world.settings.is_old else " "
            text = f"Illegal attribute or resource value for{gap}".rstrip()
            raise Refused(15016, f"qmgr obj={name} svr=default: {text}")
        setattr(node, key, int(value))
        world.resize_node(node)
    elif key == "properties":
        node.properties = _listed(",".join(node.properties), sign, value) if sign != "=" else value.split(",")
    elif key == "note":
        node.note = value
    elif key == "state":
        _set_state(node, name, sign, value)
    elif key != "ntype":
        raise Refused(15002, f"qmgr obj={name} svr=default: Undefined attribute  {key}")
    world.touch_node(name)


def _set_state(node: EmulatedNode, name: str, sign: str, value: str) -> None:
    if value not in ("offline", "free", "down", "busy"):
        raise Refused(15069, f"qmgr obj={name} svr=default: Illegal value for  state")
    if value not in ("offline", "free"):
        raise Refused(15013, f"qmgr obj={name} svr=default: PBS server internal error")
    node.offline = value == "offline" and sign != "-="


def qterm(world: World, call: Call) -> Answer:
    """End the server, jobs go on; the server itself does that once this was answered."""
    options = read_options(call.arguments, "lt:", permute=False, program="qterm")
    if options.error or options.last("t", "quick").lower() != "quick":
        wrong = f"qterm: {options.error}\n" if options.error else ""
        return Answer(err=f"{wrong}Usage: qterm [-t quick] [server ...]\n", code=1)
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
    options = read_options(call.arguments, "")
    if options.error or not options.words:
        return Answer(err=f"Usage: {call.name} [queue][@server] ...\n", code=1)
    answer = Answer()
    for word in options.words:
        name, _, host = word.partition("@")
        if host not in ("", world.settings.server, "localhost"):
            answer.err += unknown_host(host, 1, is_old=world.settings.is_old)
            answer.err += f"{call.name}: could not connect to server {host} (15010) {DENIED}\n"
        elif name and name not in world.queues:
            answer.err += f"{call.name}: Unknown queue {name}\n"
        elif not world.is_admin(call.user):
            detail = "MSG=error in permissions (PERM_OPorMGR)"
            answer.err += f"{call.name}: Unauthorized Request  {detail} {name}\n"
        else:
            for each in [name] if name else list(world.queues):
                world.queues[each].attributes[key] = value
                world.touch("queue", each)
    answer.code = 2 if answer.err else 0
    return answer
