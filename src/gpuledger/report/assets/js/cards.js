// The header cards. Each is a link: its address holds the state in which the views show what the card says.

/** Fill the cards of `view`. */
function drawCards(view, state) {
  if (view.kind === "card") return drawWatchedCards(view, state);
  const base = { ...state, zoom: "", node: "0", hide: "", sort: "" };
  const makers = [peakCard, reservedCard, holderCard, stepCard, busyCard, energyCard, balanceCard, notesCard];
  const cards = makers.map((make) => make(view, base)).filter(Boolean);
  byId("cards").dataset.count = String(cards.length);
  return byId("cards").replaceChildren(...cards);
}

function card({ key, title, value, exact, lines, href, jump, definition }) {
  const link = element(
    "a",
    { className: "card", href, "data-card": key, "data-define": definition, onclick: jump ? () => byId(jump).scrollIntoView() : null },
    element("span", { className: "card-title" }, title),
    element("span", { className: "card-value number", "data-tip": exact, "data-value": exact }, value),
    ...lines.filter(Boolean).map((line) => element("span", { className: "card-line" }, line)),
  );
  return link;
}

function peakCard(view, base) {
  const { summary } = view;
  const share = formatShare(summary.recorded_peak_allocated_bytes, summary.capacity_bytes);
  return card({
    key: "recorded_peak_allocated_bytes",
    title: "Recorded peak allocated",
    value: formatBytes(summary.recorded_peak_allocated_bytes),
    exact: formatExact(summary.recorded_peak_allocated_bytes),
    lines: [
      share ? `${share} of ${formatBytes(summary.capacity_bytes)}` : null,
      placeOf(view.instants[view.peak]),
      view.instants[view.peak].module ? printable(view.instants[view.peak].module) : "(outside modules)",
    ],
    href: formatState({ ...base, metric: "bytes", at: "peak", scale: "data" }),
    definition: "recorded_peak_allocated_bytes",
  });
}

/** Return "step 2 · backward"; "" where nothing is known of steps. */
function placeOf(instant) {
  if (!instant.phase) return instant.step > 0 ? `step ${instant.step}` : "";
  return `${instant.step > 0 ? `step ${instant.step}` : "before step 1"} · ${formatName(instant.phase)}`;
}

/** CPU tensors have no allocator of PyTorch's that reserves memory. */
function reservedCard(view, base) {
  const { summary } = view;
  if (view.device_idx < 0) return null;
  const reserved = summary.recorded_peak_reserved_bytes;
  const idle = reserved - summary.recorded_peak_allocated_bytes;
  return card({
    key: "recorded_peak_reserved_bytes",
    title: "Recorded peak reserved",
    value: formatBytes(reserved),
    exact: formatExact(reserved),
    lines: [
      summary.capacity_bytes && reserved !== null ? `${formatShare(reserved, summary.capacity_bytes)} of ${formatBytes(summary.capacity_bytes)}` : null,
      reserved === null ? "not in the file" : `${formatBytes(idle)} above allocated`,
    ],
    href: formatState({ ...base, at: "peak", scale: "capacity" }),
    definition: "recorded_peak_reserved_bytes",
  });
}

function holderCard(view, base) {
  const sums = categoriesBelow(ledgerAt(view, view.peak), 0);
  const largest = sums.indexOf(Math.max(...sums));
  const category = REPORT.categories[largest];
  return card({
    key: "largest_category",
    title: "Largest category",
    value: formatName(category.key),
    exact: formatExact(sums[largest]),
    lines: [formatBytes(sums[largest]), `${formatShare(sums[largest], view.summary.recorded_peak_allocated_bytes)} of the peak`],
    href: formatState({ ...base, metric: "bytes", at: "peak", q: category.key, group: "folded" }),
    definition: `category.${category.key}`,
  });
}

function stepCard(view, base) {
  const { step_time: time, instant } = view.summary;
  if (!time.count) return null;
  const band = view.bands.find((one) => one.kind === "step" && one.step === instant.step);
  return card({
    key: "step_time_ns",
    title: "Step time",
    value: formatNs(time.median_ns),
    exact: `${groupDigits(time.median_ns)} ns`,
    lines: [
      time.p95_ns !== null ? `median; p95 ${formatNs(time.p95_ns)}` : /mean of/.test(time.source) ? null : /^GPU/.test(time.source) ? "mean" : "median",
      time.source || null,
      ...rateLines(view),
    ],
    href: formatState({ ...base, axis: "time", zoom: band ? formatZoom(band.start, band.end) : "" }),
    definition: "step_time_ns",
  });
}

