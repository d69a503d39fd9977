// The charts over time follow the step that is dragged; a click on one goes to its step.

export function listen() {
  document.addEventListener("input", (event) => {
    if (event.target.id === "at") show(Number(event.target.value));
  });
  document.addEventListener("click", (event) => {
    const figure = event.target.closest?.("#timeline svg");
    const slider = document.getElementById("at");
    if (!figure || !slider) return;
    const box = figure.getBoundingClientRect();
    slider.value = Math.round((Number(slider.max) * (event.clientX - box.left)) / box.width);
    slider.dispatchEvent(new Event("change", { bubbles: true }));
  });
  new MutationObserver(() => {
    const timeline = document.getElementById("timeline");
    if (timeline && !timeline.dataset.shown) show(Number(timeline.dataset.at));
  }).observe(document.body, { childList: true, subtree: true });
}

/** The values at a step, which are those of the nearest one that was asked. */
function show(step) {
  const timeline = document.getElementById("timeline");
  if (!timeline) return;
  timeline.dataset.shown = "yes";
  const steps = timeline.dataset.steps.split(" ").map(Number);
  const near = steps.reduce((best, own, place) => (Math.abs(own - step) < Math.abs(steps[best] - step) ? place : best), 0);
  const span = steps.at(-1) - steps[0] || 1;
  for (const cursor of timeline.querySelectorAll(".cursor")) {
    const x = (1000 * (step - steps[0])) / span;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }
  for (const own of timeline.querySelectorAll("[data-values]")) {
    const value = Number(own.dataset.values.split(" ")[near]);
    own.querySelector(".now").textContent = `${value.toFixed(2)} at step ${steps[near].toLocaleString("en")}`;
  }
}
