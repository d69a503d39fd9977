// A panel's figures as SVG files of their own, with their colours and a caption that holds the question.

const PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor", "paint-order"];

export function listen() {
  if (location.hash === "#print") addEventListener("load", () => print());
  document.addEventListener(
    "toggle",
    (event) => {
      const place = event.target.matches?.("details.publish[open]") && event.target.querySelector("[data-figures]");
      if (!place || place.childElementCount) return;
      const frame = event.target.querySelector("[data-frame]"); // an address that pages elsewhere can use
      frame.textContent = frame.textContent.replace("panel?", new URL("panel?", location));
      const panel = document.getElementById(place.dataset.figures);
      const figures = [...panel.querySelectorAll("svg, table:has(td.draw svg)")].filter((own) => !own.closest("svg svg, td") && own.getBoundingClientRect().height >= 30);
      for (const [number, figure] of figures.entries()) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = figures.length > 1 ? `SVG ${number + 1}` : "SVG";
        button.addEventListener("click", () => save(figure, event.target.dataset.caption, panel));
        place.append(button);
      }
    },
    true,
  );
}

const NAMESPACE = "http://www.w3.org/2000/svg";

function made(name, attributes, text = "") {
  const found = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.textContent = text;
  return found;
}

/** What stands below a figure: its axis, its legend with the colours, the question, and how exact the answer is. */
function below(figure, caption, panel, letters) {
  const plain = (own) => own.innerText.replace(/\s+/g, " ").trim();
  const around = figure.closest("figure") ?? panel;
  const legend = [...around.querySelectorAll(".legend > *")].map((own) => ({
    text: plain(own),
    colour: own.querySelector(".dot") ? getComputedStyle(own.querySelector(".dot")).backgroundColor : "",
  }));
  const axis = [...around.querySelectorAll(".axis > :not(.legend)")].map(plain).join(" … ");
  const title = [...(around.querySelectorAll("figcaption") ?? [])].map(plain);
  const wrapped = [axis, ...title, plain(panel.querySelector("h2")), caption, panel.querySelector(".status")?.textContent ?? ""]
    .flatMap((own) => own.match(new RegExp(`.{1,${letters}}(\\s|$)|.{1,${letters}}`, "g")) ?? [])
    .map((text) => ({ text }));
  return [wrapped[0], ...legend, ...wrapped.slice(1)].filter(Boolean);
}

/** A figure with the colours that it has on the page. */
function drawn(figure) {
  const copy = figure.cloneNode(true);
  const from = [figure, ...figure.querySelectorAll("*")];
  for (const [place, own] of [copy, ...copy.querySelectorAll("*")].entries()) {
    const style = getComputedStyle(from[place]);
    for (const name of PROPERTIES) own.setAttribute(name, style.getPropertyValue(name));
  }
  return copy;
}

/** A table with bars as a figure: its words where they are on the page, without the links that change a filter. */
function drawnTable(table) {
  const from = table.getBoundingClientRect();
  const whole = made("svg", { "font-family": "sans-serif" });
  for (const cell of table.querySelectorAll("th, td:not(.acts)")) {
    const [box, style] = [cell.getBoundingClientRect(), getComputedStyle(cell)];
    const [left, right] = [box.left - from.left + parseFloat(style.paddingLeft), box.right - from.left - parseFloat(style.paddingRight)];
    const [middle, text] = [box.top - from.top + box.height / 2, cell.innerText.replace(/\s+/g, " ").trim()];
    const figure = cell.querySelector("svg");
    const dot = cell.querySelector(".dot");
    if (figure) {
      const { left, top, width, height } = figure.getBoundingClientRect();
      const copy = drawn(figure);
      for (const [name, value] of Object.entries({ x: left - from.left, y: top - from.top, width, height })) copy.setAttribute(name, value);
      whole.append(copy);
    } else if (text && !cell.querySelector(".away")) {
      const end = style.textAlign === "right" || style.textAlign === "end";
      const shift = dot ? dot.getBoundingClientRect().width + 6 : 0;
      if (dot) whole.append(made("circle", { cx: left + 4, cy: middle, r: 4, fill: getComputedStyle(dot).backgroundColor }));
      const look = { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "dominant-baseline": "central" };
      whole.append(made("text", { x: end ? right : left + shift, y: middle, "text-anchor": end ? "end" : "start", ...look }, text));
    }
  }
  return whole;
}

function save(figure, caption, panel) {
  const { width, height } = figure.getBoundingClientRect();
  const copy = figure.matches("table") ? drawnTable(figure) : drawn(figure);
  const lines = below(figure, caption, panel, Math.max(20, Math.floor(width / 6.5)));
  const whole = made("svg", { xmlns: NAMESPACE, width, height: height + 20 + 16 * lines.length });
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  whole.append(copy);
  for (const [place, { text, colour }] of lines.entries()) {
    const y = height + 24 + 16 * place;
    if (colour) whole.append(made("rect", { x: 0, y: y - 9, width: 10, height: 10, fill: colour }));
    whole.append(made("text", { x: colour ? 16 : 0, y, "font-size": 12, "font-family": "sans-serif" }, text));
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(whole)], { type: "image/svg+xml" }));
  link.download = `${panel.id.replace("panel-", "")}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}
