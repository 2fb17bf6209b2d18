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

/** Return the books at instant `k`; the last few, and the peak's, are kept with the view. */
function ledgerAt(view, k) {
  if (!view.ledgers.has(k)) {
    if (view.ledgers.size > LEDGERS_KEPT) view.ledgers.delete([...view.ledgers.keys()].find((kept) => kept !== view.peak));
    view.ledgers.set(k, sumLedger(view, k));
  }
  return view.ledgers.get(k);
}

/** Return the books at instant `k`: bytes of each account, and `self` and `total` of each node of the tree. */
function sumLedger(view, k) {
  const { tree, accounts } = view;
  const bytes = accountBytesAt(accounts, k);
  const self = new Float64Array(tree.count);
  for (let account = 0; account < bytes.length; account++) self[accounts.node[account]] += bytes[account];
  const total = Float64Array.from(self);
  for (let node = tree.count - 1; node > 0; node--) total[tree.parent[node]] += total[node];
  return { instant: view.instants[k], bytes, self, total, below: sumCategories(view, bytes) };
}

/** Return bytes by category of each node and everything below it, one row of categories after another. */
function sumCategories(view, bytes) {
  const { tree, accounts } = view;
  const width = REPORT.categories.length;
  const sums = new Float64Array(tree.count * width);
  for (let account = 0; account < bytes.length; account++) sums[accounts.node[account] * width + accounts.category[account]] += bytes[account];
  for (let node = tree.count - 1; node > 0; node--) {
    const parent = tree.parent[node];
    for (let category = 0; category < width; category++) sums[parent * width + category] += sums[node * width + category];
  }
  return sums;
}

/** Return bytes by category of `node` and everything below it. */
function categoriesBelow(ledger, node) {
  const width = REPORT.categories.length;
  return ledger.below.subarray(node * width, (node + 1) * width);
}

/** Return a test for accounts: every word of `query` is in the module's path, its class or the category. */
function accountFilter(view, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const { tree, accounts } = view;
  const nodeText = tree.path.map((path, node) => `${path} ${tree.className[node]}`.toLowerCase());
  const categoryText = REPORT.categories.map((category) => `${category.key} ${formatName(category.key)}`);
  return (account) => {
    const text = nodeText[accounts.node[account]];
    const category = categoryText[accounts.category[account]];
    return words.every((word) => text.includes(word) || category.includes(word));
  };
}

/** Return which accounts and nodes a query matches: a node matches when an account at or below it does. */
function matchQuery(view, ledger, query) {
  const accepts = accountFilter(view, query);
  if (!accepts) return null;
  const accounts = new Uint8Array(ledger.bytes.length);
  const nodes = new Uint8Array(view.tree.count);
  let bytes = 0;
  let count = 0;
  for (let account = 0; account < accounts.length; account++) {
    if (ledger.bytes[account] === 0 || !accepts(account)) continue;
    accounts[account] = 1;
    bytes += ledger.bytes[account];
    count += 1;
    for (let node = view.accounts.node[account]; !nodes[node]; node = view.tree.parent[node]) {
      nodes[node] = 1;
      if (node === 0) break;
    }
  }
  return { accounts, nodes, bytes, count };
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
  return path.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
}
