"""Jobs as qstat prints them: XML, ``name = value`` text and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from torque_sched.emulation.model import EmulatedJob, seconds_of, size_kb, walltime_text
from torque_sched.emulation.mom import refresh_used, report
from torque_sched.emulation.placing import SpecError, parse_spec
from torque_sched.emulation.routing import is_route
from torque_sched.emulation.world import World

OPERATOR = "@operator"
"""Stands for every operator who is no manager where a viewer's name is asked for; a manager has none."""

_TIMES = frozenset(
    ("ctime", "mtime", "qtime", "etime", "start_time", "comp_time", "Execution_Time")
)  # fmt: skip
_MANAGERS_ONLY = frozenset(("Resource_List.neednodes", "hashname", "queue_rank"))
_OPERATORS_ONLY = _MANAGERS_ONLY | {"substate"}
_HIDDEN = (frozenset[str](), _MANAGERS_ONLY, _OPERATORS_ONLY, _OPERATORS_ONLY | {"Variable_List"})
"""What managers, operators, the owner and others do not see."""
N_SIGHTS = len(_HIDDEN)
_ORDER = [
    "Job_Name",
    "Job_Owner",
    "resources_used",
    "job_state",
    "queue",
    "server",
    "Account_Name",
    "Checkpoint",
    "ctime",
    "depend",
    "Error_Path",
    "exec_host",
    "exec_port",
    "exec_gpus",
    "Execution_Time",
    "group_list",
    "Hold_Types",
    "interactive",
    "Join_Path",
    "Keep_Files",
    "Mail_Points",
    "Mail_Users",
    "mtime",
    "Output_Path",
    "Priority",
    "qtime",
    "Rerunable",
    "Resource_List",
    "session_id",
    "Shell_Path_List",
    "substate",
    "User_List",
    "Variable_List",
    "euser",
    "egroup",
    "hashname",
    "queue_rank",
    "queue_type",
    "comment",
    "etime",
    "exit_status",
    "submit_args",
    "job_array_id",
    "job_array_request",
    "umask",
    "start_time",
    "Walltime.Remaining",
    "start_count",
    "fault_tolerant",
    "comp_time",
    "job_radix",
    "total_runtime",
    "submit_host",
    "init_work_dir",
    "gpu_flags",
    "node_exclusive",
    "request_version",
    "x",
    "stagein",
    "stageout",
    "job_arguments",
    "jobtype",
    "checkpoint_dir",
    "req_information",
    "L_Request",
]
_FIRST_COLUMN, _AFTER_COMMA, _AFTER_FOLD, _LAST_COLUMN = 4, 9, 8, 78


def full_xml(world: World, jobs: Iterable[EmulatedJob], *, viewer: str) -> str:
    """``qstat -f -x``: one document on one line; 6.1 puts a header line before it."""
    body = "".join(_xml(world, job, viewer) for job in jobs)
    head = "" if world.settings.is_old else '<?xml version="1.0"?>\n'
    return f"{head}<Data>{body}</Data>\n"


def full_text(world: World, jobs: Iterable[EmulatedJob], *, viewer: str, one_line: bool) -> str:
    """``qstat -f``: folded at 78 columns unless ``one_line``."""
    blocks = []
    for job in jobs:
        lines = [f"Job Id: {job.id}"]
        for name, value in job_pairs(world, job, viewer):
            shown = ctime_text(int(value)) if name in _TIMES else value
            lines.append(f"    {name} = {shown}" if one_line else fold(name, shown))
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


def ctime_text(at_s: int) -> str:
    """Epoch seconds the way C's ctime writes them, in local time."""
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(at_s))


def fold(name: str, value: str) -> str:
    """``    name = value`` folded as Torque folds: after commas where it fits, else within words."""
    out = [f"    {name} = "]
    column = len(out[0])
    for place, piece in enumerate(value.split(",")):
        if place:
            out.append(",")
            column += 1
        if column + len(piece) + 1 <= _LAST_COLUMN:
            out.append(piece)
            column += len(piece)
            continue
        if place:
            out.append("\n\t")
            column = _AFTER_COMMA
        while column + len(piece) >= _LAST_COLUMN:
            cut = _LAST_COLUMN - column
            out.append(piece[:cut] + "\n\t")
            piece, column = piece[cut:], _AFTER_FOLD
        out.append(piece)
        column += len(piece)
    return "".join(out)


