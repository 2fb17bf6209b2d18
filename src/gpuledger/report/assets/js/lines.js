// Source lines: a flame graph of call paths at the peak, from the outermost frame down, and a table of lines.

const FLAME_ROW = 22;
const FLAME_LEAST = 0.001;

/** Show the lines of `view`; the section is hidden if nothing has one. */
function drawLines(view) {
  const { flame, lines } = view;
  byId("lines-section").hidden = !lines.label.length;
  if (!lines.label.length) return;
  const children = flame.parent.map(() => []);
  flame.parent.forEach((parent, node) => { if (parent >= 0) children[parent].push(node); });
  drawFlame({ ...flame, children }, 0);
  const whole = view.instants[view.peak].allocated;
  byId("lines-body").replaceChildren(...lines.label.map((label, i) => lineRow(lines, i, label, whole)));
  for (const [name, amounts] of [["time", lines.time_ns], ["energy", lines.energy_j]]) {
    const unknown = amounts.every((amount) => amount === null);
    byId("lines-section").querySelectorAll(`.column-${name}`).forEach((cell) => { cell.hidden = unknown; });
  }
  byId("lines-section").querySelector("th.column-time").textContent = isOfProgram(view) ? "Time" : "Time of a step";
  byId("lines-note").textContent = lines.more ? `${groupDigits(lines.more)} more lines` : "";
}

function lineRow(lines, i, label, whole) {
  const parts = lines.parts[i].map(([category, amount]) => ({ amount, color: REPORT.categories[category].color }));
  const cells = [
    ["name", element("span", { className: "path" }, printable(label))],
    ["amount", bytesElement(lines.bytes[i])],
    ["share", element("span", { className: "number" }, formatShare(lines.bytes[i], whole))],
    ["time", element("span", { className: "number" }, lines.time_ns[i] ? formatNs(lines.time_ns[i]) : "–")],
    ["energy", element("span", { className: "number" }, lines.energy_j[i] ? formatJoules(lines.energy_j[i]) : "–")],
    ["count", element("span", { className: "number" }, groupDigits(lines.blocks[i]))],
    ["split", splitBar(parts, Math.max(...lines.bytes))],
  ];
  return element("tr", {}, ...cells.map(([column, cell]) => element("td", { className: `column-${column}` }, cell)));
}

/** Draw what is below `focus` at full width, under the frames that lead to it. */
function drawFlame(flame, focus) {
  const boxes = [];
  const above = [];
  for (let node = focus; node >= 0; node = flame.parent[node]) above.unshift(node);
  above.forEach((node, row) => boxes.push(flameBox(flame, node, row, 0, 1)));
  let rows = above.length;
  const place = (node, row, from) => {
    let at = from;
    for (const child of flame.children[node]) {
      const share = flame.bytes[child] / flame.bytes[focus];
      if (share >= FLAME_LEAST) {
        boxes.push(flameBox(flame, child, row, at, share));
        rows = Math.max(rows, row + 1);
        place(child, row + 1, at);
      }
      at += share;
    }
  };
  place(focus, above.length, 0);
  byId("flame").style.height = `${rows * FLAME_ROW}px`;
  byId("flame").replaceChildren(...boxes);
  byId("flame-trail").textContent = focus ? `${flameName(flame, focus)} · ${formatBytes(flame.bytes[focus])}` : "Select a frame to enlarge it.";
}

function flameBox(flame, node, row, from, share) {
  const color = node ? REPORT.categories[flame.category[node]].color : cssColor("box");
  const shareText = formatShare(flame.bytes[node], flame.bytes[0]);
  const tip = `${flameName(flame, node)}: ${formatExact(flame.bytes[node])}, ${shareText}, mostly ${formatName(REPORT.categories[flame.category[node]].key)}`;
  const box = element("button", { type: "button", className: "flame-box", "data-tip": tip, onclick: () => { hideTip(); drawFlame(flame, node); } }, share > 0.02 ? flameName(flame, node) : "");
  Object.assign(box.style, { left: `${100 * from}%`, width: `${100 * share}%`, top: `${row * FLAME_ROW}px`, background: color, color: node ? readableOn(color) : cssColor("ink") });
  if (share <= 0.02) box.setAttribute("aria-label", tip);
  return box;
}

function flameName(flame, node) {
  return node ? printable([flame.function[node], flame.place[node]].filter(Boolean).join("  ")) : "All allocations";
}

registerSection("lines", drawLines);
