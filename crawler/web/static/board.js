// Shows the progress of runs, as server-sent events report them, and reloads the numbers when a run ends
// or while some are being computed.
"use strict";

(() => {
  const root = document.getElementById("sites");
  if (!root || !root.dataset.events || !("EventSource" in window)) return;
  const number = new Intl.NumberFormat();
  const running = new Set();
  const RELOAD_MILLISECONDS = 2000;

  function row(name) {
    return Array.from(document.querySelectorAll("[data-site]")).find((each) => each.dataset.site === name);
  }

  function show(run) {
    const cell = row(run.name)?.querySelector("[data-progress]");
    if (!cell) return;
    const bar = document.createElement("progress");
    bar.max = Math.max(1, run.visits + run.due);
    bar.value = run.visits;
    const count = (n, noun) => `${number.format(n)} ${noun}${n === 1 ? "" : "s"}`;
    // In one line, so that the rows below do not move.
    const parts = [`${number.format(run.visits)} of ${count(run.visits + run.due, "page")}`];
    if (run.new) parts.push(`${number.format(run.new)} new`);
    if (run.changed) parts.push(`${number.format(run.changed)} changed`);
    if (run.errors) parts.push(count(run.errors, "error"));
    const words = parts.join(", ");
    bar.setAttribute("aria-label", `Run of ${run.name}`);
    const text = document.createElement("span");
    text.className = "small";
    text.textContent = ` ${words}`;
    cell.replaceChildren(bar, text);
    for (const button of row(run.name).querySelectorAll('form[action$="/run"] button')) button.disabled = true;
  }

  async function reload() {
    const response = await fetch(window.location.href);
    if (!response.ok) {
      reloadLater();
      return;
    }
    const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const id of ["sites", "details"]) {
      const [shown, fresh] = [document, parsed].map((page) => page.getElementById(id));
      // The details of a site may have the focus: they stay once they are complete.
      const isWanted = id === "sites" || shown?.querySelector("[data-computing]");
      if (shown && fresh && isWanted) shown.replaceWith(document.adoptNode(fresh));
    }
    document.dispatchEvent(new CustomEvent("htmx:after:swap"));
    reloadLater();
  }

  // A crawl may end, or fail before its run begins, between two events: poll until it starts. Numbers
  // of large sites take a while.
  let timer = 0;
  function reloadLater() {
    window.clearTimeout(timer);
    if (!document.querySelector("[data-starting], [data-computing]")) return;
    timer = window.setTimeout(reload, RELOAD_MILLISECONDS);
  }

  const source = new EventSource(root.dataset.events);
  source.addEventListener("runs", async (event) => {
    const { runs } = JSON.parse(event.data);
    const names = new Set(runs.map((run) => run.name));
    const ended = Array.from(running).some((name) => row(name) && !names.has(name));
    running.clear();
    for (const name of names) running.add(name);
    if (ended) await reload();
    for (const run of runs) show(run);
  });
  window.addEventListener("pagehide", () => source.close());
  for (const each of document.querySelectorAll("[data-site][data-running]")) running.add(each.dataset.site);
  reloadLater();
})();
