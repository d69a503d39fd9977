// A page that changes without being loaded anew: the address says what is shown, and the newest address wins.

import { ask, lines } from "./access.js";
import { toolsFor } from "./tools.js";
import { follow } from "./news.js";

const MOST_TRIES = 40;
let latest = 0;
let origin = location.search; // the address that moves count from: that of the page, or of the one asked for last
let moves = 0;
let running = null;
const shown = new Map();

/** Once for each document: its tools, and what becomes of its links and forms. */
export function begin() {
  toolsFor(document);
  const map = document.getElementById("map");
  if (map) import("./map.js").then((own) => own.show(map));
  if (document.getElementById("answers")) follow();
  wait(latest).catch(() => {});
}

export function listen() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (!ours(link.getAttribute("href"))) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!ours(form.getAttribute("action")) || form.hasAttribute("data-whole")) return;
    event.preventDefault();
    const said = new URLSearchParams(new FormData(form, event.submitter));
    go(`explore?${said}`);
  });
  document.addEventListener("input", (event) => {
    const slider = event.target;
    if (slider.id === "at") document.querySelector('output[for="at"]').textContent = Number(slider.value).toLocaleString("en");
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-at-once]")) event.target.form.requestSubmit();
  });
  window.addEventListener("popstate", () => {
    if (document.getElementById("answers")) go(here(), false);
  });
}

const ours = (address) => !document.querySelector("base") && (address === "explore" || address?.startsWith("explore?"));
const here = () => location.pathname.split("/").pop() + location.search;

/** To another example: pressed several times before there is an answer, so many further on. */
export function move(by) {
  const again = moves !== 0;
  const count = moves + by;
  const said = origin.slice(1);
  go(`explore?${said}${said ? "&" : ""}move=${count}`, !again, true);
  moves = count;
}

/** Shows what stands at an address of this page. */
export async function go(address, push = true, moving = false) {
  if (!document.getElementById("answers")) {
    location.assign(address);
    return;
  }
  const mine = ++latest;
  moves = 0;
  if (!moving) origin = `?${address.split("?")[1] ?? ""}`; // what is pressed before there is an answer adds to it
  running?.abort();
  running = new AbortController();
  if (push) history.pushState(null, "", address);
  busy(true);
  try {
    const answer = await ask(`panels?${address.split("?")[1] ?? ""}`, { signal: running.signal });
    if (mine !== latest) return;
    if (!answer.ok) {
      location.assign(address); // it says what is wrong, as a page of its own
      return;
    }
    for await (const part of lines(answer.body)) {
      if (mine !== latest) return;
      take(part);
    }
    busy(false);
    await wait(mine);
  } catch (error) {
    if (mine !== latest || error.name === "AbortError") return;
    busy(false);
    say(`No answer from the explorer: ${error.message}.`, true);
  }
}

/** Asks for what was late again, one after another, until it is there; each time the server waits as long as it may. */
async function wait(mine) {
  const parts = Boolean(document.getElementById("answers")); // only a page of one example has its panels one by one
  for (const panel of document.querySelectorAll('[data-failure="late"]')) {
    for (let tries = 0; tries < MOST_TRIES && document.getElementById(panel.id)?.dataset.failure === "late"; tries++) {
      const name = panel.id.replace("panel-", "");
      const answer = await ask(parts ? `panels${location.search}${location.search ? "&" : "?"}panel=${name}` : location.href);
      if (mine !== latest || !answer.ok) return;
      if (parts) for await (const part of lines(answer.body)) if (mine === latest && part.panel) take(part);
      if (!parts) whole(await answer.text());
    }
  }
}

/** Takes what was late from the same page, asked for again. */
function whole(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const panel of document.querySelectorAll('[data-failure="late"]')) {
    const own = page.getElementById(panel.id);
    if (!own) document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main"))); // the start page
    else if (own.dataset.failure !== "late") panel.replaceWith(document.adoptNode(own));
    if (!own) return;
  }
}

function take(part) {
  if (part.address !== undefined) {
    history.replaceState(null, "", part.address);
    origin = location.search;
    moves = 0;
    document.title = part.title;
    document.getElementById("heading").textContent = part.heading;
    swap(document.getElementById("bar"), part.bar);
    unfold(part.sections);
    say(part.heading);
    return;
  }
  if (shown.get(part.panel) === part.html) {
    document.getElementById(`panel-${part.panel}`)?.removeAttribute("aria-busy");
    return;
  }
  const template = document.createElement("template");
  template.innerHTML = part.html;
  if (template.content.querySelector("[data-failure][hidden]")) return; // a filter that is refused: what was shown stays
  shown.set(part.panel, part.html);
  swap(document.getElementById(`panel-${part.panel}`), part.html);
  if (part.panel === "output") {
    const flips = document.getElementById("flips");
    if (flips) say(`${document.getElementById("heading").textContent}: ${flips.textContent}`);
  }
}

/** The sections as they are open now; the panels that were there stay until their new ones come. */
function unfold(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  const focused = document.activeElement?.id;
  for (const place of template.content.querySelectorAll("[data-waits]")) {
    const there = document.getElementById(place.id);
    if (there) place.replaceWith(there);
    else shown.delete(place.id.replace("panel-", ""));
  }
  document.getElementById("sections").replaceWith(template.content);
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Puts HTML in an element's place; what had the focus there has it again, and what was open stays open. */
function swap(before, html) {
  if (!before) return;
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  const after = template.content.firstElementChild;
  const focused = before.contains(document.activeElement) ? document.activeElement : null;
  const open = [...before.querySelectorAll("details")].map((own) => own.open);
  const scrolled = [...before.querySelectorAll(".wide, .scroll")].map((own) => [own.scrollLeft, own.scrollTop]);
  before.replaceWith(after);
  after.querySelectorAll("details").forEach((own, place) => (own.open = open[place] ?? own.open));
  after.querySelectorAll(".wide, .scroll").forEach((own, place) => ([own.scrollLeft, own.scrollTop] = scrolled[place] ?? [0, 0]));
  if (focused) alike(after, focused)?.focus({ preventScroll: true });
  if (after.id === "bar") toolsFor(after);
}

function alike(root, focused) {
  if (focused.id) return root.querySelector(`#${CSS.escape(focused.id)}`);
  const said = (own) => own.getAttribute("aria-label") ?? (own.textContent.trim() || own.getAttribute("name"));
  return [...root.querySelectorAll(focused.tagName)].find((own) => said(own) === said(focused));
}

function busy(is) {
  for (const panel of document.querySelectorAll(".panel")) panel.toggleAttribute("data-waits", is);
  document.getElementById("answers").setAttribute("aria-busy", String(is));
}

export function say(text, aloud = false) {
  const status = document.getElementById("status");
  if (!status) return;
  status.textContent = text;
  status.classList.toggle("away", !aloud);
}
