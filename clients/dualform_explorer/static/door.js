// The page that asks for a token: with one in this tab it becomes the page that was asked for.

import { ask, keep, takeFromFragment } from "./access.js";
import { begin } from "./page.js";

const form = document.getElementById("door");
if (form) {
  takeFromFragment();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keep(document.getElementById("token").value.trim());
    enter(true);
  });
  enter(false);
}

async function enter(tried) {
  const answer = await ask(location.href);
  if (answer.status === 401) {
    form.hidden = false;
    document.getElementById("refused").hidden = !tried;
    document.getElementById("token").focus();
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.title = page.title;
  document.body.replaceWith(page.body);
  begin();
}
