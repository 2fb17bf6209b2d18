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
    unit: "ns per step",
    format: formatNs,
    exact: (ns) => `${groupDigits(Math.round(ns))} ns per step`,
    number: (ns) => String(Math.round(ns)),
    whole: "of the step",
    alone: "per step",
    everything: "all time of one step",
    parts: "phases",
    part: "phase",
    missing: "This run has no timing measurement. To make one: gpuledger run --passes memory,time",
  },
  energy: {
    key: "energy",
    title: "Energy",
    unit: "J per step",
    format: formatJoules,
    exact: (joules) => `${joules} J per step`,
    number: (joules) => String(joules),
    whole: "of the step",
    alone: "per step",
    everything: "all energy of one step",
    parts: "phases",
    part: "phase",
    missing: "This run has no energy measurement. To make one, on a GPU with an energy counter: gpuledger run --passes memory,energy",
  },
};

const PROGRAM_TIME = {
  ...CURRENCIES.time,
  unit: "ns",
  exact: (ns) => `${groupDigits(Math.round(ns))} ns`,
  whole: "of the program",
  alone: "in the program",
  everything: "time of the program",
};

/** Return whether the time of a view is that of a program without steps, which was timed as a whole. */
function isOfProgram(view) {
  return Boolean(view.time && view.time.of_program);
}

/** Return a currency as this view has it. */
function currencyOf(view, key) {
  return key === "time" && isOfProgram(view) ? PROGRAM_TIME : CURRENCIES[key];
}

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
  if (time.of_program && time.on_host) return [`${formatNs(time.work_ns)} of operators`, `of the program, host time, ${time.source}`];
  if (time.of_program) return [`${formatNs(time.work_ns)} of work`, `${formatNs(time.busy_ns)} busy · of the program, ${time.source}`];
  const mean = `mean of ${time.steps} ${time.steps === 1 ? "step" : "steps"}`;
  if (time.on_host) return [`${formatNs(time.work_ns)} of operators`, `host time, ${time.source}, ${mean}`];
  const idle = time.idle_ns === null ? "idle time unknown: no unprofiled step" : `${formatNs(time.idle_ns)} idle (time of ${time.of_profiled_step ? "a profiled" : "an unprofiled"} step minus busy time)`;
  return [`${formatNs(time.work_ns)} of work`, `${formatNs(time.busy_ns)} busy · ${idle} · ${mean}`];
}

function energySummary(energy) {
  const base = energy.base_w === null ? "" : ` · base power ${formatWatts(energy.base_w)}`;
  const mean = `mean of ${energy.steps} ${energy.steps === 1 ? "step" : "steps"}`;
  return [formatJoules(energy.step_energy_j, energy.step_uncertainty_j), `${mean}${base}. Of a row: ${printable(energy.method)}.`];
}
