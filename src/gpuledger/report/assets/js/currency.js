// Three currencies on one tree: bytes at an instant, and what one step takes in time and energy.

const CURRENCIES = {
  bytes: {
    key: "bytes",
    title: "Bytes",
    unit: "bytes",
    format: formatBytes,
    exact: formatExact,
    number: (amount) => String(amount),
    whole: "of allocated",
    alone: "allocated",
    everything: "everything allocated on this device",
    parts: "categories",
    part: "category",
    missing: "",
  },
  time: {
    key: "time",
    title: "Time",
    unit: "ns a step",
    format: formatNs,
    exact: (ns) => `${groupDigits(Math.round(ns))} ns a step`,
    number: (ns) => String(Math.round(ns)),
    whole: "of the step",
    alone: "a step",
    everything: "all work of one step",
    parts: "phases",
    part: "phase",
    missing: "No time pass in this recording: gpuledger run --passes memory,time makes one",
  },
  energy: {
    key: "energy",
    title: "Energy",
    unit: "J a step",
    format: formatJoules,
    exact: (joules) => `${joules} J a step`,
    number: (joules) => String(joules),
    whole: "of the step",
    alone: "a step",
    everything: "all energy of one step",
    parts: "phases",
    part: "phase",
    missing: "No energy pass in this recording: gpuledger run --passes memory,energy makes one, on a card that counts joules",
  },
};

/** Return the currency the state asks for; bytes where this view has not got it. */
function chosenCurrency(view, state) {
  return state.metric !== "bytes" && own(CURRENCIES, state.metric) && own(view, state.metric) ? state.metric : "bytes";
}

/** Return the breakdown that the state asks for. */
function chosenLedger(view, state) {
  const currency = chosenCurrency(view, state);
  return currency === "bytes" ? ledgerAt(view, chosenInstant(view, state)) : stepLedger(view, currency);
}

/** Return what stands above the picture of one step: where the numbers are from and what they sum to. */
function stepSummary(view, currency) {
  if (currency === "energy") return energySummary(view.energy);
  const { time } = view;
  const mean = `mean of ${time.steps} ${time.steps === 1 ? "step" : "steps"}`;
  if (time.on_host) return [`${formatNs(time.work_ns)} of operators`, `host time, Kineto, ${mean}`];
  const idle = time.idle_ns === null ? "idle unknown: no unprofiled step" : `${formatNs(time.idle_ns)} idle (unprofiled step less busy)`;
  return [`${formatNs(time.work_ns)} of work`, `${formatNs(time.busy_ns)} busy · ${idle} · ${mean}`];
}

function energySummary(energy) {
  const base = energy.base_w === null ? "" : ` · base ${formatWatts(energy.base_w)}`;
  const mean = `mean of ${energy.steps} ${energy.steps === 1 ? "step" : "steps"}`;
  return [`${formatJoules(energy.step_energy_j)} ± ${formatJoules(energy.step_uncertainty_j)}`, `shares: ${printable(energy.method)}${base} · ${mean}`];
}
