// One step as bars cut into parts: by phase, by kind of work, in time and in energy. Never pies. One table is the legend.

/** Show the bars of `view`; the section is away where no step was taken apart. */
function drawBars(view) {
  const bars = view.bars.map((bar) => ({ ...bar, currency: currencyOf(view, bar.currency), parts: new Map(bar.parts.filter(([, amount]) => amount > 0)) }));
  byId("bars-section").querySelector("h2").textContent = barsTitle(view, bars);
  byId("bars-section").hidden = !bars.length;
  byId("bars").replaceChildren(...bars.map((bar) => barFigure(bar, view.parts)));
  byId("parts-head").replaceChildren(element("tr", {}, element("th", { scope: "col" }, "Part"), ...bars.map((bar) => element("th", { scope: "col", className: "column-amount" }, barTitle(bar)))));
  byId("parts-body").replaceChildren(...view.parts.filter(({ key }) => bars.some(({ parts }) => parts.has(key))).map((part) => partRow(part, bars)));
}

function barsTitle(view, bars) {
  if (isOfProgram(view)) return "Time of the program";
  return bars.some(({ currency }) => currency.key === "energy") ? "Time and energy of one step" : "Time of one step";
}

function barTitle({ title, currency }) {
  return `${currency.title} ${title.toLowerCase()}`;
}

function barFigure(bar, legend) {
  const { whole, uncertainty, parts, note, currency } = bar;
  return element(
    "figure",
    { className: "bar" },
    element("figcaption", {}, element("span", { className: "strong" }, barTitle(bar)), element("span", { className: "number muted" }, `${currency.format(whole, uncertainty)} · ${printable(note)}`)),
    element("span", { className: "split tall" }, ...legend.filter(({ key }) => parts.has(key)).map((part) => barPiece(part, bar))),
  );
}

/** Return a piece with its name in it, which a piece too narrow for it does not show. */
function barPiece({ key, color }, { whole, parts, currency }) {
  const amount = parts.get(key);
  const piece = element("span", { "data-tip": `${formatName(key)}: ${currency.exact(amount)}, ${formatShare(amount, whole)}` }, "\u200b", element("span", { className: "piece-name" }, formatName(key)));
  Object.assign(piece.style, { width: `${(100 * amount) / whole}%`, background: color, color: readableOn(color) });
  return piece;
}

/** Return what a part takes of each bar; empty where a bar has no such part. */
function partRow({ key, color }, bars) {
  const cells = bars.map(({ parts, whole, currency }) =>
    parts.has(key) ? [amountElement(parts.get(key), currency), element("span", { className: "number muted part-share" }, formatShare(parts.get(key), whole))] : [],
  );
  return element("tr", {}, element("th", { scope: "row" }, swatch(color), term(formatName(key), `phase.${key}`)), ...cells.map((cell) => element("td", { className: "column-amount" }, ...cell)));
}

registerSection("bars", drawBars);
