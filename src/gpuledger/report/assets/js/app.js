// Brings the views together: reads the payload, follows the state, says when the page is ready.

let REPORT = null;

/** Everything the reader sees, kept in step with the state. */
class App {
  constructor() {
    this.store = new Store();
    this.legend = new Legend(this.store);
    this.timeline = new Timeline(this.store, (index) => this.legend.read(index));
    this.structure = new Structure(this.store);
    this.table = new AccountTable(this.store);
    watchTips();
    watchTheme(this.store, () => this.repaint());
    this.follow();
    this.listen();
  }

  get view() {
    return REPORT.views[shownView(this.store.state)];
  }

  /** Redraw what depends on the parts of the state that changed. */
  follow() {
    const { store } = this;
    store.listen(["view"], () => this.showView());
    store.listen(["hide"], () => { this.legend.show(this.view); this.timeline.draw(); });
    store.listen(["scale", "axis"], () => { this.drawControls(); this.timeline.draw(); });
    store.listen(["zoom", "span"], () => { this.drawControls(); this.timeline.zoom(); });
    store.listen(["at"], () => { this.legend.read(null); this.timeline.plot.redraw(false); });
    store.listen(["at", "q", "node", "shape", "metric", "group", "sort", "rows"], () => this.showInstant());
    store.listen(["at", "q", "hide", "axis", "scale", "span", "node", "shape", "metric", "group", "sort", "rows"], () => drawCards(this.view, store.state));
  }

  listen() {
    const { store } = this;
    const on = (id, type, action) => byId(id).addEventListener(type, action);
    on("view", "change", (event) => store.set({ view: event.target.value }));
    on("scale", "click", () => store.set({ scale: store.state.scale === "capacity" ? "data" : "capacity" }));
    on("axis", "click", () => store.set({ axis: store.state.axis === "event" ? "time" : "event", zoom: "" }));
    on("reset-zoom", "click", () => store.set({ zoom: "" }));
    on("span", "click", () => store.set({ span: store.state.span === "run" ? "recording" : "run", zoom: "", axis: "time" }));
    for (const key of Object.keys(CURRENCIES)) on(`metric-${key}`, "click", () => store.set({ metric: key, sort: "" }));
    on("to-peak", "click", () => store.set({ at: "peak" }));
    on("to-end", "click", () => store.set({ at: "end" }));
    on("earlier", "click", () => this.move(-1));
    on("later", "click", () => this.move(1));
    on("search", "input", (event) => store.set({ q: event.target.value }));
    on("shape-icicle", "click", () => store.set({ shape: "icicle" }));
    on("shape-treemap", "click", () => store.set({ shape: "treemap" }));
    on("group", "change", (event) => store.set({ group: event.target.value, sort: "" }));
    document.addEventListener("keydown", (event) => this.key(event));
  }

  /** Choose the next kept instant in one direction. */
  move(direction) {
    const k = chosenInstant(this.view, this.store.state) + direction;
    if (k >= 0 && k < this.view.instants.length) this.store.set({ at: instantKey(this.view, k) });
  }

