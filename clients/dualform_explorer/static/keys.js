// The keyboard: what has a link or a field on the page has a key here.

import { move } from "./page.js";
import { nextTheme } from "./tools.js";

const press = (selector) => document.querySelector(selector)?.click();

function layer(by) {
  const choice = document.getElementById("layer");
  const at = choice ? choice.selectedIndex + by : -1;
  if (!choice?.options[at]) return;
  choice.selectedIndex = at;
  choice.form.requestSubmit();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  l: () => layer(1),
  h: () => layer(-1),
  "/": () => document.getElementById("filter-value")?.focus(),
  u: () => press("#clear, #panel-filter .chips.set a"),
  s: () => press("#panel-slots nav a:not([aria-current])"),
  t: () => nextTheme(),
  "?": () => document.getElementById("help")?.showModal(),
};

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.matches("input, textarea, select") && event.target.type !== "range") {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") || !KEYS[event.key] || !document.getElementById("answers")) return;
    event.preventDefault();
    KEYS[event.key]();
  });
}
