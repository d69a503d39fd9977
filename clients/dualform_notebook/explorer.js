// What the kernel answers, shown; what the reader asks for, told to the kernel. No number is made here, and every text of
// a memory is set as text.

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

const short = (number) => (Number.isInteger(number) ? String(number) : String(Number(number.toPrecision(6))));
const said = (value) => (value === null ? "NULL" : typeof value === "number" ? short(value) : String(value));
const named = (values) => Object.entries(values).map(([column, value]) => `${column} ${said(value)}`).join(", ");
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// Above numbers, which stand to the right, names do too.
const heading = (name) =>
  make("th", { scope: "col", textContent: name, className: ["sum", "slots", "rank", "slot", "score"].includes(name) ? "number" : "" });

function choice(label, options, chosen, change) {
  const select = make("select", { onchange: () => change(select.value) });
  const all = options.includes(chosen) ? options : [chosen, ...options];
  select.append(...all.map((option) => make("option", { value: option, textContent: option, selected: option === chosen })));
  return make("label", {}, label, select);
}

function look(shown) {
  if (!shown) return null;
  if (shown.image) return make("img", { src: shown.image, alt: "" });
  if (shown.row) return make("span", { className: "text", textContent: named(shown.row) });
  const token = shown.token ? make("mark", { textContent: shown.token }) : null;
  return make("span", { className: "text" }, shown.before, token, shown.behind);
}

