"""Late binding on this node: joins the socket of the mappers, `LateBinder`, and the agent's heartbeats.

A mapper has a connection while its claim lasts, with lines as in `late_binding.values`. A connection that
closes is a lost claim, so a killed mapper's place is free at once.

A mapper that holds a place gets a proof of it, made with the node's key, for its process alone. With it the
mapper proves to the next agent what it holds, so that the place stays its own while it is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.core.late_binding_reports import (
    MAX_FIGURES,
    MAX_FIGURES_AGE_S,
    SharedFigure,
    claim_counts,
    counts_document,
    figures_document,
    parse_counts,
    parse_figures,
)
from yarn_accel.core.tasks.late_binding import LateBinder
from yarn_accel.core.tasks.late_binding.values import (
    ClaimEnded,
    ClaimEvent,
    ClaimId,
    ClaimLost,
    ClaimOpened,
    ClaimRenewed,
    ClaimRequest,
    ClaimTimerTicked,
    ClusterCountsReceived,
    ClusterFiguresReceived,
    ExpireClaim,
    GrantClaim,
    IoMeasured,
    PlacesChanged,
    RefuseClaim,
    ResumedClaim,
    parse_claim,
    parse_end,
)
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import AccelError, AuthenticationError, RemoteProtocolError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.node import local_endpoint
from yarn_accel.node.claim_identity import ClaimIdentities
from yarn_accel.node.config import LateBindingConfig
from yarn_accel.node.local_endpoint import LocalSocket, read_line
from yarn_accel.node.sampling import total_bytes_per_s

logger = logging.getLogger(__name__)

#: The pause between a mapper's signs of life.
RENEW_S = 1.0
_TICK_S = 0.5
_SAVE_EVERY_S = 5.0
_MOST_ENDED = 1000
_MAX_FIGURES_BYTES = 4 << 20
_MAX_LINE_BYTES = 4096
_MAX_LINES_PER_S = 50
_MAX_UNSENT_BYTES = 65536
_HEALTHY = ("ok", "hot")


class NodeLateBinding:
    """Late binding of one node.

    Args:
        folder: where the socket lies, and the figures if the settings name no file.
        mode, users: who may use the socket, as that of `LocalEndpoint`.
        shared: user ids that say nothing about who asks.
        key: the node's own.
        wake: has the next heartbeat sent now.
    """

    def __init__(
        self,
        config: LateBindingConfig,
        node: str,
        folder: Path,
        mode: int,
        users: frozenset[int],
        shared: frozenset[int],
        key: Callable[[], bytes],
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._node = node
        self._figures_path = Path(config.figures_file or folder / "figures.json")
        self._key = key
        self._socket = ClaimSocket(folder / "claims.sock", mode, users, self)
        self._identities = ClaimIdentities(shared, wake)
        self._clock = time.monotonic
        self._started_s = self._clock()
        self._binder: LateBinder | None = None
        self._gpus = tuple(range(max(0, config.gpus)))
        self._accelerator = ""
        self._connections: dict[ClaimId, ClaimConnection] = {}
        self._claims: dict[ClaimConnection, ClaimId] = {}
        self._requests: dict[ClaimId, tuple[str, ClaimRequest]] = {}
        self._ended: deque[str] = deque(maxlen=_MOST_ENDED)
        self._n_claims = 0
        self._ticking: asyncio.Task[None] | None = None
        self._saved_s = 0.0
        self._n_learned = 0
        self._figures = FigureStore()
        self._sharing = SharedFigures()

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: the socket cannot be made.
        """
        self._figures = self._read_figures()
        await self._socket.open()

    async def close(self) -> None:
        """Stop; mappers go on with what they have."""
        await self._socket.close()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        self._identities.close()
        self._save(is_due=True)

    # ---- the heartbeat

    def heartbeat(self) -> dict[str, Any]:
        """This node's part of a heartbeat."""
        counts = self._binder.own_counts(self._clock()) if self._binder is not None else {}
        document: dict[str, Any] = {
            "apps": counts_document(counts),
            "identifiers": self._identities.wanted(),
            **self._sharing.heartbeat(self._figures),
        }
        if self._binder is not None:
            own = self.figures()
            document["claims"] = claim_counts(own["claims"], own["outcomes"], own["counts_age_s"])
        return document

    def answered(self, document: Mapping[str, Any]) -> None:
        """Apply the master's answer."""
        self._identities.answered(document.get("verifiers"))
        if self._binder is not None and "apps" in document:
            self._apply(ClusterCountsReceived(parse_counts(document["apps"]), self._clock()))
        names = self._sharing.answered(document, self._figures, self._clock())
        if self._binder is not None and names:
            self._apply(ClusterFiguresReceived(names, self._clock()))

    def sampled(self, heartbeat: Mapping[str, Any]) -> None:
        """Apply this node's devices and I/O, as they are in a heartbeat."""
        seen = [each for each in heartbeat["devices"] if each.get("health") in _HEALTHY]
        self._accelerator = str(seen[0].get("name", "")) if seen else ""
        wanted = self._config.gpus
        self._gpus = tuple(int(each["index"]) for each in seen) if wanted < 0 else tuple(range(wanted))
        if self._binder is not None:
            now_s = self._clock()
            self._apply(PlacesChanged(self._gpus, self._accelerator, now_s))
            self._apply(IoMeasured(total_bytes_per_s(heartbeat, self._config.io), now_s, now_s))

    # ---- mappers, by `ClaimSocket`

    def greeting(self) -> Mapping[str, Any]:
        """The first line to a mapper."""
        return {
            "v": 1,
            "node": self._node,
            "lease_s": self._config.lease_s,
            "renew_s": min(RENEW_S, self._config.lease_s / 3),
            "max_wait_s": self._config.max_wait_s,
        }

    async def asked(self, connection: ClaimConnection, question: Mapping[str, Any]) -> None:
        """Take a mapper's first line: it asks for a place, or proves the one it holds.

        Raises:
            AccelError: it gets no place.
        """
        request = parse_claim(question)
        user = await self._identities.user(connection.uid, question.get("credential"))
        resumed = None
        if isinstance(question.get("resume"), Mapping):
            resumed = self._resumed(connection, user, request, question["resume"])
        self._n_claims += 1
        claim = ClaimId(f"c{self._n_claims}")
        self._connections[claim], self._claims[connection] = connection, claim
        self._requests[claim] = user, request
        if self._binder is None:
            self._binder = self._made()
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick(), name="claims")
        self._apply(ClaimOpened(claim, user, request, self._clock(), resumed))

    def said(self, connection: ClaimConnection, message: Mapping[str, Any]) -> None:
        """Take a later line: a sign of life, or the end."""
        claim = self._claims.get(connection)
        if claim is None:
            return
        now_s = self._clock()
        if "end" in message:
            self._note_end(connection, claim)
            self._apply(ClaimEnded(claim, *parse_end(message), now_s))
            self._forget(claim)
            connection.send({"ended": True})
            connection.close()
            return
        connection.send({"ok": True})
        self._apply(ClaimRenewed(claim, message.get("reading") is True, now_s))

    def closed(self, connection: ClaimConnection) -> None:
        """The mapper of a connection is gone."""
        claim = self._claims.get(connection)
        if claim is not None:
            self._forget(claim)
            self._apply(ClaimLost(claim, self._clock()))

    def explain(self) -> dict[str, Any]:
        """Everything for people; see `LateBinder.explain`."""
        shown: dict[str, Any] = {"node": self._node, "connections": dict(self._socket.counts)}
        if self._binder is None:
            return {**shown, "policy": self._config.policy, "claims": [], "decisions": [], "outcomes": {}}
        shown |= self._binder.explain(self._clock())
        return {**shown, "figures": [*_measured_here(self._figures), *_measured_elsewhere(self._figures)]}

    def figures(self) -> dict[str, Any]:
        """Numbers for the metrics."""
        claims = self._binder.claims.values() if self._binder is not None else ()
        held = [claim.form.value if claim.form is not None else "waiting" for claim in claims]
        return {
            "claims": {state: held.count(state) for state in ("waiting", "cpu", "gpu")},
            "outcomes": dict(self._binder.outcomes) if self._binder is not None else {},
            "connections": dict(self._socket.counts),
            "counts_age_s": None if self._binder is None else self._binder.counts_age_s(self._clock()),
        }

    # ---- the binder

    def _made(self) -> LateBinder:
        """A new binder, for the first claim; mappers that hold places have a lease's time to say so."""
        settings = self._config.settings(self._node, self._gpus, self._accelerator)
        return LateBinder(settings, self._figures, self._started_s + self._config.lease_s)

    async def _tick(self) -> None:
        """Tell the binder the time while there are claims."""
        while self._connections:
            await asyncio.sleep(_TICK_S)
            try:
                self._apply(ClaimTimerTicked(self._clock()))
                self._save()
            except Exception:  # without this task no lease would ever end
                logger.exception("late binding: a tick failed")

    def _apply(self, event: ClaimEvent) -> None:
        assert self._binder is not None
        for command in self._binder.apply(event):
            connection = self._connections.get(command.claim)
            if connection is None:
                continue
            if isinstance(command, GrantClaim):
                connection.send(self._grant(command, connection))
            elif isinstance(command, RefuseClaim):
                self._forget(command.claim)
                connection.send({"refused": command.code, "message": command.message})
                connection.close()
            elif isinstance(command, ExpireClaim):
                logger.warning("claim %s of pid %d: %s", command.claim, connection.pid, command.reason)
                self._forget(command.claim)
                connection.close()

    def _forget(self, claim: ClaimId) -> None:
        connection = self._connections.pop(claim, None)
        if connection is not None:
            del self._claims[connection], self._requests[claim]

    def _grant(self, command: GrantClaim, connection: ClaimConnection) -> dict[str, Any]:
        user, request = self._requests[command.claim]
        return {
            "granted": command.form.value,
            "gpus": list(command.gpus),
            "reason": command.reason,
            "proof": self._proof(connection, user, request, command.form, command.gpus),
        }

    def _note_end(self, connection: ClaimConnection, claim: ClaimId) -> None:
        """Remember the proof of a place that was given back: it is refused from now on."""
        assert self._binder is not None
        held, (user, request) = self._binder.claims.get(claim), self._requests[claim]
        if held is not None and held.form is not None:
            self._ended.append(self._proof(connection, user, request, held.form, held.gpus))

    def _proof(
        self,
        connection: ClaimConnection,
        user: str,
        request: ClaimRequest,
        form: Form,
        gpus: tuple[int, ...],
    ) -> str:
        """The proof that an agent with this key gave this process this place."""
        held = [self._node, user, request.job, request.attempt, form.value, list(gpus)]
        process = [connection.pid, _started_ticks(connection.pid)]
        text = json.dumps(["yarn-accel late binding", held, process])
        return hmac.new(self._key(), text.encode(), hashlib.sha256).hexdigest()

    def _resumed(
        self, connection: ClaimConnection, user: str, request: ClaimRequest, shown: Mapping[str, Any]
    ) -> ResumedClaim:
        """The place that a mapper proves to hold.

        Raises:
            AuthenticationError: it proves nothing.
        """
        form = Form.GPU if shown.get("granted") == Form.GPU.value else Form.CPU
        gpus = shown.get("gpus")
        held = tuple(gpus) if isinstance(gpus, list) and all(isinstance(each, int) for each in gpus) else ()
        proof = self._proof(connection, user, request, form, held)
        if proof in self._ended:
            raise AuthenticationError("this process has given its place back")
        if not hmac.compare_digest(proof.encode(), str(shown.get("proof")).encode("utf-8", "replace")):
            raise AuthenticationError("this process was not given the place that it says it holds")
        return ResumedClaim(form, held)

    def _read_figures(self) -> FigureStore:
        try:
            with self._figures_path.open("rb") as file:
                return FigureStore.from_document(json.loads(file.read(_MAX_FIGURES_BYTES)))
        except FileNotFoundError:
            return FigureStore()
        except (OSError, ValueError, RecursionError, AccelError) as error:
            logger.error("%s is not used, and will be replaced: %s", self._figures_path, error)
            return FigureStore()

    def _save(self, *, is_due: bool = False) -> None:
        """Write what was learned, from time to time."""
        if self._binder is None:
            return
        n_learned, now_s = self._binder.outcomes["ended"], self._clock()
        if n_learned == self._n_learned or (not is_due and now_s - self._saved_s < _SAVE_EVERY_S):
            return
        self._n_learned, self._saved_s = n_learned, now_s
        try:
            write_atomic(self._figures_path, json.dumps(self._binder.figures.to_document()) + "\n")
        except OSError as error:
            logger.error("%s cannot be written: %s", self._figures_path, error)


