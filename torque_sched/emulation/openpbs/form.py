"""How OpenPBS prints objects: text folded or not, JSON with its traps, dsv.

An object is a list of (name, value); a value is a text, or a list of pairs for a family such as
``Resource_List``, or a list of texts for what pbsnodes lists as an array. JSON is as broken as the real one:
what strtod accepts stands bare, a backslash is not escaped, and a name may come twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Pairs: TypeAlias = "list[tuple[str, str | list[str] | list[tuple[str, str]]]]"

JOB = (
    "Job_Name", "Job_Owner", "resources_used", "job_state", "queue", "server", "Account_Name", "Checkpoint",
    "ctime", "depend", "Error_Path", "exec_host", "exec_vnode", "Execution_Time", "Hold_Types", "Join_Path",
    "Keep_Files", "Mail_Points", "Mail_Users", "mtime", "Output_Path", "Priority", "qtime", "Rerunable",
    "Resource_List", "Shell_Path_List", "schedselect", "stime", "obittime", "session_id", "jobdir",
    "substate", "Variable_List", "euser", "egroup", "hashname", "queue_rank", "queue_type", "comment",
    "etime", "run_count", "Stageout_status", "Exit_status", "eligible_time", "accrue_type",
    "Submit_arguments", "array", "array_state_count", "array_indices_submitted", "array_indices_remaining",
    "executable", "argument_list", "history_timestamp",
    "estimated", "array_id", "array_index", "project", "run_version",
    "Submit_Host", "max_run_subjobs",
)  # fmt: skip
NODE = (
    "Mom", "Port", "pbs_version", "ntype", "state", "pcpus", "jobs", "resv", "resources_available",
    "resources_assigned", "comment", "resv_enable", "sharing", "in_multivnode_host", "license", "partition",
    "last_state_change_time", "last_used_time",
)  # fmt: skip
QUEUE = (
    "queue_type", "Priority", "total_jobs", "state_count", "max_queued", "route_destinations",
    "acl_user_enable", "acl_users", "resources_max", "resources_default", "default_chunk",
    "resources_assigned", "max_run", "max_run_res", "max_run_soft", "max_run_res_soft",
    "resources_available", "enabled", "started", "partition",
)  # fmt: skip
SERVER = (
    "server_state", "server_host", "scheduling", "total_jobs", "state_count", "acl_roots", "managers",
    "operators", "default_queue", "log_events", "mailer", "mail_from", "query_other_jobs",
    "resources_default", "default_chunk", "resources_assigned", "scheduler_iteration", "flatuid",
    "resv_enable", "node_fail_requeue", "max_array_size", "max_run", "max_run_res", "pbs_license_min",
    "pbs_license_max", "pbs_license_linger_time", "license_count", "pbs_version", "job_sort_formula",
    "eligible_time_enable", "job_history_enable", "job_history_duration", "max_concurrent_provision",
    "backfill_depth", "power_provisioning", "max_job_sequence_id",
)  # fmt: skip
FAMILIES = ("resources_", "Resource_List", "default_chunk", "max_run_res", "estimated")
_WIDTH, _TAB = 78, 8
_STRTOD = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)", re.IGNORECASE)
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")


def ordered(attributes: dict[str, str], order: Sequence[str]) -> Pairs:
    """Attributes by the order of their kind, families gathered; what is not in it stands last."""
    heads: dict[str, list[tuple[str, str]]] = {}
    for name, value in attributes.items():
        head, dot, tail = name.partition(".")
        is_family = dot and head.startswith(FAMILIES)
        heads.setdefault(head if is_family else name, []).append((tail if is_family else "", value))
    known = [*(name for name in order if name in heads), *(name for name in heads if name not in order)]
    found: Pairs = []
    for name in known:
        if heads[name][0][0]:
            found.append((name, sorted(heads[name])))
        else:
            # Limits: ``max_run`` comes once for each entry.
            found += [(name, each) for each in limits(heads[name][0][1])]
    return found


def limits(value: str) -> list[str]:
    """``[o:PBS_ALL=10],[u:alice=3]`` -> one text each; any other value is one."""
    return [f"{part.rstrip(']')}]" for part in value.split("],")] if value.startswith("[") else [value]


@dataclass(frozen=True, slots=True)
class Form:
    """What the options of one command ask for."""

    kind: str = "text"
    """text, json or dsv."""
    is_wide: bool = False
    delimiter: str = "|"


def flat(pairs: Pairs) -> Iterable[tuple[str, str]]:
    """``name`` or ``family.name`` with its value."""
    for name, value in pairs:
        if isinstance(value, str):
            yield name, value
            continue
        for each in value:
            if isinstance(each, tuple):
                separator = "=" if name == "Variable_List" else "."
                yield f"{name}{separator}{each[0]}", each[1]


def text(head: str, pairs: Pairs, form: Form, indent: str = "    ") -> str:
    """One object as text."""
    lines = [head]
    for name, value in pairs:
        if name == "Variable_List" and not isinstance(value, str):
            joined = ",".join(f"{key}={_escaped(each)}" for key, each in _pairs_of(value))
            lines.append(_line(indent, name, joined, form))
        elif isinstance(value, str):
            lines += [_line(indent, name, each, form) for each in limits(value)]
        else:
            for key, each in _pairs_of(value):
                lines += [_line(indent, f"{name}.{key}", part, form) for part in limits(each)]
    return "\n".join(lines) + "\n\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\\\\\").replace("\n", "\\n")


def _pairs_of(value: list[str] | list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for each in value if isinstance(each, tuple)]


def _line(indent: str, name: str, value: str, form: Form) -> str:
    head = f"{indent}{name} = "
    if form.is_wide:
        return head + value.replace("\n", "\\n")
    out, column = [head], len(head)
    for number, part in enumerate(value.split(",")):
        if number:
            out.append(",")
            column += 1
        if column + len(part) < _WIDTH:
            out.append(part)
            column += len(part)
            continue
        if number:
            out.append("\n\t")
            column = _TAB
        for place, letter in enumerate(part):
            out.append(letter)
            column += 1
            if column > _WIDTH and place + 1 < len(part):
                out.append("\n\t")
                column = _TAB
    return "".join(out)


def dsv(head: str, pairs: Pairs, form: Form) -> str:
    """One object as one line."""
    parts = [head]
    for name, value in pairs:
        if name == "Variable_List" and not isinstance(value, str):
            joined = ",".join(f"{key}={_escaped(each)}" for key, each in _pairs_of(value))
            parts.append(f"{name}={_delimited(joined, form)}")
        else:
            parts += [f"{key}={_delimited(each, form)}" for key, each in flat([(name, value)])]
    return form.delimiter.join(parts) + "\n"


def _delimited(value: str, form: Form) -> str:
    return value.replace("\n", "\\n").replace(form.delimiter, f"\\{form.delimiter}")


def document(server: str, version: str, now_s: float, kind: str, objects: list[tuple[str, Pairs]]) -> str:
    """The JSON document of one command; without objects it has no member for them."""
    lines = [
        "{",
        f'    "timestamp":{int(now_s)},',
        f'    "pbs_version":"{version}",',
        f'    "pbs_server":"{server}"',
    ]
    if objects:
        lines[-1] += ","
        lines += [f'    "{kind}":{{', *_members([(name, pairs) for name, pairs in objects], 8), "    }"]
    return "\n".join([*lines, "}"]) + ("\n" if objects else "")


def _members(pairs: Sequence[tuple[str, object]], depth: int) -> list[str]:
    lines = []
    blank = " " * depth
    for place, (name, value) in enumerate(pairs):
        comma = "," if place + 1 < len(pairs) else ""
        if isinstance(value, str):
            lines.append(f'{blank}"{name}":{_bare(name, value)}{comma}')
        elif isinstance(value, list) and value and isinstance(value[0], str):
            lines.append(f'{blank}"{name}":[')
            inner = [f"{blank}    {json.dumps(each)}" for each in value]
            lines += [f"{each}," for each in inner[:-1]] + inner[-1:]
            lines.append(f"{blank}]{comma}")
        elif isinstance(value, list):
            repeated = [(key, part) for key, each in value for part in _parts(each)]
            lines += [f'{blank}"{name}":{{', *_members(repeated, depth + 4), f"{blank}}}{comma}"]
    return lines


def _parts(value: object) -> list[object]:
    return list(limits(value)) if isinstance(value, str) else [value]


def _bare(name: str, value: str) -> str:
    """A value; what strtod accepts whole is printed as a number, whatever it was meant as."""
    if _STRTOD.fullmatch(value) and name != "pbs_version":
        return value if _PLAIN.fullmatch(value) or "e" not in value.lower() else str(float(value))
    escaped = value.replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
