"""``torque-sched parse``: what we understood of an output, for bug reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, BinaryIO

import click

from torque_sched.batch.documents import plain
from torque_sched.batch.torque.parse.accounting import parse_accounting
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes
from torque_sched.batch.torque.parse.qmgr import parse_qmgr
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.batch.torque.parse.records import Parsed, utf8_bytes
from torque_sched.errors import DocumentError


@click.command()
@click.argument("form", type=click.Choice(["pbsnodes", "qstat", "qmgr", "accounting"]))
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="Print every value as JSON instead of a summary.")
def parse(form: str, file: BinaryIO, as_json: bool) -> None:
    """Show what was understood of an output saved in FILE (``-`` for standard input).

    FORM says which command printed it; XML and text, jobs, queues (qstat -Q -f) and the server
    (qstat -B -f) are recognised. Exit code 1 when a record or the whole output is damaged.
    """
    data = utf8_bytes(file.read())
    try:
        parsed = _FORMS[form](data)
    except DocumentError as error:
        if as_json:
            click.echo(json.dumps({"form": form, "error": str(error)}, indent=2))
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(_report(form, parsed), indent=2, allow_nan=False))
    else:
        click.echo(f"{len(parsed.items)} understood, {len(parsed.problems)} damaged")
        for item in parsed.items:
            click.echo(f"  {_line(item)}")
    for problem in parsed.problems:
        click.echo(f"damaged: {problem}", err=True)
    if parsed.problems:
        click.get_current_context().exit(1)


_TABLES = {
    "qstat": (re.compile(rb"^-{3,}(?: +-+)+\s*$", re.MULTILINE), "`qstat -f -t -x`"),
    "pbsnodes": (re.compile(rb"\A\s*\S+[ \t]+[a-z]"), "`pbsnodes -x`"),
}
"""How tables for people begin, and the command whose output is to be saved instead."""


def _no_table(form: str, data: bytes) -> None:
    pattern, command = _TABLES[form]
    if not data.lstrip().startswith(b"<") and pattern.search(data[:2000]):
        others = " (or qstat -f, qstat -Q -f, qstat -B -f)" if form == "qstat" else ""
        raise DocumentError(
            f"this is a table of {form} for people, which leaves most out", cure=f"save {command}{others}"
        )


def _qstat(data: bytes) -> Parsed[Any]:
    _no_table("qstat", data)
    start = data.lstrip()[:8]
    # Pasted text often lost the blank line that ends it.
    text = data if start.startswith(b"<") or not start else data.rstrip() + b"\n\n"
    if start.startswith(b"Queue:"):
        return parse_queues(text)
    if start.startswith(b"Server:"):
        return Parsed((parse_server(text),))
    return parse_jobs(text)


def _pbsnodes(data: bytes) -> Parsed[Any]:
    _no_table("pbsnodes", data)
    is_xml = data.lstrip().startswith(b"<")
    return parse_pbsnodes(data if is_xml or not data.strip() else data.rstrip() + b"\n\n")


_FORMS: dict[str, Callable[[bytes], Parsed[Any]]] = {
    "pbsnodes": _pbsnodes,
    "qstat": _qstat,
    "qmgr": parse_qmgr,
    "accounting": parse_accounting,
}


def _report(form: str, parsed: Parsed[Any]) -> dict[str, Any]:
    return {
        "form": form,
        "records": parsed.n_records,
        "understood": len(parsed.items),
        "damaged": [str(problem) for problem in parsed.problems],
        "items": [plain(item) for item in parsed.items],
    }


def _line(item: Any) -> str:
    name = getattr(item, "id", None) or getattr(item, "name", None) or getattr(item, "job", "")
    state = getattr(item, "state", None) or getattr(item, "states", None) or getattr(item, "type", "")
    words = plain(state)
    text = ",".join(words) if isinstance(words, list) else str(words or "")
    return f"{name}  {text or ('free' if hasattr(item, 'states') else '')}".rstrip()
