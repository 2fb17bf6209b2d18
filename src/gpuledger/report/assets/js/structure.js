// The module tree at the chosen instant, as icicle or treemap, on one canvas: pointer, keyboard, search, zoom.

const TREEMAP_HEIGHT = 420;

/** The picture of who holds the bytes. */
class Structure {
  constructor(store) {
    this.store = store;
    this.canvas = byId("structure");
    this.boxes = [];
    this.pointed = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.unpoint());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.unpoint());
    new ResizeObserver(() => this.view && this.draw()).observe(this.canvas.parentElement);
  }

  /** Show the breakdown of `view` at one instant; `matches` is null without a search. */
  show(view, ledger, matches) {
    this.view = view;
    this.ledger = ledger;
    this.matches = matches;
    this.draw();
  }

  focus() {
    const node = Number(this.store.state.node);
    return Number.isInteger(node) && node > 0 && node < this.view.tree.count && this.ledger.total[node] > 0 ? node : 0;
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const height = this.isTreemap() ? TREEMAP_HEIGHT : icicleRows(this.view) * ICICLE_ROW;
    const focus = this.focus();
    this.boxes = this.layout(focus, width, height);
    this.paint(sizedContext(this.canvas, width, height), width, height);
    this.pointed = this.pointed && (this.boxes.find((box) => box.node === this.pointed.node && box.account === this.pointed.account) || null);
    if (this.pointed) this.mark();
    this.drawTrail(focus);
  }

  isTreemap() {
    return this.store.state.shape === "treemap";
  }

  /** Return the boxes of `focus`; those of the last picture where only the search or the colours changed. */
  layout(focus, width, height) {
    const place = [this.isTreemap(), focus, width, height].join();
    if (!this.laid || this.laid.ledger !== this.ledger || this.laid.place !== place) {
      const make = this.isTreemap() ? layoutTreemap : layoutIcicle;
      this.laid = { ledger: this.ledger, place, boxes: this.ledger.total[0] > 0 ? make(this.view, this.ledger, focus, width, height) : [] };
    }
    return this.laid.boxes;
  }

  paint(context, width, height) {
    this.picture = null;
    context.clearRect(0, 0, width, height);
    context.font = `12px ${cssColor("sans")}`;
    context.textBaseline = "middle";
    const style = { frame: cssColor("box"), ink: cssColor("ink"), line: cssColor("surface") };
    for (const box of this.boxes) {
      context.globalAlpha = this.isMatched(box) ? 1 : 0.15;
      if (this.isTreemap()) this.paintTreemapBox(context, box, style);
      else this.paintIcicleBox(context, box, style);
    }
    context.globalAlpha = 1;
  }

  paintIcicleBox(context, box, style) {
    const color = box.account >= 0 ? this.categoryOf(box).color : null;
    context.fillStyle = color || style.frame;
    context.fillRect(box.x, box.y, box.w - (box.w > 3 ? 1 : 0), box.h - 1);
    if (!color) this.paintComposition(context, box);
    this.write(context, box, color ? readableOn(color) : style.ink, box.h / 2 - (color ? 0 : 1));
  }

  paintTreemapBox(context, box, style) {
    if (box.account < 0 && box.closed) return this.paintCategories(context, box, box.w >= box.h);
    const color = box.account >= 0 ? this.categoryOf(box).color : null;
    context.fillStyle = color || style.frame;
    context.fillRect(box.x, box.y, box.w, box.h);
    if (!color) outline(context, box, style.line);
    if (color) this.write(context, box, readableOn(color), Math.min(box.h, ICICLE_ROW) / 2);
    else if (box.head) this.write(context, box, style.ink, 9);
    return undefined;
  }

  /** Write the name, and the amount, of a box that has room for them; `line` is the middle of the text below its top. */
  write(context, box, color, line) {
    const room = box.w - 10;
    if (room <= 14 || box.h < 14) return;
    context.fillStyle = color;
    context.fillText(this.label(context, box, room), box.x + 5, box.y + line);
  }

  /** Draw the strip along a module's foot that says what its bytes are. */
  paintComposition(context, box) {
    const strip = { node: box.node, x: box.x, y: box.y + box.h - 4, w: box.w - 1, h: 3 };
    if (box.w >= 4) return this.paintCategories(context, strip, true);
    const sums = categoriesBelow(this.ledger, box.node);
    context.fillStyle = this.ledger.categories[sums.indexOf(Math.max(...sums))].color;
    return context.fillRect(strip.x, strip.y, box.w, strip.h);
  }

  /** Fill a module's box with its categories, each as long as its share: side by side, or one below the other. */
  paintCategories(context, { node, x, y, w, h }, across) {
    const sums = categoriesBelow(this.ledger, node);
    const perUnit = (across ? w : h) / this.ledger.total[node];
    let from = 0;
    for (let id = 0; id < sums.length; id++) {
      const length = sums[id] * perUnit;
      if (!(length > 0)) continue;
      context.fillStyle = this.ledger.categories[id].color;
      if (across) context.fillRect(x + from, y, length, h);
      else context.fillRect(x, y + from, w, length);
      from += length;
    }
  }

  isMatched(box) {
    if (!this.matches) return true;
    return box.account >= 0 ? this.matches.accounts[box.account] === 1 : this.matches.nodes[box.node] === 1;
  }

  amountOf(box) {
    return box.account >= 0 ? this.ledger.amounts[box.account] : this.ledger.total[box.node];
  }

  /** Return the category (or phase) of an account's box. */
  categoryOf(box) {
    return this.ledger.categories[this.ledger.accounts.category[box.account]];
  }

  /** Return name and amount of a box, the name alone where there is no room for both. */
  label(context, box, room) {
    const name = box.account >= 0 ? formatName(this.categoryOf(box).key) : this.view.tree.name[box.node];
    const whole = `${name}  ${this.ledger.currency.format(this.amountOf(box))}`;
    return context.measureText(whole).width <= room ? whole : fitText(context, name, room);
  }

  boxAt(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const y = event.clientY - bounds.top;
    let found = null;
    for (const box of this.boxes) if (box.x <= x && x < box.x + box.w && box.y <= y && y < box.y + box.h) found = box;
    return found;
  }

  point(event) {
    const box = this.boxAt(event);
    if (box !== this.pointed) this.select(box);
    if (box) showTip(this.describe(box), event.clientX + 14, event.clientY + 16, event.clientY - 10);
    else hideTip();
  }

  unpoint() {
    this.select(null);
    hideTip();
  }

  select(box) {
    this.pointed = box;
    this.mark();
    byId("structure-said").textContent = box ? this.describe(box).map((line) => [line.text, line.value].filter(Boolean).join(" ")).join(", ") : "";
  }

  /** Outline the box pointed at, and nothing else, on a copy of the picture: thousands of boxes are not painted anew. */
  mark() {
    const context = this.canvas.getContext("2d");
    if (this.picture) putPicture(context, this.picture);
    else this.picture = copyPicture(this.canvas);
    if (this.pointed) outline(context, this.pointed, cssColor("ink"));
  }

  describe(box) {
    const { tree } = this.view;
    const { currency, categories, uncertainty, total } = this.ledger;
    const amount = this.amountOf(box);
    const shares = `${currency.format(amount)} · ${formatShare(amount, total[0])} ${currency.whole}`;
    const title = box.node === 0 ? currency.everything : tree.path[box.node];
    const lines = [{ text: title, className: "tip-title path" }];
    if (tree.className[box.node]) lines.push({ text: tree.className[box.node], className: "tip-source" });
    if (box.account >= 0) {
      const category = this.categoryOf(box);
      const around = uncertainty && uncertainty[box.account] !== null ? ` ${formatUncertainty(amount, uncertainty[box.account])}` : "";
      return [...lines, { text: formatName(category.key), color: category.color, value: shares }, { text: `${currency.exact(amount)}${around}`, className: "tip-source" }];
    }
    lines.push({ text: shares });
    const sums = [...categoriesBelow(this.ledger, box.node)].map((sum, id) => ({ sum, category: categories[id] })).filter(({ sum }) => sum > 0);
    sums.sort((a, b) => b.sum - a.sum);
    lines.push(...sums.map(({ sum, category }) => ({ text: formatName(category.key), color: category.color, value: currency.format(sum) })));
    return lines;
  }

  click(event) {
    const box = this.boxAt(event);
    if (!box) return;
    if (this.isTreemap()) this.zoomTo(this.childOfFocus(box.node));
    else this.zoomTo(box.node === this.focus() ? this.view.tree.parent[box.node] : box.node);
  }

  /** Return the ancestor of `node` right below the focus: a treemap is entered level by level. */
  childOfFocus(node) {
    const focus = this.focus();
    let child = node;
    while (child !== focus && this.view.tree.parent[child] !== focus) child = this.view.tree.parent[child];
    return child;
  }

  zoomTo(node) {
    this.pointed = null;
    hideTip();
    this.store.set({ node: String(Math.max(0, node)) });
  }

  /** Arrows walk over the boxes, Enter goes in, Esc goes up. */
  key(event) {
    if (event.key === "Enter" && this.pointed) this.zoomTo(this.pointed.node);
    else if (event.key.startsWith("Arrow")) this.walk(event.key.slice(5));
    else return;
    event.preventDefault();
  }

  up() {
    const focus = this.focus();
    if (focus > 0) this.zoomTo(this.view.tree.parent[focus]);
    return focus > 0;
  }

  walk(direction) {
    if (!this.pointed) return this.select(this.boxes[0] || null);
    const { x, y, w, h } = this.pointed;
    const ahead = {
      Right: (box) => box.y === y && box.x >= x + w - 0.01,
      Left: (box) => box.y === y && box.x + box.w <= x + 0.01,
      Down: (box) => box.y >= y + h - 0.01 && box.x + box.w > x && box.x < x + w,
      Up: (box) => box.y + box.h <= y + 0.01 && box.x <= x + 0.01 && box.x + box.w > x,
    }[direction];
    const distance = (box) => Math.abs(box.y - y) * 1e4 + Math.abs(box.x - x);
    const next = this.boxes.filter((box) => box !== this.pointed && ahead(box)).sort((a, b) => distance(a) - distance(b))[0];
    if (next) this.select(next);
    return undefined;
  }

  /** Show the way from the whole device to the focus. */
  drawTrail(focus) {
    const nodes = [];
    for (let node = focus; node > 0; node = this.view.tree.parent[node]) nodes.unshift(node);
    const step = (node) => element("button", { type: "button", className: "link", onclick: () => this.zoomTo(node), disabled: node === focus }, this.view.tree.name[node]);
    byId("trail").replaceChildren(...[0, ...nodes].flatMap((node, i) => (i ? [element("span", { className: "muted", "aria-hidden": "true" }, "›"), step(node)] : [step(node)])));
    const { currency, total } = this.ledger;
    byId("trail-bytes").textContent = `${currency.format(total[focus])} ${focus ? `· ${formatShare(total[focus], total[0])} ${currency.whole}` : currency.alone}`;
  }
}

/** Return a copy of what is on `canvas`. */
function copyPicture(canvas) {
  const copy = element("canvas", { width: canvas.width, height: canvas.height });
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

/** Put a copied picture back. */
function putPicture(context, picture) {
  context.save();
  context.resetTransform();
  context.clearRect(0, 0, picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  context.restore();
}

function outline(context, box, color) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.strokeRect(box.x + 0.75, box.y + 0.75, Math.max(0.5, box.w - 2), Math.max(0.5, box.h - 2.5));
}

/** Return `text`, cut with "…" where `room` pixels do not hold it. */
function fitText(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 2 ? `${text.slice(0, low)}…` : "";
}

/** Return black or white, whichever reads better on `color` (#rrggbb). */
function readableOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 ? "#16181b" : "#ffffff";
}
