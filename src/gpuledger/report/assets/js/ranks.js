// Several ranks or devices: one is looked at, all stand side by side.

/** Return "rank 1 · cuda:0". */
function viewLabel(view) {
  return `rank ${view.rank} · ${view.device_idx < 0 ? "cpu" : `cuda:${view.device_idx}`}`;
}

/** Show the choice of ranks, and their peaks beside each other where there are several. */
function drawRanks(store) {
  const several = REPORT.views.length > 1;
  byId("ranks-table").hidden = !several || REPORT.views[0].kind === "card";
  byId("ranks-section").hidden = !several && !REPORT.rank_set;
  byId("view-choice").hidden = !several;
  drawRankSet(store);
  if (!several) return;
  byId("view").replaceChildren(...REPORT.views.map((view, number) => element("option", { value: String(number) }, viewLabel(view))));
  byId("view").value = String(shownView(store.state));
  const most = Math.max(...REPORT.views.map(peakBytes));
  byId("ranks-body").replaceChildren(...REPORT.views.map((view, number) => rankRow(store, view, number, most)));
  const all = REPORT.rank_set?.lines.map(([rank, device_idx, , bytes]) => ({ rank, device_idx, bytes }));
  byId("ranks-caption").textContent = imbalance(all ?? REPORT.views.map((view) => ({ ...view, bytes: peakBytes(view) })));
}

/** Return the highest bytes that a view shows: allocated in the recorded steps, or in use on a watched GPU. */
function peakBytes({ kind, summary }) {
  return kind === "card" ? summary.peak_used_bytes : summary.recorded_peak_allocated_bytes;
}

/** Return the number of the view that the state asks for; without one, of the first one with the highest peak. */
function shownView(state) {
  if (state.view !== "" && REPORT.views[Number(state.view)]) return Number(state.view);
  const peaks = REPORT.views.map((view) => (view.kind === REPORT.views[0].kind ? peakBytes(view) : -1));
  return peaks.indexOf(Math.max(...peaks));
}

function rankRow(store, view, number, most) {
  const { summary } = view;
  const row = element(
    "tr",
    { "aria-current": number === shownView(store.state) ? "true" : null },
    element("th", { scope: "row" }, element("button", { type: "button", className: "link", onclick: () => store.set({ view: String(number) }) }, viewLabel(view))),
    element("td", { className: "column-bytes" }, bytesElement(peakBytes(view))),
    element("td", { className: "column-bar" }, splitBar([{ amount: peakBytes(view), color: "var(--accent)" }], most)),
    element("td", { className: "column-bytes" }, bytesElement(view.kind === "card" ? peakBytes(view) : summary.recorded_peak_reserved_bytes)),
    element("td", { className: "column-bytes" }, element("span", { className: "number" }, formatNs(summary.step_time.median_ns))),
    element("td", {}, `${placeOf(view.instants[view.peak])}`),
  );
  return row;
}

/** Return the sentence that names how far apart the peaks of devices are. */
function imbalance(devices) {
  const peaks = devices.map(({ bytes }) => bytes);
  const most = peaks.indexOf(Math.max(...peaks));
  const least = peaks.indexOf(Math.min(...peaks));
  const mean = peaks.reduce((sum, peak) => sum + peak, 0) / peaks.length;
  if (peaks[most] === peaks[least]) return `All ${devices.length} peaks are equal: ${formatBytes(peaks[most])}.`;
  return (
    `Highest ${formatBytes(peaks[most])} (${viewLabel(devices[most])}), lowest ${formatBytes(peaks[least])} (${viewLabel(devices[least])}), ` +
    `mean ${formatBytes(Math.round(mean))}: the largest is ${formatShare(peaks[most] - mean, mean)} above the mean.`
  );
}

registerSection("ranks", (view, store) => drawRanks(store));
