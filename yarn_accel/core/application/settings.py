"""Times of the application, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times after which something counts as failed or is repeated.

    Attributes:
        silence_s: a server without a report for so long is not bound any more.
        guest_after_s: an accelerator node without a server for so long is bound like a node without
            accelerator.
        settle_s: a later attempt collects reports for so long before it publishes its first binding, so that
            servers which report one after the other do not make every node move.
        recall_s: ... and at most so much longer, until the RM has listed all nodes and every server that
            nodes are published as bound to has reported: published bindings are restored. Agents that could
            not reach the master for a while reconnect in that time; so, after a stall of `silence_s` or
            more, no silence counts before it is over.
        first_delay_s: back-off after the second failure in a row (none after the first); then it doubles.
        max_delay_s: bound of the back-off.
        healthy_s: a container that was well for so long begins with a clean record.
        ask_again_s: a request without an answer is repeated.
        launch_limit_s: a launch neither confirmed nor refused counts as failed.
        check_after_s: the NM is asked about a container that is silent for so long, and again after as long.
        check_gone_s: ... and about one whose process is dead at once, then after so long, then after twice as
            long each time: it knows of the end before the RM does.
        hung_s: a container that is unhealthy for so long, on a node that can be reached, is replaced.
        stop_again_s: an order to stop is repeated.
        forget_s: a container that should stop and is not confirmed is not waited for any longer.
        drain_grace_s: a server is drained at least so long: its clients learn of their new one meanwhile,
            which takes an agent's heartbeat (1 s) and the time a mapper keeps an answer (2 s).
        drain_limit_s: ... and at most so long.
        stop_drain_s: the same bound when the whole application stops.
        stop_limit_s: so long after `StopRequested` the application unregisters, whatever is not done yet.
        restore_after_s: without any server for so long, slots get their configured values.
        slots_again_s: slots not confirmed are set again.
        slots_kept_s: so long a container that a node waits for has precedence over a change of its slots.
        recovery_s: a node that complete reports lack is gone after so long, counted from the last
            registration or from the first of these reports: a restarted RM may not have it back yet.
        register_again_s: registering and unregistering are repeated.
        has_slots: slots are set at all.
        n_notes: last events kept for people.
    """

    silence_s: float = 3.0
    guest_after_s: float = 10.0
    settle_s: float = 2.0
    recall_s: float = 5.0
    first_delay_s: float = 1.0
    max_delay_s: float = 300.0
    healthy_s: float = 30.0
    ask_again_s: float = 60.0
    launch_limit_s: float = 30.0
    check_after_s: float = 30.0
    check_gone_s: float = 0.1
    hung_s: float = 120.0
    stop_again_s: float = 5.0
    forget_s: float = 30.0
    drain_grace_s: float = 5.0
    drain_limit_s: float = 60.0
    stop_drain_s: float = 10.0
    stop_limit_s: float = 60.0
    restore_after_s: float = 10.0
    slots_again_s: float = 10.0
    slots_kept_s: float = 5.0
    recovery_s: float = 60.0
    register_again_s: float = 10.0
    has_slots: bool = True
    n_history: int = 500