  /** Go on to the next currency that this view has. */
  nextCurrency() {
    const known = Object.keys(CURRENCIES).filter((key) => key === "bytes" || this.view[key]);
    const at = known.indexOf(chosenCurrency(this.view, this.store.state));
    this.store.set({ metric: known[(at + 1) % known.length], sort: "" });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return this.escape();
    if (event.target.closest("input, select, textarea, canvas")) return;
    const action = { "/": () => byId("search").focus(), p: () => this.store.set({ at: "peak" }), e: () => this.store.set({ at: "end" }), m: () => this.nextCurrency(), ",": () => this.move(-1), ".": () => this.move(1) }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /** Go one level up; at the top, clear the search. */
  escape() {
    hideTip();
    if (this.view.kind === "breakdown" && !this.structure.up() && this.store.state.q) this.store.set({ q: "" });
  }

  showView() {
    const { view } = this;
    document.title = `${printable(REPORT.name)} · gpuledger`;
    byId("title").textContent = printable(REPORT.name);
    byId("subtitle").textContent = [...new Set([view.device_name, view.device_idx < 0 ? "CPU tensors" : `cuda:${view.device_idx}`, view.kind === "card" ? "watched from outside" : `${view.recorder} recorder`])].filter(Boolean).map(printable).join(" · ");
    byId("instant-section").hidden = view.kind === "card";
    drawSections(view, this.store);
    this.legend.show(view);
    this.timeline.show(view);
    this.showInstant();
  }

  showInstant() {
    const { view } = this;
    const { state } = this.store;
    if (view.kind === "card") return this.drawControls();
    const ledger = chosenLedger(view, state);
    const matches = matchQuery(view, ledger, state.q);
    this.structure.show(view, ledger, matches);
    this.table.show(view, ledger, matches);
    byId("matched").textContent = matches ? this.matchSentence(ledger, matches) : "";
    if (ledger.instant) this.drawInstant(view, ledger.instant.k);
    else this.drawStep(view, ledger.currency.key);
    return this.drawControls();
  }

  matchSentence({ currency, total }, matches) {
    return `${groupDigits(matches.count)} parts match: ${currency.format(matches.amount)}, ${formatShare(matches.amount, total[0]) || "0.0 %"}`;
  }

  /** Say which step the breakdown of time or energy are of. */
  drawStep(view, currency) {
    const [sum, source] = stepSummary(view, currency);
    byId("instant-name").textContent = isOfProgram(view) ? "In the program" : "In one step";
    byId("instant-bytes").textContent = sum;
    byId("instant-bytes").dataset.tip = currencyOf(view, currency).exact(stepLedger(view, currency).total[0]);
    byId("instant-where").textContent = byId("instant-where").dataset.tip = source;
    byId("step-notes").replaceChildren(...(view[currency].notes || []).map((note) => element("li", {}, printable(note))));
  }

  drawInstant(view, k) {
    const instant = view.instants[k];
    byId("instant-name").textContent = `At ${k === view.peak ? "the peak" : instant.label ? `the ${instant.label}` : momentOf(view, instant.t) || `event ${groupDigits(instant.event)}`}`;
    const module = instant.module ? printable(instant.module) : "";
    byId("instant-where").textContent = byId("instant-where").dataset.tip = [momentOf(view, instant.t), placeOf(instant), module, `event ${groupDigits(instant.event)}`].filter(Boolean).join(" · ");
    byId("instant-bytes").textContent = [`${formatBytes(instant.allocated)} allocated`, hasReserved(view) ? `${formatBytes(instant.reserved)} reserved` : null].filter(Boolean).join(" · ");
    byId("instant-bytes").dataset.tip = formatExact(instant.allocated);
    byId("earlier").disabled = k === 0;
    byId("later").disabled = k === view.instants.length - 1;
  }

  drawControls() {
    const { state } = this.store;
    const capacity = this.view.summary.capacity_bytes;
    byId("scale").disabled = !capacity;
    byId("scale").setAttribute("aria-pressed", String(state.scale === "capacity"));
    byId("axis").disabled = isTimeless(this.view);
    document.querySelector("#timeline-section h2").textContent = `Memory ${isTimeless(this.view) ? "by event" : "over time"}`;
    byId("axis").setAttribute("aria-pressed", String(axisName(this.view, state) === "event"));
    byId("reset-zoom").disabled = !state.zoom;
    const shown = chosenCurrency(this.view, state);
    byId("step-notes").hidden = shown === "bytes";
    byId("instant-tools").hidden = shown !== "bytes";
    for (const [key, { missing }] of Object.entries(CURRENCIES)) {
      const button = byId(`metric-${key}`);
      button.setAttribute("aria-pressed", String(key === shown));
      button.disabled = key !== "bytes" && !this.view[key];
      if (button.disabled) button.dataset.tip = missing;
      else button.dataset.tip = `${currencyOf(this.view, key).everything}, by module (press m for the next)`;
    }
    byId("axis").hidden = this.view.kind === "card";
    byId("span").hidden = !hasMoreThanRecorded(this.view);
    byId("span").setAttribute("aria-pressed", String(state.span === "run"));
    byId("shape-icicle").setAttribute("aria-pressed", String(state.shape !== "treemap"));
    byId("shape-treemap").setAttribute("aria-pressed", String(state.shape === "treemap"));
    if (byId("search").value !== state.q) byId("search").value = state.q;
    if (this.view.kind === "breakdown") byId("group").value = this.table.group();
  }

  /** Paint the canvases again in the present colours. */
  repaint() {
    if (!REPORT) return;
    this.timeline.draw();
    this.structure.draw();
  }
}

async function start() {
  const payload = await readPayload();
  REPORT = { ...payload, views: payload.views.map(decodeView) };
  drawDefinitions();
  const app = new App();
  app.showView();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  byId("failure").hidden = false;
  byId("failure").textContent = `This report could not be displayed: ${error.message}. It needs Chrome 80, Firefox 113, Safari 16.4 or newer.`;
  document.documentElement.dataset.failed = "";
  throw error;
});
