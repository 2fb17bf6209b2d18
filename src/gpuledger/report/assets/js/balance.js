// The balance as a waterfall: each line begins where the one before it ended, and unaccounted memory is a line.

/** Show the balance of `view`. */
function drawBalance(view) {
  const { balance } = view;
  const place = placeLines(balance);
  const used = wholeOf(view);
  const card = { bytes: balance.total_bytes, name: "GPU" };
  const rows = balance.lines.map((line) => balanceRow(line, place.get(line), line.level === 0 ? card : used));
  byId("balance-body").replaceChildren(...rows);
  byId("balance-section").querySelector("h2").textContent = view.device_idx < 0 ? "Memory balance" : "GPU memory balance";
  byId("balance-caption").textContent = balanceCaption(view);
  byId("balance-notes").replaceChildren(...balance.notes.map((note) => element("li", {}, printable(note))));
}

/** Return what the lines below the GPU's own are shares of: the used bytes, or reserved where the GPU was not read, or allocated on a CPU. */
function wholeOf(view) {
  const { balance } = view;
  if (balance.used_bytes !== null) return { bytes: balance.used_bytes, name: "used" };
  const reserved = balance.lines.filter((line) => line.level === 1).reduce((sum, line) => sum + (line.bytes || 0), 0);
  return { bytes: reserved, name: view.device_idx < 0 ? "allocated" : "reserved" };
}

function balanceCaption(view) {
  const { balance } = view;
  const place = placeOf(view.instants[view.peak]);
  const where = `${printable(balance.device_name) || "the device"} at the peak${place ? ` (${place})` : ""}`;
  if (view.device_idx < 0) return `${where}.`;
  if (balance.used_bytes === null) return `${where}. GPU memory was not sampled in this run.`;
  return `${where}: ${formatBytes(balance.used_bytes)} used${balance.total_bytes ? ` of ${formatBytes(balance.total_bytes)}` : ""}${balance.process_bytes === null ? "" : `, ${formatBytes(balance.process_bytes)} of it by this process`}.`;
}

/** Return line -> where its bar begins: the parts of `used` follow one another, those of `allocated` lie inside it. */
function placeLines(balance) {
  const place = new Map();
  const at = { 1: 0, 2: 0 };
  for (const line of balance.lines) {
    if (line.level === 0) place.set(line, line.name === "used" || line.bytes === null ? 0 : null);
    if (line.level !== 1) continue;
    place.set(line, at[1]);
    if (line.name === "allocated") at[2] = at[1];
    at[1] += line.bytes || 0;
  }
  for (const line of balance.lines.filter((one) => one.level === 2)) {
    place.set(line, at[2]);
    at[2] += line.bytes;
  }
  return stackTop(balance, place);
}

/** Place `driver` and `unused` after `used`: all three make up the GPU. */
function stackTop(balance, place) {
  let end = balance.used_bytes || 0;
  for (const line of balance.lines.filter((one) => one.level === 0 && one.name !== "used")) {
    place.set(line, end);
    end += line.bytes || 0;
  }
  return place;
}

function balanceRow(line, start, whole) {
  const known = line.bytes !== null;
  const category = line.level === 2 ? REPORT.categories.find((one) => one.key === line.name) : null;
  const definition = category ? `category.${line.name}` : line.name;
  return element(
    "tr",
    { className: `level-${line.level}${line.name === "unaccounted" ? " unaccounted" : ""}` },
    element("th", { scope: "row" }, category ? swatch(category.color) : null, term(formatName(line.name), definition)),
    element("td", { className: "column-bytes" }, known ? bytesElement(line.bytes) : element("span", { className: "muted" }, "not measured")),
    element("td", { className: "column-share" }, element("span", { className: "number" }, whole.bytes && known ? `${formatShare(line.bytes, whole.bytes)} of ${whole.name}` : "")),
    element("td", { className: "column-bar" }, line.bytes && whole.bytes ? waterfallBar(line, start, whole.bytes, category) : null),
    element("td", { className: "column-source" }, [line.source, line.note].filter(Boolean).map(printable).join(" · ")),
  );
}

function waterfallBar(line, start, scale, category) {
  const bar = element("span", { className: "waterfall", "aria-hidden": "true" });
  const piece = element("span", { className: `piece piece-${line.name}` });
  const from = Math.max(0, Math.min(start, start + line.bytes));
  piece.style.left = `min(${(100 * from) / scale}%, 100% - 2px)`;
  piece.style.width = `${(100 * Math.abs(line.bytes)) / scale}%`;
  if (category) piece.style.background = category.color;
  bar.append(piece);
  return bar;
}

registerSection("balance", drawBalance);
