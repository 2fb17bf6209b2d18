// What was recorded, by what, and what a reader should know of it.

/** Show the notes, the provenance and the checks of `view`. */
function drawAbout(view) {
  const notes = view.notes.map((note) => element("li", {}, printable(note)));
  byId("notes").replaceChildren(...(notes.length ? notes : [element("li", { className: "muted" }, "Nothing to note.")]));
  const facts = [...REPORT.facts, ...view.facts].flatMap(([name, value]) => [element("dt", {}, printable(name)), element("dd", {}, printable(value))]);
  byId("facts").replaceChildren(...facts);
  byId("checks").replaceChildren(...checkRows(view));
  byId("checks-section").hidden = !view.checks.length;
  const wrong = view.checks.filter((check) => !check.ok).length;
  byId("checks-summary").textContent = `Checks against the allocator's own counters: ${wrong ? `${wrong} of ${view.checks.length} differ` : `all ${view.checks.length} equal`}`;
  byId("checks-summary").className = wrong ? "bad" : "";
  byId("checks-details").open = wrong > 0;
  drawAlarm(view);
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

/** Say above everything else that memory ran out, where it did. */
function drawAlarm(view) {
  byId("alarm").hidden = !view.oom.length;
  byId("alarm").replaceChildren(...view.oom.map((one) => element("p", {}, oomSentence(one))));
}

function oomSentence(one) {
  const parts = [`Out of memory: ${formatBytes(one.tried_bytes)} could not be allocated`];
  if (one.free_bytes !== null) parts.push(`the card had ${formatBytes(one.free_bytes)} free`);
  if (one.largest_free_bytes !== null) parts.push(`the largest free block held ${formatBytes(one.largest_free_bytes)}`);
  return `${parts.join("; ")}.`;
}

/** Show every definition, for reading and for print. */
function drawDefinitions() {
  const entries = Object.values(REPORT.definitions).sort((a, b) => a.title.localeCompare(b.title, "en"));
  byId("definitions").replaceChildren(...entries.flatMap(({ title, meaning, source }) => [
    element("dt", {}, title),
    element("dd", {}, `${meaning}.`, source ? element("span", { className: "muted" }, ` Source: ${source}.`) : null),
  ]));
}
