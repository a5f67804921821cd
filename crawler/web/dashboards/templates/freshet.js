"use strict";
// Updates ages and stale marks, and reloads the page after a cell on it has changed.
(() => {
  const STATES = new URL("cells.json", document.currentScript.src);
  const EVERY_MS = 10000;
  const STALE_PERIODS = 2;
  const MINUTE = 60, HOUR = 3600, DAY = 86400;
  const shown = document.querySelectorAll("[data-cell]");
  let states = null;

  function span(seconds) {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 90 * MINUTE) return `${Math.round(seconds / MINUTE)} min`;
    if (seconds < 36 * HOUR) return `${Math.round(seconds / HOUR)} h`;
    return `${Math.round(seconds / DAY)} days`;
  }

  function age(seconds) {
    return seconds < 5 ? "just now" : `${span(seconds)} ago`;
  }

  function mark(element, reason) {
    let label = element.querySelector(".mark");
    element.classList.toggle("stale", reason !== null);
    if (reason === null) {
      if (label) label.remove();
    } else if (!label) {
      label = document.createElement("strong");
      label.className = "mark";
      label.textContent = "stale";
      label.title = reason;
      (element.querySelector(".age") || element).append(" ", label);
    }
  }

  function update(element) {
    const state = states && states[element.dataset.cell];
    const time = element.querySelector(".age time") || element.querySelector("time");
    const at = Date.parse((state && state.refreshed_at) || (time && time.dateTime) || "");
    if (Number.isNaN(at)) return;
    const seconds = Math.max((Date.now() - at) / 1000, 0);
    const period = parseFloat(element.dataset.period);
    if (time) {
      const iso = new Date(at).toISOString();
      time.dateTime = iso;
      time.title = iso.replace("T", " ").replace(/\.\d+Z$/, " UTC");
      time.textContent = age(seconds);
      element.querySelectorAll(".ago").forEach((extra) => extra.remove());
    }
    if (period > 0 && seconds > STALE_PERIODS * period) {
      mark(element, `last read ${age(seconds)}, period ${span(period)}`);
    } else if (state) {
      mark(element, state.stale ? "last read failed" : null);
    }
  }

  function changes() {
    const changed = [];
    for (const element of document.querySelectorAll("[data-hash]")) {
      const key = element.dataset.shown || element.dataset.cell;
      const now = states[key] ? states[key].hash || "" : "gone";
      if (now !== element.dataset.hash) changed.push(`${key} ${now}`);
    }
    const all = document.querySelector("[data-count]");
    const count = Object.keys(states).length;
    if (all && Number(all.dataset.count) !== count) changed.push(`${count} cells`);
    return [...new Set(changed)].join("\n");
  }

  // Reload only once for each change: reloading does not update a page whose template fails.
  function reload() {
    const changed = changes(), key = `freshet ${location.pathname}`;
    if (changed && sessionStorage.getItem(key) !== changed) {
      sessionStorage.setItem(key, changed);
      location.reload();
    }
  }

  async function check() {
    try {
      const reply = await fetch(STATES, { cache: "no-cache" });
      if (!reply.ok) return;
      states = await reply.json();
      reload();
    } catch {
      // Opened as a file, or the server is unavailable: only ages are updated.
    }
  }

  async function tick() {
    await check();
    shown.forEach(update);
  }

  shown.forEach(update);
  tick();
  setInterval(tick, EVERY_MS);
})();
