"""What an agent says of late binding, for people: who holds and who waits, what was decided, and why."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import UnavailableError

_PATIENCE_S = 5.0
_QUESTION = b'{"v": 1, "want": "claims"}\n'
_N_DECISIONS = 8
_N_FIGURES = 16


def request_claims(path: Path) -> dict[str, Any]:
    """Ask the agent that listens there.

    Raises:
        UnavailableError: none answers, or it does not bind late.
    """
    cure = "name the agent's folder with --run-dir"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PATIENCE_S)
            sock.connect(str(path))
            sock.sendall(_QUESTION)
            with sock.makefile("rb") as file:
                found = json.loads(file.readline())
    except OSError as error:
        raise UnavailableError(f"{path}: {(error.strerror or str(error)).lower()}", cure=cure) from None
    except ValueError:
        raise UnavailableError(f"{path}: what came back is no answer of an agent", cure=cure) from None
    if not isinstance(found, dict) or "claims" not in found:
        raise UnavailableError(f"{path}: the agent there does not bind late: {found!r:.200}")
    return found


def claims_text(found: Mapping[str, Any]) -> str:
    """The answer in lines; nothing that a mapper says is a command to the terminal."""
    lines = "\n".join(_lines(found))
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in lines)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"node {found['node']}, policy {found['policy']}"
    if "cores" not in found:
        yield "no mapper has asked yet"
        return
    age_s, is_used = found["counts_age_s"], found["are_counts_used"]
    age = "none yet" if age_s is None else f"{age_s:.1f} s old{'' if is_used else ', too old to be used'}"
    yield f"{found['cores']} cores, GPUs {found['gpus']}; counts of the cluster: {age}"
    for each in found["claims"]:
        place = each["form"] or "waits"
        phase = ", reads" if each["is_reading"] else ""
        yield (
            f"{each['attempt']} of {each['user']} ({each['name']}): {place} {each['gpus'] or ''}"
            f" since {each['age_s']:.1f} s{phase}; last sign of life {each['renewed_s_ago']:.1f} s ago"
        )
    for each in found.get("figures", ())[:_N_FIGURES]:
        yield (
            f"figures of {each['name']}, {each['form']}: {each['read_s']:.3g} s to read,"
            f" {each['compute_s']:.3g} s to compute; {each['n_measured']} measured by {each['source']}"
        )
    for each in found["decisions"][:_N_DECISIONS]:
        yield (
            f"{each['age_s']:8.1f} s ago {each['attempt']} of {each['job']}: {each['form']}"
            f" after {each['waited_s']:.1f} s: {each['reason']}"
        )
        yield from _candidates(each["candidates"])


def _candidates(candidates: Mapping[str, Any]) -> Iterator[str]:
    for form, rows in candidates.items():
        for row in rows:
            delay = row["predicted_delay"]
            shown = "not measured" if delay is None else f"delay {delay:.3g}"
            yield f"{'':15}{form} {row['job']}: {shown}{'; ' if row['excluded'] else ''}{row['excluded']}"
