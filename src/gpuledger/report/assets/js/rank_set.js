// All ranks together: what differs between them, and one small bar for each rank.

/** Show the sentences about all ranks, and a bar of categories for each. A bar with a view of its own is a button. */
function drawRankSet(store) {
  const ranks = REPORT.rank_set;
  byId("rank-entries").hidden = byId("rank-multiples").hidden = !ranks;
  if (!ranks) return;
  byId("rank-entries").replaceChildren(
    ...ranks.entries.flatMap(([label, texts]) => [element("dt", {}, label), ...texts.map((text) => element("dd", {}, text))]),
  );
  const most = Math.max(...ranks.lines.map(([, , , bytes]) => bytes));
  byId("rank-multiples").replaceChildren(...ranks.lines.map((line, place) => rankBar(store, ranks, line, place, most)));
}

/** Return the bar of one rank: its categories at its own peak, as wide as its share of the highest peak. */
function rankBar(store, ranks, [rank, device, coordinate, bytes], place, most) {
  const parts = ranks.categories.map(({ color }, row) => ({ amount: ranks.bytes[row][place], color }));
  const largest = ranks.categories
    .map(({ name }, row) => [name, ranks.bytes[row][place]])
    .sort((one, other) => other[1] - one[1])
    .slice(0, 4)
    .map(([name, amount]) => `${formatName(name)} ${formatBytes(amount)}`);
  const view = REPORT.views.findIndex((one) => one.rank === rank && one.device_idx === device);
  const label = `rank ${rank}${ranks.outliers.includes(rank) ? " !" : ""}`;
  return element(
    view < 0 ? "div" : "button",
    {
      className: "rank-bar",
      type: view < 0 ? null : "button",
      "aria-pressed": view < 0 ? null : String(String(view) === store.state.view),
      "data-tip": [coordinate, formatBytes(bytes), ...largest].filter(Boolean).join(", "),
      onclick: view < 0 ? null : () => store.set({ view: String(view) }),
    },
    element("span", {}, label),
    splitBar(parts, most),
  );
}
