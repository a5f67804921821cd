// Charts of the values of a target, from the tables below them.
"use strict";

(() => {
  const HEIGHT = 180;
  const charts = [];

  // Patterns of the lines of several items, as in items.css.
  const DASHES = [[], [8, 4], [3, 3], [10, 3, 3, 3]];

  function points(rows, now) {
    const times = [], values = [];
    for (const row of [...rows].reverse()) {
      times.push(Date.parse(row.querySelector("time").dateTime) / 1000);
      values.push(Number(row.querySelector("[data-value]").dataset.value));
    }
    // The last value lasts until now.
    times.push(Math.max(Date.parse(now) / 1000, times.at(-1)));
    values.push(values.at(-1));
    return [times, values];
  }

  function draw(figure) {
    const isCompared = "compared" in figure.dataset;
    const tables = isCompared ? [...document.querySelectorAll("table[data-line]")] : [figure];
    const lines = tables.map((table) => points(table.querySelectorAll("tbody tr"), figure.dataset.now));
    const place = figure.querySelector(".chart");
    place.replaceChildren();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const options = {
      width: place.clientWidth, height: isCompared ? 2 * HEIGHT : HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      series: [{}, ...tables.map((table) => {
        const number = Number(table.dataset.line);
        const stroke = color(isCompared ? `--line${number}` : "--accent");
        return {
          stroke, width: 2, spanGaps: true,
          dash: isCompared ? DASHES[(number - 1) % DASHES.length] : [],
          paths: uPlot.paths.stepped({ align: 1 }),
          points: { show: true, size: 5, stroke, fill: color("--panel") },
        };
      })],
      axes: [axis, { ...axis, size: 70 }],
    };
    charts.push({ figure, plot: new uPlot(options, lines.length > 1 ? uPlot.join(lines) : lines[0], place) });
  }

  function drawAll() {
    charts.length = 0;
    document.querySelectorAll("figure[data-series], figure[data-compared]").forEach(draw);
  }

  addEventListener("resize", () => {
    for (const { figure, plot } of charts) {
      plot.setSize({ width: figure.querySelector(".chart").clientWidth, height: plot.height });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
