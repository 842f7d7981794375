"""SIGHUP: which settings a running daemon takes anew."""

from __future__ import annotations

from pathlib import Path

from torque_sched.daemon.config import Config
from torque_sched.daemon.reloading import AT_ONCE, changes_of, taken_at_once


def test_every_key_that_is_taken_at_once_is_a_key() -> None:
    assert set(Config.model_fields) >= AT_ONCE


def test_what_can_change_is_taken_and_the_rest_stays() -> None:
    old, new = Config(), Config(port=16000, look_rest=5.0, max_starts=7)
    assert changes_of(old, new) == ("port", "look_rest", "max_starts")
    taken = taken_at_once(old, new)
    assert (taken.port, taken.look_rest, taken.max_starts) == (old.port, 5.0, 7)
    assert taken_at_once(old, old) == old


def test_the_keys_stand_in_the_manual() -> None:
    manual = (Path(__file__).parents[4] / "docs" / "torque.md").read_text(encoding="utf-8")
    listed = manual.partition("`systemctl reload`")[2].partition("\n\n")[0]
    missing = sorted(key for key in AT_ONCE if f"`{key}`" not in listed)
    assert missing == []
