// The legend is also the read-out: what each category holds under the pointer, or at the chosen instant.

/** Return how the state names instant `k`: a word for the peak and the end, else the allocator's event. */
function instantKey(view, k) {
  if (k === view.peak) return "peak";
  return k === view.instants.length - 1 ? "end" : String(view.instants[k].event);
}

/** Return the position of the instant the state asks for; the nearest one where it is not kept. */
function chosenInstant(view, state) {
  if (state.at === "end") return view.instants.length - 1;
  const event = Number(state.at);
  if (state.at === "peak" || !Number.isFinite(event)) return view.peak;
  let best = 0;
  view.instants.forEach((instant, k) => {
    if (Math.abs(instant.event - event) < Math.abs(view.instants[best].event - event)) best = k;
  });
  return best;
}

/** The legend of one view. */
class Legend {
  constructor(store) {
    this.store = store;
  }

  /** Build one entry for each category of `view`, and for allocated and reserved. */
  show(view) {
    this.view = view;
    this.values = new Map();
    const hidden = this.store.state.hide.split(",");
    const entries = view.timeline.categories.map((id) => this.entry(REPORT.categories[id], hidden));
    const totals = view.kind === "card" ? [view.timeline.categories.length > 1 ? this.total("used") : null].filter(Boolean) : [this.total("allocated"), hasReserved(view) ? this.total("reserved") : null].filter(Boolean);
    byId("legend").replaceChildren(...totals, ...entries.reverse());
    this.read(null);
  }

  entry(category, hidden) {
    const value = element("span", { className: "number legend-value" });
    this.values.set(category.key, value);
    return element(
      "button",
      { className: "legend-entry", type: "button", "aria-pressed": String(!hidden.includes(category.key)), "data-define": REPORT.definitions[`category.${category.key}`] ? `category.${category.key}` : null, onclick: () => this.toggle(category.key) },
      swatch(category.color),
      element("span", { className: "legend-name" }, formatName(category.key)),
      value,
    );
  }

  total(name) {
    const value = element("span", { className: "number legend-value" });
    this.values.set(name === "used" ? "used_total" : name, value);
    return element("span", { className: "legend-entry legend-total" }, element("span", { className: `line-mark ${name}`, "aria-hidden": "true" }), term(name, name), value);
  }

  toggle(key) {
    const hidden = new Set(this.store.state.hide.split(",").filter(Boolean));
    if (!hidden.delete(key)) hidden.add(key);
    this.store.set({ hide: [...hidden].join(",") });
  }

  /** Show the values at point `index` of the timeline; at the chosen instant when `index` is null. */
  read(index) {
    if (index === null) return this.readInstant();
    const { t, categories, bytes, reserved } = this.view.timeline;
    const sums = categories.map((id, position) => [REPORT.categories[id].key, bytes[position][index]]);
    return this.write(t[index], bandAt(this.view.bands, t[index]), sums, reserved[index]);
  }

  readInstant() {
    const k = chosenInstant(this.view, this.store.state);
    const sums = categoriesBelow(ledgerAt(this.view, k), 0);
    const instant = this.view.instants[k];
    this.write(instant.t, placeOf(instant), this.view.timeline.categories.map((id) => [REPORT.categories[id].key, sums[id]]), instant.reserved);
  }

  write(t, place, sums, reserved) {
    for (const [key, bytes] of sums) this.values.get(key).textContent = formatBytes(bytes);
    const total = this.values.get("allocated") || this.values.get("used_total");
    if (total) total.textContent = formatBytes(sums.reduce((sum, [, bytes]) => sum + bytes, 0));
    if (this.values.has("reserved")) this.values.get("reserved").textContent = formatBytes(reserved);
    byId("readout").textContent = [momentOf(this.view, t), place].filter(Boolean).join(" · ");
  }
}
