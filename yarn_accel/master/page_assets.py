"""Style sheet and refresh script of the tracking page; both are embedded in the page.

The script fetches the same page once a second and replaces the parts that differ, so all markup is made and
escaped by the server.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #f6f7f9; --paper: #fff; --ink: #1d2430; --soft: #667085;
  --edge: #d9dee7; --trough: #e7ebf1; --good: #16855b; --warn: #b35c00; --bad: #c92a35; --idle: #667085;
  --c0: #2563c9; --c1: #c2570c; --c2: #0f8a6d; --c3: #8b4fc6; --c4: #b83280; --c5: #7a6a00; --c6: #0e7fa8;
  --c7: #a13d2d; }
@media (prefers-color-scheme: dark) { :root { --back: #12161d; --paper: #1a202a; --ink: #e6eaf1;
  --soft: #98a3b5; --edge: #323b49; --trough: #2a3240; --good: #4cc38a; --warn: #f2a33c; --bad: #ff7b80;
  --idle: #98a3b5; --c0: #6ea8ff; --c1: #ff9d5c; --c2: #4fd1ab; --c3: #c49bff; --c4: #ff8cc3; --c5: #e0cb4a;
  --c6: #5cc8f0; --c7: #f59482; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 24px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; }
h1 { font-size: 20px; margin: 0; letter-spacing: -.01em; } h1 a { color: inherit; }
h2 { font-size: 15px; margin: 0 0 10px; }
h2 small { color: var(--soft); font-weight: 400; margin-left: 6px; }
a { color: var(--c0); text-decoration: none; } a:hover { text-decoration: underline; }
section { background: var(--paper); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px;
  margin-top: 14px; overflow-x: auto; }
.pill { border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600; border: 1px solid; }
.soft { color: var(--soft); } .push { margin-left: auto; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.idle { color: var(--idle); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin-top: 14px; }
.card { background: var(--paper); border: 1px solid var(--edge); border-radius: 10px; padding: 10px 14px;
  min-height: 84px; }
.card b { display: block; font-size: 24px; line-height: 1.25; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 12px; }
.card.wide { grid-column: span 2; display: flex; gap: 16px; align-items: center; }
.card.wide > div { flex: none; }
.spark { flex: 1; min-width: 60px; height: 56px; }
.spark path { fill: none; stroke: var(--c0); stroke-width: 1.5;
  vector-effect: non-scaling-stroke; } .spark .under { fill: var(--c0); opacity: .13; stroke: none; }
.uses { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 10px 18px;
  margin-bottom: 12px; }
.use { width: 100%; height: auto; font-size: 11px; } .use text { fill: var(--soft); }
.use .name { fill: var(--ink); font-weight: 600; font-size: 13px; } .use .end { text-anchor: end; }
.use .curve { fill: none; stroke: var(--colour); stroke-width: 1.4; }
.problems { border-color: var(--warn); } .problems ul { margin: 0; padding-left: 18px; }
pre { margin: 0; white-space: pre-wrap; font: 13px/1.5 ui-monospace, "Liberation Mono", monospace; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; font-size: 12px; color: var(--soft); white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
tr:last-child td { border-bottom: 0; } td.number, th.number { text-align: right; white-space: nowrap; }
td:first-child, .keep { white-space: nowrap; }
.swatch { display: inline-block; width: 8px; height: 8px; border-radius: 2px; margin-right: 7px;
  background: var(--colour, var(--edge)); }
footer { color: var(--soft); font-size: 12px; margin-top: 16px; display: flex; flex-wrap: wrap;
  gap: 4px 16px; }
.picture { max-width: 100%; height: auto; display: block; margin: 0 auto; font-size: 13px; }
.picture text { fill: var(--ink); } .picture .name { font-weight: 600; }
.picture .small, .picture .rack-name { fill: var(--soft); font-size: 11px; }
.picture .rack-name { font-size: 12px; font-weight: 600; } .picture .end { text-anchor: end; }
.picture .figure { font-variant-numeric: tabular-nums; }
.rack { fill: var(--back); stroke: var(--edge); }
.c0 { --colour: var(--c0); } .c1 { --colour: var(--c1); } .c2 { --colour: var(--c2); }
.c3 { --colour: var(--c3); } .c4 { --colour: var(--c4); } .c5 { --colour: var(--c5); }
.c6 { --colour: var(--c6); } .c7 { --colour: var(--c7); }
.binding { fill: none; stroke: var(--colour); stroke-width: 2; opacity: .85; }
.node .body { fill: var(--paper); stroke: var(--edge); } .node .stripe { fill: var(--colour, var(--edge)); }
.node.accelerator .body { stroke: var(--colour); }
.node.bad .body { stroke: var(--bad); stroke-dasharray: 5 3; }
.node.warn .body { stroke: var(--warn); stroke-dasharray: 5 3; } .node.idle .body { stroke-dasharray: 5 3; }
.node.plain.small-node .body { fill: var(--colour, var(--paper)); }
.trough { fill: var(--trough); } .fill { fill: var(--colour, var(--idle)); transition: width .6s ease-out; }
.dot { fill: currentColor; }
.picture a:hover { text-decoration: none; } .picture a:hover .body { stroke: var(--ink); }
#stale { display: none; position: sticky; top: 0; background: var(--bad); color: #fff; text-align: center;
  padding: 6px; font-weight: 600; z-index: 1; }
.stale #stale { display: block; } .stale main { opacity: .55; }
"""

SCRIPT: Final = """
(() => {
  "use strict";
  const PERIOD_MS = 1000, HIDDEN_PERIOD_MS = 15000, LIMIT_MS = 10000;

  // Make `old` like `fresh` and keep what is the same: selections, scroll bars and hovering stay.
  function takeOver(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const had = [...old.childNodes], wanted = [...fresh.childNodes];
    wanted.forEach((node, i) => {
      if (i >= had.length) old.append(node);
      else if (had[i].nodeType === node.nodeType && had[i].nodeName === node.nodeName) takeOver(had[i], node);
      else had[i].replaceWith(node);
    });
    had.slice(wanted.length).forEach((node) => node.remove());
  }

  async function look() {
    const began_ms = performance.now();
    try {
      const limit = AbortSignal.timeout(LIMIT_MS);
      const answer = await fetch(location.href, {cache: "no-store", signal: limit});
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main.yarn-accel");
      if (!fresh) throw new Error("this is another page");
      takeOver(document.querySelector("main"), fresh);
      document.title = page.title;
      document.body.classList.remove("stale");
    } catch (error) {
      document.body.classList.add("stale");
    }
    // Large pages are asked for less often.
    const pause_ms = Math.max(PERIOD_MS, 5 * (performance.now() - began_ms));
    setTimeout(look, document.hidden ? HIDDEN_PERIOD_MS : pause_ms);
  }
  setTimeout(look, PERIOD_MS);
})();
"""


def _digest(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


#: The page runs and loads nothing but what is written above.  It is seen under the resource manager's
#: address: what got into it could speak for the one who looks.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_digest(STYLE)}",
        f"script-src {_digest(SCRIPT)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
