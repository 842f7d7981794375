"""qmgr of OpenPBS, as far as installations and tests need it: server, queues, vnodes, resources, hooks."""

from __future__ import annotations

import base64
import os
import pwd
import re
from pathlib import Path
from typing import Any

from torque_sched.emulation.call import Answer, Call, read_options, resolve
from torque_sched.emulation.model import EmulatedNode, EmulatedObject, EmulatedQueue, Refused
from torque_sched.emulation.openpbs import hooks
from torque_sched.emulation.openpbs.form import NODE, QUEUE, SERVER, Form, Pairs, flat, limits, ordered, text
from torque_sched.emulation.openpbs.show import version_of
from torque_sched.emulation.world import World

_KINDS = {
    "server": "server", "s": "server", "queue": "queue", "q": "queue", "node": "node", "n": "node",
    "vnode": "node", "hook": "hook", "h": "hook", "resource": "resource", "r": "resource", "sched": "sched",
    "pbshook": "pbshook",
}  # fmt: skip
_HOOK = {
    "type": "site", "enabled": "true", "event": '""', "user": "pbsadmin", "alarm": "30", "order": "1",
    "debug": "false", "fail_action": "none",
}  # fmt: skip
_HOOK_ORDER = ("type", "enabled", "event", "user", "alarm", "freq", "order", "debug", "fail_action")
_SCHED_ORDER = (
    "sched_host", "sched_cycle_length", "throughput_mode", "job_run_wait", "partition", "sched_priv",
    "sched_log", "scheduling", "scheduler_iteration", "state", "preempt_queue_prio", "preempt_prio",
    "preempt_order", "preempt_sort", "log_events", "server_dyn_res_alarm",
)  # fmt: skip
_NOT_SET_BY_OPERATORS = ("managers", "operators", "acl_roots")
_NO_PRINT = ("resources_assigned", "total_jobs", "state_count")
_PAIR = re.compile(r"""\s*([\w.]+)\s*(\+=|-=|=)\s*("[^"]*"|'[^']*'|\[[^\]]*\]|[^,"']*)\s*(?:,|$)""")
_HOOK_ERROR = 15163
_NO_HOOKS = "{user}@{server} is unauthorized to access hooks data from server {server}"
"""Seen in the source of 23.06.06: whoever is manager, hooks are for root on the server's host."""
_READ_ONLY = "Cannot set attribute, read only or insufficient permission "


