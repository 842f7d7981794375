"""HTML pages from Jinja2 templates, in which text never becomes markup.

A template stands beside the module that fills it in, extends `base.html` and takes tables and sections from
`parts.html`::

    render(Path(__file__).with_name("page.html"), title="Nodes", nodes=table(("node", ">slots"), rows))

Autoescape is on for every template: only `Markup` is HTML, and Python makes it by `markup` alone, from a form
of our own. Characters that cannot be seen (control characters, marks that turn the direction of writing,
halves of surrogate pairs) are shown as U+FFFD: a node's agent must not be able to make a page lie.

A page needs nothing but itself: style and script are embedded, and `POLICY` allows no others. The script
fetches the same page once a second and replaces what differs, so all markup is made and escaped here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_STYLE: Final = (_HERE / "style.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_HERE / "live.js").read_text(encoding="utf-8")


def _digest(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


#: The master's page is seen under the ResourceManager's address: what got into it could speak for the one who
#: looks. So it runs and loads nothing but our style and script.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_digest(_STYLE)}",
        f"script-src {_digest(_SCRIPT)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


class Cell(NamedTuple):
    """A cell of a table with a class of the style sheet, such as ``ok``, ``bad`` or ``small``."""

    text: object
    style: str


def render(template: Path, **values: Any) -> str:
    """Fill a template in.

    Args:
        template: beside those of this package it finds the others of its folder.
        values: its variables. `base.html` takes `title` and `is_live`, which is true for a page that brings
            itself up to date. A variable that is not given is an error.
    """
    return _environment(template.parent).get_template(template.name).render(values)


def macros(template: Path) -> Any:
    """The macros of a template, to be called from Python; they return `Markup`."""
    return _environment(template.parent).get_template(template.name).module


def markup(form: str, /, *values: object) -> Markup:
    """A fragment: `form` is markup of our own, the values are filled in as escaped text.

    >>> markup("<b>{}</b>", "1 < 2")
    Markup('<b>1 &lt; 2</b>')
    """
    return Markup(form).format(*map(_finalize, values))


def visible(value: object) -> object:
    """Text with U+FFFD for each character that cannot be seen, but the end of a line; all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in value)


def status(kind: str, word: str) -> Markup:
    """A word in the colour of its kind: good, warn, bad or idle."""
    return markup('<span class="keep {}">{}</span>', kind, word)


def link(words: str, url: str) -> Markup:
    """A link."""
    return markup('<a href="{}">{}</a>', url, words)


def swatch(colour: str) -> Markup:
    """A small square in a colour of the style sheet, c0 to c7, or in none."""
    return markup('<span class="{}"></span>', f"swatch {colour}".strip())


def joined(words: Iterable[object], mark: str) -> Markup:
    """Words with a mark after each but the last; lines break between them only."""
    shown = list(words)
    marks = [mark] * (len(shown) - 1) + [""]
    return markup("{}" * len(shown), *map(_kept_whole, shown, marks))


def _kept_whole(words: object, mark: str) -> Markup:
    return markup('<span class="keep">{}{}</span> ', words, mark)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], otherwise: str = "") -> Markup:
    """A table.

    Args:
        columns: names; those of texts that stand for numbers begin with ``>``.
        rows: cells: text, `Markup`, `Cell`, or a sequence of texts and `Markup`, which is joined. Numbers are
            set right, as is the name above them, True and False become ok and FAILED, and None is empty.
        otherwise: the text where there are no rows.
    """
    styles = ["number" if name.startswith(">") else "" for name in columns]
    filled = [[_cell(value, style) for value, style in zip(row, styles, strict=True)] for row in rows]
    for at, column in enumerate(zip(*filled, strict=True)):
        if {cell.style for cell in column if cell.text is not None} == {"number"}:
            styles[at] = "number"
    heads = [(name.lstrip(">"), style) for name, style in zip(columns, styles, strict=True)]
    return macros(_HERE / "parts.html").filled_table(heads, filled, otherwise)  # type: ignore[no-any-return]


def _cell(value: object, style: str) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, bool):
        return Cell("ok", "ok") if value else Cell("FAILED", "bad")
    if isinstance(value, int | float):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:,.4g}", "number")
    if isinstance(value, str) or value is None:
        return Cell(value, style)
    assert isinstance(value, Iterable)
    parts = list(value)
    return Cell(markup("{}" * len(parts), *parts), style)


@cache
def _environment(folder: Path) -> Environment:
    # Not before somebody looks: it takes 60 ms, and memory of the ApplicationMaster.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(style=Markup(_STYLE), script=Markup(_SCRIPT), table=table)
    made.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    return made


def _finalize(value: object) -> object:
    """How a value is shown: None as nothing, fractions with two digits."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"
    return "" if value is None else visible(value)