class ClaimConnection:
    """The connection of one mapper.

    Attributes:
        pid, uid: of the process that connected, as the kernel reports them.
    """

    def __init__(self, pid: int, uid: int, writer: asyncio.StreamWriter) -> None:
        self.pid, self.uid = pid, uid
        self._writer = writer

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; a mapper that does not read loses the connection."""
        if self._writer.is_closing():
            return
        self._writer.write(json.dumps(message, allow_nan=False).encode() + b"\n")
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._writer.transport.abort()

    def close(self) -> None:
        """Close; data that cannot be sent at once is dropped."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()


class ClaimSocket(LocalSocket):
    """Where mappers claim places. Outcomes: closed, silent, oversized, flooding, bad.

    Args:
        path, mode, users: as of `LocalSocket`.
        handler: makes claims of the mappers' lines.
    """

    def __init__(self, path: Path, mode: int, users: frozenset[int], handler: NodeLateBinding) -> None:
        super().__init__(path, mode, users, _MAX_LINE_BYTES)
        self._handler = handler

    async def serve(
        self, pid: int, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Serve one mapper from its first line to its last."""
        connection = ClaimConnection(pid, user, writer)
        connection.send(self._handler.greeting())
        try:
            question = await asyncio.wait_for(read_line(reader), local_endpoint.FIRST_LINE_S)
        except asyncio.TimeoutError:
            return "silent"
        except (RemoteProtocolError, ValueError) as error:
            return _refused(connection, error)
        if question is None:
            return "closed"
        try:
            await self._handler.asked(connection, question)
            self.asked(user)
            return await self._listen(connection, reader)
        except AccelError as error:
            return _refused(connection, error)
        finally:
            self._handler.closed(connection)

    async def _listen(self, connection: ClaimConnection, reader: asyncio.StreamReader) -> str:
        second, n_lines = 0, 0
        while True:
            try:
                message = await read_line(reader)
            except ValueError:
                return "oversized"
            except RemoteProtocolError:
                return "bad"
            if message is None:
                return "closed"
            now = int(time.monotonic())
            second, n_lines = now, n_lines + 1 if now == second else 1
            if n_lines > _MAX_LINES_PER_S:
                return "flooding"
            self._handler.said(connection, message)


def _refused(connection: ClaimConnection, error: Exception) -> str:
    code = error.code if isinstance(error, AccelError) else "oversized"
    connection.send({"refused": code, "message": str(error)[:500]})
    return "bad" if isinstance(error, AccelError) else "oversized"


def _measured_here(figures: FigureStore) -> Iterator[dict[str, Any]]:
    for each in figures.beliefs():
        yield {
            "name": each.name,
            "form": each.form.value,
            "source": "this node",
            "read_s": each.read_s,
            "compute_s": each.compute_s,
            "n_measured": each.n_measured,
            "predicted_s": each.predicted_s,
            "happened_s": each.happened_s,
        }


def _measured_elsewhere(figures: FigureStore) -> Iterator[dict[str, Any]]:
    for each in figures.of_others():
        yield {
            "name": each.name,
            "form": each.form,
            "source": f"{each.n_nodes} other nodes",
            "read_s": each.read_s,
            "compute_s": each.compute_s,
            "n_measured": each.n_measured,
        }


def _started_ticks(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0: it is gone. With the pid it names the process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rsplit(")", 1)[1].split()[19])
    return 0


#: Figures are sent of so many names: those that were measured last.
_MOST_NAMES = MAX_FIGURES // 2
_MOST_SENT = 4 * MAX_FIGURES
_Key = tuple[str, str, str]


class SharedFigures:
    """The figures that this node sends to the master, and those of other nodes that it gets from there.

    All are sent again to a new master, which knows none.
    """

    def __init__(self) -> None:
        self._sent: dict[_Key, int] = {}
        self._pending: tuple[SharedFigure, ...] = ()
        self._seen = [0, 0]
        self._n_observed = -1

    def heartbeat(self, figures: FigureStore) -> dict[str, Any]:
        """This node's part of a heartbeat: its measurements since the last one that was answered."""
        if figures.n_observed != self._n_observed:
            self._n_observed = figures.n_observed
            last = figures.measured_last(_MOST_NAMES)
            news = [row for row in last if self._sent.get(_key(row)) != row.n_measured]
            self._pending = tuple(news[:MAX_FIGURES])
        return {"figures": figures_document(self._pending), "figures_seen": self._seen}

    def answered(self, document: Mapping[str, Any], figures: FigureStore, now_s: float) -> frozenset[str]:
        """Apply the master's answer; returns the names whose figures of other nodes changed."""
        seen = document.get("figures_seen")
        if not isinstance(seen, list) or len(seen) != 2 or not all(isinstance(each, int) for each in seen):
            return frozenset()
        if self._seen[0] in (0, seen[0]):
            sent = self._sent | {_key(row): row.n_measured for row in self._pending}
            self._sent = dict(list(sent.items())[-_MOST_SENT:])
            self._pending = ()
        else:
            self._sent, self._n_observed = {}, -1
        self._seen = seen
        figures.forget_others(now_s)
        return figures.believe_others(parse_figures(document.get("figures")), now_s + MAX_FIGURES_AGE_S)


def _key(row: SharedFigure) -> _Key:
    return row.name, row.form, row.accelerator
