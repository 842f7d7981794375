"""What the documentation shows is what happens: the code blocks of README.md and docs/*.md, run in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.documents import PAGES, blocks, run_page


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.is_run for b in blocks(p.read_text(encoding="utf-8")))],
    ids=lambda p: p.name,
)
def test_every_code_block_does_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    wrong = run_page(page, tmp_path)
    assert not wrong, "\n".join(wrong)
