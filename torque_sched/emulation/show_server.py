"""Queues and the server as qstat and qmgr print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torque_sched.emulation.attributes import READ_ONLY
from torque_sched.emulation.model import EmulatedQueue, seconds_of, walltime_text
from torque_sched.emulation.show_job import ctime_text, fold
from torque_sched.emulation.show_node import node_attributes
from torque_sched.emulation.world import World

_QUEUE_ORDER = [
    "queue_type",
    "Priority",
    "max_queuable",
    "max_user_queuable",
    "total_jobs",
    "state_count",
    "max_running",
    "acl_host_enable",
    "acl_hosts",
    "acl_user_enable",
    "acl_users",
    "from_route_only",
    "resources_max",
    "resources_min",
    "resources_default",
    "acl_group_enable",
    "acl_groups",
    "acl_logic_or",
    "acl_group_sloppy",
    "mtime",
    "resources_available",
    "resources_assigned",
    "max_user_run",
    "max_group_run",
    "keep_completed",
    "route_destinations",
    "disallowed_types",
    "is_transit",
    "enabled",
    "started",
    "features_required",
    "required_login_property",
]
SERVER_ORDER = [
    "server_state",
    "scheduling",
    "max_running",
    "max_user_run",
    "max_group_run",
    "total_jobs",
    "state_count",
    "acl_hosts",
    "acl_user_enable",
    "acl_users",
    "managers",
    "operators",
    "acl_roots",
    "default_queue",
    "log_events",
    "mail_from",
    "query_other_jobs",
    "resources_available",
    "resources_default",
    "resources_max",
    "resources_assigned",
    "scheduler_iteration",
    "node_check_rate",
    "tcp_timeout",
    "comment",
    "job_stat_rate",
    "poll_jobs",
    "down_on_error",
    "mom_job_sync",
    "pbs_version",
    "keep_completed",
    "submit_hosts",
    "allow_node_submit",
    "next_job_number",
    "net_counter",
    "moab_array_compatible",
    "max_user_queuable",
    "max_slot_limit",
    "max_job_array_size",
    "nppcu",
    "timeout_for_job_delete",
    "timeout_for_job_requeue",
    "note_append_on_error",
    "tokens",  # its place among the others was not seen
]


def queue_text(world: World, queue: EmulatedQueue, *, one_line: bool) -> str:
    """One block of ``qstat -Q -f``."""
    return _block(f"Queue: {queue.name}", list(queue_pairs(world, queue)), one_line)


def server_text(world: World, *, one_line: bool) -> str:
    """``qstat -B -f``."""
    return _block(f"Server: {world.settings.server}", list(server_pairs(world)), one_line)


def _block(head: str, pairs: list[tuple[str, str]], one_line: bool) -> str:
    lines = [f"    {name} = {value}" if one_line else fold(name, value) for name, value in pairs]
    return "\n".join([head, *lines]) + "\n\n"


def _count_text(counts: dict[str, int]) -> str:
    return "".join(f"{name}:{number} " for name, number in counts.items())


def _assigned(world: World, names: list[str], queue: str = "") -> Iterator[tuple[str, str]]:
    total = world.total_assigned(queue)
    for name in names:
        unit = "b" if name.endswith("mem") else ""
        yield f"resources_assigned.{name}", f"{total[name]}{unit}"


def queue_pairs(world: World, queue: EmulatedQueue) -> Iterator[tuple[str, str]]:
    """Name and value of everything that is shown of a queue."""
    counts = world.counts(queue.name)
    for name in _QUEUE_ORDER:
        if name == "total_jobs":
            yield name, str(sum(counts.values()))
        elif name == "state_count":
            yield name, _count_text(counts)
        elif name == "mtime":
            yield name, str(queue.mtime_s)
        elif name == "resources_assigned":
            yield from _assigned(world, queue.assigned, queue.name)
        else:
            found = list(_matching(queue.attributes, name))
            yield from sorted(found) if world.settings.is_old else found


def server_pairs(world: World) -> Iterator[tuple[str, str]]:
    """Name and value of everything that is shown of the server."""
    counts = world.counts()
    computed = {
        "server_state": "Active" if world.server.get("scheduling") == "True" else "Idle",
        "total_jobs": str(sum(counts.values())),
        "state_count": _count_text(counts),
        "pbs_version": world.settings.pbs_version,
        "next_job_number": str(world.next_job),
        "net_counter": world.connections.text,
    }
    for name in SERVER_ORDER:
        if name in computed:
            yield name, computed[name]
        elif name == "resources_assigned":
            yield from _assigned(world, world.assigned)
        else:
            yield from _matching(world.server, name)


def _matching(attributes: dict[str, str], name: str) -> Iterator[tuple[str, str]]:
    return ((key, value) for key, value in attributes.items() if key == name or key.startswith(f"{name}."))


# -- qmgr


def print_server(world: World, only: str = "") -> str:
    """``qmgr -c 'print server'``: queues first, then the settable server attributes; or one attribute."""
    parts = []
    if not only:
        parts = ["#\n# Create queues and set their attributes.\n#\n"]
        parts += [_print_queue(world, queue, []) for queue in world.queues.values()]
    parts.append("#\n# Set server attributes.\n#\n")
    for name, value in _chosen(server_pairs(world), [only] if only else []):
        if name.split(".")[0] not in READ_ONLY:
            parts.append(_assignments(f"set server {name}", name, value))
    return "".join(parts)


def _assignments(head: str, name: str, value: str) -> str:
    if name in ("managers", "operators", "acl_hosts", "submit_hosts"):
        first, *rest = value.split(",")
        return f"{head} = {first}\n" + "".join(f"{head} += {each}\n" for each in rest)
    return f"{head} = {value}\n"


def print_queue(world: World, names: list[str], only: list[str]) -> str:
    """``qmgr -c 'print queue NAME'``."""
    return "#\n# Create queues and set their attributes.\n#\n" + "".join(
        _print_queue(world, world.queues[name], only) for name in names
    )


def _print_queue(world: World, queue: EmulatedQueue, only: list[str]) -> str:
    lines = [f"#\n# Create and define queue {queue.name}\n#\ncreate queue {queue.name}\n"]
    lines += [
        _assignments(f"set queue {queue.name} {name}", name, value)
        for name, value in _chosen(queue_pairs(world, queue), only)
        if name.split(".")[0] not in READ_ONLY
    ]
    return "".join(lines)


def list_server(world: World, only: str = "") -> str:
    """``qmgr -c 'list server'``; of one attribute if ``only`` names it."""
    return _listing(f"Server {world.settings.server}", _chosen(server_pairs(world), [only] if only else []))


def _chosen(pairs: Iterable[tuple[str, str]], only: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in pairs if not only or key.split(".")[0] in only]


def list_queue(world: World, names: list[str], only: list[str]) -> str:
    """``qmgr -c 'list queue NAME'``."""
    blocks = []
    for name in names:
        pairs = [
            (key, ctime_text(int(value)) if key == "mtime" else value)
            for key, value in queue_pairs(world, world.queues[name])
        ]
        chosen = _chosen(pairs, only)
        # Seen on real servers: what was asked for last comes first.
        chosen.sort(key=lambda pair: -only.index(pair[0].split(".")[0]) if only else 0)
        blocks.append(_listing(f"Queue {name}", chosen))
    return "".join(blocks)


def _listing(head: str, pairs: list[tuple[str, str]]) -> str:
    return "\n".join([head, *[f"\t{name} = {value}" for name, value in pairs]]) + "\n\n"


def list_node(world: World, names: list[str]) -> str:
    """``qmgr -c 'list node NAME'``: the status is folded at commas, indented by 17."""
    blocks = []
    for name in names:
        pairs = [(key, _fold_status(key, value)) for key, value in node_attributes(world, world.nodes[name])]
        blocks.append(_listing(f"Node {name}", pairs))
    return "".join(blocks)


def _fold_status(name: str, value: str) -> str:
    if name not in ("status", "gpu_status", "jobs"):
        return value
    lines: list[str] = []
    line = ""
    for place, piece in enumerate(value.split(",")):
        joined = f"{line},{piece}" if place else piece
        # The first line starts behind "\tstatus = ".
        if place and len(joined) + 17 >= 80:
            lines.append(f"{line},")
            line = piece
        else:
            line = joined
    return ("\n" + " " * 17).join([*lines, line])


def print_node(world: World, names: list[str]) -> str:
    """``qmgr -c 'print node NAME'``."""
    parts = ["#\n# Create nodes and set their properties.\n#\n"]
    for name in names:
        parts.append(f"#\n# Create and define node {name}\n#\ncreate node {name}\n")
        for key, value in node_attributes(world, world.nodes[name]):
            if key in ("power_state", "mom_service_port", "mom_manager_port", "jobs", "gpu_status"):
                continue
            first, *rest = value.split(",") if key in ("state", "status", "properties") else [value]
            parts.append(f"set node {name} {key} = {first}\n")
            parts += [f"set node {name} {key} += {each}\n" for each in rest]
    return "".join(parts)


# -- tables


def queue_table(world: World, names: list[str]) -> str:
    """``qstat -Q``."""
    lines = [
        "Queue              Max    Tot   Ena   Str   Que   Run   Hld   Wat   Trn   Ext T   Cpt",
        "----------------   ---   ----    --    --   ---   ---   ---   ---   ---   --- -   ---",
    ]
    for name in names:
        queue = world.queues[name]
        count = world.counts(name)
        flags = ["yes" if queue.is_true(key) else "no" for key in ("enabled", "started")]
        numbers = [count[key] for key in ("Queued", "Running", "Held", "Waiting", "Transit", "Exiting")]
        cells = "".join(f" {cell:>5}" for cell in [*flags, *numbers])
        kind = queue.attributes.get("queue_type", "Execution")[0]
        most = queue.attributes.get("max_running", "0")
        lines.append(f"{name:<16} {most:>5} {sum(count.values()):>6}{cells} {kind} {count['Complete']:>5}")
    return "\n".join(lines) + "\n"


def server_table(world: World) -> str:
    """``qstat -B``."""
    count = world.counts()
    most = world.server.get("max_running", "0")
    keys = ("Queued", "Running", "Held", "Waiting", "Transit", "Exiting", "Complete")
    cells = "".join(f" {cell:>5}" for cell in [most, sum(count.values()), *[count[key] for key in keys]])
    state = "Active" if world.server.get("scheduling") == "True" else "Idle"
    return (
        "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext   Com Status    \n"
        "----------------   ---   ---   ---   ---   ---   ---   ---   ---   --- ----------\n"
        f"{world.settings.server:<16}{cells} {state:<10}\n"
    )


def summary_table(world: World, names: list[str]) -> str:
    """``qstat -q``."""
    lines = [
        "",
        f"server: {world.settings.server}",
        "",
        "Queue            Memory CPU Time Walltime Node  Run Que Lm  State",
        "---------------- ------ -------- -------- ----  --- --- --  -----",
    ]
    running = queued = 0
    for name in names:
        queue = world.queues[name]
        count = world.counts(name)
        running += count["Running"]
        waiting = count["Queued"] + count["Held"] + count["Waiting"]
        queued += waiting
        flags = f"{'E' if queue.is_true('enabled') else 'D'} {'R' if queue.is_true('started') else 'S'}"
        times = [
            walltime_text(seconds_of(queue.attributes[key])) if key in queue.attributes else "   --   "
            for key in ("resources_max.cput", "resources_max.walltime")
        ]
        memory = queue.attributes.get("resources_max.mem", "  --  ")
        most_nodes = queue.attributes.get("resources_max.nodect")
        nodes = "  --" if most_nodes is None else f"{most_nodes:>5}"
        most = queue.attributes.get("max_running", "--")
        lines.append(
            f"{name:<16} {memory:>6} {times[0]} {times[1]} {nodes:<5} {count['Running']:>3} {waiting:>3} "
            f"{most:>2}   {flags}"
        )
    lines.append(f"{'':47}----- -----")
    lines.append(f"{'':47}{running:>5} {queued:>5}")
    return "\n".join(lines) + "\n"
