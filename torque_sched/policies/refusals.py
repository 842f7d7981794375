"""Why one node does not take one piece of a job."""

from __future__ import annotations

import enum

from torque_sched.core.reasons import Reason


class Refusal(enum.Enum):
    """Why a node is no place for a job now, with the words for it; in the order in which they are found."""

    NOT_MATCHING = "other host, property or feature"
    TOO_SMALL = "too small"
    UNUSABLE = "down, offline or not reporting"
    BUSY = "busy"
    NOTED = "has a note"
    BACK_OFF = "failed to start jobs lately"
    JOB_BACK_OFF = "failed to start this job lately"
    NO_SLOTS = "full"
    NO_GPUS = "no free GPU"
    BAD_GPUS = "next GPU is in use by a stray or sick"
    KEPT_FOR_GPUS = "slots kept for its idle GPUs"
    NO_MEMORY = "too little memory free"
    LEARNED_MEMORY = "less memory free than such jobs use"
    NOT_EMPTY = "not empty"
    TAKEN_ALONE = "taken by a job or user that wants it alone"
    RESERVED = "reserved"

    @property
    def reason(self) -> Reason:
        """What its owner is told when this is what keeps a job waiting."""
        return _REASONS[self]


_REASONS = {
    Refusal.NOT_MATCHING: Reason.NEVER_FITS,
    Refusal.TOO_SMALL: Reason.NEVER_FITS,
    Refusal.UNUSABLE: Reason.NODES_UNUSABLE,
    Refusal.BUSY: Reason.NODES_TOO_LOADED,
    Refusal.NOTED: Reason.NODES_UNUSABLE,
    Refusal.BACK_OFF: Reason.NODES_BACK_OFF,
    Refusal.JOB_BACK_OFF: Reason.NODES_BACK_OFF,
    Refusal.NO_SLOTS: Reason.NO_FREE_SLOTS,
    Refusal.NO_GPUS: Reason.NO_FREE_GPUS,
    Refusal.BAD_GPUS: Reason.NO_FREE_GPUS,
    Refusal.KEPT_FOR_GPUS: Reason.NO_FREE_SLOTS,
    Refusal.NO_MEMORY: Reason.NO_FREE_MEMORY,
    Refusal.LEARNED_MEMORY: Reason.LEARNED_MEMORY,
    Refusal.NOT_EMPTY: Reason.NO_EMPTY_NODES,
    Refusal.TAKEN_ALONE: Reason.NO_FREE_SLOTS,
    Refusal.RESERVED: Reason.RESERVED_FOR_OTHERS,
}
