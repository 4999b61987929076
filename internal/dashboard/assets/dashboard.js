// What the pages do beyond being pages: they update themselves, show a column's
// figures under the pointer, and take "/" for "go to a token". Everything works
// without this file, a little slower.
"use strict";

// --- Updates: the server says that something has changed, the page is fetched
// again, and those of its parts replaced that have an id and differ.

const keepOpen = (from, to) => {
  from.querySelectorAll("details[open]").forEach((d, i) => {
    const twin = d.id ? to.querySelector("#" + CSS.escape(d.id)) : to.querySelectorAll("details")[i];
    if (twin) twin.open = true;
  });
};

const busy = (part) =>
  part.contains(document.activeElement) || part.matches(":hover") || (getSelection()?.containsNode?.(part, true) && !getSelection().isCollapsed);

const refresh = async () => {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("main > [id], main > .pair > [id]")) {
    const twin = next.getElementById(part.id);
    if (!twin || twin.isEqualNode(part) || busy(part)) continue;
    keepOpen(part, twin);
    part.replaceWith(twin);
  }
};

const watch = (url, state) => {
  let running = false, again = false, stream = null;
  const run = async () => {
    if (running) { again = true; return; }
    running = true;
    try { await refresh(); } catch { /* the next event tries again */ }
    running = false;
    if (again) { again = false; run(); }
  };
  const open = () => {
    stream = new EventSource(url);
    stream.onopen = () => { state.hidden = false; state.classList.add("on"); state.lastElementChild.textContent = "Live"; };
    stream.onerror = () => { state.hidden = false; state.classList.remove("on"); state.lastElementChild.textContent = "Paused"; };
    stream.addEventListener("change", () => {
      state.classList.add("beat");
      setTimeout(() => state.classList.remove("beat"), 400);
      run();
    });
  };
  // A page that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stream?.close(); stream = null; } else if (!stream) { open(); run(); }
  });
  if (!document.hidden) open();
};

const liveState = document.querySelector("[data-live-state]");
if (document.body.dataset.live && liveState) watch(document.body.dataset.live, liveState);

// --- Tooltips of charts. The columns' titles hold the text already.

const tip = document.createElement("div"), cross = document.createElement("div");
tip.className = "tip"; cross.className = "cross";
let shown = null;

const hide = () => { shown?.classList.remove("shown"); shown = null; tip.remove(); cross.remove(); };

const show = (plot, x) => {
  const box = plot.getBoundingClientRect();
  let best = null, distance = Infinity;
  for (const g of plot.querySelectorAll("g")) {
    const r = g.getBoundingClientRect(), middle = (r.left + r.right) / 2, d = Math.abs(middle - x);
    if (d < distance) { distance = d; best = { g, middle: middle - box.left }; }
  }
  if (!best || distance > Math.max(24, box.width / 40)) return hide();
  if (best.g !== shown) {
    shown?.classList.remove("shown");
    shown = best.g;
    shown.classList.add("shown");
    const title = shown.querySelector("title");
    if (title) { shown.dataset.tip = title.textContent; title.remove(); } // or the browser shows it as well
    tip.textContent = shown.dataset.tip;
  }
  plot.append(cross, tip);
  cross.style.left = best.middle + "px";
  cross.style.height = box.height - 34 + "px";
  tip.style.left = Math.min(Math.max(best.middle - tip.offsetWidth / 2, 0), box.width - tip.offsetWidth) + "px";
};

document.addEventListener("pointermove", (e) => {
  const plot = e.target.closest?.("[data-chart]");
  if (plot) show(plot, e.clientX); else if (shown) hide();
});
document.addEventListener("pointerleave", hide);

// --- "/" goes to the field for a token.

document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, [contenteditable]")) return;
  const field = document.querySelector("[data-jump]");
  if (field) { e.preventDefault(); field.focus(); }
});
