// Compiled code: the compile time, its regions and graph breaks, and the longest kernels of a step.

const COMPILED_PARTS_SHOWN = 4;

/** Show the compiled code of `view`; the section is hidden if nothing was compiled. */
function drawCompiled(view) {
  const { summary, lines, kernels, step_ns: stepNs, more, note } = view.compiled;
  byId("compiled-section").hidden = !summary.length && !kernels.length;
  byId("compiled-summary").textContent = summary.map((text) => `Compile time: ${text}.`).join("");
  byId("compiled-lines").replaceChildren(...lines.map((line) => element("li", {}, printable(line))));
  byId("compiled-table").hidden = !kernels.length;
  byId("compiled-body").replaceChildren(...kernels.map((kernel) => compiledRow(kernel, stepNs)));
  const others = more ? [`${groupDigits(more)} more kernels.`] : [];
  byId("compiled-note").textContent = [...others, note].filter(Boolean).join(" ");
}

function compiledRow(kernel, stepNs) {
  const cells = [
    ["name", element("span", { className: "path" }, printable(kernel.name))],
    ["text", compiledParts(kernel.modules)],
    ["text", compiledParts(kernel.nodes)],
    ["text", compiledParts(kernel.lines)],
    ["amount", kernel.bytes ? bytesElement(kernel.bytes) : "–"],
    ["time", element("span", { className: "number" }, formatNs(kernel.time_ns))],
    ["share", element("span", { className: "number" }, formatShare(kernel.time_ns, stepNs))],
  ];
  return element("tr", {}, ...cells.map(([column, cell]) => element("td", { className: `column-${column}` }, cell)));
}

/** Return the first parts as text, with all of them as the tip. */
function compiledParts(parts) {
  const shown = parts.slice(0, COMPILED_PARTS_SHOWN).map(printable).join(", ");
  const rest = parts.length - COMPILED_PARTS_SHOWN;
  const tip = rest > 0 ? parts.map(printable).join(", ") : null;
  return element("span", { className: "path", "data-tip": tip }, rest > 0 ? `${shown}, … ${rest} more` : shown || "–");
}

registerSection("compiled", drawCompiled);
