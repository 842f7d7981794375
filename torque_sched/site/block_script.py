"""The job script of a block: it waits at the barrier, then runs the user's script with all blocks' hosts."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from importlib import resources

NO_DIRECTIVES = "#torque-grid-has-no-directives"
"""For ``qsub -C``: lines that begin with ``#PBS`` in a script from elsewhere are comments here."""
_END = "TORQUE_GRID_END_OF_PYTHON"
_SHELL = """#!/bin/sh
# Block {index} of {count} of job {job} of site {home}; made by torque-sched site.
umask 077
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/torque-grid.XXXXXXXXXX") || exit 70
trap 'rm -rf "$folder"' EXIT
{interpreter} - "$folder" <<'{end}' || exit $?
BLOCK = {block}
{python}
{end}
. "$folder/environment"
case $(head -c 2 "$folder/script") in
'#!') "$folder/script" < /dev/null ;;
*) "${{SHELL:-/bin/sh}}" "$folder/script" < /dev/null ;;
esac
exit $?
"""


@dataclass(frozen=True, slots=True)
class BlockScript:
    """What a block has to know.

    Attributes:
        ticket: proves to the site's process which block it is; secret, so it stands in the script alone.
        url: of the barrier.
        home, job, site: whose job, and where it runs.
        index, count: which block, of how many.
        script: the user's, as base64.
        wait_s: it waits so long at the barrier.
    """

    ticket: str
    url: str
    home: str
    job: str
    site: str
    index: int
    count: int
    script: str
    wait_s: float


def block_script(block: BlockScript, interpreter: str) -> str:
    """The text to give to qsub."""
    python = resources.files("torque_sched.site").joinpath("block_start.py").read_text(encoding="utf-8")
    if _END in python:
        raise AssertionError(f"{_END} stands in block_start.py")
    words = json.dumps(asdict(block), ensure_ascii=True)
    return _SHELL.format(
        index=block.index, count=block.count, job=block.job, home=block.home, interpreter=interpreter,
        end=_END, block=words, python=python,
    )  # fmt: skip


def encoded(script: str) -> str:
    """A user's script as `BlockScript` wants it."""
    return base64.b64encode(script.encode("utf-8")).decode("ascii")
