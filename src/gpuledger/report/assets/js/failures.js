// Out-of-memory errors: why, what would have helped, and segments with their blocks in the order of addresses.

/** Show the errors and the growth of `view`; the section is away where there are none. */
function drawFailures(view) {
  const topics = [view.failures.length ? "out of memory" : "", view.growth.length ? "growth" : ""].filter(Boolean).join(" and ");
  byId("failures-section").hidden = !topics;
  if (topics) byId("failures-section").querySelector("h2").textContent = sentence(topics).slice(0, -1);
  const growth = view.growth.map((text) => element("p", {}, `Memory grows: ${printable(text)}.`));
  byId("failures").replaceChildren(...growth, ...view.failures.map(failureElement));
}

function failureElement(failure) {
  const remedies = failure.remedies.map((text) => element("li", {}, printable(text)));
  return element(
    "div",
    {},
    element("p", { className: "strong" }, sentence(failure.cause)),
    ...[failure.request, ...failure.memory].map((text) => element("p", {}, sentence(text))),
    lastSteps(failure.last_steps),
    ...(remedies.length ? [element("p", {}, "To fit the request:"), element("ul", {}, ...remedies)] : []),
    failure.segments.length ? memoryMap(failure) : null,
  );
}

/** Return a title, a hint, what is between, and a table that scrolls. */
function titledTable(title, hint, table, ...between) {
  const heading = [element("p", { className: "strong" }, title), element("p", { className: "hint" }, hint)];
  return element("div", {}, ...heading, ...between, element("div", { className: "scroll" }, table));
}

/** Return the memory at the end of the steps before the error; null if it is not known. */
function lastSteps([titles, rows]) {
  if (titles.length < 2) return null;
  const row = (tag, texts) => element("tr", {}, ...texts.map((text) => element(tag, { className: "column-amount" }, text)));
  const body = element("tbody", {}, ...rows.map((texts) => row("td", texts)));
  const table = element("table", { className: ["ledger", "last-steps"].join(" ") }, element("thead", {}, row("th", titles)), body);
  return titledTable("Last steps", "Memory at the end of the steps before the error.", table);
}

/** Return a row per segment with its blocks in the order of their addresses, and what the colours mean. */
function memoryMap(failure) {
  const largest = Math.max(...failure.segments.map((one) => one.bytes));
  const others = failure.others ? ` ${failure.others.toLocaleString("en")} segments with less free memory are not shown.` : "";
  const body = element("tbody", {}, ...failure.segments.map((one) => segmentRow(one, largest)));
  return titledTable(
    "Segments and their blocks",
    `Segments in the order of their addresses, and their blocks at the error.${others}`,
    element("table", { className: ["ledger", "memory-map"].join(" ") }, body),
    element("div", { className: "legend" }, ...failure.totals.map(mapLegendEntry)),
  );
}

function mapLegendEntry([what, bytes, color]) {
  return element(
    "span",
    { className: "legend-entry" },
    swatch(color),
    element("span", { className: "legend-name" }, what),
    element("span", { className: "legend-value" }, bytesElement(bytes)),
  );
}

function segmentRow(one, largest) {
  const words = one.totals.map(([what, bytes]) => `${what} ${formatBytes(bytes)}`);
  return element(
    "tr",
    { "data-tip": words.join(", ") },
    element("th", { scope: "row" }, one.pool ? `${one.address} (private pool)` : one.address),
    element("td", { className: "column-amount" }, bytesElement(one.bytes)),
    element("td", { className: "column-map" }, splitBar(one.parts.map(([amount, color]) => ({ amount, color })), largest)),
  );
}

registerSection("failures", drawFailures);
