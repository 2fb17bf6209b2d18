// One step as bars cut into parts: by phase, by kind of work, in time and in energy. Never pies.

/** Show the bars of `view`; the section is away where no step was taken apart. */
function drawBars(view) {
  const bars = view.bars.map((bar) => ({ ...bar, currency: currencyOf(view, bar.currency) }));
  byId("bars-section").querySelector("h2").textContent = isOfProgram(view) ? "Time of the program" : "Time and energy of one step";
  byId("bars-section").hidden = !bars.length;
  byId("bars").replaceChildren(...bars.map(barFigure));
}

function barFigure({ title, whole, parts, note, currency }) {
  const shown = parts.filter(([, amount]) => amount > 0).map(([name, amount]) => ({ name, amount, color: barColor(name) }));
  return element(
    "figure",
    { className: "bar" },
    element("figcaption", {}, element("span", { className: "strong" }, `${currency.title} ${title.toLowerCase()}`), element("span", { className: "number muted" }, `${currency.format(whole)} · ${printable(note)}`)),
    element("span", { className: "split tall" }, ...shown.map((part) => barPiece(part, whole, currency))),
    element("ul", { className: "bar-parts" }, ...shown.map((part) => barEntry(part, whole, currency))),
  );
}

function barPiece({ name, amount, color }, whole, currency) {
  const piece = element("span", { "data-tip": `${formatName(name)}: ${currency.exact(amount)}, ${formatShare(amount, whole)}` });
  piece.style.width = `${(100 * amount) / whole}%`;
  piece.style.background = color;
  return piece;
}

function barEntry({ name, amount, color }, whole, currency) {
  return element("li", {}, swatch(color), element("span", {}, term(formatName(name), `phase.${name}`)), amountElement(amount, currency), element("span", { className: "number muted" }, formatShare(amount, whole)));
}

function barColor(name) {
  return REPORT.part_colors[name] || REPORT.part_colors.other;
}

registerSection("bars", drawBars);
