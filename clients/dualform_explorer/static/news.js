// While a training records, the page asks for newer snapshots and offers them; it does not move by itself.

import { ask } from "./access.js";

const SECONDS = 2;

export function follow() {
  const page = document.getElementById("answers");
  if (page.dataset.recording !== "yes") return;
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      const memory = new URLSearchParams(location.search).get("memory");
      const answer = await ask(memory ? `news?memory=${encodeURIComponent(memory)}` : "news");
      if (!answer.ok) return;
      const news = await answer.json();
      if (news.snapshot > Number(page.dataset.snapshot)) offer(news);
      if (!news.recording) clearInterval(timer);
    } catch {
      // The next request may reach the server again.
    }
  }, 1000 * SECONDS);
}

function offer(news) {
  const place = document.getElementById("news");
  place.hidden = false;
  place.querySelector("span").textContent = `The training has reached step ${news.steps.toLocaleString("en")}.`;
}
