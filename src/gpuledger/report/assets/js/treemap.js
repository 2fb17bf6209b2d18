// Boxes of the treemap: areas are amounts; modules are frames, their accounts the filled rectangles.

const TREEMAP_SMALLEST_PX2 = 12;
const TREEMAP_HEAD_PX = 16;
const TREEMAP_HEAD_FROM_PX2 = 8000;

/** Return the boxes of `focus` in `width` x `height` pixels; parts too small to see are left out before the layout. */
function layoutTreemap(view, ledger, focus, width, height) {
  const smallest = (TREEMAP_SMALLEST_PX2 * ledger.total[focus]) / (width * height);
  const root = d3
    .hierarchy({ node: focus, account: -1, amount: ledger.total[focus] }, (part) => (part.account >= 0 ? null : visibleParts(view, ledger, part.node, smallest)))
    .sum((part) => (part.account >= 0 ? part.amount : 0))
    .sort((a, b) => b.value - a.value);
  const hasHead = (box) => (box.value / root.value) * width * height >= TREEMAP_HEAD_FROM_PX2;
  d3.treemap().size([width, height]).paddingInner(1).paddingOuter(2).paddingTop((box) => (hasHead(box) ? TREEMAP_HEAD_PX : 3)).round(true)(root);
  return root.descendants().map((box) => ({ x: box.x0, y: box.y0, w: box.x1 - box.x0, h: box.y1 - box.y0, node: box.data.node, account: box.data.account, head: hasHead(box) }));
}

function visibleParts(view, ledger, node, smallest) {
  return childParts(view, ledger, node).filter((part) => part.amount >= smallest || isAlwaysDrawn(view, part));
}
