// Keys of the feed reader: j and k move, o opens, m marks as read or unread, z
// undoes the mark of all posts.
"use strict";

(() => {
  function move(step) {
    const posts = [...document.querySelectorAll(".river [data-post]")];
    if (!posts.length) return;
    const at = posts.findIndex((post) => post.contains(document.activeElement));
    const next = at < 0 ? 0 : Math.min(posts.length - 1, Math.max(0, at + step));
    posts[next].focus();
    posts[next].scrollIntoView({ block: "nearest" });
  }

  function current() {
    const all = document.querySelectorAll("[data-post]");
    return all.length === 1 ? all[0] : document.activeElement.closest("[data-post]");
  }

  // A post that is opened is read: its form is sent once htmx has found it.
  document.addEventListener("htmx:after:process", () => {
    document.querySelector(".full [data-mark=read]")?.click();
  }, { once: true });

  document.addEventListener("keydown", (event) => {
    // The second key of a shortcut such as "g o" belongs to the navigation.
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "o") current()?.querySelector("[data-open]")?.click();
    else if (event.key === "m") current()?.querySelector("[data-mark]")?.click();
    else if (event.key === "z") document.querySelector("[data-undo]")?.click();
  });
})();
