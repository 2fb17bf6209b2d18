// What was recorded and by what.

/** Show the provenance and the checks of `view`. */
function drawAbout(view) {
  const facts = [...REPORT.facts, ...view.facts].flatMap(([name, value]) => [element("dt", {}, printable(name)), element("dd", {}, printable(value))]);
  byId("facts").replaceChildren(...facts);
  byId("checks").replaceChildren(...checkRows(view));
  byId("checks-section").hidden = !view.checks.length;
  const wrong = view.checks.filter((check) => !check.ok).length;
  byId("checks-summary").textContent = `Checks against the allocator's counters: ${wrong ? `${wrong} of ${view.checks.length} failed` : `all ${view.checks.length} passed`}`;
  byId("checks-summary").className = wrong ? "bad" : "";
  byId("checks-details").open = wrong > 0;
}

function checkRows(view) {
  return view.checks.map((check) => element(
    "tr",
    {},
    element("th", { scope: "row" }, printable(formatName(check.name))),
    element("td", { className: "column-bytes" }, checkValue(check.expected)),
    element("td", { className: "column-bytes" }, checkValue(check.found)),
    element("td", { className: check.ok ? "good" : "bad" }, check.ok ? "equal" : "differs"),
  ));
}

function checkValue(text) {
  return /^-?\d+$/.test(text) ? groupDigits(text) : printable(text);
}

/** Show every definition, for reading and for print. */
function drawDefinitions() {
  const entries = Object.values(REPORT.definitions).sort((a, b) => a.title.localeCompare(b.title, "en"));
  byId("definitions").replaceChildren(...entries.flatMap(({ title, meaning, source }) => [
    element("dt", {}, title),
    element("dd", {}, `${meaning}.`, source ? element("span", { className: "muted" }, ` Source: ${source}.`) : null),
  ]));
}

registerSection("about", drawAbout);
