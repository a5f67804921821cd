// The slider over requests a day, and the chart of the curve.
"use strict";

(() => {
  const form = document.getElementById("budget");
  if (!form || !form.dataset.least) return;
  const field = form.elements.namedItem("budget");
  const slider = document.getElementById("slider");
  const least = Number(form.dataset.least);
  const most = Number(form.dataset.most);
  const STEPS = Number(slider.max);
  // The axis begins at six minutes: smaller ages and delays do not matter.
  const MIN_HOURS = 0.1;
  let plot = null;

  // Both charts have a share of all copies or posts on the left, and hours on the right.
  const words = form.dataset.of === "feeds"
    ? { requests: "fetches", share: "missed posts", hours: "mean delay" }
    : { requests: "requests", share: "freshness", hours: "mean age" };

  // Equal steps of the slider multiply the budget by equal factors.
  const budgetAt = (step) => least * (most / least) ** (step / STEPS);
  const stepAt = (budget) => STEPS * Math.log(budget / least) / Math.log(most / least || 1);
  const typed = () => Number.parseFloat(field.value.replaceAll(",", ""));
  // Plans are no more exact than three digits. The minimum is rounded up, or it would be rejected.
  const rounded = (budget) => {
    const unit = 10 ** (Math.floor(Math.log10(budget)) - 2);
    const up = Math.ceil(least / unit) * unit;
    return Number(Math.max(Math.round(budget / unit) * unit, up).toPrecision(6));
  };

  function label() {
    const text = `${typed().toLocaleString("en")} ${words.requests} a day`;
    slider.setAttribute("aria-valuetext", text);
    if (plot) plot.redraw(false);
  }

  let timer = 0;
  let latest = null;
  function refresh() {
    window.clearTimeout(timer);
    timer = window.setTimeout(async () => {
      if (latest) latest.abort();
      latest = new AbortController();
      const path = `${form.action}?${new URLSearchParams(new FormData(form))}`;
      const headers = { "HX-Request": "true", "HX-Request-Type": "partial" };
      try {
        const answer = await fetch(path, { headers, signal: latest.signal });
        if (!answer.ok) return;
        const part = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.getElementById("figures").replaceWith(part.getElementById("figures"));
        window.history.replaceState(null, "", path);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }, 40);
  }

  if (most > least) {
    form.querySelector(".slide").hidden = false;
    slider.value = stepAt(Math.max(typed(), least));
    slider.addEventListener("input", () => {
      field.value = rounded(budgetAt(Number(slider.value)));
      label();
      refresh();
    });
    field.addEventListener("input", () => {
      if (!(typed() >= least)) return;
      slider.value = stepAt(typed());
      label();
      refresh();
    });
    document.getElementById("objective")?.addEventListener("change", () => form.requestSubmit());
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);
  const short = (value) => Intl.NumberFormat("en", { notation: "compact" }).format(value);

  // A line at the chosen budget, and a ring at the current schedules.
  function mark(chart) {
    const { ctx, bbox } = chart;
    const x = chart.valToPos(Math.min(Math.max(typed() || least, least), most), "x", true);
    ctx.save();
    ctx.setLineDash([]);
    ctx.strokeStyle = color("--focus");
    ctx.lineWidth = 2 * window.devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const current = Number(form.dataset.now);
    if (current >= least && current <= most) {
      ctx.strokeStyle = color("--text");
      ctx.beginPath();
      ctx.arc(chart.valToPos(current, "x", true), chart.valToPos(Number(form.dataset.share), "share", true), 5 * window.devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  }

  // Without a mouse over the chart, the legend has the values near the chosen budget.
  function legend(chart) {
    if (chart.cursor.idx !== null && chart.cursor.idx !== undefined) return;
    const budget = Math.log(Math.min(Math.max(typed() || least, least), most));
    const far = chart.data[0].map((x) => Math.abs(Math.log(x) - budget));
    chart.setLegend({ idx: far.indexOf(Math.min(...far)) }, false);
  }

  // Multiples of 1, 2 and 5.
  const ticks = (low, high) => {
    const all = [];
    for (let unit = 10 ** Math.floor(Math.log10(low)); unit <= high; unit *= 10) {
      all.push(...[1, 2, 5].map((n) => n * unit).filter((x) => x >= low && x <= high));
    }
    return all;
  };

  async function draw() {
    const place = document.getElementById("chart");
    const answer = await fetch(form.dataset.curve);
    if (!answer.ok || typeof uPlot === "undefined") return;
    const curve = await answer.json();
    const thin = { stroke: color("--line"), width: 1 / window.devicePixelRatio };
    const axis = { stroke: color("--text"), grid: thin, ticks: { ...thin, size: 4 } };
    const width = () => Math.max(place.clientWidth - 16, 200);
    plot?.destroy();
    plot = new uPlot({
      width: width(), height: 260,
      scales: {
        x: { time: false, distr: 3, log: 10, range: (_, low, high) => [low, high] },
        share: { range: (_, low, high) => [Math.floor(10 * low) / 10, Math.ceil(10 * high) / 10] },
        hours: { distr: 3, log: 10, range: (_, low, high) => [Math.max(low, MIN_HOURS), Math.max(high, 1)] },
      },
      axes: [
        { ...axis, label: `${words.requests} a day`, splits: (_, axis, low, high) => ticks(low, high), filter: (_, splits) => splits, values: (_, values) => values.map((v) => (v === null ? "" : short(v))) },
        { ...axis, scale: "share", values: (_, values) => values.map((v) => `${Math.round(100 * v)} %`) },
        { ...axis, scale: "hours", side: 1, grid: { show: false }, ticks: { show: false }, size: 60, values: (_, values) => values.map((v) => (v === null ? "" : `${short(v)} h`)) },
      ],
      series: [
        { label: `${words.requests} a day`, value: (_, v) => (v === null ? "–" : v.toLocaleString("en", { maximumFractionDigits: 1 })) },
        { label: words.share, scale: "share", stroke: color("--accent"), width: 3, points: { show: false }, value: (_, v) => percent(v) },
        { label: words.hours, scale: "hours", stroke: color("--warn"), width: 2, dash: [6, 4], points: { show: false }, value: (_, v) => (v === null ? "–" : `${v.toPrecision(3)} h`) },
      ],
      hooks: { draw: [mark, legend], setLegend: [legend] },
    }, [curve.requests_per_day, curve.share, curve.hours.map((hours) => hours || null)], place);
    new ResizeObserver(() => plot.setSize({ width: width(), height: 260 })).observe(place);
  }

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
