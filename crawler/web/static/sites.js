// Arrow keys in the heat map, and filters without empty parameters.
"use strict";

(() => {
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  function linksByDay() {
    const rows = document.querySelectorAll("[data-grid] tbody tr");
    return Array.from(rows, (row) => Array.from(row.querySelectorAll("a")));
  }

  // The whole heat map is a single tab stop.
  function joinStops() {
    linksByDay().forEach((row, at) => row.forEach((link, hour) => { link.tabIndex = at || hour ? -1 : 0; }));
  }

  document.addEventListener("htmx:after:swap", joinStops);
  joinStops();
  document.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || !event.target.closest("[data-grid]")) return;
    const rows = linksByDay();
    const at = rows.findIndex((row) => row.includes(event.target));
    const next = rows[at + step[0]]?.[rows[at]?.indexOf(event.target) + step[1]];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  document.addEventListener("submit", (event) => {
    if (!event.target.matches(".filters")) return;
    for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
  });
  // The browser may show the page again after "back": enable its fields again.
  window.addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll(".filters [disabled]")) field.disabled = false;
  });
})();
