// Rows of the table: the accounts that match the search, grouped one way or another.

const CATEGORIES_MOST = 1024;

const GROUPS = {
  folded: { label: () => "modules, repeated layers folded", columns: ["name", "class", "count", "amount", "share", "split"] },
  module: { label: () => "modules", columns: ["name", "class", "amount", "total", "share", "split"] },
  account: { label: ({ part }) => `${part} × module`, columns: ["category", "name", "class", "amount", "share"] },
  category: { label: ({ parts }) => parts, columns: ["category", "count", "amount", "share"] },
  tensor: { label: () => "tensors (at the peak)", columns: ["name", "category", "module", "line", "count", "amount", "share"] },
};

/** Return the groups that make sense in a currency: tensors hold bytes, and nothing else. */
function groupsOf(currency) {
  return Object.keys(GROUPS).filter((key) => key !== "tensor" || currency.key === "bytes");
}

/** Return the rows of `group`: {key, name, class, category, count, amount, total, sums, node}. */
function tableRows(view, ledger, matches, group) {
  if (group === "tensor") return tensorRows(view);
  const rows = new Map();
  const { accounts, amounts } = ledger;
  for (let account = 0; account < amounts.length; account++) {
    const amount = amounts[account];
    if (amount === 0 || (matches && !matches.accounts[account])) continue;
    const node = accounts.node[account];
    const category = accounts.category[account];
    const key = rowKey(view.tree, group, node, category);
    const known = rows.get(key) || rows.set(key, blankRow(view.tree, ledger, group, node, category)).get(key);
    known.amount += amount;
    known.sums[category] = (known.sums[category] || 0) + amount;
    // Accounts are sorted by node: one that is not the last one seen is new.
    if (known.latest !== node) known.count += 1;
    known.latest = node;
  }
  for (const row of rows.values()) if (group === "folded" && row.count === 1) row.name = view.tree.path[row.node];
  return [...rows.values()];
}

function rowKey(tree, group, node, category) {
  if (group === "category") return category;
  if (group === "account") return node * CATEGORIES_MOST + category;
  return group === "module" ? node : tree.foldedId[node];
}

function blankRow(tree, ledger, group, node, category) {
  const ofModules = group !== "category";
  return {
    name: ofModules ? (group === "folded" ? tree.folded : tree.path)[node] : "",
    class: ofModules ? tree.className[node] : "",
    category: group === "account" || !ofModules ? category : -1,
    amount: 0,
    total: ledger.total[node],
    sums: {},
    count: 0,
    latest: -1,
    node,
  };
}

function tensorRows(view) {
  const words = view.query.toLowerCase().split(/\s+/).filter(Boolean);
  const { tensors } = view;
  return tensors.bytes
    .map((bytes, i) => ({
      name: tensors.name[i] ? printable(tensors.name[i]) : "(no name)",
      module: printable(tensors.module[i]),
      line: printable(tensors.line[i]),
      category: tensors.category[i],
      count: tensors.blocks[i],
      amount: bytes,
      sums: {},
      node: null,
    }))
    .filter((row) => words.every((word) => `${row.name} ${row.module} ${row.line} ${REPORT.categories[row.category].key}`.toLowerCase().includes(word)));
}

const TEXTUAL = ["name", "class", "category", "module", "line"];
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Return `rows` in the order `sort` asks for ("amount", "-name", …); the largest first without a wish. */
function sortRows(rows, sort, categories) {
  const key = sort.replace(/^-/, "") || "amount";
  const direction = sort && !sort.startsWith("-") ? 1 : -1;
  const value = valueOf(key, categories);
  const compare = TEXTUAL.includes(key) ? COLLATOR.compare : (a, b) => a - b;
  const keyed = rows.map((row) => ({ row, value: value(row) }));
  keyed.sort((a, b) => direction * compare(a.value, b.value) || b.row.amount - a.row.amount);
  return keyed.map(({ row }) => row);
}

/** Return what `key` asks of a row: text of a textual column, else a number. */
function valueOf(key, categories) {
  if (key === "category") return (row) => (row.category >= 0 ? categories[row.category].key : "");
  if (key === "share" || key === "split") return (row) => row.amount;
  return TEXTUAL.includes(key) ? (row) => own(row, key) || "" : (row) => own(row, key);
}

const COLUMN_TITLES = { name: "Module", class: "Class", total: "With child modules", share: "Share", module: "Module", line: "Line" };

/** Return the heads and the cells of `rows` as text; amounts are exact, in the currency's unit. */
function textTable(rows, group, whole, { currency, categories }) {
  const columns = GROUPS[group].columns.filter((column) => column !== "split");
  const cell = (row, column) => {
    if (column === "category") return categories[row.category].key;
    if (column === "share") return formatShare(row.amount, whole);
    if (column === "amount" || column === "total") return currency.number(row[column]);
    return String(row[column] ?? "");
  };
  const head = (column) => (column === "amount" && currency.key !== "bytes" ? `${columnTitle(column, group, currency)} (${currency.unit})` : columnTitle(column, group, currency));
  return { heads: columns.map(head), cells: rows.map((row) => columns.map((column) => cell(row, column))) };
}

function columnTitle(column, group, currency) {
  if (column === "name" && group === "tensor") return "Tensor";
  if (column === "amount") return group === "module" ? "Own" : currency.title;
  if (column === "category") return capital(currency.part);
  if (column === "split") return capital(currency.parts);
  if (column === "count") return group === "tensor" ? "Blocks" : "Modules";
  return COLUMN_TITLES[column];
}

function capital(word) {
  return `${word.charAt(0).toUpperCase()}${word.slice(1)}`;
}

/** Return a table as Markdown; a bar inside a name is escaped. */
function toMarkdown({ heads, cells }) {
  const line = (parts) => `| ${parts.map((part) => part.replace(/\|/g, "\\|")).join(" | ")} |`;
  return [line(heads), line(heads.map(() => "---")), ...cells.map(line)].join("\n");
}

/** Return a table as CSV (RFC 4180); a name that a spreadsheet would run as a formula is led by a quote. */
function toCsv({ heads, cells }) {
  const field = (text) => {
    const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  return [heads, ...cells].map((row) => row.map(field).join(",")).join("\r\n");
}
