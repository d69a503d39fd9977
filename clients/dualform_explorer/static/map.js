// The map: points that are drawn once, on a canvas beside the page, and moved as a picture until the reader holds still.

import { ask } from "./access.js";

const NEAR = 9; // pixels within which a point is under the pointer
const CELLS = 96; // of a side of the grid that finds it
const STILL = 120; // milliseconds after which the points are drawn anew
const MOST_TRIES = 40; // of a map that is late
const LEVELS = 32; // of a scale of colours

const get = (id) => document.getElementById(id);
const words = (count) => count.toLocaleString("en");
const counted = (count, noun) => `${words(count)} ${noun}${count === 1 ? "" : "s"}`;
const digits = (number) => String(Number(number.toPrecision(4)));
const element = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
const ends = (values, first) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [first, first]);

export async function show(place) {
  const said = get("map-said");
  said.textContent = "The map is being calculated.";
  try {
    let [answer, data] = [null, { code: "late" }];
    for (let tries = 0; tries < MOST_TRIES && data.code === "late"; tries++) {
      answer = await ask(place.dataset.points); // the server goes on with what was late
      data = await answer.json();
    }
    if (!answer.ok) throw new Error(`${data.message} ${data.hint}`.trim());
    said.textContent = "";
    place.hidden = false;
    new Scatter(place, data);
  } catch (error) {
    said.textContent = error.message;
    said.className = "failure";
  }
}

/** The slots of some samples, by dataset, or those of all others: as samples_filter of filter.py writes it. */
function condition(samples, only) {
  const parts = [...samples].map(([dataset, numbers]) => {
    const [value, listed] = [dataset === null ? "NULL" : `'${dataset.replaceAll("'", "''")}'`, [...numbers].join(", ")];
    return only
      ? `dataset IS NOT DISTINCT FROM ${value} AND sample IN (${listed})`
      : `(dataset IS DISTINCT FROM ${value} OR sample IS NULL OR sample NOT IN (${listed}))`;
  });
  return parts.join(only ? " OR " : " AND ");
}

