// Keyboard of the inbox: j and k move, m marks as read, u mutes. Enter follows the focused link.
"use strict";

(() => {
  // After a mark, the page is loaded again: the focus returns to the same place.
  const PLACE = "freshet-changes-place";

  const items = () => [...document.querySelectorAll("[data-change]")];
  const current = () => items().findIndex((item) => item.contains(document.activeElement));

  function focus(index) {
    const all = items();
    const item = all[Math.max(0, Math.min(index, all.length - 1))];
    if (!item) return;
    item.querySelector("[data-open]").focus();
    item.scrollIntoView({ block: "nearest" });
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (document.querySelector("dialog[open]")) return;
    const index = current();
    if (event.key === "j") focus(index + 1);
    else if (event.key === "k") focus(index < 0 ? 0 : index - 1);
    else if (event.key === "m" && index >= 0) items()[index].querySelector("[data-read]").click();
    else if (event.key === "u" && index >= 0) items()[index].querySelector("[data-mute]").click();
    else return;
    event.preventDefault();
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("submit", (event) => {
    const index = event.submitter ? items().findIndex((item) => item.contains(event.submitter)) : -1;
    if (index >= 0) sessionStorage.setItem(PLACE, String(index));
  });
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place !== null) focus(Number(place));
})();
