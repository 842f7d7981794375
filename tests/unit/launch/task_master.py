"""What a master answers that has a task service."""

from __future__ import annotations

from typing import Any

from yarn_accel.errors import RejectedError

T = 1_700_000_000.0


def row(name: str, started_s: float, ended_s: float, alone_s: float | None = 4.0) -> list[Any]:
    """A task that read and computed all the time but for a second."""
    return [name, "n1", "gpu", T + started_s, T + ended_s, 1.0, 2.0, alone_s, 5.0, "(a) least delay 1"]


def answer(rows: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "policy": "hdas",
        "name": "knn",
        "state": "done",
        "error": "",
        "begun_at": T,
        "ended_at": T + 100,
        "demands": [["gpu", 1, 1]],
        "tasks": {"done": len(rows), "failed": 0},
        "n_rows": len(rows),
        "rows": rows,
        **more,
    }


class Master:
    """Answers for a task service that has ended application `a`, and runs `b`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.status: dict[str, Any] | Exception = {}
        self.apps = {"a": answer([row(str(n), n, n + 5) for n in range(5)]), "b": answer([])}

    async def ask(self, verb: str, document: Any = None) -> dict[str, Any]:
        self.asked.append((verb, document))
        if verb == "tasks-status":
            if isinstance(self.status, Exception):
                raise self.status
            known = {name: {name: {}} if self.apps else {} for name in "ab"}
            return self.status or {"ended": known["a"], "apps": known["b"], "figures": {}}
        if verb == "tasks-logs":
            if document["task"] != "a/0":
                raise RejectedError("no-log", "no attempt is known")
            web = {"n1": "http://n1:8042", "n2": ""}
            return {"attempts": [{"attempt": f"attempt_{n}", "node": n, "url": web[n]} for n in web]}
        if verb == "server-logs":
            return {
                "servers": [
                    {"container": f"container_{n}", "node": f"n{n}", "url": f"http://n{n}:8042/container_{n}"}
                    for n in (1, 2)
                ]
            }
        if verb == "tasks-use":
            return {"step_s": 5.0, "workers": {}}
        if document["app"] not in self.apps:
            raise RejectedError("unknown-app", "it is not known")
        found = self.apps[document["app"]]
        return {**found, "rows": found["rows"][document["first"] : document["first"] + 2]}
