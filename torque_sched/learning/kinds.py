"""By what a Torque job is recognised when it comes again."""

from __future__ import annotations

import re

from torque_sched.core.model import Job
from torque_sched.core.request import Chunk
from torque_sched.policies.predict.fingerprint import Fingerprint

# A number set apart is a run's own; one that is attached may well be the program's (namd2, h264), unless the
# word before it names no program or it has a leading zero or many digits.
_RUN_NUMBER = re.compile(r"(?:[._\-+#=:@]+[0-9]+)+$")
_ATTACHED = re.compile(r"(?:(?<=[A-Za-z])0[0-9]+|(?<=[A-Za-z])[0-9]{4,})$")
_GENERIC = re.compile(
    r"((?:^|[._\-])(?:job|run|test|task|case|part|step|sample|sim|batch|chunk|seed|exp|trial))[0-9]+$", re.I
)
_SUFFIX = re.compile(r"\.(?:sh|pbs|job|qsub|bash|csh|py|pl|R)$")
_NAMELESS = frozenset({"", "STDIN"})


def fingerprint_of(job: Job) -> Fingerprint:
    """The kind of job this is; ``STDIN`` names no script and matches nobody else's."""
    limit = job.walltime_s
    return Fingerprint(job.user, script_of(job), shape_of(job), f"{limit:.0f}" if limit is not None else "")


def script_of(job: Job) -> str:
    """The job's name without the number of this run: ``relax-017`` and ``relax_18.sh`` are ``relax``.

    A name that is nothing but a number stays as it is.
    """
    if job.name in _NAMELESS:
        return ""
    name = job.name
    if job.array_index is not None:
        name = name.removesuffix(f"-{job.array_index}")
    bare = _SUFFIX.sub("", name)
    kind = _RUN_NUMBER.sub("", bare)
    kind = _GENERIC.sub(r"\1", _ATTACHED.sub("", kind))
    return kind or bare or name


def shape_of(job: Job) -> str:
    """What it asks for: ``2x4+1``: two nodes with four processors and a GPU each; ``p16``: procs anywhere."""
    request = job.request
    parts = [_piece(piece) for piece in request.pieces]
    if request.procs and not parts:
        parts.append(f"p{request.procs}")
    if request.gpus_anywhere:
        parts.append(f"g{request.gpus_anywhere}")
    return ",".join(parts)


def _piece(piece: Chunk) -> str:
    return f"{piece.count}x{piece.ppn}" + (f"+{piece.gpus}" if piece.gpus else "")
