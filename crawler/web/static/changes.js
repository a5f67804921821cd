// Keyboard of the inbox: j and k move, m and M mark as read, z undoes, u mutes; Enter follows the
// focused link. Days are those of the reader's zone.
"use strict";

(() => {
  // After a mark, the page is loaded again: the focus returns to the same place.
  const PLACE = "freshet-changes-place";
  const DAY_MILLISECONDS = 86_400_000;

  const items = () => [...document.querySelectorAll("[data-change]")];
  const current = () => items().findIndex((item) => item.contains(document.activeElement));

  function focus(index) {
    const all = items();
    const item = all[Math.max(0, Math.min(index, all.length - 1))];
    if (!item) return;
    item.querySelector("[data-open]").focus();
    item.scrollIntoView({ block: "nearest" });
  }

  const day = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });
  const dayOfYear = new Intl.DateTimeFormat(undefined, { dateStyle: "long" });

  function nameOf(at) {
    const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
    const days = Math.round((midnight(new Date()) - midnight(at)) / DAY_MILLISECONDS);
    if (days === 0) return "Today";
    if (days === 1) return "Yesterday";
    return (at.getFullYear() === new Date().getFullYear() ? day : dayOfYear).format(at);
  }

  // The server groups by days in UTC.
  function regroup() {
    const sections = [...document.querySelectorAll(".day")];
    const changes = items();
    if (!sections.length) return;
    const made = [];
    for (const change of changes) {
      const name = nameOf(new Date(change.querySelector("time").dateTime));
      if (made.at(-1)?.getAttribute("aria-label") !== name) {
        const section = sections[0].cloneNode(false);
        section.setAttribute("aria-label", name);
        const heading = document.createElement("h2");
        heading.textContent = name;
        section.append(heading, sections[0].querySelector("ol").cloneNode(false));
        made.push(section);
      }
      made.at(-1).querySelector("ol").append(change);
    }
    sections[0].before(...made);
    for (const section of sections) section.remove();
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (document.querySelector("dialog[open]")) return;
    const index = current();
    const press = (name) => items()[index].querySelector(name).click();
    if (event.key === "j") focus(index + 1);
    else if (event.key === "k") focus(index < 0 ? 0 : index - 1);
    else if (event.key === "m" && index >= 0) press("[data-read]");
    else if (event.key === "M" && index >= 0) press("[data-upto]");
    else if (event.key === "u" && index >= 0) press("[data-mute]");
    else if (event.key === "z") document.querySelector("[data-undo]")?.click();
    else return;
    event.preventDefault();
  }

  regroup();
  document.addEventListener("keydown", onKey);
  document.addEventListener("submit", (event) => {
    const index = event.submitter ? items().findIndex((item) => item.contains(event.submitter)) : -1;
    if (index >= 0) sessionStorage.setItem(PLACE, String(index));
  });
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place !== null) focus(Number(place));
})();
