// Elements without markup: text reaches the page only as text.

/** Return a new element with attributes, listeners (`on…`), and children (elements or text). */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "className") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/** Return the element with this id. */
function byId(id) {
  return document.getElementById(id);
}

/** Return a coloured square for a category. */
function swatch(color) {
  const mark = element("span", { className: "swatch", "aria-hidden": "true" });
  mark.style.background = color;
  return mark;
}

/** Return a bar made of `parts` ({amount, color}) over `whole`. */
function splitBar(parts, whole) {
  const bar = element("span", { className: "split", "aria-hidden": "true" });
  for (const { amount, color } of parts) {
    if (!(amount > 0) || !whole) continue;
    const piece = element("span");
    piece.style.width = `${(100 * amount) / whole}%`;
    piece.style.background = color;
    bar.append(piece);
  }
  return bar;
}

/** Return a number of bytes as an element whose tip shows it exactly. */
function bytesElement(bytes) {
  return amountElement(bytes, CURRENCIES.bytes);
}

/** Return an amount of a currency as an element whose tip shows it exactly. */
function amountElement(amount, currency) {
  return element("span", { className: "number", "data-tip": currency.exact(amount) }, currency.format(amount));
}

/** Return `text` as a term whose tip is the definition `key`, or plain text where there is none. */
function term(text, key) {
  if (!REPORT.definitions[key]) return element("span", {}, text);
  return element("dfn", { tabindex: "0", "data-define": key }, text);
}

/** Return the value of a CSS custom property, for drawing on canvases. */
function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Put `text` on the clipboard; resolves to whether that worked. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (refused) {
    const area = element("textarea", { className: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** Return a 2d context for `canvas` sized `width` x `height` CSS pixels at the screen's density. */
function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
