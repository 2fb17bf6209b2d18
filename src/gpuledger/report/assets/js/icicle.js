// Boxes of the icicle: a row for each level of the module tree, widths are amounts, model order from left to right.

const ICICLE_ROW = 24;
const SMALLEST_PX = 0.5;
const ALWAYS_PX = 3;

/** Return how many rows the tree needs; the same at every instant, so nothing jumps. */
function icicleRows(view) {
  let deepest = 0;
  for (const depth of view.tree.depth) if (depth > deepest) deepest = depth;
  return Math.min(14, deepest + 2);
}

/** Return the boxes of `focus` and what is below it in `width` pixels. A box is {x, y, w, h, node, account}. */
function layoutIcicle(view, ledger, focus, width) {
  const boxes = [];
  const rows = icicleRows(view);
  const place = (node, x, w, row) => {
    boxes.push({ x, y: row * ICICLE_ROW, w, h: ICICLE_ROW, node, account: -1 });
    if (row + 1 >= rows) return;
    let at = x;
    for (const { part, w: partWidth } of partsOf(view, ledger, node, w)) {
      if (partWidth >= SMALLEST_PX) {
        if (part.account >= 0) boxes.push({ x: at, y: (row + 1) * ICICLE_ROW, w: partWidth, h: ICICLE_ROW, node, account: part.account });
        else place(part.node, at, partWidth, row + 1);
      }
      at += partWidth;
    }
  };
  place(focus, 0, width, 0);
  return boxes;
}

/** Return the parts of `node` with their widths: child modules, then its own accounts; what is outside stays visible. */
function partsOf(view, ledger, node, width) {
  const parts = childParts(view, ledger, node);
  const whole = ledger.total[node];
  if (!(whole > 0)) return [];
  const kept = parts.map((part) => isAlwaysDrawn(view, part) && (part.amount / whole) * width < ALWAYS_PX);
  const reserved = kept.filter(Boolean).length * ALWAYS_PX;
  const scalable = parts.reduce((sum, part, i) => sum + (kept[i] ? 0 : part.amount), 0);
  return parts.map((part, i) => ({ part, w: kept[i] ? ALWAYS_PX : scalable ? (part.amount / scalable) * (width - reserved) : 0 }));
}

function isAlwaysDrawn(view, part) {
  return part.account < 0 && part.node >= view.tree.outside;
}

/** Return {node, account, amount} for each child module and each own account of `node` that holds something. */
function childParts(view, ledger, node) {
  const parts = [];
  for (const child of view.tree.children[node]) {
    if (ledger.total[child] > 0) parts.push({ node: child, account: -1, amount: ledger.total[child] });
  }
  for (let account = ledger.accounts.start[node]; account < ledger.accounts.start[node + 1]; account++) {
    if (ledger.amounts[account] > 0) parts.push({ node, account, amount: ledger.amounts[account] });
  }
  return parts;
}
