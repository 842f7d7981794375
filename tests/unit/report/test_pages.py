"""Markup comes from templates and forms of our own alone; all else is text."""

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from tests.fixtures.page_reader import Reader
from yarn_accel.report.pages import Cell, joined, link, markup, render, status, swatch, table

EVIL = '1 < 2 & "3"\u202e\x1b[31m\ud800'
SHOWN = "1 &lt; 2 &amp; &#34;3&#34;\ufffd\ufffd[31m\ufffd"


def test_text_and_attributes_are_escaped_and_what_cannot_be_seen_is_shown():
    assert markup("<p title='{}'>{}</p>", EVIL, EVIL) == f"<p title='{SHOWN}'>{SHOWN}</p>"
    assert markup("{}{}", "a\nb", None) == "a\nb"
    assert link(EVIL, EVIL) == f'<a href="{SHOWN}">{SHOWN}</a>'
    assert status(EVIL, EVIL) == f'<span class="keep {SHOWN}">{SHOWN}</span>'
    assert swatch(EVIL) == f'<span class="swatch {SHOWN}"></span>'
    assert joined([EVIL, "b"], ";") == f'<span class="keep">{SHOWN};</span> <span class="keep">b</span> '
    Markup(markup("{}", EVIL)).encode()


def test_markup_inside_markup_is_not_escaped_twice_and_a_part_of_it_is_text_again():
    inner = markup("<b>{}</b>", "&")
    assert markup("<p>{}</p>", inner) == "<p><b>&amp;</b></p>"
    assert markup("<p>{}</p>", str(inner)[:3]) == "<p>&lt;b&gt;</p>"


def test_templates_escape_what_they_are_given(tmp_path):
    (tmp_path / "page.html").write_text(
        '{% extends "base.html" %}{% block main %}<p title="{{ name }}">{{ name }}{{ parts|join }} {{ x }}'
        '{{ nothing }}</p><img alt="" src="{{ name }}">{{ table(("a",), [(name,)]) }}{% endblock %}'
    )
    values = {"name": EVIL, "parts": [EVIL, markup("<b></b>")], "x": 1.5, "nothing": None}
    text = render(tmp_path / "page.html", title=EVIL, is_live=False, **values)
    assert f'<p title="{SHOWN}">{SHOWN}' in text
    assert f"<title>{SHOWN}</title>" in text
    assert "<b></b> 1.5</p>" in text
    assert f"<td>{SHOWN}</td>" in text
    assert "2 & " not in text
    with pytest.raises(UndefinedError):
        render(tmp_path / "page.html", title="", is_live=False)


def test_cells_of_a_table():
    shown = table(
        ("a", ">b"),
        [("x", ">y"), (1234, 0.123456), (True, False), (Cell(EVIL, "lines"), ["p", None, link("q", "?")])],
    )
    reader = Reader(shown)
    assert reader.texts("th") == ["a", "b"]
    assert [(each.get("class", ""), text) for each, text in reader.all("td")] == [
        ("", "x"),
        ("number", ">y"),
        ("number", "1,234"),
        ("number", "0.1235"),
        ("ok", "ok"),
        ("bad", "FAILED"),
        ("lines", '1 < 2 & "3"\ufffd\ufffd[31m\ufffd'),
        ("number", "pq"),
    ]


def test_the_name_of_a_column_of_numbers_stands_right_as_they_do():
    heads = Reader(table(("name", "n", ">took", "mixed"), [("x", 1, "2 s", 3), ("y", None, "3 s", "z")])).all(
        "th"
    )
    assert [each.get("class", "") for each, _ in heads] == ["", "number", "number", ""]


def test_without_rows_the_table_is_a_text():
    assert table(("a",), [], "none <yet>") == '<p class="soft">none &lt;yet&gt;</p>'
    assert table(("a",), []) == ""


def test_a_row_has_a_cell_for_each_column():
    with pytest.raises(ValueError, match="zip"):
        table(("a", "b"), [("x",)])
