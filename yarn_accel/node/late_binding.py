"""Late binding on this node: joins the socket of the mappers, `LateBinder`, and the agent's heartbeats.

A mapper that holds a place gets a proof of it, made with the node's key, for its process alone. With it the
mapper says to the next agent what it holds, so that nobody else gets the place while it is in use.
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

from yarn_accel.core.tasks.claim_counts import claim_counts
from yarn_accel.core.tasks.late_binding import LateBinder
from yarn_accel.core.tasks.late_binding.messages import (
    counts_document,
    parse_claim,
    parse_counts,
    parse_end,
)
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
)
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import AccelError, AuthenticationError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.node.claim_config import LateBindingConfig
from yarn_accel.node.claim_figures import SharedFigures
from yarn_accel.node.claim_identity import ClaimIdentities
from yarn_accel.node.claim_socket import ClaimConnection, ClaimSocket
from yarn_accel.node.sampling import total_bytes_per_s

logger = logging.getLogger(__name__)

#: Mappers give a sign of life so often.
RENEW_S = 1.0
_TICK_S = 0.5
_SAVE_EVERY_S = 5.0
_MOST_ENDED = 1000
_MAX_FIGURES_BYTES = 4 << 20
_HEALTHY = ("ok", "hot")


class NodeLateBinding:
    """One node's.

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

    # The heartbeat.

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
        """Take the master's part of its answer in."""
        self._identities.answered(document.get("verifiers"))
        if self._binder is not None and "apps" in document:
            self._apply(ClusterCountsReceived(parse_counts(document["apps"]), self._clock()))
        names = self._sharing.answered(document, self._figures, self._clock())
        if self._binder is not None and names:
            self._apply(ClusterFiguresReceived(names, self._clock()))

    def sampled(self, heartbeat: Mapping[str, Any]) -> None:
        """Take this node's devices and I/O in, as they stand in a heartbeat."""
        seen = [each for each in heartbeat["devices"] if each.get("health") in _HEALTHY]
        self._accelerator = str(seen[0].get("name", "")) if seen else ""
        wanted = self._config.gpus
        self._gpus = tuple(int(each["index"]) for each in seen) if wanted < 0 else tuple(range(wanted))
        if self._binder is not None:
            now_s = self._clock()
            self._apply(PlacesChanged(self._gpus, self._accelerator, now_s))
            self._apply(IoMeasured(total_bytes_per_s(heartbeat, self._config.io), now_s, now_s))

    # Mappers: a `ClaimHandler`.

    def greeting(self) -> Mapping[str, Any]:
        """As in `late_binding.messages`."""
        return {
            "v": 1,
            "node": self._node,
            "lease_s": self._config.lease_s,
            "renew_s": min(RENEW_S, self._config.lease_s / 3),
            "max_wait_s": self._config.max_wait_s,
        }

    async def asked(self, connection: ClaimConnection, question: Mapping[str, Any]) -> None:
        """A mapper asks for a place, or says what it holds."""
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
        """A sign of life, or the end."""
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
        """A mapper is gone."""
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

    # How it goes on.

    def _made(self) -> LateBinder:
        """From the first claim on there is a binder; those who hold places from before speak first."""
        settings = self._config.settings(self._node, self._gpus, self._accelerator)
        return LateBinder(settings, self._figures, self._started_s + self._config.lease_s)

    async def _tick(self) -> None:
        """While there are claims, time passes."""
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
        """The proof of a place that was given back is worth nothing any more."""
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
        """That this agent, or one before with the same key, gave this process this place."""
        held = [self._node, user, request.job, request.attempt, form.value, list(gpus)]
        process = [connection.pid, _started_ticks(connection.pid)]
        text = json.dumps(["yarn-accel late binding", held, process])
        return hmac.new(self._key(), text.encode(), hashlib.sha256).hexdigest()

    def _resumed(
        self, connection: ClaimConnection, user: str, request: ClaimRequest, shown: Mapping[str, Any]
    ) -> ResumedClaim:
        """What a mapper proves that it holds.

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
        """Write what was learned, now and then."""
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
            "form": each.form.value,
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
