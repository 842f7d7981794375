"""How long to wait before a role is tried on a node again."""

from __future__ import annotations

from dataclasses import dataclass

from yarn_accel.core.application.settings import Settings

_N_REFUSALS = 3


@dataclass(slots=True)
class Backoff:
    """Failures of one role on one node.

    The first failure costs nothing, so that a server that was killed is back at once; the second costs
    `first_delay_s`, each later one twice as much as the one before, up to `max_delay_s`. A failure whose
    cause lasts costs `max_delay_s` at once; so does the third refusal to start in a row: the first may be
    because of a container that is about to end.
    """

    n_failures: int = 0
    until_s: float = 0.0
    reason: str = ""
    is_lasting: bool = False
    n_refusals: int = 0

    def failed(
        self,
        settings: Settings,
        well_for_s: float,
        reason: str,
        now_s: float,
        *,
        is_lasting: bool = False,
        is_refusal: bool = False,
    ) -> None:
        """A container failed after `well_for_s` healthy seconds; `healthy_s` of them clear older failures."""
        if well_for_s >= settings.healthy_s:
            self.n_failures = 0
        self.n_failures += 1
        self.n_refusals = self.n_refusals + 1 if is_refusal else 0
        self.reason = reason
        self.is_lasting = is_lasting or self.n_refusals >= _N_REFUSALS
        self.until_s = now_s + self.delay_s(settings)

    def forgive(self) -> None:
        """Clear all failures, after an admin has repaired the node."""
        self.n_failures, self.n_refusals, self.until_s = 0, 0, 0.0
        self.reason, self.is_lasting = "", False

    def delay_s(self, settings: Settings) -> float:
        """The wait after the failures so far."""
        if self.is_lasting:
            return settings.max_delay_s
        if self.n_failures < 2:
            return 0.0
        doublings = min(self.n_failures - 2, 60)
        return float(min(settings.first_delay_s * 2**doublings, settings.max_delay_s))
