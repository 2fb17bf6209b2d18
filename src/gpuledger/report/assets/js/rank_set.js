// All ranks together: what differs between them, and one small bar for each rank.

/** Show the sentences about all ranks, and a bar of categories for each. A bar with a view of its own is a button. */
function drawRankSet(store) {
  const ranks = REPORT.rank_set;
  for (const id of ["rank-entries", "rank-key", "rank-multiples", "rank-colors"]) byId(id).hidden = !ranks;
  if (!ranks) return;
  byId("rank-entries").replaceChildren(
    ...ranks.entries.flatMap(([label, texts]) => [element("dt", {}, label), ...texts.map((text) => element("dd", {}, text))]),
  );
  byId("rank-key").textContent = rankKey(ranks);
  byId("rank-colors").replaceChildren(
    ...ranks.categories.map(({ name, color }) => element("span", {}, swatch(color), element("span", {}, term(formatName(name), `category.${name}`)))),
  );
  const most = Math.max(...ranks.lines.map(([, , , bytes]) => bytes));
  byId("rank-multiples").replaceChildren(...ranks.lines.map((line, place) => rankBar(store, ranks, line, place, most)));
}

/** Return a sentence for each thing that the bars show. */
function rankKey(ranks) {
  const marked = ranks.outliers.length ? " An exclamation mark means that a module differs from comparable ranks." : "";
  const shown = ranks.lines.filter(([rank, device]) => viewOf(rank, device) >= 0).length;
  const all = shown === ranks.lines.length ? "Click a rank to show it." : `Click one of the ${shown} underlined ranks to show it. For another rank, use gpuledger report --rank N.`;
  return `Each bar has the categories at the peak of one rank.${marked}${shown > 1 ? ` ${all}` : ""}`;
}

/** Return the number of the view of a rank's device; -1 if it has none. */
function viewOf(rank, device) {
  return REPORT.views.findIndex((one) => one.rank === rank && one.device_idx === device);
}

/** Return the bar of one rank: its categories at its own peak, as wide as its share of the highest peak. */
function rankBar(store, ranks, [rank, device, coordinate, bytes], place, most) {
  const parts = ranks.categories.map(({ color }, row) => ({ amount: ranks.bytes[row][place], color }));
  const largest = ranks.categories
    .map(({ name }, row) => [name, ranks.bytes[row][place]])
    .sort((one, other) => other[1] - one[1])
    .slice(0, 4)
    .map(([name, amount]) => `${formatName(name)} ${formatBytes(amount)}`);
  const view = viewOf(rank, device);
  const name = `rank ${rank}${ranks.outliers.includes(rank) ? " !" : ""}`;
  return element(
    view < 0 ? "div" : "button",
    {
      className: "rank-bar",
      type: view < 0 ? null : "button",
      "aria-pressed": view < 0 ? null : String(view === shownView(store.state)),
      "data-tip": [coordinate, formatBytes(bytes), ...largest].filter(Boolean).join(", "),
      onclick: view < 0 ? null : () => store.set({ view: String(view) }),
    },
    element("span", { className: "rank-label" }, element("span", { className: "rank-name" }, name), element("span", { className: "number" }, formatBytes(bytes))),
    splitBar(parts, most),
  );
}
