"""The list of revoked credentials follows its file, and never becomes empty by an accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from yarn_accel.adapters.revocation_list import RevocationList
from yarn_accel.errors import ConfigError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path, clock = tmp_path / "revoked", Clock()
    path.write_text("# nobody\n")
    found = RevocationList(str(path), clock)
    assert not found.now().covers("alice")
    path.write_text("alice\n")
    assert not found.now().covers("alice"), "it is looked at once a second"
    clock.now_s += 1
    assert found.now().covers("alice")


def test_a_damaged_or_lost_list_stays_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "revoked", Clock()
    path.write_text("alice\n")
    found = RevocationList(str(path), clock)
    for spoil in (lambda: path.write_text("a b c d\n"), lambda: path.chmod(0o666), path.unlink):
        spoil()
        clock.now_s += 1
        assert found.now().covers("alice")
    assert len(caplog.records) == 3
    path.write_text("bob\n")
    clock.now_s += 1
    assert found.now().covers("bob")
    assert not found.now().covers("alice")


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [(None, 0, "No such file"), ("a\n", 0o622, "others may write"), ("a b c\n", 0o600, "line 1")],
)
def test_a_list_that_cannot_be_used_is_an_error_at_the_start(
    tmp_path: Path, text: str | None, mode: int, reason: str
) -> None:
    path = tmp_path / "revoked"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=reason):
        RevocationList(str(path))


def test_without_a_file_nothing_is_revoked() -> None:
    assert not RevocationList("").now().covers("alice", "k")
