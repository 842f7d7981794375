"""Users' questions: whoever asks, however badly, the daemon's loop goes on, and each sees what he may."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.torque_builders import job, node, running, snapshot
from tests.fixtures.waiting import until
from torque_sched.adapters import answer_socket
from torque_sched.adapters.answer_socket import QUESTION_BYTES, SOCKET_FOLDER, ask, listen
from torque_sched.commands._answering import QUESTIONS, answer_question
from torque_sched.daemon.answers import AnswerLimits, AnswerPort, LastLook
from torque_sched.daemon.config import Config
from torque_sched.decide.context import Context
from torque_sched.decide.settings import Settings
from torque_sched.errors import StartupError
from torque_sched.learn import History
from torque_sched.model.cluster import Job, Server
from torque_sched.report.viewer import Viewer, viewer_of

GENEROUS_S = 300.0


@pytest.fixture
def asked(tmp_path: Path, history: History) -> Asked:
    return Asked(tmp_path, history)


@pytest.fixture
def history() -> Iterator[History]:
    with closing(History.open(None)) as made:
        yield made


def last_look(history: History, *jobs: Job, **server: Any) -> LastLook:
    looked = snapshot([node("n1"), node("n2")], jobs, server=Server(name="head", **server))
    nowhere = Path("/nowhere")
    return LastLook(looked, Settings(), Context(), history, (), Config(), nowhere, nowhere, time.monotonic())


class Asked:
    """An `AnswerPort` in a loop, beside which a task counts how often the loop comes round."""

    def __init__(self, home: Path, history: History, **limits: Any) -> None:
        self.home, self.rounds, self.most = home, 0, 0
        self.port = AnswerPort(home, lambda: self.tell, AnswerLimits(**limits))
        self.port.last = last_look(history)

    def tell(self, last: LastLook, question: Mapping[str, Any], uid: int) -> Mapping[str, Any]:
        if question["ask"] == "hang":
            time.sleep(GENEROUS_S)
        if question["ask"] == "fail":
            raise KeyError("a fault")
        if question["ask"] == "descriptors":
            return {"open": [each.name for each in Path("/proc/self/fd").iterdir()]}
        return {"out": question["ask"], "uid": uid, "pid": os.getpid()}

    async def _turn(self) -> None:
        while True:
            self.rounds += 1
            self.most = max(self.most, len(self.port._tasks))
            await asyncio.sleep(0)

    def during(self, talk: Callable[[], Any]) -> Any:
        """What ``talk`` returns, which runs in a thread while the port listens."""

        async def run() -> Any:
            self.port.start()
            turning = asyncio.ensure_future(self._turn())
            try:
                return await asyncio.to_thread(talk)
            finally:
                turning.cancel()
                await self.port.stop()

        return asyncio.run(run())

    def answer(self, word: str) -> dict[str, Any]:
        """Asked again while there are too many."""
        deadline = time.monotonic() + GENEROUS_S
        while True:
            answer: dict[str, Any] | None = None
            with suppress(BlockingIOError):
                answer = ask(self.home, {"ask": word}, GENEROUS_S)
            if answer is not None and "busy" not in answer:
                return answer
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def connected(self) -> socket.socket:
        """As fast as they are taken: the kernel refuses more than the listener's backlog."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(GENEROUS_S)
        until(lambda: made.connect_ex(str(self.home / SOCKET_FOLDER / "socket")) == 0)
        return made


def test_a_child_answers_and_knows_who_asks(asked: Asked) -> None:
    told = asked.during(lambda: asked.answer("hello"))
    assert (told["out"], told["uid"]) == ("hello", os.geteuid())
    assert told["pid"] != os.getpid()


def test_a_child_keeps_nothing_of_the_daemons_open(tmp_path: Path, asked: Asked) -> None:
    with (tmp_path / "lock").open("w"):
        told = asked.during(lambda: asked.answer("descriptors"))
    # Standard input, output and error, the connection, and the folder that is being listed.
    assert len(told["open"]) <= 5


def test_a_thousand_silent_connections_hold_up_neither_the_loop_nor_others_for_long(
    tmp_path: Path, history: History
) -> None:
    asked = Asked(tmp_path, history, read_s=2.0)

    def talk() -> tuple[int, dict[str, Any]]:
        with ExitStack() as stack:
            for _ in range(1000):
                stack.enter_context(asked.connected())
            before = asked.rounds
            until(lambda: asked.rounds > before + 100)
            return asked.rounds - before, asked.answer("hello")

    rounds, told = asked.during(talk)
    assert rounds > 100
    assert told["out"] == "hello"
    assert asked.most <= AnswerLimits().n_of_user


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b'{"ask": "hel',
        b"\n",
        b"[]\n",
        b"\xff\xfe\n",
        b"[" * (QUESTION_BYTES - 1) + b"\n",
        b"x" * (QUESTION_BYTES + 1),
        b"x" * (1 << 20),
    ],
    ids=["nothing", "cut", "empty", "list", "bytes", "nested", "long", "a MiB"],
)
def test_what_is_no_question_is_closed(asked: Asked, sent: bytes) -> None:
    def talk() -> tuple[bytes, dict[str, Any]]:
        with asked.connected() as connection:
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                got = connection.recv(100)
            except OSError:
                got = b""
        return got, asked.answer("hello")

    got, told = asked.during(talk)
    assert got == b""
    assert told["out"] == "hello"


