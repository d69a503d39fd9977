// The buttons at the right of the bar: copy the address, the theme, the keys.

const THEMES = ["", "light", "dark"];
const NAMES = { "": "theme", light: "theme: light", dark: "theme: dark" };

export function toolsFor(root) {
  const place = root.querySelector("[data-tools]");
  if (!place || place.childElementCount) return;
  if (document.getElementById("answers")) {
    place.append(button("copy", "copy link", copy));
    place.append(button("keys", "keys", () => document.getElementById("help")?.showModal()));
  }
  place.append(button("theme", NAMES[theme()], nextTheme));
  place.hidden = false;
}

function button(id, text, pressed) {
  const made = document.createElement("button");
  Object.assign(made, { id, type: "button", textContent: text });
  made.addEventListener("click", () => pressed(made));
  return made;
}

async function copy(pressed) {
  try {
    await navigator.clipboard.writeText(location.href);
    pressed.textContent = "copied";
  } catch {
    pressed.textContent = "copy it from the address bar";
  }
  setTimeout(() => (pressed.textContent = "copy link"), 2000);
}

const theme = () => document.documentElement.dataset.theme ?? "";

export function nextTheme(pressed = document.getElementById("theme")) {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    if (next) localStorage.setItem("dualform-theme", next);
    else localStorage.removeItem("dualform-theme");
  } catch {
    // It holds for this page then.
  }
  if (pressed) pressed.textContent = NAMES[next];
}