function render({ model, el }) {
  const root = make("div", { className: "dualform" });
  el.append(root);

  const ask = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
    root.setAttribute("aria-busy", "true");
  };
  const masks = () => model.get("masks") ?? [];
  const toggle = (mask) => {
    const others = masks().filter((own) => !same(own.values, mask.values));
    const there = masks().some((own) => same(own, mask));
    ask({ masks: there ? others : [...others, mask] });
  };

  function controls(view) {
    const { probe, row, rows } = view.query;
    const go = (number) => ask({ query: `${probe}/${number}` });
    const number = make("input", {
      type: "number", min: 0, max: rows === null ? "" : rows - 1, value: row, onchange: () => go(Number(number.value)),
    });
    const step = (by, sign, label) =>
      make("button", {
        type: "button", textContent: sign, ariaLabel: label, disabled: row + by < 0 || (rows !== null && row + by >= rows), onclick: () => go(row + by),
      });
    const probes = view.probes.map((own) => own.name);
    return make("div", { className: "controls" },
      choice("query", probes, probe, (name) => ask({ query: `${name}/0` })),
      make("span", { className: "row" }, step(-1, "‹", "previous example"), make("label", { ariaLabel: "row" }, number),
        step(1, "›", "next example")),
      choice("layer", view.layers, view.layer, (layer) => ask({ layer })),
      choice("groups by", view.columns, view.by, (by) => ask({ by })),
      choice("score", view.scores, view.score, (score) => ask({ score })));
  }

  function example({ query }) {
    const parts = [`${query.probe}/${query.row}`];
    if (query.position !== null) parts.push(`position ${query.position} of its example`);
    if (query.label !== null) parts.push(`label ${query.label}`);
    if (query.largest !== null) parts.push(`the network's largest output: ${query.largest}`);
    return make("div", { className: "example" }, look(query.look), make("strong", { textContent: parts.join(", ") }));
  }

  function chips(view) {
    const all = masks().map((mask, place) =>
      make("button", {
        type: "button", className: "chip", title: "take this mask back", textContent: `${view.chips?.[place] ?? named(mask.values)} ✕`,
        onclick: () => ask({ masks: masks().filter((_, other) => other !== place) }),
      }));
    const own = make("input", {
      type: "text", value: model.get("where"), placeholder: "step < 300", onchange: () => ask({ where: own.value }),
    });
    const clear = all.length || model.get("where")
      ? make("button", { type: "button", textContent: "no mask", onclick: () => ask({ masks: [], where: "" }) }) : null;
    return make("div", { className: "chips" }, ...all, make("label", {}, "mask, SQL", own), clear);
  }

  function groups(view) {
    const largest = Math.max(...view.groups.map((own) => Math.abs(own.sum)), 0) || 1;
    const rows = view.groups.map((own) => {
      const bar = make("span", { className: own.sum < 0 ? "bar negative" : "bar" });
      bar.style.width = `${(100 * Math.abs(own.sum)) / largest}%`;
      const button = (text, keep) => {
        const mask = { values: own.values, keep };
        return make("button", {
          type: "button", textContent: text, ariaLabel: `${text} ${named(own.values)}`, onclick: () => toggle(mask),
        });
      };
      const sum = make("td", { className: "number", textContent: short(own.sum), title: String(own.sum) });
      sum.dataset.value = String(own.sum);
      return make("tr", {}, make("th", { scope: "row", textContent: named(own.values) }), make("td", { className: "bars" }, bar), sum,
        make("td", { className: "number", textContent: own.count.toLocaleString("en") }),
        make("td", {}, button("without", false), button("only", true)));
    });
    const more = view.total > view.groups.length ? `, the ${view.groups.length} largest of ${view.total}` : "";
    return make("table", { className: "groups" },
      make("caption", { textContent: `Sums of ${view.score} scores by ${view.by}${more}` }),
      make("thead", {}, make("tr", {}, ...["group", "", "sum", "slots", "mask"].map(heading))),
      make("tbody", {}, ...rows));
  }

  function slots(view) {
    const columns = view.slots.length ? Object.keys(view.slots[0].columns) : [];
    const looks = view.slots.some((own) => own.look);
    const head = ["rank", "slot", "score", ...(looks ? ["looks like"] : []), ...columns];
    const rows = view.slots.map((own) => {
      const score = make("td", { className: "number", textContent: short(own.score), title: String(own.score) });
      score.dataset.value = String(own.score);
      return make("tr", {},
        make("td", { className: "number", textContent: own.rank }), make("td", { className: "number", textContent: own.slot }), score,
        looks ? make("td", {}, look(own.look)) : null,
        ...columns.map((name) => make("td", {
          textContent: own.columns[name] === null ? "–" : said(own.columns[name]),
          className: typeof own.columns[name] === "number" ? "number" : "",
        })));
    });
    return make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "best slots" }, make("table", { className: "slots" },
      make("caption", { textContent: `The ${view.slots.length} best of ${view.matching.toLocaleString("en")} slots` }),
      make("thead", {}, make("tr", {}, ...head.map(heading))),
      make("tbody", {}, ...rows)));
  }

  function footer(view) {
    const all = `${view.matching.toLocaleString("en")} of ${view.scanned.toLocaleString("en")} ${view.space} slots`;
    const lines = [`${all}; the layer's record: ${view.grade}.`];
    if (view.sample) lines.push(`The answer stands on ${view.sample}.`);
    if (view.lacking) lines.push(view.lacking);
    if (view.where) lines.push("A mask takes slots out of these sums, by arithmetic; it is not retraining without them.");
    const line = make("p", { textContent: lines.join(" ") });
    if (view.where) line.append(" ", make("code", { textContent: view.where }));
    return line;
  }

  function show() {
    const view = model.get("view") ?? {};
    root.removeAttribute("aria-busy");
    const focused = root.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    if (view.error) {
      const hint = view.error.hint ? make("p", { textContent: view.error.hint }) : null;
      const back = make("button", { type: "button", textContent: "back to the start", onclick: () =>
        ask({ query: "", layer: "", by: "", score: "signed", masks: [], where: "" }) });
      root.replaceChildren(
        make("div", { className: "error", role: "alert" }, make("strong", { textContent: view.error.message }), hint), chips(view), back);
      return;
    }
    if (!view.query) return;
    root.replaceChildren(controls(view), example(view), chips(view), make("div", { className: "tables" }, groups(view), slots(view)), footer(view));
    if (focused) [...root.querySelectorAll("[aria-label]")].find((own) => own.getAttribute("aria-label") === focused)?.focus();
  }

  model.on("change:view", show);
  show();
  return () => model.off("change:view", show);
}

export default { render };
