// One floating tip: definitions and exact numbers on hover and on keyboard focus.

/** Show and hide the tip for everything with data-define or data-tip. */
function watchTips() {
  const show = (event) => {
    const target = event.target.closest && event.target.closest("[data-define],[data-tip]");
    if (!target) return hideTip();
    const box = target.getBoundingClientRect();
    return showTip(tipLines(target), box.left, box.bottom + 6, box.top - 6);
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hideTip);
  document.addEventListener("scroll", hideTip, { passive: true });
}

function tipLines(target) {
  if (target.dataset.tip) return [{ text: target.dataset.tip }];
  const definition = REPORT.definitions[target.dataset.define];
  return [
    { text: definition.title, className: "tip-title" },
    { text: definition.meaning },
    { text: definition.source ? `Source: ${definition.source}` : "", className: "tip-source" },
  ].filter((line) => line.text);
}

/** Show `lines` ({text, className?, color?, value?}) at (x, y), above `above` where there is no room below. */
function showTip(lines, x, y, above = y) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map(tipLine));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(x, window.innerWidth - box.width - 8));
  const top = y + box.height > window.innerHeight - 8 ? Math.max(8, above - box.height) : y;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

function tipLine({ text, className, color, value }) {
  const line = element("div", { className: className || "tip-line" });
  if (color) line.append(swatch(color));
  line.append(element("span", {}, text));
  if (value) line.append(element("span", { className: "number tip-value" }, value));
  return line;
}

function hideTip() {
  byId("tip").hidden = true;
}
