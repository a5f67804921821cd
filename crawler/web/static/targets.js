// Charts of the values of a target, from the tables below them.
"use strict";

(() => {
  const HEIGHT = 180;
  const charts = [];

  function points(figure) {
    const times = [], values = [];
    for (const row of [...figure.querySelectorAll("tbody tr")].reverse()) {
      times.push(Date.parse(row.querySelector("time").dateTime) / 1000);
      values.push(Number(row.querySelector("[data-value]").dataset.value));
    }
    // The last value lasts until now.
    times.push(Math.max(Date.parse(figure.dataset.now) / 1000, times.at(-1)));
    values.push(values.at(-1));
    return [times, values];
  }

  function draw(figure) {
    const place = figure.querySelector(".chart");
    place.replaceChildren();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const options = {
      width: place.clientWidth, height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      series: [{}, {
        stroke: color("--accent"), width: 2,
        paths: uPlot.paths.stepped({ align: 1 }),
        points: { show: true, size: 5, stroke: color("--accent"), fill: color("--panel") },
      }],
      axes: [axis, { ...axis, size: 70 }],
    };
    charts.push({ figure, plot: new uPlot(options, points(figure), place) });
  }

  function drawAll() {
    charts.length = 0;
    document.querySelectorAll("figure[data-series]").forEach(draw);
  }

  addEventListener("resize", () => {
    for (const { figure, plot } of charts) {
      plot.setSize({ width: figure.querySelector(".chart").clientWidth, height: HEIGHT });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
