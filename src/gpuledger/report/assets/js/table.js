// The table of the largest rows at the chosen instant: sorted, limited, shared with the search, to be copied.

/** The top-N table. */
class AccountTable {
  constructor(store) {
    this.store = store;
    byId("copy-markdown").addEventListener("click", (event) => this.copy(event.currentTarget, toMarkdown));
    byId("copy-csv").addEventListener("click", (event) => this.copy(event.currentTarget, toCsv));
    byId("more").addEventListener("click", () => store.set({ rows: String(Number(store.state.rows) * 5) }));
  }

  /** Return the group the state asks for, where it makes sense in the currency shown. */
  group() {
    const { group } = this.store.state;
    return own(GROUPS, group) && (!this.ledger || groupsOf(this.ledger.currency).includes(group)) ? group : "folded";
  }

  /** Offer the groups of the currency shown. */
  offer() {
    const { currency } = this.ledger;
    byId("group").replaceChildren(...groupsOf(currency).map((key) => element("option", { value: key }, GROUPS[key].label(currency))));
    byId("group").value = this.group();
  }

  /** Show the rows of one instant; `whole` is what shares are of. */
  show(view, ledger, matches) {
    if (!this.ledger || this.ledger.currency !== ledger.currency) {
      this.ledger = ledger;
      this.offer();
    }
    this.ledger = ledger;
    const { currency, categories } = ledger;
    const group = this.group();
    const shown = { ...view, query: this.store.state.q };
    this.rows = sortRows(tableRows(shown, ledger, matches, group), this.store.state.sort, categories);
    this.whole = group === "tensor" ? view.instants[view.peak].allocated : ledger.total[0];
    this.most = this.rows.reduce((most, row) => Math.max(most, row.amount), 0);
    const limit = Math.max(1, Number(this.store.state.rows) || 20);
    byId("table-head").replaceChildren(this.headRow(group));
    byId("table-body").replaceChildren(...this.rows.slice(0, limit).map((row) => this.bodyRow(row, group)));
    const sum = this.rows.reduce((total, row) => total + row.amount, 0);
    const count = Math.min(limit, this.rows.length);
    byId("table-count").textContent = `${groupDigits(count)} of ${groupDigits(this.rows.length)} rows · all rows ${currency.format(sum)}, ${formatShare(sum, this.whole) || "0.0 %"} ${currency.whole}`;
    byId("more").hidden = this.rows.length <= limit;
    byId("table-note").textContent = group === "tensor" ? tensorNote(view, this.store.state) : "";
  }

  headRow(group) {
    const sort = this.store.state.sort || "-amount";
    return element("tr", {}, ...GROUPS[group].columns.map((column) => {
      const current = sort.replace(/^-/, "") === column;
      const aria = current ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
      const mark = element("span", { className: "sort-mark", "aria-hidden": "true" }, current ? (sort.startsWith("-") ? "▾" : "▴") : "");
      const button = element("button", { type: "button", className: "sort", "data-define": this.definitionOf(column), onclick: () => this.sort(column) }, columnTitle(column, group, this.ledger.currency), mark);
      return element("th", { scope: "col", className: `column-${column}`, "aria-sort": aria }, button);
    }));
  }

  /** Return the definition a column's head shows; null where its title says all. */
  definitionOf(column) {
    return { amount: `amount.${this.ledger.currency.key}`, total: "total" }[column] || null;
  }

  sort(column) {
    const current = this.store.state.sort || "-amount";
    const textual = TEXTUAL.includes(column);
    const first = textual ? column : `-${column}`;
    this.store.set({ sort: current === first ? (textual ? `-${column}` : column) : first });
  }

  bodyRow(row, group) {
    return element("tr", {}, ...GROUPS[group].columns.map((column) => element("td", { className: `column-${column}` }, this.cell(row, column, group))));
  }

  cell(row, column, group) {
    if (column === "amount" || column === "total") return amountElement(row[column], this.ledger.currency);
    if (column === "share") return element("span", { className: "number" }, formatShare(row.amount, this.whole));
    if (column === "count") return element("span", { className: "number" }, groupDigits(row.count));
    if (column === "split") return splitBar(Object.entries(row.sums).map(([id, amount]) => ({ amount, color: this.ledger.categories[id].color })), this.most);
    if (column === "category") return this.categoryCell(row);
    if (column === "name" && group !== "tensor") return this.nameCell(row, group);
    return element("span", { className: column === "class" ? "muted" : "path" }, row[column] || "");
  }

  categoryCell(row) {
    const { key, color } = this.ledger.categories[row.category];
    const defined = `category.${key}`;
    const search = () => this.store.set({ q: this.store.state.q === key ? "" : key });
    return element("button", { type: "button", className: "link", onclick: search, "data-define": REPORT.definitions[defined] && this.ledger.currency.key === "bytes" ? defined : null }, swatch(color), formatName(key));
  }

  nameCell(row, group) {
    const open = () => (group === "folded" && row.count > 1 ? this.store.set({ q: row.name.split("*").join(" ").trim(), group: "module" }) : this.store.set({ node: String(row.node) }));
    return element("button", { type: "button", className: "link path", onclick: open, title: row.name }, row.name);
  }

  async copy(button, format) {
    const copied = await copyText(format(textTable(this.rows, this.group(), this.whole, this.ledger)));
    const label = button.dataset.label || button.textContent;
    button.dataset.label = label;
    button.textContent = copied ? "Copied" : "Could not copy";
    setTimeout(() => { button.textContent = label; }, 1200);
  }
}

function tensorNote(view, state) {
  const partial = view.tensors.more ? `The ${view.tensors.bytes.length} largest of ${groupDigits(view.tensors.bytes.length + view.tensors.more)}. ` : "";
  return chosenInstant(view, state) === view.peak ? partial : `${partial}Tensors are recorded for the peak only. These rows show the peak.`;
}