/** Return how many samples or tokens a second, where the batch or the calls of a generation are known. */
function rateLines({ rates, rank_of_several: rank }) {
  if (!rates) return [];
  const where = rank === null ? "" : ` on rank ${rank}`;
  const tokens = rates.kinds.map((kind) => `${kind.name} ${formatRate(kind.tokens_per_s)} tokens/s${where}${kind.token_energy_j === null ? "" : `, ${formatJoules(kind.token_energy_j)} a token`}`);
  return [rates.samples_per_s === null ? null : `${formatRate(rates.samples_per_s)} samples/s${where} at batch ${rates.batch}`, ...tokens];
}

/** Return the card of the time pass: how busy the card is, or what the host's operators take. */
function busyCard(view, base) {
  const { time } = view;
  if (!time) return null;
  const { step_ns: step } = time;
  const share = time.on_host || time.of_program ? "" : formatShare(time.busy_ns, step);
  const copies = time.by_kind_ns.copy ? `copies ${formatNs(time.by_kind_ns.copy)}` : null;
  const collectives = time.by_kind_ns.collective ? `collectives ${formatNs(time.by_kind_ns.collective)}` : null;
  return card({
    key: "busy",
    title: !time.on_host ? "GPU busy" : time.of_program ? "Operator time" : "Operator time per step",
    value: share || formatNs(time.on_host ? time.work_ns : time.busy_ns),
    exact: `${groupDigits(time.on_host ? time.work_ns : time.busy_ns)} ns${time.of_program ? "" : " per step"}`,
    lines: [
      time.of_program ? `of the program, ${time.on_host ? "host time, " : ""}${time.source}` : time.on_host ? `host time, ${time.source}` : `${formatNs(time.busy_ns)} of ${step === null ? "an unknown step" : `${time.of_profiled_step ? "a profiled step of " : ""}${formatNs(step)}`}`,
      [copies, collectives].filter(Boolean).join(", ") || null,
      time.idle_ns === null ? null : `${formatNs(time.idle_ns)} idle`,
    ],
    href: formatState({ ...base, metric: "time", q: "" }),
    jump: "instant-section",
    definition: time.on_host ? "work_ns" : "busy_ns",
  });
}

function energyCard(view, base) {
  const { energy } = view;
  if (!energy) return null;
  return card({
    key: "step_energy_j",
    title: "Energy per step",
    value: formatJoules(energy.step_energy_j),
    exact: `${energy.step_energy_j} J per step`,
    lines: [
      formatUncertainty(energy.step_energy_j, energy.step_uncertainty_j),
      energy.unusual_step_s === null ? null : `of a step of ${formatNs(1e9 * energy.unusual_step_s)}`,
      view.rates && view.rates.sample_energy_j !== null ? `${formatJoules(view.rates.sample_energy_j)} per sample` : null,
      energy.base_w === null ? null : `base power ${formatWatts(energy.base_w)}`,
    ],
    href: formatState({ ...base, metric: "energy", q: "" }),
    jump: "instant-section",
    definition: "step_energy_j",
  });
}

function balanceCard(view, base) {
  const { balance } = view;
  if (balance.used_bytes === null) return null;
  return card({
    key: "unaccounted_bytes",
    title: "Unaccounted memory",
    value: formatBytes(balance.unaccounted_bytes),
    exact: formatExact(balance.unaccounted_bytes),
    lines: [`of ${formatBytes(balance.used_bytes)} used`, "see the GPU memory balance"],
    href: formatState(base),
    jump: "balance-section",
    definition: "unaccounted",
  });
}

function notesCard(view, base) {
  const count = view.notes.length;
  if (!count) return null;
  return card({
    key: "notes",
    title: "Notes",
    value: String(count),
    exact: `${count} ${count === 1 ? "note" : "notes"}`,
    lines: [printable(view.notes[0])],
    href: formatState(base),
    jump: "notes-section",
    definition: "notes",
  });
}

registerSection("cards", (view, store) => drawCards(view, store.state));
