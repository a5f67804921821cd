// Times in the reader's zone, keyboard shortcuts, dialogs, slow buttons, and the token of htmx requests.
"use strict";

(() => {
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
  const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  // A date among the values of an item has no zone.
  const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeZone: "UTC" });

  // The server prints times in UTC; without this script they stay correct.
  function localize(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      if (!("date" in time.dataset)) time.title = `${exact.format(at)} (${time.dateTime})`;
      if ("date" in time.dataset) time.textContent = date.format(at);
      else if ("clock" in time.dataset) time.textContent = clock.format(at);
      else if ("day" in time.dataset) time.textContent = day.format(at);
      else if (!("relative" in time.dataset)) time.textContent = short.format(at);
      time.dataset.local = "";
    }
  }

  function isTyping(element) {
    return element.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName);
  }

  const SEQUENCE_MILLISECONDS = 1500;
  let wentAt = 0;

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (Date.now() - wentAt < SEQUENCE_MILLISECONDS) {
      wentAt = 0;
      for (const link of document.querySelectorAll("nav a[data-key]")) {
        if (link.dataset.key !== event.key) continue;
        event.preventDefault();
        link.click();
        return;
      }
    }
    if (event.key === "g") {
      wentAt = Date.now();
    } else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (!search) return;
      event.preventDefault();
      search.focus();
    } else if (event.key === "?") {
      document.getElementById("keys").showModal();
    }
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens).showModal();
  });
  // The menu closes like one of the system.
  const menu = document.querySelector(".menu");
  document.addEventListener("click", (event) => {
    if (menu?.open && !menu.contains(event.target)) menu.open = false;
  });
  menu?.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  menu?.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });
  // A button with data-copy copies the text before it.
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
  // A form with data-confirm asks before it is sent.
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });
  // A slow button has data-busy: its label while it works, when further clicks have no effect. It is
  // not disabled, because it would lose the focus.
  function setBusy(button, isBusy) {
    // Events of removed elements have the document as their target.
    if (!button?.dataset?.busy) return;
    button.dataset.label ??= button.textContent;
    button.textContent = isBusy ? button.dataset.busy : button.dataset.label;
    button.setAttribute("aria-disabled", String(isBusy));
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest('[aria-disabled="true"]')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  document.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) setBusy(event.submitter, true);
  });
  document.addEventListener("htmx:before:request", (event) => setBusy(event.target, true));
  document.addEventListener("htmx:finally:request", (event) => setBusy(event.target, false));
  // The browser may show the page again after "back".
  window.addEventListener("pageshow", () => {
    for (const button of document.querySelectorAll("[data-busy]")) setBusy(button, false);
  });
  document.addEventListener("htmx:config:request", (event) => {
    const token = document.querySelector('meta[name="csrf-token"]');
    event.detail.ctx.request.headers["X-CSRF-Token"] = token.content;
  });
  document.addEventListener("htmx:after:swap", () => localize(document));
  localize(document);
  // A rejected form continues at its first problem.
  document.querySelector('[aria-invalid="true"]')?.focus();
  // On phones, the row of areas scrolls.
  document.querySelector(".top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
})();
