// What stands behind a group's bar: its best samples, under the pointer or the focus.

import { ask, lines } from "./access.js";

const MOST = 6;
const PAUSE = 250;
let pending = 0;
let quiet = false; // after a click, until the pointer has left the rows

export function peeks() {
  for (const event of ["pointerover", "focusin"]) document.addEventListener(event, ({ target }) => {
    const link = target.closest?.("tr")?.querySelector("a[data-peek]");
    if (link?.closest("tr").contains(document.getElementById("peek")?.link)) return;
    hide();
    if (!link) quiet = false;
    else if (!quiet) pending = setTimeout(show, PAUSE, link);
  });
  document.addEventListener("click", () => {
    quiet = true;
    hide();
  });
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
}

function hide() {
  clearTimeout(pending);
  pending = 0;
  document.getElementById("peek")?.remove();
}

async function show(link) {
  const mine = pending;
  const answer = await ask(`panels${link.getAttribute("href").replace("explore", "")}&panel=samples`);
  if (!answer.ok || mine !== pending) return;
  const template = document.createElement("template");
  for await (const part of lines(answer.body)) if (part.panel === "samples") template.innerHTML = part.html;
  const samples = [...template.content.querySelectorAll("tr[data-sample]")].slice(0, MOST).map((row) => {
    const own = document.createElement("div");
    own.append(...row.querySelector("th").cloneNode(true).childNodes, ...row.querySelector("td.sum").cloneNode(true).childNodes);
    return own;
  });
  if (mine !== pending || !samples.length || !link.isConnected) return;
  const peek = Object.assign(document.createElement("div"), { id: "peek", link });
  peek.append(...samples);
  peek.setAttribute("aria-hidden", "true"); // the link leads to the same
  const { left, bottom } = link.getBoundingClientRect();
  document.body.append(peek);
  peek.style.left = `${Math.max(0, Math.min(left, innerWidth - peek.offsetWidth - 16)) + scrollX}px`;
  peek.style.top = `${bottom + scrollY + 6}px`;
}
