// Steps, proposals, rows of fields, and clicks on a page that is shown without scripts.
"use strict";

(() => {
  const form = document.getElementById("definition");
  const keys = document.getElementById("site-keys");
  const steps = [...form.querySelectorAll("[data-step]")];
  const [back, next, save] = ["back", "next", "save"].map((name) => form.querySelector(`[data-${name}]`));
  const isNew = steps.some((step) => step.dataset.step === "tell");
  const advanced = document.getElementById("advanced");
  const rows = document.querySelector("[data-rows]");
  const picker = document.getElementById("picker");
  const frame = picker.querySelector("iframe");
  const cover = picker.querySelector("[data-cover]");
  const chosenSample = keys.querySelector("[data-sample]");
  const notices = document.getElementById("notices");
  const MAX_HEIGHT = 60000;
  let shownUrl = null;
  let over = null;

  function refresh() {
    keys.dispatchEvent(new CustomEvent("refresh", { bubbles: true }));
  }

  function say(text) {
    notices.textContent = text;
  }

  function lines(area) {
    return area.value.split("\n").map((line) => line.trim()).filter(Boolean);
  }

  function area(key) {
    return keys.querySelector(`textarea[name="${key}"]`);
  }

  function write(key, values) {
    const target = area(key);
    target.value = values.join("\n");
    target.rows = Math.max(2, values.length);
  }

  function markUsed() {
    for (const button of document.querySelectorAll("[data-use]")) {
      const isUsed = lines(area(button.dataset.use)).includes(button.dataset.pattern);
      button.setAttribute("aria-pressed", String(isUsed));
      button.firstChild.data = isUsed ? "✓ Used" : "Use";
    }
  }

  function toggle(key, pattern, isWanted) {
    const others = lines(area(key)).filter((line) => line !== pattern);
    write(key, isWanted ? [...others, pattern] : others);
  }

  function use(button) {
    const { use: key, pattern, exclude } = button.dataset;
    const isWanted = button.getAttribute("aria-pressed") !== "true";
    toggle(key, pattern, isWanted);
    if (exclude) {
      toggle(`not_${key}`, exclude, isWanted);
    }
    if (key === "item_pages") {
      // The lists that lead to these pages come and go with them.
      const wanted = lines(area(key));
      for (const list of document.querySelectorAll('[data-use="list_pages"]')) {
        const leads = list.dataset.leads.split("\n");
        if (leads.includes(pattern)) toggle("list_pages", list.dataset.pattern, leads.some((each) => wanted.includes(each)));
      }
    }
    markUsed();
    refresh();
  }

  function fresh(name) {
    const taken = new Set([...rows.querySelectorAll('[name="field_name"]')].map((x) => x.value));
    let unused = name;
    for (let n = 2; taken.has(unused); n += 1) unused = `${name}_${n}`;
    return unused;
  }

  function addRow(field) {
    const empty = [...rows.children].find(
      (row) => !row.querySelector('[name="field_name"]').value &&
        !row.querySelector('[name="field_selector"]').value,
    );
    const made = field && empty
      ? empty
      : document.getElementById("row").content.firstElementChild.cloneNode(true);
    if (field) {
      made.querySelector('[name="field_name"]').value = fresh(field.name);
      made.querySelector('[name="field_selector"]').value = field.selector;
      made.querySelector('[name="field_language"]').value = "css";
      made.querySelector('[name="field_type"]').value = field.type;
    }
    if (made !== empty) rows.append(made);
    made.querySelector("input").focus({ preventScroll: Boolean(field) });
    if (field) refresh();
  }

  // The frame has no scripts: this script reads its document, below a cover that gets the clicks.
  function elementAt(event) {
    const box = cover.getBoundingClientRect();
    const found = frame.contentDocument?.elementFromPoint(
      event.clientX - box.left, event.clientY - box.top,
    );
    return found?.closest("[data-n]") ?? null;
  }

  function highlight(element) {
    if (over === element) return;
    over?.classList.remove("freshet-over");
    over = element;
    over?.classList.add("freshet-over");
  }

  async function choose(event) {
    const element = elementAt(event);
    if (!element) return;
    const samples = [...document.querySelectorAll("#sample option")].map((each) => each.value);
    const query = new URLSearchParams({ url: shownUrl, number: element.dataset.n });
    for (const url of samples.slice(0, 6)) query.append("sample", url);
    const response = await fetch(`${picker.dataset.selector}?${query}`);
    const field = await response.json();
    if (!response.ok) {
      say(field.detail);
      return;
    }
    say("");
    addRow(field);
  }

  // The first place of each value on the shown page, with the name of the value.
  function markChosen() {
    const page = frame.contentDocument;
    if (!page?.body) return;
    for (const each of page.querySelectorAll(".freshet-chosen")) {
      each.classList.remove("freshet-chosen");
      delete each.dataset.field;
    }
    for (const row of rows.children) {
      const [name, selector, language] = ["name", "selector", "language"].map(
        (key) => row.querySelector(`[name="field_${key}"]`).value,
      );
      if (language !== "css" || !selector) continue;
      try {
        const place = page.querySelector(selector.replace(/::[\w-]+(?:\([^)]*\))?$/, ""));
        place?.classList.add("freshet-chosen");
        if (place) place.dataset.field = name;
      } catch {
        // The preview explains what is wrong with a selector.
      }
    }
  }

  function showSample() {
    const select = document.getElementById("sample");
    if (!select) return;
    if (select.value === shownUrl) return;
    shownUrl = select.value;
    frame.style.height = "";
    cover.style.height = "";
    frame.src = `${picker.dataset.frame}?${new URLSearchParams({ url: shownUrl })}`;
  }

  // A page has no height while its step is hidden.
  function fit() {
    const page = frame.contentDocument;
    if (!page?.body || !page.documentElement.scrollHeight) return;
    const height = `${Math.min(MAX_HEIGHT, page.documentElement.scrollHeight + 20)}px`;
    frame.style.height = height;
    cover.style.height = height;
  }

  function go(name, hasMoved = true) {
    const place = Math.max(0, steps.findIndex((step) => step.dataset.step === name));
    form.dataset.at = steps[place].dataset.step;
    steps.forEach((step, n) => { step.hidden = n !== place; });
    for (const button of document.querySelectorAll("[data-goto]")) {
      const isHere = button.dataset.goto === form.dataset.at;
      if (isHere) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    }
    const following = document.querySelector(`[data-goto="${steps[place + 1]?.dataset.step}"]`);
    if (save && isNew) {
      back.hidden = place === 0;
      next.hidden = !following;
      save.hidden = Boolean(following);
      if (following) next.textContent = `Next: ${following.textContent.replace(/^\d+ /, "").toLowerCase()}`;
    }
    if (form.dataset.at === "watch") {
      fit();
      const missing = document.querySelector('[data-of="watch"]')?.dataset.missing;
      if (Number(missing)) form.querySelector('[data-step="watch"] [hx-post]')?.click();
    }
    if (hasMoved) {
      steps[place].querySelector("h2").focus({ preventScroll: true });
      document.getElementById("steps").scrollIntoView({ block: "start" });
    }
  }

  function beside(offset) {
    const place = steps.findIndex((step) => step.dataset.step === form.dataset.at);
    go(steps[Math.min(steps.length - 1, Math.max(0, place + offset))].dataset.step);
  }

  // A step or the advanced part may hide what was rejected.
  function first() {
    const wrong = form.querySelector('.wrong, [data-step] .problem');
    if (wrong && advanced.contains(wrong)) advanced.open = true;
    return wrong?.closest("[data-step]")?.dataset.step;
  }

  frame.addEventListener("load", () => {
    fit();
    markChosen();
  });
  cover.addEventListener("mousemove", (event) => highlight(elementAt(event)));
  cover.addEventListener("mouseleave", () => highlight(null));
  cover.addEventListener("click", choose);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.goto) go(button.dataset.goto);
    else if (button === next) beside(1);
    else if (button === back) beside(-1);
    else if ("further" in button.dataset) {
      button.closest("fieldset").querySelectorAll(".further").forEach((each) => each.classList.remove("further"));
      button.closest("p").remove();
    } else if (button.dataset.use) use(button);
    else if (button.dataset.css) {
      addRow({ name: button.dataset.name, selector: button.dataset.css, type: button.dataset.type });
    } else if ("add" in button.dataset) addRow(null);
    else if ("remove" in button.dataset) {
      button.closest("[data-row]").remove();
      refresh();
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "sample") return;
    chosenSample.value = event.target.value;
    showSample();
    refresh();
  });
  // Enter in a field of a new site continues; the last step saves.
  form.addEventListener("submit", (event) => {
    if (!isNew || form.dataset.at === steps.at(-1).dataset.step) return;
    event.preventDefault();
    beside(1);
  });
  keys.addEventListener("input", markUsed);
  document.addEventListener("htmx:before:request", () => {
    document.getElementById("preview").setAttribute("aria-busy", "true");
  });
  for (const name of ["htmx:after:swap", "htmx:error", "htmx:finally:request"]) {
    document.addEventListener(name, () => {
      document.getElementById("preview").removeAttribute("aria-busy");
      showSample();
      markChosen();
    });
  }
  markUsed();
  showSample();
  const problem = first();
  go(problem, Boolean(problem));
})();
