// Energy windows: joules between two moments, from tick to tick of the GPU's counter.

/** Show the windows of `view`; the section is away where there are none. */
function drawWindows(view) {
  byId("windows-section").hidden = !view.windows.length;
  byId("windows-body").replaceChildren(...view.windows.map(windowRow));
}

function windowRow(row) {
  const seconds = (row.end - row.start) / 1e9;
  const joules = row.energy_j === null ? element("span", { className: "muted" }, "below the counter's resolution") : amountElement(row.energy_j, { format: formatJoules, exact: (joules_) => `${joules_} J, ${row.ticks} ticks` });
  const cells = [
    element("td", { className: "column-amount" }, element("span", { className: "number" }, row.start === 0 ? "0 s" : formatNs(row.start))),
    element("td", { className: "column-amount" }, element("span", { className: "number" }, formatNs(row.end - row.start))),
    element("td", { className: "column-amount" }, joules),
    element("td", { className: "column-amount" }, element("span", { className: "number" }, row.uncertainty_j === null || row.energy_j === null ? "" : formatUncertainty(row.energy_j, row.uncertainty_j))),
    element("td", { className: "column-amount" }, element("span", { className: "number" }, row.energy_j === null || !seconds ? "" : formatWatts(row.energy_j / seconds))),
    element("td", { className: "column-amount" }, element("span", { className: "number" }, row.throttled_ns ? formatNs(row.throttled_ns) : "")),
  ];
  return element("tr", {}, element("th", { scope: "row" }, printable(row.name) || "whole command"), ...cells);
}

registerSection("windows", drawWindows);
