
// The stylesheet shows the view named in the address; this adds keys and buttons.
(() => {
  const views = [...document.querySelectorAll(".view")];
  const shown = () => document.getElementById(location.hash.slice(1)) ?? views[0];
  const press = (selector) => shown()?.querySelector(selector)?.click();

  function mark() {
    const prediction = shown()?.id.split("-")[0];
    for (const link of document.querySelectorAll(".items a"))
      if (link.dataset.view === prediction) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
  }

  // Another filter keeps the scroll position.
  let height = null;
  document.addEventListener("click", (event) => {
    if (event.target.closest?.('a[href^="#"]')) height = scrollY;
  });
  window.addEventListener("hashchange", () => {
    mark();
    if (height !== null) scrollTo(0, height);
    height = null;
  });

  const filters = () => [...(shown()?.querySelectorAll(".filters a") ?? [])];
  const another = (by) => {
    const at = filters().findIndex((own) => own.hasAttribute("aria-current"));
    filters()[(at + by + filters().length) % filters().length]?.click();
  };
  const themes = ["", "light", "dark"];
  const theme = document.createElement("button");
  const say = () => (theme.textContent = `theme: ${document.documentElement.dataset.theme ?? "system"}`);
  theme.type = "button";
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % themes.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    say();
  });
  say();
  const tools = document.getElementById("tools");
  tools.title = "j, k: the next and previous prediction; m: the next filter; u: all slots";
  tools.append(theme);
  tools.hidden = false;

  const keys = { j: () => press('[rel="next"]'), k: () => press('[rel="prev"]'), m: () => another(1), u: () => filters()[0]?.click() };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    keys[event.key]();
  });
  mark();
})();
