// Steps are chosen by drawing over the histogram; the fields below it take the same by hand.

let start = null;

export function listen() {
  document.addEventListener("pointerdown", (event) => {
    const bar = barAt(event);
    if (!bar || event.button) return;
    event.preventDefault();
    start = bar;
    choose(bar, bar);
  });
  document.addEventListener("pointermove", (event) => {
    const bar = barAt(event);
    tell(bar);
    if (start && bar) choose(start, bar);
  });
  document.addEventListener("pointerup", () => {
    if (start) document.getElementById("last")?.dispatchEvent(new Event("input", { bubbles: true }));
    start = null;
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "first" || event.target.id === "last") mark();
  });
}

/** The bar under the pointer; while one is drawing, that at its height over the histogram. */
function barAt(event) {
  const figure = document.querySelector("#brush svg");
  const inside = event.target.closest?.("#brush");
  if (!figure || (!inside && !start)) return null;
  const bars = figure.querySelectorAll(".hit");
  const box = figure.getBoundingClientRect();
  const place = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
  return bars[Math.min(bars.length - 1, Math.max(0, place))] ?? null;
}

function choose(one, other) {
  const ends = [one, other].flatMap((own) => [Number(own.dataset.first), Number(own.dataset.last)]);
  document.getElementById("first").value = Math.min(...ends);
  document.getElementById("last").value = Math.max(...ends);
  mark();
}

function mark() {
  const first = Number(document.getElementById("first").value || NaN);
  const last = Number(document.getElementById("last").value || NaN);
  for (const bar of document.querySelectorAll("#brush .hit"))
    bar.classList.toggle("chosen", Number(bar.dataset.last) >= first && Number(bar.dataset.first) <= last);
}

function tell(bar) {
  const place = document.getElementById("readout");
  if (place) place.textContent = bar?.dataset.said ?? "";
}