def _xml(world: World, job: EmulatedJob, viewer: str) -> str:
    moving = is_moving(job)
    key = f"xml{sight(job, viewer)}"
    if not moving and key in job.cached:
        return job.cached[key]
    out: list[str] = ["<Job><Job_Id>", escape(job.id, _QUOTE), "</Job_Id>"]
    group = ""
    for name, value in job_pairs(world, job, viewer):
        head, dot, leaf = name.partition(".")
        if group and head != group:
            out.append(f"</{group}>")
            group = ""
        if dot:
            if not group:
                out.append(f"<{head}>")
                group = head
            # Tag names may not hold a second dot's index, so `task_count.0` stays as it is.
            out.append(f"<{leaf}>{escape(value, _QUOTE)}</{leaf}>")
        else:
            out.append(f"<{head}>{escape(value, _QUOTE)}</{head}>")
    if group:
        out.append(f"</{group}>")
    out.append("</Job>")
    text = "".join(out)
    if not moving:
        job.cached[key] = text
    return text


_QUOTE = {'"': "&quot;"}


def is_moving(job: EmulatedJob) -> bool:
    """Whether what it shows changes with time alone."""
    return job.is_active and not job.members


def knows(name: str) -> bool:
    """Whether jobs have an attribute of that name, set or not."""
    return name in _HEADS


_HEADS = frozenset(name.partition(".")[0] for name in _ORDER)


def job_pairs(
    world: World, job: EmulatedJob, viewer: str, wanted: Iterable[str] = _ORDER
) -> Iterator[tuple[str, str]]:
    """Name and value of what ``viewer`` may see, in the order of ``wanted``; families by their first word."""
    values = {
        **job.attributes,
        "job_state": job.state,
        "queue": job.queue,
        "server": world.settings.server,
        "substate": str(job.substate),
        "queue_rank": str(job.rank),
        **_of_queue(world, job),
    }
    if job.state == "R" and job.substate == 42 and "walltime" in job.resources and not job.members:
        left = seconds_of(job.resources["walltime"]) - (world.now_s - job.start_s)
        values["Walltime.Remaining"] = str(int(left))
    hidden = _HIDDEN[sight(job, viewer)]
    for name in wanted:
        if name == "resources_used":
            yield from ((f"{name}.{key}", value) for key, value in _used(world, job).items())
        elif name == "Resource_List":
            yield from (
                (f"{name}.{key}", value)
                for key, value in _resources(world, job)
                if f"{name}.{key}" not in hidden
            )
        elif name == "req_information":
            yield from ((key, value) for key, value in values.items() if key.startswith("req_information."))
        elif name in values and name not in hidden:
            yield name, values[name]


def viewer_of(world: World, user: str) -> str:
    """The name under which a user looks at jobs: none for a manager, `OPERATOR`, or his own."""
    if world.is_admin(user, manager=True):
        return ""
    return OPERATOR if world.is_admin(user) else user


def sight(job: EmulatedJob, viewer: str) -> int:
    """0 for managers (no ``viewer``), 1 for operators, 2 for the owner, 3 for others."""
    if not viewer:
        return 0
    return 1 if viewer == OPERATOR else 2 if viewer == job.user else 3


def _of_queue(world: World, job: EmulatedJob) -> dict[str, str]:
    """Only in an execution queue does a job have a user to run as."""
    queue = world.queues.get(job.queue)
    if queue is not None and is_route(queue):
        return {"queue_type": "R", **({"euser": job.user, "egroup": job.group} if job.has_executed else {})}
    if job.is_anonymous:
        return {"queue_type": "E"}
    return {"queue_type": "E", "euser": job.user, "egroup": job.group}


def _resources(world: World, job: EmulatedJob) -> list[tuple[str, str]]:
    pairs = list(job.resources.items())
    return sorted(pairs) if world.settings.is_old else pairs


def _used(world: World, job: EmulatedJob) -> dict[str, str]:
    """As of the newest report of the first node, which is how the server learns it."""
    if job.state != "R" or job.substate != 42 or not job.slots:
        return job.used
    node = world.nodes.get(job.slots[0][0])
    if node is None:
        return job.used
    at_s = report(world, node).at_s
    if at_s <= job.start_s:
        return job.used
    now_s, world.now_s = world.now_s, float(at_s)
    try:
        refresh_used(world, job)
    finally:
        world.now_s = now_s
    return job.used


# -- tables


def _short(name: str) -> str:
    """A name in sixteen columns: the end of a long one."""
    return name if len(name) <= 16 else f"...{name[-13:]}"


def short_table(world: World, jobs: Iterable[EmulatedJob]) -> str:
    """Plain ``qstat``; nothing at all without jobs."""
    rows = [
        f"{job.id:<26} {_short(job.attributes['Job_Name']):<16} {job.user[:15]:<15} "
        f"{_used(world, job).get('cput', '0'):>8} {job.state} {job.queue[:15]:<15}"
        for job in jobs
    ]
    if not rows:
        return ""
    head = "Job ID                    Name             User            Time Use S Queue\n"
    rule = "------------------------- ---------------- --------------- -------- - -----\n"
    return head + rule + "\n".join(rows) + "\n"


