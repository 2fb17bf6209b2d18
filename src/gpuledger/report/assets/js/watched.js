// A card that was only watched: no breakdown, so the page shows its curve, its watts and its figures.

/** Fill the cards of a watched card. */
function drawWatchedCards(view, state) {
  const { figures: one, summary } = view;
  const here = formatState({ ...state, zoom: "" });
  const start = one.baseline_bytes ? `above ${formatBytes(one.baseline_bytes)} at the start` : "";
  const cards = [
    {
      key: "peak_bytes", title: "Peak", value: formatBytes(one.peak_bytes), exact: formatExact(one.peak_bytes), definition: "peak_bytes", href: formatState({ ...state, zoom: "", at: "peak" }),
      lines: [start, summary.capacity_bytes ? `${formatShare(summary.peak_used_bytes, summary.capacity_bytes)} of ${formatBytes(summary.capacity_bytes)} in use` : ""],
    },
    { key: "mean_active_bytes", title: "Mean while active", value: one.mean_active_bytes === null ? MISSING : formatBytes(Math.round(one.mean_active_bytes)), exact: formatExact(Math.round(one.mean_active_bytes || 0)), definition: "mean_active_bytes", href: here, lines: [one.active_s === null ? "" : `${formatNs(one.active_s * 1e9)} above the first sample`] },
    { key: "duration_s", title: "Duration", value: one.duration_s === null ? MISSING : formatNs(one.duration_s * 1e9), exact: `${one.duration_s} s`, definition: "duration_s", href: here, lines: [`${groupDigits(one.samples)} samples`, one.exit_status ? `ended with status ${one.exit_status}` : ""] },
    { key: "energy_j", title: "Energy", value: formatJoules(one.energy_j), exact: one.energy_j === null ? "not measured" : `${one.energy_j} J`, definition: "energy_j", href: here, lines: [one.energy_uncertainty_j === null ? "" : formatUncertainty(one.energy_j, one.energy_uncertainty_j)] },
    { key: "mean_power_w", title: "Mean power", value: formatWatts(one.mean_power_w), exact: `${one.mean_power_w} W`, definition: "power_average", href: here, lines: [one.peak_power_w === null ? "" : `at most ${formatWatts(one.peak_power_w)}`, one.throttled_s ? `throttled for ${formatNs(one.throttled_s * 1e9)}` : ""] },
  ];
  const known = cards.filter(({ value, key }) => value !== MISSING || key === "peak_bytes").map(card);
  byId("cards").dataset.count = String(known.length);
  byId("cards").replaceChildren(...known);
}
