"""One self-contained HTML page: escaped text, tables, inlined PNG; no script and no external asset."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1c2430; background:
#f5f6f8;
       margin: 0; padding: 2rem 1rem; }
main { max-width: WIDTHrem; margin: 0 auto; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
p.lead { color: #55606e; margin: 0 0 1.2rem; max-width: 52rem; }
section.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .8rem;
margin: 1rem 0; } div.card { background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; padding: .8rem
1rem; } div.card b { display: block; font-size: 1.45rem; line-height: 1.25; } div.card span { color: #66707d;
font-size: .85rem; } table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid
#e1e5ea; border-radius: 10px;
        overflow: hidden; font-size: .9rem; }
th, td { text-align: left; padding: .45rem .75rem; border-bottom: 1px solid #edf0f3; vertical-align: top; }
th { background: #fafbfc; color: #55606e; font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr:last-child td { border-bottom: none; }
td.ok { color: #0a7a45; font-weight: 600; } td.bad { color: #b3261e; font-weight: 700; }
td.part { color: #8a5a00; font-weight: 600; } td.plain { color: #66707d; }
td.lines { white-space: pre; font-variant-numeric: tabular-nums; font-size: .85rem; }
td.small { font-size: .8rem; color: #55606e; overflow-wrap: anywhere; }
p.notice { background: #fff7e0; border: 1px solid #ecd9a0; border-radius: 10px; padding: .6rem .9rem;
           margin: .6rem 0; }
pre { background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; padding: .8rem; overflow-x: auto;
      font-size: .78rem; }
figure { margin: 0 0 1rem; background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; padding: .8rem; }
figure img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: #66707d; font-size: .85rem; margin-top: .4rem; }
details { margin: .6rem 0; } summary { cursor: pointer; color: #0b5cad; }
footer { color: #66707d; font-size: .82rem; margin-top: 2.5rem; }
@media print {
  body { background: #fff; padding: 0; font-size: 11px; } main { max-width: none; }
  table { font-size: .82rem; } tr, figure, div.card { break-inside: avoid; } h2 { break-after: avoid; }
  thead { display: table-header-group; } pre { white-space: pre-wrap; }
  td.lines { font-size: .95em; }
}
"""


@dataclass(frozen=True, slots=True)
class Marked:
    """A cell with a style of its own: ``ok``, ``part``, ``bad``, ``plain``, ``lines`` or ``small``."""

    text: str
    style: str


class Page:
    """Collects the parts of a page in order; every text is escaped here and nowhere else."""

    def __init__(self, title: str, lead: str, width_rem: int = 68) -> None:
        self._style = _STYLE.replace("WIDTH", str(width_rem))
        self._title = html.escape(title)
        self._parts = [f"<h1>{self._title}</h1>", f'<p class="lead">{html.escape(lead)}</p>']

    def heading(self, text: str) -> None:
        """Start a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Plain text."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def notice(self, text: str) -> None:
        """Text that nobody should miss."""
        self._parts.append(f'<p class="notice">{html.escape(text)}</p>')

    def lines(self, lines: Iterable[str], caption: str) -> None:
        """Lines as a terminal shows them, under what prints them."""
        text = html.escape("\n".join(lines))
        self._parts.append(f"<p><code>{html.escape(caption)}</code></p><pre>{text}</pre>")

    def cards(self, cards: Iterable[tuple[str, str]]) -> None:
        """Figures side by side: (figure, what it is)."""
        inside = "".join(
            f'<div class="card"><b>{html.escape(figure)}</b><span>{html.escape(what)}</span></div>'
            for figure, what in cards
        )
        self._parts.append(f'<section class="cards">{inside}</section>')

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]], fold: str = "") -> None:
        """A table; numbers are set right, True and False become ok and FAILED, a tuple has lines.

        Args:
            fold: when given, the table is folded under this line.
        """
        body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        text = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        if fold:
            text = f"<details><summary>{html.escape(fold)}</summary>{text}</details>"
        self._parts.append(text)

    def picture(self, png: bytes, alt: str, caption: str = "") -> None:
        """A PNG, inlined."""
        data = base64.b64encode(png).decode("ascii")
        below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        image = f'<img alt="{html.escape(alt, quote=True)}" src="data:image/png;base64,{data}">'
        self._parts.append(f"<figure>{image}{below}</figure>")

    def footer(self, text: str) -> None:
        """The last line."""
        self._parts.append(f"<footer>{html.escape(text)}</footer>")

    def text(self) -> str:
        """The whole page."""
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{self._title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{self._style}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
        )


def _cell(value: object) -> str:
    if value is True:
        return '<td class="ok">ok</td>'
    if value is False:
        return '<td class="bad">FAILED</td>'
    if isinstance(value, (int, float)):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
        return f'<td class="number">{shown}</td>'
    if isinstance(value, Marked):
        return f'<td class="{html.escape(value.style, quote=True)}">{html.escape(value.text)}</td>'
    if isinstance(value, tuple):
        return f"<td>{'<br>'.join(html.escape(str(line)) for line in value)}</td>"
    return f"<td>{html.escape(str(value))}</td>"
