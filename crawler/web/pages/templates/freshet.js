"use strict";
// Keeps ages and marks right, and shows the page anew once a cell on it has changed.
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
    let found = element.querySelector(".mark");
    element.classList.toggle("stale", reason !== null);
    if (reason === null) {
      if (found) found.remove();
    } else if (!found) {
      found = document.createElement("strong");
      found.className = "mark";
      found.textContent = "stale";
      found.title = reason;
      (element.querySelector(".age") || element).append(" ", found);
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
      mark(element, `read ${age(seconds)}, wanted every ${span(period)}`);
    } else if (state) {
      mark(element, state.stale ? "the last look failed" : null);
    }
  }

  function changes() {
    const found = [];
    for (const one of document.querySelectorAll("[data-hash]")) {
      const key = one.dataset.shown || one.dataset.cell;
      const now = states[key] ? states[key].hash || "" : "gone";
      if (now !== one.dataset.hash) found.push(`${key} ${now}`);
    }
    const all = document.querySelector("[data-count]");
    const count = Object.keys(states).length;
    if (all && Number(all.dataset.count) !== count) found.push(`${count} cells`);
    return [...new Set(found)].join("\n");
  }

  // Once for each change: a page whose template fails stays as it is.
  function renew() {
    const found = changes(), place = `freshet ${location.pathname}`;
    if (found && sessionStorage.getItem(place) !== found) {
      sessionStorage.setItem(place, found);
      location.reload();
    }
  }

  async function look() {
    try {
      const reply = await fetch(STATES, { cache: "no-cache" });
      if (!reply.ok) return;
      states = await reply.json();
      renew();
    } catch {
      // Opened as a file, or the server is away: ages go on by the clock.
    }
  }

  async function tick() {
    await look();
    shown.forEach(update);
  }

  shown.forEach(update);
  tick();
  setInterval(tick, EVERY_MS);
})();
