// The sentence of a rule asks for a percentage only if it is about a price.
"use strict";

(() => {
  const show = () => {
    const what = document.querySelector("[data-what]");
    if (what) document.querySelector("[data-priced]").hidden = !["falls", "rises"].includes(what.value);
  };
  document.addEventListener("change", show);
  // The sentence of a new site appears once there is a channel.
  document.addEventListener("htmx:after:swap", show);
  show();
})();
