"""README.md and the pages are short, and what the pages refer to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.documents import PAGES, ROOT, blocks, run_page

MOST_README_LINES = 120
MOST_CHANGELOG_LINES = 80
"""For each version."""
MOST_PAGE_LINES = 250
PLACES = (*PAGES, *ROOT.glob("*.md"), *(ROOT / "jobs").glob("*/README.md"), ROOT / "hadoop_conf/README.md")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


def test_the_changelog_is_short() -> None:
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## [")
    assert max(len(version.splitlines()) for version in versions) <= MOST_CHANGELOG_LINES


def test_no_page_is_long() -> None:
    pages = [page for page in PAGES if page.parent.name == "docs"]
    lines = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert {name: number for name, number in lines.items() if number > MOST_PAGE_LINES} == {}


@pytest.mark.parametrize("page", sorted(set(PLACES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        if "://" in target:
            continue
        place = page.parent / path if path else page
        if not place.exists() or (heading and heading not in anchors(place)):
            missing.append(target)
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_figures_exist(page: Path) -> None:
    """A page names the file of benchmarks/results that a figure comes from; a ``*`` stands for some."""
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"benchmarks/results/([\w*.-]+\.json)", text))
    assert [name for name in sorted(names) if not list((ROOT / "benchmarks/results").glob(name))] == []


def test_blocks_have_the_output_that_directly_follows() -> None:
    page = "```sh\nls\n```\n\n```text\na\n```\nand\n```text\nb\n```\n```console\n$ c\n```\n"
    assert [(block.language, block.code, block.line, block.output) for block in blocks(page)] == [
        ("sh", "ls\n", 2, "a\n"),
        ("text", "b\n", 10, None),
        ("console", "$ c\n", 13, None),
    ]


PAGE = """\
```sh
x=1; echo one > file
```
```python
print(open("file").read() + "and more")
```
```text
one
...
```
```sh
echo $x
```
```text
2
```
```sh
sleep 600 & false; true
```
"""


def test_a_page_is_run_in_one_shell_and_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    wrong = run_page(page, tmp_path)
    assert [line.split()[0] for line in wrong] == ["left", "page.md:12", "page.md:18"], wrong
    assert "sleep 600" in wrong[0]
    assert "prints:\n1\n" in wrong[1]
