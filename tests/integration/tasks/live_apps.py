"""Applications of the live tests, and what became of them."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.yarn_site import Site
from yarn_accel.storage import Store

N_LINES = 400
#: An ordinary streaming mapper: a line per word, a counter, a status. Given a folder, only two of them go on
#: at once, the others when the test says so.
MAPPER = """
    import os, sys, time
    def is_early(folder):
        for name in ("first", "second"):
            try:
                os.mkdir(os.path.join(folder, name))
                return True
            except FileExistsError:
                pass
        return False
    for folder in sys.argv[1:]:
        while not os.path.exists(os.path.join(folder, "go-on")) and not is_early(folder):
            time.sleep(0.1)
    print("it begins", file=sys.stderr)
    for line in sys.stdin:
        print("reporter:counter:words,seen,1", file=sys.stderr)
        print(line.strip().upper())
"""


def lines(name: str) -> list[str]:
    return [f"{name} word {number:04d}" for number in range(N_LINES)]


def write_app(site: Site, name: str, *held: Path, **more: Any) -> Path:
    """Two files of input in HDFS, and the APP.yaml beside its mapper."""
    store = Store(site.cluster.conf_dir)
    for half in range(2):
        text = "\n".join(lines(name)[half::2]) + "\n"
        store.write_atomic(f"hdfs:///{name}/in/{half}.txt", [text.encode()])
    folder = site.folder / name
    folder.mkdir()
    (folder / "mapper.py").write_text(textwrap.dedent(MAPPER))
    document = {
        "name": name,
        "input": f"hdfs:///{name}/in",
        "output": f"hdfs:///{name}/out",
        "split_bytes": 1000,
        "memory_mib": 64,
        "files": ["mapper.py"],
        "cpu": {"command": [sys.executable, "./mapper.py", *map(str, held)]},
        **more,
    }
    path = folder / "app.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def output(site: Site, name: str) -> list[str]:
    """All lines of an output, each as often as it is there."""
    store = Store(site.cluster.conf_dir)
    names = [uri.rpartition("/")[2] for uri in store.list(f"hdfs:///{name}/out")]
    assert "_SUCCESS" in names, names
    assert "_temporary" not in names, names
    parts = [each for each in names if each.startswith("part-")]
    texts = [store.read_bytes(f"hdfs:///{name}/out/{each}", 1 << 20).decode() for each in parts]
    return sorted(line for text in texts for line in text.splitlines())


def expected(name: str) -> list[str]:
    return sorted(line.upper() for line in lines(name))


def status(site: Site) -> dict[str, Any]:
    return site.control("tasks-status", patience_s=60.0)


def assert_reported(site: Site, name: str, n_done: int) -> None:
    """A report has each task of an application once, whatever was killed meanwhile."""
    folder = site.folder / f"report-{name}"
    assert str(folder) in site.run("tasks", "report", name, "--out", str(folder))
    found = json.loads((folder / "outcome.json").read_text())
    assert set(found) == {"policy", "makespan_s", "mean_delay", "apps", "tasks"}
    assert len({task["task"] for task in found["tasks"]}) == len(found["tasks"]) == n_done
    assert {task["node"] for task in found["tasks"]} <= set(site.names)
    assert all(0 <= task["start_s"] < task["end_s"] <= found["makespan_s"] for task in found["tasks"])
    assert all(task["reason"] for task in found["tasks"])
    app = found["apps"][name]
    assert (app["start_s"], app["end_s"]) == (0, found["makespan_s"])
    assert app["delay"] > 0, "the first task is measured alone, so it is known"
    assert name in (folder / "index.html").read_text()


def n_done(site: Site, name: str) -> int:
    answer = status(site)
    found = answer["apps"].get(name) or answer["ended"].get(name)
    return int(found["tasks"].get("done", 0)) if found else 0
