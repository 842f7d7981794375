"""What agents need of the master for late binding: the cluster's counts, and verifiers of credentials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from yarn_accel.adapters.credentials import RevocationList
from yarn_accel.core.tasks.late_binding.cluster_counts import ClusterCounts
from yarn_accel.core.tasks.late_binding.messages import MAX_IDENTIFIERS, counts_document, parse_counts
from yarn_accel.core.tasks.late_binding.shared_figures import (
    ClusterFigures,
    figures_document,
    parse_figures,
)
from yarn_accel.errors import AccelError, AuthenticationError
from yarn_accel.wire.credential import (
    Credential,
    claim_token,
    claim_verifier,
    derive_key,
    parse_identifier,
)

_MAX_IDENTIFIER = 512


class LateBindingReports:
    """Of all agents.

    Args:
        secret: the pipeline servers' master secret; empty: the master has none.
        revoked_file: see `PipelineConfig.revoked_file`.
        clock: Unix seconds, against which credentials expire.
    """

    def __init__(self, secret: bytes, revoked_file: str = "", clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._revoked_file = revoked_file
        self._revoked: RevocationList | None = None
        self._clock = clock
        self._counts = ClusterCounts()
        self._figures = ClusterFigures()
        #: Of this master: another one has other sequence numbers.
        self._epoch = int(clock() * 1000)

    def answer(self, node: str, heartbeat: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """The part of the answer to a heartbeat; empty where the agent does not bind late.

        Args:
            node: whose key signed the heartbeat.
        """
        document, epoch = heartbeat.get("late_binding"), heartbeat.get("epoch")
        if not isinstance(document, Mapping):
            return {}
        number = epoch if isinstance(epoch, int) else 0
        elsewhere = self._counts.report(node, number, parse_counts(document.get("apps")), now_s)
        identifiers = document.get("identifiers")
        wanted = identifiers[:MAX_IDENTIFIERS] if isinstance(identifiers, list) else ()
        verifiers = {
            each: self._verifier(each, node)
            for each in wanted
            if isinstance(each, str) and len(each) <= _MAX_IDENTIFIER
        }
        answer = {"apps": counts_document(elsewhere), "verifiers": verifiers}
        return {"late_binding": {**answer, **self._shared(node, document, now_s)}}

    def _shared(self, node: str, document: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """Take in the figures that a node measured; those of others that it has not got yet."""
        if "figures" not in document:
            return {}
        self._figures.report(node, parse_figures(document["figures"]), now_s)
        seen = document.get("figures_seen")
        sequence = 0
        if isinstance(seen, list) and len(seen) == 2 and seen[0] == self._epoch and isinstance(seen[1], int):
            sequence = seen[1]
        rows = self._figures.since(sequence, node, now_s)
        return {"figures": figures_document(rows), "figures_seen": [self._epoch, self._figures.sequence]}

    def _verifier(self, identifier: str, node: str) -> dict[str, str]:
        """``sha256`` or ``refused``; neither without a secret."""
        if not self._secret:
            return {}
        try:
            shown = parse_identifier(identifier.encode("utf-8", "replace"))
            if self._revoked is None:
                self._revoked = RevocationList(self._revoked_file)
            if self._revoked.now().covers(shown.tenant, shown.key_id):
                raise AuthenticationError("it is revoked")
            if shown.expires_s <= self._clock():
                raise AuthenticationError("it has expired")
        except AccelError as error:
            return {"refused": error.message}
        key = derive_key(self._secret, shown.identifier())
        credential = Credential(shown.tenant, shown.expires_s, shown.key_id, key)
        return {"sha256": claim_verifier(claim_token(credential, node))}
