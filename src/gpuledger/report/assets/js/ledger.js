// What stands on the accounts at one instant: plain arrays, summed up the module tree.

/** Return each account's bytes at instant `k`. An account is stored as runs: (first instant, last instant, bytes). */
function accountBytesAt(accounts, k) {
  const bytes = new Float64Array(accounts.node.length);
  let run = 0;
  for (let account = 0; account < bytes.length; account++) {
    const end = run + accounts.runs[account];
    for (; run < end; run++) {
      if (accounts.first[run] <= k && k <= accounts.last[run]) bytes[account] = accounts.bytes[run];
    }
  }
  return bytes;
}

const LEDGERS_KEPT = 4;

/** Return the breakdown of bytes at instant `k`; the last few, and the peak's, are kept with the view. */
function ledgerAt(view, k) {
  if (!view.ledgers.has(k)) {
    const others = [...view.ledgers.keys()].filter((kept) => typeof kept === "number" && kept !== view.peak);
    if (others.length >= LEDGERS_KEPT) view.ledgers.delete(others[0]);
    view.ledgers.set(k, sumLedger(view, k));
  }
  return view.ledgers.get(k);
}

function sumLedger(view, k) {
  const breakdown = sumUp(view.tree, view.accounts, accountBytesAt(view.accounts, k), REPORT.categories, CURRENCIES.bytes);
  return { ...breakdown, instant: view.instants[k] };
}

/** Return the breakdown of one step in time or energy; they are kept with the view. */
function stepLedger(view, currency) {
  if (!view.ledgers.has(currency)) {
    const { accounts } = view[currency];
    view.ledgers.set(currency, { ...sumUp(view.tree, accounts, accounts.amount, REPORT.phases, currencyOf(view, currency)), uncertainty: accounts.uncertainty });
  }
  return view.ledgers.get(currency);
}

/** Return breakdown: the amount of each account, and of each node its own (`self`), with those below (`total`), and by category. */
function sumUp(tree, accounts, amounts, categories, currency) {
  const self = new Float64Array(tree.count);
  for (let account = 0; account < amounts.length; account++) self[accounts.node[account]] += amounts[account];
  const total = Float64Array.from(self);
  for (let node = tree.count - 1; node > 0; node--) total[tree.parent[node]] += total[node];
  const below = sumCategories(tree, accounts, amounts, categories.length);
  return { currency, categories, accounts, amounts, self, total, below };
}

/** Return amounts by category of each node and everything below it, one row of categories after another. */
function sumCategories(tree, accounts, amounts, width) {
  const sums = new Float64Array(tree.count * width);
  for (let account = 0; account < amounts.length; account++) sums[accounts.node[account] * width + accounts.category[account]] += amounts[account];
  for (let node = tree.count - 1; node > 0; node--) {
    const parent = tree.parent[node];
    for (let category = 0; category < width; category++) sums[parent * width + category] += sums[node * width + category];
  }
  return sums;
}

/** Return amounts by category of `node` and everything below it. */
function categoriesBelow(ledger, node) {
  const width = ledger.categories.length;
  return ledger.below.subarray(node * width, (node + 1) * width);
}

/** Return a test for accounts: every word of `query` is in the module's path, its class or the category. */
function accountFilter(view, ledger, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const { tree } = view;
  const { accounts, categories } = ledger;
  const nodeText = tree.path.map((path, node) => `${path} ${tree.className[node]}`.toLowerCase());
  const categoryText = categories.map((category) => `${category.key} ${formatName(category.key)}`);
  return (account) => {
    const text = nodeText[accounts.node[account]];
    const category = categoryText[accounts.category[account]];
    return words.every((word) => text.includes(word) || category.includes(word));
  };
}

/** Return which accounts and nodes a query matches: a node matches when an account at or below it does. */
function matchQuery(view, ledger, query) {
  const accepts = accountFilter(view, ledger, query);
  if (!accepts) return null;
  const accounts = new Uint8Array(ledger.amounts.length);
  const nodes = new Uint8Array(view.tree.count);
  let amount = 0;
  let count = 0;
  for (let account = 0; account < accounts.length; account++) {
    if (ledger.amounts[account] === 0 || !accepts(account)) continue;
    accounts[account] = 1;
    amount += ledger.amounts[account];
    count += 1;
    for (let node = ledger.accounts.node[account]; !nodes[node]; node = view.tree.parent[node]) {
      nodes[node] = 1;
      if (node === 0) break;
    }
  }
  return { accounts, nodes, amount, count };
}

/** Return the position of the instant whose `key` ("t" or "event") is nearest to `value`. */
function nearestInstant(instants, key, value) {
  let best = 0;
  for (let k = 1; k < instants.length; k++) {
    if (Math.abs(instants[k][key] - value) < Math.abs(instants[best][key] - value)) best = k;
  }
  return best;
}

/** Return `path` with numbered pieces folded: "h.3.mlp" as "h.*.mlp". */
function foldPath(path) {
  return path.replace(/(^|\.)\d+(?=\.|$)/g, "$1*").replace(/\[\d+\]/g, "[*]");
}
