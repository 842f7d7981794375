"""Late binding: a mapper asks its node's agent, at the last moment, whether to compute on a GPU or a core.

::

    with claim_device() as device:
        lines = sys.stdin.readlines()       # a claim begins with reading
        device.computing()
        if device.form == "gpu":
            ...                             # on the GPUs device.gpus

The agent decides among all mappers that wait on its node, of all users' jobs: docs/late-binding.md.
The place is a lease: a thread renews it while the block lasts. Without an agent, or when the agent dies, the
mapper goes on by itself, with the form that it was given or with the fallback, and says so in a counter.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from yarn_accel.client.agent_folders import agent_sockets
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.discovery import check_peer
from yarn_accel.client.reporter import Reporter
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE, read_secrets
from yarn_accel.errors import AccelError, ConfigError, UnavailableError
from yarn_accel.wire.credential import SECRET_ALIAS, claim_token, decode

FORMS = ("cpu", "gpu")
#: An agent that lives answers each line at once; a busy machine may take some time.
_AGENT_TIMEOUT_S = 5.0
_GRACE_S = 5.0
#: So soon the agent hears of a change between reading and computing.
_LOOK_S = 0.1
_MAX_LINE_BYTES = 65536
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._-]")


def claim_device(
    forms: Sequence[str] = FORMS,
    *,
    gpus: int = 1,
    fallback: str = "",
    environ: Optional[Mapping[str, str]] = None,
    reporter: Optional[Reporter] = None,
) -> DeviceClaim:
    """A claim of a core or of GPUs, for ``with``, which waits for the agent's decision.

    Args:
        forms: those in which this mapper can compute: ``cpu``, ``gpu`` or both; the same for all of a job.
        gpus: how many it takes in the form gpu.
        fallback: the form to use where nobody decides; default: cpu if that is among `forms`.
        environ: where task, node, agent and credential are named; default: this process's.
        reporter: for counters and status; default: one that writes to standard error.

    Raises:
        ConfigError: a form is unknown, or the fallback is none of `forms`.
    """
    for form in (*forms, *([fallback] if fallback else [])):
        if form not in FORMS:
            raise ConfigError("claim_device: no form is called {!r}; known: cpu, gpu".format(form))
    if not forms or (fallback and fallback not in forms):
        raise ConfigError("claim_device: give one form or two, and the fallback among them")
    given = os.environ if environ is None else environ
    return DeviceClaim(
        tuple(forms),
        gpus,
        fallback or ("cpu" if "cpu" in forms else "gpu"),
        given,
        reporter or Reporter(is_silent="mapreduce_task_attempt_id" not in given),
    )


class DeviceClaim:
    """A place on this node, held until the block ends; made by `claim_device`.

    Attributes:
        form: ``cpu`` or ``gpu``.
        gpus: indices of the GPUs, as CUDA_VISIBLE_DEVICES takes them; none in the form cpu, and none where
            nobody decided.
        reason: why, in a line.
        is_decided: an agent decided; else this is the fallback.
    """

    def __init__(
        self,
        forms: Tuple[str, ...],
        gpus: int,
        fallback: str,
        environ: Mapping[str, str],
        reporter: Reporter,
    ) -> None:
        self.form = fallback
        self.gpus: Tuple[int, ...] = ()
        self.reason = ""
        self.is_decided = False
        self._forms = forms
        self._n_gpus = gpus
        self._environ = environ
        self._reporter = reporter
        self._link: Optional[_AgentLink] = None
        self._proof: Mapping[str, Any] = {}
        self._clock = time.monotonic
        self._is_over = threading.Event()
        self._renewing: Optional[threading.Thread] = None
        self._renew_s = 1.0
        self._is_reading = True
        self._read_s = 0.0
        self._since_s = 0.0
        self._read_bytes: Optional[int] = None
        self._bytes_before = 0

    def __enter__(self) -> DeviceClaim:
        self._reporter.status("waits to hear: CPU or GPU?")
        try:
            self._link, answer = self._claimed({})
        except (OSError, AccelError) as error:
            reraise_from_signal(error)
            self.reason = "nobody decides: {}".format(_why(error))
            self._reporter.count("late_binding_undecided")
        else:
            self.form, self.is_decided, self._proof = str(answer["granted"]), True, answer
            self.gpus, self.reason = tuple(answer["gpus"]), str(answer.get("reason", ""))
            self._reporter.count("late_binding_" + self.form)
            self._renewing = threading.Thread(target=self._renew, name="claim", daemon=True)
            self._renewing.start()
        self._reporter.status("{}: {}".format(self.form.upper(), self.reason))
        self._since_s, self._bytes_before = self._clock(), _bytes_read()
        return self

    def __exit__(self, kind: Optional[type], *_: object) -> None:
        self._set_reading(False)
        self._is_over.set()
        if self._renewing is not None:
            self._renewing.join(_AGENT_TIMEOUT_S)
        link, self._link = self._link, None
        if link is None:
            return
        if self._renewing is not None and self._renewing.is_alive():
            return link.close()
        n_bytes = self._read_bytes
        if n_bytes is None:
            n_bytes = max(0, _bytes_read() - self._bytes_before)
        try:
            end = "done" if kind is None else "failed"
            link.exchange({"end": end, "read_bytes": n_bytes, "read_s": round(self._read_s, 6)}, "ended")
        except (OSError, AccelError) as error:
            # Who does not hear it sees the connection close.
            reraise_from_signal(error)
        finally:
            link.close()

    def reading(self) -> None:
        """From now on this mapper reads its input; so does a claim when it begins."""
        self._set_reading(True)

    def computing(self, read_bytes: Optional[int] = None) -> None:
        """From now on it does not read.

        Args:
            read_bytes: read so far under this claim; default: what the kernel counted for this process.
        """
        self._read_bytes = read_bytes if read_bytes is not None else self._read_bytes
        self._set_reading(False)

    def _set_reading(self, is_reading: bool) -> None:
        now_s = self._clock()
        if self._is_reading:
            self._read_s += now_s - self._since_s
        self._since_s, self._is_reading = now_s, is_reading

    def _renew(self) -> None:
        """Give signs of life; a lost connection is made again, and the new agent learns what is held."""
        was_reading, is_reported, until_s = True, False, 0.0
        while not self._is_over.wait(_LOOK_S):
            now_s = self._clock()
            if now_s < until_s and was_reading == self._is_reading:
                continue
            was_reading, until_s = self._is_reading, now_s + self._renew_s
            try:
                if self._link is None:
                    self._link, _ = self._claimed(self._proof)
                self._link.exchange({"reading": was_reading})
            except (OSError, AccelError) as error:
                reraise_from_signal(error)
                if self._link is not None:
                    self._link.close()
                self._link = None
                if not is_reported:
                    is_reported = True
                    self._reporter.count("late_binding_lost")
                    self._reporter.note(
                        "late binding: goes on with the {} it was given: {}".format(self.form, _why(error))
                    )

    # The agent.

    def _claimed(self, proof: Mapping[str, Any]) -> Tuple[_AgentLink, Mapping[str, Any]]:
        """A connection to the agent, and its decision.

        Raises:
            OSError, AccelError: there is none.
        """
        failures: List[str] = []
        for path, is_trusted in agent_sockets(self._environ):
            claims = str(Path(path).parent / "claims.sock")
            try:
                link = _AgentLink(claims, is_trusted)
            except (OSError, AccelError) as error:
                reraise_from_signal(error)
                failures.append("{}: {}".format(claims, _why(error)))
                continue
            try:
                return link, self._ask(link, proof)
            except BaseException:
                link.close()
                raise
        raise UnavailableError("; ".join(failures) or "NM_HOST and ACCEL_AGENT are not set")

    def _ask(self, link: _AgentLink, proof: Mapping[str, Any]) -> Mapping[str, Any]:
        greeting = link.receive()
        node = str(greeting.get("node", ""))
        named = self._environ.get("NM_HOST", "")
        if named and named.split(".")[0] != node.split(".")[0]:
            raise UnavailableError("the agent there is of node {!r}".format(node[:100]))
        self._renew_s = _seconds(greeting.get("renew_s"), 1.0)
        wait_s = _seconds(greeting.get("max_wait_s"), 30.0) + _GRACE_S
        link.send({**self._question(node), **({"resume": dict(proof)} if proof else {})})
        until_s = self._clock() + wait_s
        heard_s = renew_at_s = self._clock()
        while heard_s <= until_s:
            if self._clock() >= renew_at_s:
                with contextlib.suppress(ConnectionError):  # it may have refused, and closed
                    link.send({"reading": False})
                renew_at_s = self._clock() + self._renew_s
            if not link.has_more(renew_at_s - self._clock()):
                if self._clock() - heard_s > _AGENT_TIMEOUT_S:
                    raise UnavailableError("the agent is silent")
                continue
            answer, heard_s = link.receive(), self._clock()
            if "granted" in answer:
                return _checked(answer, self._forms)
            if "refused" in answer:
                refusal = "{}: {}".format(answer.get("refused"), answer.get("message"))
                raise UnavailableError("the agent refuses: " + " ".join(refusal.split())[:300])
        raise UnavailableError("the agent did not decide within {:g} s".format(wait_s))

    def _question(self, node: str) -> Dict[str, Any]:
        attempt = CurrentAttempt.from_environ(self._environ)
        question: Dict[str, Any] = {
            "v": 1,
            "job": _id(attempt.job_id),
            "name": self._environ.get("mapreduce_job_name", "")[:200],
            "attempt": _id(attempt.attempt_id if attempt.is_streaming else "process_{}".format(os.getpid())),
            "forms": list(self._forms),
            "gpus": self._n_gpus,
        }
        token_file = self._environ.get(TOKEN_FILE_VARIABLE, "")
        if token_file:
            encoded = read_secrets(Path(token_file).read_bytes()).get(SECRET_ALIAS)
            if encoded is not None:
                credential = decode(encoded)
                question["credential"] = {
                    "identifier": credential.identifier().decode("ascii"),
                    "token": claim_token(credential, node),
                }
        return question


class _AgentLink:
    """A connection to an agent: lines of JSON.

    Raises:
        OSError: nobody listens there.
        ConfigError: somebody listens there who is not trusted.
    """

    def __init__(self, path: str, is_trusted: bool) -> None:
        self._received = b""
        self._sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(_AGENT_TIMEOUT_S)
            self._sock.connect(path)
            if not is_trusted:
                check_peer(self._sock)
        except BaseException:
            self._sock.close()
            raise

    def close(self) -> None:
        """Close it."""
        self._sock.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line."""
        self._sock.sendall(json.dumps(message).encode("utf-8") + b"\n")

    def exchange(self, message: Mapping[str, Any], key: str = "ok") -> None:
        """Send a line, and wait for one with this key."""
        self.send(message)
        while key not in self.receive():
            pass

    def has_more(self, seconds: float) -> bool:
        """Whether there is something to receive, now or within this time."""
        return bool(self._received or select.select([self._sock], [], [], max(0.0, seconds))[0])

    def receive(self) -> Mapping[str, Any]:
        """The next line.

        Raises:
            OSError: none came in time, or the connection is lost.
            UnavailableError: it is no line of an agent.
        """
        until_s = time.monotonic() + _AGENT_TIMEOUT_S
        while b"\n" not in self._received:
            self._sock.settimeout(max(0.001, until_s - time.monotonic()))
            part = self._sock.recv(_MAX_LINE_BYTES)
            if not part:
                raise UnavailableError("the agent closed the connection")
            self._received += part
            if len(self._received) > _MAX_LINE_BYTES:
                raise UnavailableError("the agent sent a line longer than {}".format(_MAX_LINE_BYTES))
        line, self._received = self._received.split(b"\n", 1)
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise UnavailableError("the agent sent something else than a line of JSON")
        return message


def _checked(answer: Mapping[str, Any], forms: Sequence[str]) -> Mapping[str, Any]:
    """A decision that can be followed.

    Raises:
        UnavailableError: it cannot.
    """
    gpus = answer.get("gpus")
    if answer["granted"] not in forms or not isinstance(gpus, list):
        raise UnavailableError("the agent decided for a form that this mapper does not have")
    if not all(isinstance(each, int) and 0 <= each < 4096 for each in gpus):
        raise UnavailableError("the agent names GPUs that are no indices")
    return answer


def _seconds(value: Any, default: float) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6
    return float(value) if is_number else default


def _id(text: str) -> str:
    return _NOT_IN_AN_ID.sub("_", text)[:128]


def _bytes_read() -> int:
    """Bytes this process has read so far, from files, pipes and sockets; 0 where the kernel does not say."""
    try:
        with Path("/proc/self/io").open(encoding="ascii") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _why(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return " ".join(str(error).split())[:300]
