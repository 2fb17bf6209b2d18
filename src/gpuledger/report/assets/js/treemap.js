// Boxes of the treemap: areas are amounts; modules are frames, what they hold the filled rectangles.

const TREEMAP_SMALLEST_PX2 = 12;
const TREEMAP_HEAD_PX = 16;
const TREEMAP_HEAD_FROM_PX2 = 8000;
const TREEMAP_FRAME_PX = 2;
const TREEMAP_FOOT_PX = 3;
const TREEMAP_GAP_PX = 1;
const TREEMAP_OPENED_FROM_PX = 24;

/**
 * Return the boxes of `focus` in `width` x `height` pixels, a module before what is in it.
 *
 * A module whose box is narrower or lower than TREEMAP_OPENED_FROM_PX is `closed`: the frames of the modules in it
 * would cover what they hold, so it is drawn as its categories. Parts too small to see are left out before the layout.
 */
function layoutTreemap(view, ledger, focus, width, height) {
  const pixels = (width * height) / ledger.total[focus];
  const boxes = [{ x: 0, y: 0, w: width, h: height, node: focus, account: -1, head: true, closed: false }];
  for (let at = 0; at < boxes.length; at++) {
    if (boxes[at].account < 0 && !boxes[at].closed) placeParts(boxes, boxes[at], visibleParts(view, ledger, boxes[at].node, TREEMAP_SMALLEST_PX2 / pixels), pixels);
  }
  return boxes;
}

/** Append the boxes of `parts` inside the frame of `box`. */
function placeParts(boxes, box, parts, pixels) {
  const half = TREEMAP_GAP_PX / 2;
  const children = parts.sort((a, b) => b.amount - a.amount).map((part) => ({ part, value: part.amount, x0: 0, y0: 0, x1: 0, y1: 0 }));
  const value = children.reduce((sum, child) => sum + child.value, 0);
  const top = box.head ? TREEMAP_HEAD_PX : TREEMAP_FOOT_PX;
  d3.treemapSquarify({ value, children }, box.x + TREEMAP_FRAME_PX - half, box.y + top - half, box.x + box.w - TREEMAP_FRAME_PX + half, box.y + box.h - TREEMAP_FRAME_PX + half);
  for (const { part, x0, y0, x1, y1 } of children) {
    const [x, y] = [Math.round(x0 + half), Math.round(y0 + half)];
    const [w, h] = [Math.round(x1 - half) - x, Math.round(y1 - half) - y];
    if (w < 1 || h < 1) continue;
    boxes.push({ x, y, w, h, node: part.node, account: part.account, head: part.amount * pixels >= TREEMAP_HEAD_FROM_PX2 && h > 2 * TREEMAP_HEAD_PX, closed: Math.min(w, h) < TREEMAP_OPENED_FROM_PX });
  }
}

function visibleParts(view, ledger, node, smallest) {
  return childParts(view, ledger, node).filter((part) => part.amount >= smallest || isAlwaysDrawn(view, part));
}
