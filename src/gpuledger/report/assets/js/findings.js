// What would lower the peak. Each finding is a link that sets the views, beside the command that shows the same.

/** Show the findings of `view`; the section is away where there are none. */
function drawFindings(view, state) {
  byId("findings-section").hidden = !view.findings.length;
  byId("findings").replaceChildren(...view.findings.map((finding) => findingItem(finding, state)));
}

function findingItem(finding, state) {
  const href = formatState({ ...state, metric: "bytes", at: "peak", zoom: "", node: "0", hide: "", q: finding.search });
  return element(
    "li",
    {},
    element("a", { className: "finding-title", href, onclick: () => byId("instant-section").scrollIntoView() }, printable(finding.title)),
    element("span", { className: "number strong", "data-tip": formatExact(finding.saving) }, `saves ${finding.at_least ? "at most" : "about"} ${formatBytes(finding.saving)}`),
    element("span", { className: "muted" }, ` of ${printable(finding.saved_from)}${peakThen(finding)}`),
    element("p", {}, `${sentence(finding.evidence)} ${sentence(finding.advice)}`),
    element("code", { className: "path" }, printable(finding.command)),
  );
}

/** Return what the peak would then be, and whether that fits; "" where the saving is not one of the peak. */
function peakThen({ peak, at_least: atLeast, fits, fit }) {
  if (peak === null) return "";
  const verdict = fits === null ? "" : `, ${!fits ? "does not fit" : atLeast ? "may fit" : "fits"} in ${formatBytes(fit)}`;
  return `; peak then ${atLeast ? "at least " : ""}${formatBytes(peak)}${verdict}`;
}

/** Return words as a sentence. Code at its beginning, such as optimizer.zero_grad(), stays as it is. */
function sentence(words) {
  const text = printable(words);
  const isCode = /^\S*[._(=]\S/.test(text);
  return `${isCode ? text : text.charAt(0).toUpperCase() + text.slice(1)}.`;
}

registerSection("findings", (view, store) => drawFindings(view, store.state));
