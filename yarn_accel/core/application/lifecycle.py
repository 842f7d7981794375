"""The state of the whole application at the RM: registered or not, stopping or not."""

from __future__ import annotations

from yarn_accel.core.application.commands import Command, Register, Unregister
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.timers import NEVER


class Lifecycle:
    """The state between the first `Register` and `Unregistered`.

    Attributes:
        stopping_s: since when it is to stop; None: it is not.
        is_over: the RM has accepted the end.
    """

    def __init__(self, settings: Settings, commands: list[Command]) -> None:
        self._settings = settings
        self._commands = commands
        self._ordered_s = -NEVER
        self.attempt = 0
        self.is_registered = False
        self.stopping_s: float | None = None
        self.is_over = False

    def registered(self, attempt: int) -> None:
        """The RM accepted the registration."""
        if not self.is_registered:
            self.attempt = attempt
            self.is_registered = True
            self._ordered_s = -NEVER

    def lost(self) -> None:
        """The RM no longer knows the application."""
        self.is_registered = False
        self._ordered_s = -NEVER

    def stop(self, now_s: float) -> None:
        """It is to stop."""
        if self.stopping_s is None:
            self.stopping_s = now_s

    def reconcile(self, is_clear: bool, now_s: float) -> float:
        """Order what is due, `is_clear`: nothing is left to be ended; returns when to look again."""
        if self.is_over:
            return NEVER
        if not self.is_registered:
            return self._order(Register(), now_s)
        if self.stopping_s is None:
            return NEVER
        limit_s = self.stopping_s + self._settings.stop_limit_s
        if is_clear or now_s >= limit_s:
            return self._order(Unregister("SUCCEEDED"), now_s)
        return limit_s

    def _order(self, command: Command, now_s: float) -> float:
        if now_s >= self._ordered_s + self._settings.register_again_s:
            self._ordered_s = now_s
            self._commands.append(command)
        return self._ordered_s + self._settings.register_again_s