def qmgr(world: World, call: Call) -> Answer:
    """Run the command of -c, or those of standard input."""
    options = read_options(call.arguments, "ac:enz")
    if options.error:
        return Answer(err=f"qmgr: {options.error}\n", code=1)
    if options.has("c"):
        return _perform(world, call, options.last("c"))
    if call.stdin is None:
        return Answer(wants_stdin=True)
    answer = Answer()
    for line in call.stdin.decode("utf-8", "replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            done = _perform(world, call, line)
            answer.out, answer.err = answer.out + done.out, answer.err + done.err
            answer.code = done.code or answer.code
    return answer


def _perform(world: World, call: Call, line: str) -> Answer:
    words = line.strip().split(None, 2)
    verb, kind = words[0], _KINDS.get(words[1] if len(words) > 1 else "", "")
    rest = words[2] if len(words) > 2 else ""
    if not kind:
        return Answer(err=f"qmgr: Syntax error - cannot locate attribute\n{line}\n", code=1)
    names, rest = _names(world, kind, rest)
    shown = names[0] if names and kind != "server" else ""
    try:
        if kind in ("hook", "pbshook") and call.user not in ("root", _me()):
            raise Refused(_HOOK_ERROR, _NO_HOOKS.format(user=call.user, server=world.settings.server))
        if verb in ("list", "l", "print", "p"):
            return Answer(out=_listed(world, kind, names, is_list=verb[0] == "l"))
        _check_right(world, call, verb, kind, rest)
        for name in names:
            _change(world, call, verb, kind, name, rest)
    except Refused as error:
        why = f"qmgr obj={shown} svr=default: {error.text}\nqmgr: Error ({error.code}) returned from server\n"
        return Answer(err=why, code=error.exit_code)
    return Answer()


def _me() -> str:
    """Who runs the emulation stands for root."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _names(world: World, kind: str, rest: str) -> tuple[list[str], str]:
    if kind == "server":
        head, _, tail = rest.partition(" ")
        named = head in ("@default", world.settings.server) or not head
        return [world.settings.server], tail if named else rest
    head, _, tail = rest.partition(" ")
    if not head or head in ("@default", "@active"):
        keys = {"queue": list(world.queues), "node": list(world.nodes)}
        found = [key.partition(" ")[2] for key in world.objects if key.startswith(f"{kind} ")]
        return keys.get(kind, found), tail
    return head.split(","), tail


def _check_right(world: World, call: Call, verb: str, kind: str, rest: str) -> None:
    if world.is_admin(call.user, manager=True):
        return
    if not world.is_admin(call.user):
        raise Refused(15007, "Unauthorized Request ")
    name = rest.partition("=")[0].strip()
    if verb not in ("set", "unset", "s", "u") or kind not in ("server", "queue", "node"):
        raise Refused(15003, f"{_READ_ONLY} {name}".rstrip())
    if name in _NOT_SET_BY_OPERATORS:
        raise Refused(15003, f"{_READ_ONLY} {name}")


def _change(world: World, call: Call, verb: str, kind: str, name: str, rest: str) -> None:
    if verb in ("create", "c"):
        _create(world, kind, name)
    elif verb in ("delete", "d"):
        _delete(world, kind, name)
        return
    elif verb in ("import", "i"):
        _import(world, call, name, rest)
        return
    attributes = _attributes(world, kind, name)
    if verb in ("unset", "u"):
        for each in rest.split(","):
            attributes.pop(each.strip(), None)
    else:
        for key, sign, value in _PAIR.findall(rest):
            _set(attributes, key, sign, value, keeps_quotes=kind == "hook" and key == "event")
    if kind == "node":
        _set_node(world, world.nodes[name], attributes)
    world.touch({"hook": "object", "resource": "object", "sched": "object"}.get(kind, kind), _key(kind, name))
    if kind != "hook":
        world.happened.append(("management", ""))


def _key(kind: str, name: str) -> str:
    return name if kind in ("queue", "node") else "" if kind == "server" else f"{kind} {name}"


def _set(attributes: dict[str, str], key: str, sign: str, value: str, *, keeps_quotes: bool) -> None:
    plain = value.strip().strip("\"'")
    old = [each for each in attributes.get(key, "").strip('"').split(",") if each]
    if sign == "+=":
        plain = ",".join([*old, *(each for each in plain.split(",") if each not in old)])
    elif sign == "-=":
        plain = ",".join(each for each in old if each not in plain.split(","))
    attributes[key] = f'"{plain}"' if keeps_quotes else plain


def _create(world: World, kind: str, name: str) -> None:
    if kind == "queue":
        world.queues[name] = EmulatedQueue(name, {"enabled": "False", "started": "False"}, int(world.now_s))
    elif kind == "node":
        node = EmulatedNode(name, 1, listed_s=world.now_s)
        node.attributes = {"resources_available.host": name, "resources_available.vnode": name}
        world.add_node(node)
    elif kind == "hook" and f"hook {name}" in world.objects:
        raise Refused(15067, "hook error: hook name already exists, and it is not allowed")
    else:
        first = dict(_HOOK) if kind == "hook" else {"type": "string"}
        world.objects[_key(kind, name)] = EmulatedObject(_key(kind, name), first)


def _delete(world: World, kind: str, name: str) -> None:
    tables: dict[str, dict[str, Any]] = {"queue": world.queues, "node": world.nodes}
    table, key = tables.get(kind, world.objects), _key(kind, name)
    if key not in table:
        raise Refused(15062 if kind == "node" else 15020, f"Unknown {kind}")
    del table[key]
    if kind == "resource":
        # Seen in the source of 23.06.06: it is unset wherever it was set, but for jobs.
        for node in world.nodes.values():
            if node.attributes.pop(f"resources_available.{name}", None) is not None:
                world.touch_node(node.name)
    world.touch(kind if kind in tables else "object", key)


def _attributes(world: World, kind: str, name: str) -> dict[str, str]:
    if kind == "server":
        return world.server
    if kind == "queue" and name in world.queues:
        return world.queues[name].attributes
    if kind == "node" and name in world.nodes:
        return world.nodes[name].attributes
    if _key(kind, name) in world.objects:
        return world.objects[_key(kind, name)].attributes
    raise Refused({"queue": 15020, "node": 15062}.get(kind, 15066), f"Unknown {kind}")


def _set_node(world: World, node: EmulatedNode, attributes: dict[str, str]) -> None:
    """What a vnode's attributes mean for the emulation."""
    state = attributes.pop("state", None)
    if state is not None:
        world.happened.append(("modifyvnode", f"{node.name} {int(node.offline)}->{int(state == 'offline')}"))
        node.offline = state == "offline"
        attributes["last_state_change_time"] = str(int(world.now_s))
    node.np = int(attributes.get("resources_available.ncpus", "1"))
    world.resize_node(node)


def _import(world: World, call: Call, name: str, rest: str) -> None:
    """``import hook NAME application/x-python default|base64 FILE``."""
    _attributes(world, "hook", name)
    words = rest.split()
    if len(words) != 3 or words[0] != "application/x-python":
        raise Refused(15045, "hook import failed: content-type and content-encoding and input file")
    try:
        data = resolve(call, words[2].strip("\"'")).read_bytes()
    except OSError as error:
        raise Refused(15010, f"{words[2]} {error.strerror}") from error
    attributes = world.objects[f"hook {name}"].attributes
    raw = base64.b64decode(data) if words[1] == "base64" else data
    attributes["emulated_body"] = raw.decode("utf-8", "replace")
    world.touch("object", f"hook {name}")


def write_hooks(world: World, directory: Path) -> None:
    """Bring the files of the hooks to what was imported."""
    folder = hooks.file_of(directory, "any").parent
    folder.mkdir(parents=True, exist_ok=True)
    bodies = {
        key.partition(" ")[2]: each.attributes["emulated_body"]
        for key, each in world.objects.items()
        if key.startswith("hook ") and "emulated_body" in each.attributes
    }
    for path in folder.glob("*.PY"):
        if path.stem not in bodies:
            path.unlink()
    for name, body in bodies.items():
        path = hooks.file_of(directory, name)
        if not path.exists() or path.read_text(encoding="utf-8") != body:
            path.write_text(body, encoding="utf-8")


# -- list and print


def _listed(world: World, kind: str, names: list[str], *, is_list: bool) -> str:
    out = []
    if not is_list and kind == "server":
        out.append(_print_resources(world))
        out.append(_head("Create queues and set their attributes."))
        out += [_print(world, "queue", name) for name in world.queues]
        out.append(_head("Set server attributes."))
        return "".join([*out, *_set_lines("server", "", ordered(world.server, SERVER))])
    for name in names:
        _attributes(world, kind, name)
        out.append(_list_one(world, kind, name) if is_list else _print(world, kind, name))
    if not is_list and kind == "hook" and names:
        out.insert(0, _head("Create hooks and set their properties."))
    return "".join(out)


def _list_one(world: World, kind: str, name: str) -> str:
    order = {"hook": _HOOK_ORDER, "sched": _SCHED_ORDER, "queue": QUEUE, "node": NODE, "server": SERVER}
    attributes = dict(_attributes(world, kind, name))
    attributes.pop("emulated_body", None)
    if kind == "server":
        attributes["pbs_version"] = version_of(world)
    if kind == "hook":
        attributes["event"] = attributes["event"].strip('"')
    head = f"{kind.capitalize()} {name}"
    return text(head, ordered(attributes, order.get(kind, ())), Form())


def _head(words: str) -> str:
    return f"#\n# {words}\n#\n"


def _print_resources(world: World) -> str:
    names = [key.partition(" ")[2] for key in world.objects if key.startswith("resource ")]
    if not names:
        return ""
    return _head("Create resources and set their properties.") + "".join(
        _print(world, "resource", name) for name in names
    )


def _print(world: World, kind: str, name: str) -> str:
    order = {"queue": QUEUE, "node": NODE, "hook": _HOOK_ORDER}.get(kind, ())
    attributes = dict(_attributes(world, kind, name))
    body = attributes.pop("emulated_body", None)
    lines = [_head(f"Create and define {kind} {name}"), f"create {kind} {name}\n"]
    lines += _set_lines(kind, f" {name}", ordered(attributes, order))
    if body is not None:
        lines.append(f"import hook {name} application/x-python base64 -\n")
        lines.append(base64.encodebytes(body.encode()).decode())
    return "".join(lines)


def _set_lines(kind: str, name: str, pairs: Pairs) -> list[str]:
    lines = []
    seen: set[str] = set()
    for key, value in flat(pairs):
        if key.startswith(_NO_PRINT):
            continue
        for part in value.split(",") if key in ("managers", "operators") else limits(value):
            lines.append(f"set {kind}{name} {key} {'+=' if key in seen else '='} {part}\n")
            seen.add(key)
    return lines