def wide_table(
    world: World, jobs: Iterable[EmulatedJob], *, hosts: bool, comments: bool, one_line: bool, unit: str
) -> str:
    """``qstat -a``, ``-n``, ``-r``, ``-i``, ``-s``, ``-G``, ``-M``."""
    old = world.settings.is_old
    listed = list(jobs)
    if not listed:
        return ""
    left = f"\n{world.settings.server}: \n"
    if old:
        left += f"{'':82}Req'd    Req'd       Elap\n"
        columns, rule, width = "Memory   Time    S   Time", "------ --------- - ---------", 6
    else:
        left += f"{'':82}Req'd       Req'd       Elap\n"
        columns, rule, width = "Memory      Time    S   Time", "--------- --------- - ---------", 9
    left += f"Job ID                  Username    Queue    Jobname          SessID  NDS   TSK   {columns}\n"
    left += f"----------------------- ----------- -------- ---------------- ------ ----- ------ {rule}\n"
    rows = []
    for job in listed:
        row = _wide_row(job, width, unit) + f" {job.state} {_elapsed(world, job):>9}"
        if hosts:
            where = job.attributes.get("exec_host")
            shown = f"   {where}" if where else "    -- "
            row += shown if one_line else f"\n{shown}"
        if comments:
            row += f"\n   {job.attributes.get('comment', ' --')}"
        rows.append(row)
    return left + "\n".join(rows) + "\n"


def disk_table(world: World, jobs: Iterable[EmulatedJob]) -> str:
    """``qstat -R``: what jobs have of three file systems, which is nothing."""
    listed = list(jobs)
    if not listed:
        return ""
    width, old = (6, True) if world.settings.is_old else (9, False)
    needs, memory, rule = ("Req'd ", "Memory", "------") if old else ("Req'd    ", "Memory   ", "---------")
    lines = [
        "",
        f"{world.settings.server}: ",
        f"{'':58}{needs} Req'd       Elap ",
        f"Job ID                  Username    Queue    NDS   TSK    {memory} Time      S Time       "
        "BIG  FAST   PFS",
        f"----   ---------------- ----------- -------- ----- ------ {rule} --------- - --------- "
        "----- ----- -----",
    ]
    for job in listed:
        nodes, tasks = _shape(job)
        memory, walltime = _memory(job, width, ""), _walltime(job)
        lines.append(
            f"{job.id:<23} {job.user[:11]:<11} {job.queue[:8]:<8} {nodes:>5} {tasks:>6} {memory:>{width}} "
            f"{walltime:>9} {job.state} {_elapsed(world, job):>9}   --    --    -- "
        )
    return "\n".join(lines) + "\n"


def _wide_row(job: EmulatedJob, width: int, unit: str) -> str:
    nodes, tasks = _shape(job)
    session = job.attributes.get("session_id", "-- ")
    memory, walltime = _memory(job, width, unit), _walltime(job)
    name = job.attributes["Job_Name"][:16]
    return (
        f"{job.id:<23} {job.user[:11]:<11} {job.queue[:8]:<8} {name:<16} {session:>6} {nodes:>5} {tasks:>6} "
        f"{memory:>{width}} {walltime:>9}"
    )


def _memory(job: EmulatedJob, width: int, unit: str) -> str:
    memory = next(
        (value for key, value in reversed(job.resources.items()) if key in ("mem", "pmem", "vmem", "pvmem")),
        "-- ",
    )
    if unit == "G" and memory != "-- ":
        memory = f"{-(-size_kb(memory) // 1048576)}gb"
    elif unit == "M" and memory != "-- ":
        # Words of eight bytes.
        memory = f"{-(-size_kb(memory) // 8192)}mw"
    return memory if len(memory) < width else memory[: width - 1]


def _walltime(job: EmulatedJob) -> str:
    return walltime_text(seconds_of(job.resources["walltime"])) if "walltime" in job.resources else "-- "


def _shape(job: EmulatedJob) -> tuple[str, str]:
    text = job.resources.get("nodes")
    if text is None:
        # Without nodes, but counted: so it is with a job that was moved to another queue.
        count = job.resources.get("nodect")
        tasks = job.resources.get("procs") or job.resources.get("ncpus") or ("1" if count is None else "-- ")
        return count or "-- ", tasks
    try:
        chunks = parse_spec(text)
    except SpecError:
        return "1", "1"
    return str(sum(c.count for c in chunks)), str(sum(c.count * c.ppn for c in chunks))


def _elapsed(world: World, job: EmulatedJob) -> str:
    walltime = seconds_of(job.resources["walltime"]) if "walltime" in job.resources else None
    if job.state == "W" or (job.state == "R" and job.members):
        # Seen on 6.1.3: no remaining time is read as "all of it is over".
        return walltime_text(walltime) if walltime is not None else "-- "
    if job.state == "R":
        return walltime_text(world.now_s - job.start_s)
    return "-- "
