// Proposals, rows of fields, and clicks on a page that is shown without scripts.
"use strict";

(() => {
  const keys = document.getElementById("site-keys");
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
      document.getElementById("excluded").open = true;
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
    element.classList.add("freshet-chosen");
    say("");
    addRow(field);
  }

  function showSample() {
    const select = document.getElementById("sample");
    if (!select) return;
    if (select.value === shownUrl) return;
    shownUrl = select.value;
    picker.hidden = false;
    frame.style.height = "";
    cover.style.height = "";
    frame.src = `${picker.dataset.frame}?${new URLSearchParams({ url: shownUrl })}`;
  }

  frame.addEventListener("load", () => {
    const page = frame.contentDocument;
    if (!page?.body) return;
    const height = `${Math.min(MAX_HEIGHT, page.documentElement.scrollHeight + 20)}px`;
    frame.style.height = height;
    cover.style.height = height;
  });
  cover.addEventListener("mousemove", (event) => highlight(elementAt(event)));
  cover.addEventListener("mouseleave", () => highlight(null));
  cover.addEventListener("click", choose);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.use) use(button);
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
  keys.addEventListener("input", markUsed);
  document.addEventListener("htmx:before:request", () => {
    document.getElementById("preview").setAttribute("aria-busy", "true");
  });
  for (const name of ["htmx:after:swap", "htmx:error", "htmx:finally:request"]) {
    document.addEventListener(name, () => {
      document.getElementById("preview").removeAttribute("aria-busy");
      showSample();
    });
  }
  markUsed();
  showSample();
})();