def children() -> set[str]:
    """Of this process, those that have ended but were not waited for among them."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_a_child_that_fails_says_so_and_one_that_hangs_is_ended(tmp_path: Path, history: History) -> None:
    others = children()
    asked = Asked(tmp_path, history, answer_s=1.0)
    failed, hung, told = asked.during(
        lambda: (asked.answer("fail"), ask(tmp_path, {"ask": "hang"}, GENEROUS_S), asked.answer("hello"))
    )
    assert "fault of ours" in failed["fault"]
    assert hung is None
    assert told["out"] == "hello"
    assert children() <= others, "none of them is left"


def test_without_a_look_there_is_no_answer(tmp_path: Path, asked: Asked) -> None:
    asked.port.last = None
    assert asked.during(lambda: asked.answer("hello")) == {"refused": "no look yet"}
    assert ask(tmp_path, {"ask": "hello"}, 5.0) is None
    assert ask(tmp_path / "elsewhere", {"ask": "hello"}, 5.0) is None


def test_an_answer_without_an_end_is_not_taken_in(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_socket, "ANSWER_BYTES", 1 << 17)
    asked.tell = lambda last, question, uid: {"out": "x" * (1 << 18)}  # type: ignore[method-assign]
    assert asked.during(lambda: ask(tmp_path, {"ask": "hello"}, 5.0)) is None


# -- where the socket lies


def test_the_socket_is_open_to_all_in_a_folder_that_is_not(tmp_path: Path) -> None:
    home = tmp_path / ("a" * 120) / "home"
    home.mkdir(parents=True)
    for _ in range(2):
        with listen(home):
            assert (home / SOCKET_FOLDER).stat().st_mode & 0o777 == 0o755
            assert (home / SOCKET_FOLDER / "socket").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, kind: str) -> None:
    folder, other = tmp_path / SOCKET_FOLDER, tmp_path / "other"
    other.mkdir()
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        folder.symlink_to(other)
    else:
        folder.write_text("")
    with pytest.raises(StartupError, match="install -d"):
        listen(tmp_path)
    assert list(other.iterdir()) == []


# -- who sees what


def words(ask: str, /, **given: Any) -> dict[str, Any]:
    asked = {key: False if kind is bool else None for key, kind in QUESTIONS[ask].items()}
    texts = {key: "" for key in ("user", "queue", "kind") if key in asked}
    return {"version": 1, "ask": ask, "asked": {**asked, **texts, **given}, "width": 0}


NOBODY = pwd.getpwnam("nobody").pw_uid


def cluster(history: History, **server: Any) -> LastLook:
    """Bob's job has a node, his other one waits before that of nobody."""
    return last_look(
        history,
        running(1, "n1/0-3", "1:ppn=4", user="bob", name="secret"),
        job(2, "2:ppn=4", user="bob", name="secret", etime_s=1.0),
        job(3, "2:ppn=4", user="nobody", name="mine", etime_s=2.0),
        **server,
    )


def test_an_ordinary_user_is_shown_his_own_jobs_alone(history: History) -> None:
    last = cluster(history)
    mine = answer_question(last, words("showstart", job="3"), NOBODY)
    assert mine["code"] == 0
    assert "3.head mine, of nobody" in mine["out"]
    for name, asked in (("showstart", {"job": "2"}), ("explain", {"name": "1.head"})):
        theirs = answer_question(last, words(name, **asked), NOBODY)
        assert (theirs["code"], theirs["out"]) == (2, "")
        assert "is not a job of nobody" in theirs["err"]
    shown = "".join(
        str(answer_question(last, question, NOBODY))
        for question in (
            words("explain", name="n1"),
            words("explain", name="3"),
            words("showbf"),
            words("whatif", submit="nodes=1", name="whatif"),
            words("showstart", job="3", as_json=True),
        )
    )
    assert "another user's job" in shown
    for hidden in ("secret", "bob", "1.head", "2.head"):
        assert hidden not in shown


def test_he_cannot_ask_for_another_user(history: History) -> None:
    asked = words("whatif", submit="nodes=1", name="whatif", user="bob")
    assert "you are nobody" in answer_question(cluster(history), asked, NOBODY)["err"]


SEE_ALL: list[dict[str, Any]] = [{"query_other_jobs": True}, {"operators": ("nobody@*",)}]


@pytest.mark.parametrize("server", [*SEE_ALL, {"managers": (f"nobody@{socket.gethostname()}",)}])
def test_managers_operators_and_all_where_torque_shows_all_see_all(
    history: History, server: dict[str, Any]
) -> None:
    told = answer_question(cluster(history, **server), words("explain", name="n1"), NOBODY)
    assert "job 1.head" in told["out"]
    assert "bob" in told["out"]


def test_an_operator_of_another_host_or_an_unknown_account_is_nobody_special() -> None:
    assert not viewer_of(NOBODY, Server(operators=("nobody@elsewhere", "other@*"))).sees_all
    assert not viewer_of(2**31 - 7, Server(query_other_jobs=None)).sees_all
    assert viewer_of(0, Server()).sees_all


def test_ids_that_are_no_jobs_of_this_server_stay() -> None:
    looked = snapshot([], [job(7, user="ada"), job(8, user="bob")])
    text = "7.head 8.head 9.head 8[2].head node8.head 8.5 GiB 8.elsewhere (8.head), 8.head."
    shown = Viewer("ada", sees_all=False).hide(text, looked)
    other = "another user's job"
    assert shown == f"7.head {other} 9.head {other} node8.head 8.5 GiB 8.elsewhere ({other}), {other}."


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"version": 1, "ask": "serve", "asked": {}},
        {"version": 1, "ask": ["explain"], "asked": {}},
        {"version": 1, "ask": "explain", "asked": {"name": 5}},
        {"version": 1, "ask": "explain", "asked": {"name": "n1", "home": "/etc"}},
        {"version": 2, "ask": "explain", "asked": {"name": "n1"}},
    ],
)
def test_other_words_are_refused(history: History, question: dict[str, Any]) -> None:
    assert "refused" in answer_question(cluster(history), question, 0)
