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

// A name, with what it means under the pointer where the kernel sent that.
const word = (view, name) => (view.meanings?.[name] ? make("abbr", { textContent: name, title: view.meanings[name] }) : name);

// Above numbers, which stand to the right, names do too.
const heading = (view, name) =>
  make("th", { scope: "col", className: ["sum", "slots", "rank", "slot", "score"].includes(name) ? "number" : "" }, word(view, name));

// A measure as the page calls it, and where contributions go to.
function measure(view) {
  const name = view.scores.find((own) => own.name === view.score).shown;
  const [output, other] = view.target.split("-");
  if (view.score !== "contribution") return name;
  return `${name} to output ${output}${other === undefined ? "" : ` less ${other}`}`;
}

// Options are names, or what stands for them: { name, shown }.
function choice(label, options, chosen, change) {
  const select = make("select", { onchange: () => change(select.value) });
  const all = options.map((own) => (typeof own === "string" ? { name: own, shown: own } : own));
  if (!all.some((own) => own.name === chosen)) all.unshift({ name: chosen, shown: chosen });
  select.append(...all.map((own) => make("option", { value: own.name, textContent: own.shown, selected: own.name === chosen })));
  return make("label", {}, label, select);
}

function preview(shown) {
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
  const filters = () => model.get("masks") ?? [];
  const toggle = (filter) => {
    const others = filters().filter((own) => !same(own.values, filter.values));
    const there = filters().some((own) => same(own, filter));
    ask({ masks: there ? others : [...others, filter] });
  };

  function controls(view) {
    const { query_set, row, count, token, tokens } = view.query;
    const go = (number) => ask({ query: `${query_set}/${number}`, token: null });
    const layers = view.layers.map((name) => ({ name, shown: name || "the model" })); // which may be a layer itself
    const groupings = view.groupings.map((name) => ({ name, shown: name.replaceAll(",", " and ") }));
    return make("div", { className: "controls" },
      choice("query", view.query_sets, query_set, (name) => ask({ query: `${name}/0`, token: null })),
      steps("example", row, count, go),
      token === null ? null : make("span", {}, "token ", steps("token", token, tokens, (number) => ask({ token: number }))),
      choice("layer", layers, view.layer, (layer) => ask({ layer })),
      choice("groups by", groupings, view.by, (by) => ask({ by })),
      choice("score", view.scores, view.score, (score) => ask({ score })),
      view.score === "contribution" ? target(view) : null);
  }

  // A number of so many, and those beside it.
  function steps(label, chosen, count, go) {
    const number = make("input", {
      type: "number", min: 0, max: count - 1, value: chosen, ariaLabel: label, onchange: () => go(Number(number.value)),
    });
    const step = (by, sign, which) =>
      make("button", {
        type: "button", textContent: sign, ariaLabel: `${which} ${label}`, disabled: chosen + by < 0 || chosen + by >= count,
        onclick: () => go(chosen + by),
      });
    return make("span", { className: "row" }, step(-1, "‹", "previous"), number, step(1, "›", "next"));
  }

  function target(view) {
    const title = view.meanings.margin;
    const own = make("input", { type: "text", size: 5, value: view.target, title, onchange: () => ask({ target: own.value }) });
    return make("label", {}, "target", own);
  }

  function example({ query }) {
    const called = (number, name) => (name ? `${number} ${name}` : number);
    const parts = [`${query.query_set}/${query.row}`];
    if (query.token !== null) parts.push(`token ${query.token} of ${query.tokens}`);
    if (query.label !== null) parts.push(`label ${called(query.label, query.label_name)}`);
    if (query.read !== null) parts.push(`predicted ${called(query.read, query.read_name)}`);
    const verdict = make("strong", { textContent: parts.join(", "), className: query.wrong ? "wrong" : "" });
    return make("div", { className: "example" }, preview(query.preview), verdict);
  }

  // The prediction in a sentence, and its margin as a sum: each part begins where the one before it ended.
  function answer(view) {
    const told = view.answer;
    if (!told) return null;
    const sentence = (told.sentence ?? []).map(([kind, value]) =>
      kind === "strong" ? make("strong", { textContent: value }) : kind === "number" ? short(value) : value);
    const [low, high] = told.ends ?? [0, 0];
    const scale = 100 / (high - low || 1);
    const rows = (told.parts ?? []).map((part) => {
      const drawn = make("span", { className: `bar${part.value < 0 ? " negative" : ""}` });
      drawn.style.left = `${(Math.min(part.begin, part.begin + part.value) - low) * scale}%`;
      drawn.style.width = `${Math.abs(part.value) * scale}%`;
      const name = [...part.said.map(said), part.name].filter(Boolean).join(" ");
      const value = make("td", { className: "number", textContent: short(part.value), title: String(part.value) });
      value.dataset.value = String(part.value);
      return make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { className: "bars" }, make("div", {}, drawn)), value);
    });
    return make("div", { className: "answer" },
      sentence.length ? make("p", {}, ...sentence, ".") : null,
      rows.length ? make("table", {}, make("tbody", {}, ...rows)) : null,
      told.note ? make("p", { textContent: told.note }) : null);
  }

  function chips(view) {
    const all = filters().map((filter, place) =>
      make("button", {
        type: "button", className: "chip", title: "remove this filter", textContent: `${view.chips?.[place] ?? named(filter.values)} ✕`,
        onclick: () => ask({ masks: filters().filter((_, other) => other !== place) }),
      }));
    const own = make("input", {
      type: "text", value: model.get("where"), placeholder: "step < 300", onchange: () => ask({ where: own.value }),
    });
    const clear = all.length || model.get("where")
      ? make("button", { type: "button", textContent: "clear the filter", onclick: () => ask({ masks: [], where: "" }) }) : null;
    return make("div", { className: "chips" }, ...all, make("label", {}, make("span", {}, word(view, "filter"), ", SQL"), own), clear);
  }

  // From zero, which stands in the middle where sums of both signs are shown; an outline of the sum without the filter.
  function bar(view, sum, className) {
    const own = make("span", { className: `${className}${sum < 0 ? " negative" : ""}` });
    const scale = (view.signed ? 50 : 100) / (view.largest || 1);
    const zero = view.signed ? 50 : 0;
    own.style.left = `${zero + Math.min(sum, 0) * scale}%`;
    own.style.width = `${Math.abs(sum) * scale}%`;
    return own;
  }

  function groups(view) {
    const rows = view.groups.map((own) => {
      const name = own.name ? `${named(own.values)} ${own.name}` : named(own.values);
      const drawn = make("td", { className: "bars" }, make("div", {},
        own.unmasked === null ? null : bar(view, own.unmasked, "was"), own.gone ? null : bar(view, own.sum, "bar")));
      const head = make("th", { scope: "row", textContent: name });
      if (own.gone) return make("tr", { className: "gone" }, head, drawn, make("td", { colSpan: 3, textContent: "removed" }));
      const button = (text, keep) =>
        make("button", {
          type: "button", textContent: text, ariaLabel: `${text} ${named(own.values)}`, onclick: () => toggle({ values: own.values, keep }),
        });
      const sum = make("td", { className: "number", textContent: short(own.sum), title: String(own.sum) });
      sum.dataset.value = String(own.sum);
      return make("tr", {}, head, drawn, sum, make("td", { className: "number", textContent: own.count.toLocaleString("en") }),
        make("td", {}, button("without", false), button("only", true)));
    });
    const more = view.total > view.groups.length ? `, the ${view.groups.length} largest of ${view.total}` : "";
    const by = view.by.replaceAll(",", " and ");
    return make("table", { className: "groups" },
      make("caption", { textContent: `Sums of ${measure(view)} by ${by}${more}` }),
      make("thead", {}, make("tr", {}, ...["group", "", "sum", "slots", "filter"].map((name) => heading(view, name)))),
      make("tbody", {}, ...rows));
  }

  function slots(view) {
    const columns = view.slots.length ? Object.keys(view.slots[0].columns) : [];
    const previews = view.slots.some((own) => own.preview);
    const head = ["rank", "slot", "score", ...(previews ? ["preview"] : []), ...columns];
    const rows = view.slots.map((own) => {
      const score = make("td", { className: "number", textContent: short(own.score), title: String(own.score) });
      score.dataset.value = String(own.score);
      return make("tr", {},
        make("td", { className: "number", textContent: own.rank }), make("td", { className: "number", textContent: own.slot }), score,
        previews ? make("td", {}, preview(own.preview)) : null,
        ...columns.map((name) => {
          const value = own.columns[name];
          const called = name === "label" ? own.label_name : "";
          return make("td", {
            textContent: value === null ? "–" : called ? `${said(value)} ${called}` : said(value),
            className: typeof value === "number" && !called ? "number" : "",
          });
        }));
    });
    return make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "best slots" }, make("table", { className: "slots" },
      make("caption", { textContent: `The ${view.slots.length} best of ${view.matching.toLocaleString("en")} slots` }),
      make("thead", {}, make("tr", {}, ...head.map((name) => heading(view, name)))),
      make("tbody", {}, ...rows)));
  }

  // The margin's change under the filter, next to random filters of the same size.
  function placebo(view) {
    const own = model.get("placebo") ?? {};
    const line = make("p", { className: "placebo", ariaLive: "polite", hidden: !own.words });
    line.append(word(view, "placebo"), ": ");
    if (own.verdict) line.append(make("strong", { textContent: own.verdict }), ". ");
    line.append(own.words ?? "");
    return line;
  }

  function footer(view) {
    const all = `${view.matching.toLocaleString("en")} of ${view.scanned.toLocaleString("en")} ${view.space} slots`;
    const lines = [`${all}; ${view.status}.`];
    if (view.sampling) lines.push(view.sampling);
    if (view.missing) lines.push(view.missing);
    if (view.where) lines.push("The filter removes slots from these sums; it is not a retraining without them.");
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
        ask({ query: "", token: null, layer: "", by: "", score: "dot", target: "", masks: [], where: "" }) });
      const anyway = view.error.code === "inexact" ? make("button", {
        type: "button", textContent: "answer anyway", onclick: () => ask({ allow_inexact: true }) }) : null;
      root.replaceChildren(make("div", { className: "error", role: "alert" }, make("strong", { textContent: view.error.message }), hint),
        chips(view), ...[anyway, back].filter((own) => own !== null));
      return;
    }
    if (!view.query) return;
    root.replaceChildren(controls(view), example(view), answer(view) ?? "", chips(view), placebo(view), make("div", { className: "tables" }, groups(view), slots(view)), footer(view));
    if (focused) [...root.querySelectorAll("[aria-label]")].find((own) => own.getAttribute("aria-label") === focused)?.focus();
  }

  const compared = () => root.querySelector(".placebo")?.replaceWith(placebo(model.get("view")));
  model.on("change:view", show);
  model.on("change:placebo", compared);
  show();
  return () => {
    model.off("change:view", show);
    model.off("change:placebo", compared);
  };
}

export default { render };