class Scatter {
  constructor(place, data) {
    Object.assign(this, { page: place.dataset, data, canvas: get("scatter"), picture: element("canvas"), tip: get("tip"), previews: new Map() });
    this.context = this.canvas.getContext("2d");
    const [[left, right], [low, high]] = [ends(data.x, data.query[0]), ends(data.y, data.query[1])];
    this.middle = [(left + right) / 2, (low + high) / 2];
    this.size = [right - left || 1, high - low || 1];
    this.cell = Math.max(...this.size) / CELLS;
    this.cells = Map.groupBy(data.x.keys(), (at) => this.key(data.x[at], data.y[at]).join());
    get("about").textContent = data.about;
    this.listen();
    this.colour();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  // Where things are: `view` has the point in the middle, and pixels for each unit.

  key = (x, y) => [Math.floor(x / this.cell), Math.floor(y / this.cell)];
  at = (x, y) => [(x - this.view.x) * this.view.scale + this.width / 2, this.height / 2 - (y - this.view.y) * this.view.scale];
  point = (at) => this.at(this.data.x[at], this.data.y[at]);
  from = (px, py) => [(px - this.width / 2) / this.view.scale + this.view.x, (this.height / 2 - py) / this.view.scale + this.view.y];

  resize() {
    ({ width: this.width, height: this.height } = this.canvas.getBoundingClientRect());
    if (!this.width) return;
    this.ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [this.width * this.ratio, this.height * this.ratio];
    [this.picture.width, this.picture.height] = [2 * this.canvas.width, 2 * this.canvas.height]; // half a page more on each side
    this.view ? this.draw() : this.whole();
  }

  whole() {
    this.least = Math.min((this.width - 48) / this.size[0], (this.height - 48) / this.size[1]);
    this.view = { x: this.middle[0], y: this.middle[1], scale: this.least };
    this.draw();
  }

  zoom(by, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.from(px, py);
    const scale = Math.min(1000, Math.max(0.2, (this.view.scale / this.least) * by)) * this.least;
    this.view = { scale, x: x - (px - this.width / 2) / scale, y: y + (py - this.height / 2) / scale };
    this.moved();
  }

  shift(px, py) {
    this.view = { ...this.view, x: this.view.x - px / this.view.scale, y: this.view.y + py / this.view.scale };
    this.moved();
  }

  // What is drawn.

  /** The colours, and which of them each point has. */
  colour() {
    const by = get("colour").value;
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(`--${name}`).trim();
    const mixed = (other, share) => `color-mix(in oklab, ${named(other)} ${100 * share}%, ${named("bar")})`;
    const { data } = this;
    this.ink = { ink: named("ink"), accent: named("accent"), paper: named("paper") };
    if (data[`${by}s`]) {
      const kinds = data[`${by}s`];
      const [own, rest] = [kinds.filter((kind) => kind.hue >= 0).sort((one, other) => (one.value < other.value ? -1 : 1)), kinds.filter((kind) => kind.hue < 0)];
      this.palette = [named("bar"), ...Array.from({ length: 10 }, (_, hue) => named(`h${hue}`))];
      this.paint = data[by].map((kind) => kinds[kind].hue + 1);
      const line = (hue, text, count) => {
        const made = element("span");
        made.append(element("i", "", { className: `dot h${hue}` }), element("bdi", text), ` (${words(count)})`);
        return made;
      };
      const others = rest.length === 1 && rest[0].value === null ? `no ${by}` : counted(rest.length, `other ${by}`);
      get("legend").replaceChildren(...own.map((kind) => line(kind.hue, `${kind.value} ${kind.name}`.trim(), kind.count)));
      if (rest.length) get("legend").append(line("", others, rest.reduce((sum, kind) => sum + kind.count, 0)));
    } else {
      const signed = by === "score";
      const [low, high] = ends(data[by], data[by][0] ?? 0);
      const [first, last] = signed ? [-1, 1].map((sign) => sign * Math.max(Math.abs(low), Math.abs(high))) : [low, high];
      this.palette = Array.from({ length: LEVELS + 1 }, (_, level) => level / LEVELS).map((share) => (signed ? mixed(share < 0.5 ? "minus" : "plus", Math.abs(2 * share - 1)) : mixed("accent", share)));
      this.paint = data.x.map((_, at) => Math.round((LEVELS * ((data[by][at] ?? first) - first)) / (last - first || 1)));
      const scale = [digits(first), element("i", "", { className: signed ? "ramp signed" : "ramp" }), digits(last)];
      if (signed) scale.push(element("span", "strong scores are drawn over weak ones"));
      get("legend").replaceChildren(...(data[by].length ? scale : [`The slots have no ${by}.`]));
    }
    // Strong scores are drawn last. Of all else none may hide the others: points come in 64 mixed heaps, each by colour.
    const rank = by === "score" ? (at) => Math.abs(this.paint[at] - LEVELS / 2) : (at) => 64 * (((at * 40503) & 65535) >> 10) + this.paint[at];
    this.order = [...data.x.keys()].sort((one, other) => rank(one) - rank(other));
    if (this.view) this.draw();
  }

  /** All points, beside the page. */
  draw() {
    const context = this.picture.getContext("2d");
    const dots = (points, side) => {
      for (const at of points) {
        const [px, py] = this.point(at);
        const colour = this.palette[this.paint[at]];
        if (context.own !== colour) context.fillStyle = context.own = colour;
        context.fillRect(px - side / 2, py - side / 2, side, side);
      }
    };
    const side = this.data.x.length > 5000 ? 2.4 : 4;
    this.drawn = this.view;
    context.setTransform(this.ratio, 0, 0, this.ratio, this.canvas.width / 2, this.canvas.height / 2);
    context.clearRect(-this.width, -this.height, 3 * this.width, 3 * this.height);
    context.own = "";
    context.globalAlpha = this.chosen ? 0.2 : 0.8;
    dots(this.order, side);
    context.globalAlpha = 1;
    dots(this.chosen ?? [], side + 1);
    this.show();
  }

  /** The picture where it belongs by now, and over it the query, its lines and the lasso. */
  show() {
    const { context, drawn, view, width, height } = this;
    const stroke = (points, closed, more) => {
      Object.assign(context, { globalAlpha: 1 }, more);
      context.beginPath();
      for (const point of points) context.lineTo(...point);
      if (closed) context.closePath();
      context.stroke();
    };
    const zoom = view.scale / drawn.scale;
    const [left, top] = this.at(drawn.x, drawn.y);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.drawImage(this.picture, left - width * zoom, top - height * zoom, 2 * width * zoom, 2 * height * zoom);
    const star = this.at(...this.data.query);
    for (const at of this.data.best) stroke([star, this.point(at)], false, { strokeStyle: this.ink.ink, lineWidth: 1, globalAlpha: 0.5 });
    const corners = Array.from({ length: 10 }, (_, corner) => [(Math.PI * corner) / 5 - Math.PI / 2, corner % 2 ? 4.5 : 11]);
    stroke(corners.map(([angle, far]) => [star[0] + far * Math.cos(angle), star[1] + far * Math.sin(angle)]), true, { strokeStyle: this.ink.paper, fillStyle: this.ink.accent, lineWidth: 3 });
    context.fill();
    if (this.under !== undefined) {
      const [px, py] = this.point(this.under);
      stroke([[px - 5, py - 5], [px + 5, py - 5], [px + 5, py + 5], [px - 5, py + 5]], true, { strokeStyle: this.ink.ink, lineWidth: 1.5 });
    }
    if (this.path) stroke(this.path, true, { strokeStyle: this.ink.accent, lineWidth: 1.5 });
    this.canvas.dataset.view = [view.x, view.y, view.scale].join();
  }

  /** Shows the next frame, and draws the points anew once the reader holds still. */
  moved(still = true) {
    this.frame ??= requestAnimationFrame(() => ((this.frame = undefined), this.show()));
    if (!still) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), STILL);
  }

  // What the reader does.

  listen() {
    const { canvas } = this;
    const where = (event) => [event.offsetX, event.offsetY];
    const mode = (lasso) => {
      this.lassoes = lasso;
      get("move").setAttribute("aria-pressed", String(!lasso));
      get("lasso").setAttribute("aria-pressed", String(lasso));
    };
    get("move").addEventListener("click", () => mode(false));
    get("lasso").addEventListener("click", () => mode(true));
    get("closer").addEventListener("click", () => this.zoom(1.5));
    get("farther").addEventListener("click", () => this.zoom(1 / 1.5));
    get("whole").addEventListener("click", () => this.whole());
    get("colour").addEventListener("change", () => {
      const address = new URL(location.href);
      address.searchParams.set("colour", get("colour").value);
      history.replaceState(null, "", address.search);
      this.colour();
    });
    new MutationObserver(() => this.colour()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colour());
    canvas.addEventListener("wheel", (event) => (event.preventDefault(), this.zoom(Math.exp(-event.deltaY / 400), ...where(event))), { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
      if (moves[event.key]) event.preventDefault(), this.shift(...moves[event.key]);
      if ("+-".includes(event.key)) this.zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.last = where(event);
      this.path = this.lassoes || event.shiftKey ? [this.last] : null;
    });
    canvas.addEventListener("pointermove", (event) => {
      const here = where(event);
      if (!this.last) return this.pinned || this.hover(here);
      if (Math.hypot(here[0] - this.last[0], here[1] - this.last[1]) < 3) return;
      this.path ? (this.path.push(here), this.moved(false)) : this.shift(here[0] - this.last[0], here[1] - this.last[1]);
      this.last = here;
      this.pinned = false;
      this.hover(null);
    });
    canvas.addEventListener("pointerup", (event) => {
      const path = this.path;
      this.path = this.last = null;
      if (path?.length > 2) return this.choose(path);
      this.hover(where(event)); // a click keeps it open
      this.pinned = this.under !== undefined;
    });
    canvas.addEventListener("pointerleave", () => this.pinned || this.hover(null));
  }

  /** The point that is nearest to a place of the canvas, of those near it. */
  nearest([px, py]) {
    const far = NEAR / this.view.scale;
    const [x, y] = this.from(px, py);
    const [[left, low], [right, high]] = [this.key(x - far, y - far), this.key(x + far, y + far)];
    let [found, least] = [undefined, NEAR];
    for (let column = left; column <= right; column++)
      for (let row = low; row <= high; row++)
        for (const at of this.cells.get(`${column},${row}`) ?? []) {
          const away = Math.hypot(this.data.x[at] - x, this.data.y[at] - y) * this.view.scale;
          if (away < least) [found, least] = [at, away];
        }
    return found;
  }

  /** Says what is under the pointer, and how it looked. */
  async hover(place) {
    const at = place ? this.nearest(place) : undefined;
    if (at === this.under) return;
    this.under = at;
    this.moved(false);
    this.tip.hidden = at === undefined;
    if (at === undefined) return;
    const { data } = this;
    const [label, dataset] = [data.labels[data.label[at]], data.datasets[data.dataset[at]].value];
    const sample = data.sample[at] ?? null;
    const own = { dataset, label: label.value === null ? null : `${label.value} ${label.name}`.trim(), sample, position: data.position[at], step: data.step[at], slot: data.slot[at], score: data.score.length ? digits(data.score[at]) : null };
    const list = element("dl", "", { className: "facts" });
    for (const [name, value] of Object.entries(own).filter(([, value]) => value !== null && value !== undefined)) {
      const line = element("div");
      line.append(element("dt", name === "score" ? this.page.score : name), element("dd", value));
      list.append(line);
    }
    this.tip.replaceChildren(list);
    const [px, py] = this.point(at);
    this.tip.style.left = `${Math.max(0, Math.min(px + 12, this.width - 220))}px`;
    this.tip.style.top = `${py + 14}px`;
    if (sample === null) return;
    const said = new URLSearchParams(Object.entries({ memory: this.page.memory || null, dataset, sample }).filter(([, value]) => value !== null));
    list.append(element("a", "open the sample", { href: `sample?${said}` }));
    if (own.position != null) said.set("position", own.position);
    if (!this.previews.has(String(said))) this.previews.set(String(said), ask(`preview?${said}`).then((answer) => (answer.ok ? answer.json() : {})));
    const preview = await this.previews.get(String(said)).catch(() => ({}));
    if (this.under !== at) return;
    if (preview.image) this.tip.prepend(element("img", "", { className: "preview", src: preview.image, alt: `sample ${sample}` }));
    const passage = element("p", "", { className: "passage" });
    (preview.passage ?? []).forEach((text, part) => passage.append(part === 1 && text ? element("mark", text) : text));
    for (const [name, value] of Object.entries(preview.row ?? {})) passage.append(`${name} ${value}\n`);
    if (passage.textContent) this.tip.prepend(passage);
  }

  /** The slots within a lasso, and links that filter the page by their samples. */
  choose(path) {
    const { data, page } = this;
    const inside = ([px, py]) => path.reduce((is, [x, y], place) => {
      const [other, above] = path[(place || path.length) - 1];
      return y > py !== above > py && px < ((other - x) * (py - y)) / (above - y) + x ? !is : is;
    }, false);
    this.chosen = [...data.x.keys()].filter((at) => inside(this.point(at)));
    const samples = new Map();
    for (const at of this.chosen.filter((own) => data.sample[own] != null)) {
      const dataset = data.datasets[data.dataset[at]].value;
      samples.set(dataset, (samples.get(dataset) ?? new Set()).add(data.sample[at]));
    }
    const count = [...samples.values()].reduce((sum, own) => sum + own.size, 0);
    const without = this.chosen.filter((at) => data.sample[at] == null).length;
    const said = [`${counted(this.chosen.length, "slot")} of ${counted(count, "sample")} chosen.`, without ? `${counted(without, "slot")} of no sample cannot be in a filter.` : ""];
    const links = [[true, "keep only these samples"], [false, "remove these samples"]].map(([only, text]) => {
      const where = page.own ? `${page.own} AND (${condition(samples, only)})` : condition(samples, only);
      return where.length > page.longest ? null : element("a", text, { className: "act", id: only ? "keep-chosen" : "remove-chosen", href: `${page.page}&where=${encodeURIComponent(where)}` });
    });
    const clear = element("button", "clear", { type: "button" });
    clear.addEventListener("click", () => ((this.chosen = null), get("chosen").replaceChildren(), this.draw()));
    if (count && links.includes(null)) said.push(`Choose fewer: an address holds ${words(Number(page.longest))} letters, and a filter of so many samples takes more.`);
    else if (count) said.push("The filter takes whole samples: all of their slots, in each layer, also those outside the lasso.");
    get("chosen").replaceChildren(element("p", said.filter(Boolean).join(" ")), ...(count && !links.includes(null) ? links : []), clear);
    this.draw();
  }
}
