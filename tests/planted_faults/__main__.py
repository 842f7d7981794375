"""Plant each fault in a copy of this tree and run the tests of its part: ``make test``'s, then all of them.

A fault in ``faults.json`` is one place of the decision code (``old``, which stands once in its file) that
still runs as ``new``, and is wrong.

Usage: ``python -m tests.planted_faults [--jobs N] [PART ...]`` writes ``results.json`` beside this file,
where rows of other parts stay. A fault that `make test` finds is not
looked for again: `make test-all` runs the same tests, with more examples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.json")
RESULTS = Path(__file__).with_name("results.json")
LIMIT_S = 900
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

PARTS = {
    "application": ("tests/unit/core/application", "tests/property/core/test_application_machine.py"),
    "binding": ("tests/unit/core/binding", "tests/property/core/test_binding.py"),
    "wire": ("tests/unit/wire", "tests/property/wire"),
    "client": ("tests/unit/client", "tests/property/client"),
    "formats": ("tests/unit/formats",),
    "requests": (
        "tests/unit/core/requests",
        "tests/property/core/test_request_machine.py",
        "tests/property/core/test_request_scheduler.py",
        "tests/property/core/test_request_scheduler_short_way.py",
    ),
    "node": ("tests/unit/node",),
    "operations": (
        "tests/unit/operations/test_registry.py",
        "tests/unit/operations/test_linear.py",
        "tests/property/operations",
    ),
    "counts": (
        "tests/unit/torque/model/test_availability.py",
        "tests/unit/torque/simulate",
        "tests/property/torque/test_backfilling.py",
    ),
    "backfilling": (
        "tests/property/torque/test_node_table.py",
        "tests/property/torque/test_live_backfilling.py",
    ),
    "policies": (
        "tests/unit/torque/decide",
        "tests/unit/torque/test_recorded_decisions.py",
        "tests/property/torque/test_policies.py",
    ),
    "handshake": (
        *(
            f"tests/unit/torque/grid/test_{name}.py"
            for name in ("holder", "coordinator", "guest", "home_job")
        ),
        "tests/property/torque/test_handshake.py",
    ),
    "grid": (
        *(f"tests/unit/torque/grid/test_{name}.py" for name in ("search", "ways", "simulator", "experiment")),
        "tests/property/torque/test_grid.py",
        "tests/property/torque/test_grid_job_model.py",
    ),
    "membership": ("tests/unit/torque/grid/test_membership.py",),
    "parse": (
        *(f"tests/unit/torque/batch/test_{name}.py" for name in ("openpbs", "captures", "damage")),
        "tests/property/torque/test_parse_round_trip.py",
        "tests/property/torque/test_parse_fuzz.py",
    ),
    "learning": ("tests/unit/torque/learn",),
    "daemon": ("tests/unit/torque/daemon", "tests/integration/torque/daemon/test_commands.py"),
}
"""Tests of each part, the quickest first."""


def finder(copy: Path, part: str, *, is_all: bool) -> str:
    """The first test of a part that fails in the copy; empty: none does."""
    # Compiled files of a source that changes twice in a second may be of the wrong one.
    environ = {**os.environ, "TEST_EXAMPLES": "all" if is_all else "", "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = "not hadoop" if is_all else "not hadoop and not slow"
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", chosen, *PARTS[part]]
    try:
        done = subprocess.run(
            argv, cwd=copy, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "the run did not end"
    if done.returncode == 0:
        return ""
    found = FAILED.search(done.stdout)
    return found.group(1) if found else (done.stdout + done.stderr)[-200:]


def look(copy: Path, fault: dict[str, str]) -> dict[str, str]:
    """Plant a fault, see who finds it, and take it out again."""
    path, old = copy / fault["path"], fault["old"]
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"{fault['path']}: {old!r} stands there {text.count(old)} times")
    path.write_text(text.replace(old, fault["new"]), encoding="utf-8")
    try:
        quick = finder(copy, fault["part"], is_all=False)
        whole = quick or finder(copy, fault["part"], is_all=True)
    finally:
        path.write_text(text, encoding="utf-8")
    return fault | {"test_all": whole, "test": quick}


def look_at_part(part: str, faults: list[dict[str, str]]) -> list[dict[str, str]]:
    """Plant the faults of one part, each by itself, in a copy of this tree."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "tree"
        names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        if wrong := finder(copy, part, is_all=False):
            raise SystemExit(f"without a fault fails: {wrong}")
        rows = []
        for fault in faults:
            rows.append(look(copy, fault))
            print(f"{fault['path']}: {fault['new']!r}: {rows[-1]['test_all'] or 'NOT FOUND'}", flush=True)
        return rows


def main() -> None:
    """Look for the faults of the parts named, or of all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parts looked at side by side")
    options = parser.parse_args()
    faults = json.loads(FAULTS.read_text(encoding="utf-8"))
    if unknown := {fault["part"] for fault in faults} - PARTS.keys():
        raise SystemExit(f"no tests are named for {', '.join(sorted(unknown))}")
    planted = {part: [fault for fault in faults if fault["part"] == part] for part in options.parts or PARTS}
    commit = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [row for part in pool.map(look_at_part, planted, planted.values()) for row in part]
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["faults"] if RESULTS.exists() else []
    rows = [row for row in before if row["part"] not in planted] + [
        {**row, "commit": commit} for row in found
    ]
    n = {name: sum(bool(row[name]) for row in rows) for name in ("test_all", "test")}
    document = {"planted": len(rows), "found": n, "faults": rows}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} planted, {n['test_all']} found by make test-all, {n['test']} by make test")


if __name__ == "__main__":
    main()
