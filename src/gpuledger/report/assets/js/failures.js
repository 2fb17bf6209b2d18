// Out-of-memory errors: why, what would have helped, and segments with their blocks in the order of addresses.

/** Show the errors and the growth of `view`; the section is away where there are none. */
function drawFailures(view) {
  byId("failures-section").hidden = !(view.failures.length || view.growth.length);
  const growth = view.growth.map((text) => element("p", {}, `Memory grows: ${printable(text)}.`));
  byId("failures").replaceChildren(...growth, ...view.failures.map(failureElement));
}

function failureElement(failure) {
  const remedies = failure.remedies.map((text) => element("li", {}, printable(text)));
  return element(
    "div",
    {},
    element("p", { className: "strong" }, `${printable(failure.cause)}.`),
    element("p", {}, printable(failure.request)),
    element("p", {}, "This request:"),
    element("ul", {}, ...remedies),
    segmentTable(failure),
    failure.others ? element("p", { className: "hint" }, `${failure.others} segments with less free memory are not shown.`) : null,
  );
}

/** Return a row per segment: its address, its size, and a bar of its blocks. */
function segmentTable({ segments }) {
  const largest = Math.max(...segments.map((one) => one.bytes), 1);
  const rows = segments.map((one) => {
    const bar = splitBar(one.parts.map(([, amount, color]) => ({ amount, color })), largest);
    const words = one.parts.map(([what, amount]) => `${what} ${formatBytes(amount)}`);
    const name = one.pool ? `${one.address} (private pool)` : one.address;
    return element(
      "tr",
      { "data-tip": words.slice(0, 12).join(", ") },
      element("th", { scope: "row" }, name),
      element("td", { className: "column-amount" }, bytesElement(one.bytes)),
      element("td", {}, bar),
    );
  });
  return element("div", { className: "scroll" }, element("table", { className: "ledger" }, element("tbody", {}, ...rows)));
}

registerSection("failures", drawFailures);
