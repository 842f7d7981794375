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
