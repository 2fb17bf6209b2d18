// Bytes by category over time, stacked; the reserved line above, the GPU's capacity, the peak and the chosen instant.

const CLICK_SLOP_PX = 4;

/** Return a zoom as text for the state: ns since the recording opened, or events. */
function formatZoom(start, end) {
  return `${Math.round(start)},${Math.round(end)}`;
}

/** Return the zoom in `text` as [start, end], or null. */
function parseZoom(text) {
  const [start, end] = text.split(",").map(Number);
  return Number.isFinite(start) && Number.isFinite(end) && end > start ? [start, end] : null;
}

/** Return whether the events of `view` have an order and no times, as in logs that keep none and on a simulated GPU. */
function isTimeless(view) {
  const { t, hasTimes } = view.timeline;
  return !hasTimes || (t.length > 1 && t[0] === t[t.length - 1]);
}

/** Return what the x axis of `view` counts: "time" or "event". */
function axisName(view, state) {
  return state.axis === "event" || isTimeless(view) ? "event" : "time";
}

/** Return time `t` of `view` as text; "" where it has no times. */
function momentOf(view, t) {
  return isTimeless(view) ? "" : formatNs(t);
}

/** The x axis: the state counts it in ns or events, the plot in seconds or events. */
const AXES = {
  time: { key: "t", perUnit: 1e9, values: (timeline) => timeline.t, labels: (ticks) => timeLabels(ticks), place: (timeline, t) => t },
  event: { key: "event", perUnit: 1, values: (timeline) => timeline.index, labels: (ticks) => ticks.map(groupDigits), place: (timeline, t) => timeline.index[lastUntil(timeline.t, t)] },
};

/** Return the position of the last of `times` that is not after `t`; 0 where all are. */
function lastUntil(times, t) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= t) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The timeline of one view. */
class Timeline {
  constructor(store, onHover) {
    this.store = store;
    this.onHover = onHover;
    this.host = byId("timeline");
    this.power = new PowerStrip(this);
    new ResizeObserver(() => this.resize()).observe(this.host);
  }

  /** Show `view` from its beginning to its end. */
  show(view) {
    this.view = view;
    this.draw();
  }

  /** Build the plot anew: another view, other categories, other colours. */
  draw() {
    if (this.plot) this.plot.destroy();
    this.hidden = new Set(this.store.state.hide.split(",").filter(Boolean));
    this.axis = AXES[axisName(this.view, this.store.state)];
    this.bands = this.view.bands.map((band) => ({ ...band, from: this.axisPlace(band.start), to: this.axisPlace(band.end) }));
    this.plot = new uPlot(this.options(), this.stack(), this.host);
    this.listenTo(this.plot);
    this.power.draw();
  }

  /** Return where time `t` (ns) stands on the x axis, whatever it counts. */
  axisPlace(t) {
    return this.axis.place(this.view.timeline, t) / this.axis.perUnit;
  }

  axisStyle() {
    return { stroke: cssColor("muted"), font: `12px ${cssColor("sans")}`, grid: { stroke: cssColor("grid"), width: 1 }, ticks: { stroke: cssColor("grid"), width: 1, size: 4 } };
  }

  /** Return a cursor that both plots share: one line through both, a drag selects. */
  cursor() {
    return { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: { key: "timeline" } };
  }

  hooks(onCursor) {
    return { setSelect: [(plot) => this.zoomToSelection(plot)], setCursor: [onCursor] };
  }

  options() {
    const { categories } = this.view.timeline;
    const ink = cssColor("ink");
    const axis = this.axisStyle();
    const stepped = uPlot.paths.stepped({ align: 1 });
    const areas = categories.map((_, position) => {
      const category = REPORT.categories[categories[categories.length - 1 - position]];
      return { label: category.key, fill: category.color, width: 0, points: { show: false }, paths: stepped };
    });
    const reserved = { label: "reserved", stroke: ink, width: 1.25, points: { show: false }, paths: stepped, show: hasReserved(this.view) && this.view.kind === "breakdown" };
    return {
      width: this.host.clientWidth,
      height: this.host.clientHeight,
      padding: [this.view.bands.length ? BANDS_HEIGHT : 8, 28, 0, 0],
      legend: { show: false },
      cursor: this.cursor(),
      scales: {
        x: { time: false, min: this.range()[0], max: this.range()[1] },
        y: { range: (plot, low, high) => [0, this.top(high)] },
      },
      axes: [
        { ...axis, size: 30, values: (plot, ticks) => this.axis.labels(ticks) },
        { ...axis, size: 76, incrs: byteIncrements(), values: (plot, ticks) => byteLabels(ticks) },
      ],
      series: [{}, ...areas, reserved],
      hooks: { ...this.hooks((plot) => this.hover(plot)), draw: [(plot) => this.decorate(plot)] },
    };
  }

  /** Return uPlot's columns: x, then running sums from all categories down to the first, then reserved. */
  stack() {
    const { categories, bytes, reserved } = this.view.timeline;
    const values = this.axis.values(this.view.timeline);
    const x = Float64Array.from(values, (value) => value / this.axis.perUnit);
    const sums = [];
    let below = new Float64Array(x.length);
    categories.forEach((category, position) => {
      const shown = !this.hidden.has(REPORT.categories[category].key);
      below = shown ? below.map((sum, i) => sum + bytes[position][i]) : below;
      sums.unshift(below);
    });
    const columns = [x, ...sums, reserved];
    return this.axis === AXES.event ? columns.map(lastsOneEvent) : columns;
  }

  range() {
    const values = this.axis.values(this.view.timeline);
    const last = values[values.length - 1];
    const recorded = [values[0], this.axis === AXES.event ? last + 1 : Math.max(last, values[0] + 1)];
    const whole = this.axis === AXES.time && this.store.state.span === "run" ? runSpan(this.view, recorded) : recorded;
    return (parseZoom(this.store.state.zoom) || whole).map((value) => value / this.axis.perUnit);
  }

  /** Return the top of the y scale: the data's, or the GPU's capacity when that is asked for. */
  top(high) {
    const capacity = this.view.summary.capacity_bytes;
    if (this.store.state.scale === "capacity" && capacity) return Math.max(capacity, high) * 1.04;
    return Math.max(high, 1) * 1.12;
  }

  /** Let a click on `plot` choose an instant, and a double click show everything. */
  listenTo(plot) {
    const { over } = plot;
    let from = null;
    over.addEventListener("mousedown", (event) => { from = event.clientX; });
    over.addEventListener("mouseup", (event) => {
      if (from !== null && Math.abs(event.clientX - from) < CLICK_SLOP_PX) this.choose(event.clientX);
      from = null;
    });
    over.addEventListener("dblclick", () => this.store.set({ zoom: "" }));
    over.addEventListener("mouseleave", () => this.onHover(null));
  }

  /** Choose the instant nearest to what was clicked. */
  choose(clientX) {
    const x = this.plot.posToVal(clientX - this.plot.over.getBoundingClientRect().left, "x");
    const k = nearestInstant(this.view.instants, this.axis.key, x * this.axis.perUnit);
    this.store.set({ at: instantKey(this.view, k) });
  }

  zoomToSelection(plot) {
    const { left, width } = plot.select;
    if (width < CLICK_SLOP_PX) return;
    const zoom = formatZoom(plot.posToVal(left, "x") * this.axis.perUnit, plot.posToVal(left + width, "x") * this.axis.perUnit);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.store.set({ zoom });
  }

  hover(plot) {
    const { left, idx } = plot.cursor;
    this.onHover(left >= 0 && idx !== null ? Math.min(idx, this.view.timeline.t.length - 1) : null);
  }

  /** Move to the zoom in the state. */
  zoom() {
    const [min, max] = this.range();
    this.plot.setScale("x", { min, max });
    this.power.zoom();
  }

  resize() {
    if (this.plot && this.host.clientWidth > 0) this.plot.setSize({ width: this.host.clientWidth, height: this.host.clientHeight });
    this.power.resize();
  }

  decorate(plot) {
    drawBands(plot, this.bands);
    drawCapacity(plot, this.view.summary.capacity_bytes);
    drawInstants(plot, this.view.instants.map((instant) => this.place(instant)));
    const chosen = this.view.instants[chosenInstant(this.view, this.store.state)];
    const peak = this.view.instants[this.view.peak];
    const [ink, accent] = [cssColor("ink"), cssColor("accent")];
    drawMarker(plot, this.place(peak), peak.allocated, { text: `peak ${formatBytes(peak.allocated)}`, row: 0, color: chosen === peak ? accent : ink });
    if (chosen !== peak) drawMarker(plot, this.place(chosen), chosen.allocated, { text: `chosen ${formatBytes(chosen.allocated)}`, row: 1, color: accent });
  }

  /** Return where an instant stands on the x axis. */
  place(instant) {
    return instant[this.axis.key] / this.axis.perUnit;
  }
}

/** Return a column with its last value once more: the state after the last event is as wide as any other. */
function lastsOneEvent(column, place) {
  const longer = new Float64Array(column.length + 1);
  longer.set(column);
  longer[column.length] = column[column.length - 1] + (place === 0 ? 1 : 0);
  return longer;
}

/** Return [start, end] in ns of everything that has a time: the recorded allocations, all steps, all readings. */
function runSpan(view, recorded) {
  const times = [...recorded, ...view.bands.flatMap((band) => [band.start, band.end])];
  if (view.power) times.push(view.power.t[0], view.power.t[view.power.t.length - 1]);
  return [Math.min(...times), Math.max(...times)];
}

/** Return whether there is more to see than the recorded allocations. */
function hasMoreThanRecorded(view) {
  if (isTimeless(view)) return false;
  const { t } = view.timeline;
  const recorded = [t[0], t[t.length - 1]];
  const [start, end] = runSpan(view, recorded);
  return end - start > 1.05 * (recorded[1] - recorded[0]);
}

/** Return increments of the byte axis: powers of two, so that a tick has few decimals in the next unit, too. */
function byteIncrements() {
  return BYTE_UNITS.flatMap((_, exponent) => Array.from({ length: 10 }, (__, power) => 2 ** power * 1024 ** exponent));
}

/** Return the fewest decimals, at most 6, with which multiples of `step` are exact. */
function decimalsOf(step) {
  let decimals = 0;
  while (decimals < 6 && Math.abs(step - Number(step.toFixed(decimals))) > 1e-6 * step) decimals += 1;
  return decimals;
}

/** Return byte labels that share the largest tick's unit and its decimals. */
function byteLabels(ticks) {
  const exponent = byteExponent(Math.max(...ticks));
  const decimals = Math.max(...ticks.map((tick) => decimalsOf(tick / 1024 ** exponent)));
  return ticks.map((tick) => (tick === 0 ? "0" : `${(tick / 1024 ** exponent).toFixed(decimals)} ${BYTE_UNITS[exponent]}`));
}

/** Return time labels that share one unit and its decimals. */
function timeLabels(ticks) {
  const span = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  const [factor, unit] = ticks[ticks.length - 1] >= 1 ? [1, "s"] : ticks[ticks.length - 1] >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const decimals = decimalsOf(span * factor);
  return ticks.map((tick) => `${(tick * factor).toFixed(decimals)} ${unit}`);
}

function drawCapacity(plot, capacity) {
  if (!capacity || capacity > plot.scales.y.max) return;
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  const y = Math.round(plot.valToPos(capacity, "y", true));
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = cssColor("warning");
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  ctx.lineWidth = 1.5 * ratio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${11 * ratio}px ${cssColor("sans")}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  ctx.fillText(`capacity ${formatBytes(capacity)}`, bbox.left + 6 * ratio, y + 4 * ratio);
  ctx.restore();
}

/** Draw a small mark on the x axis for every instant whose accounts this file holds. */
function drawInstants(plot, places) {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.fillStyle = cssColor("muted");
  for (const place of places) {
    const x = Math.round(plot.valToPos(place, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.fillRect(x, bbox.top + bbox.height, ratio, 5 * ratio);
  }
  ctx.restore();
}

function drawMarker(plot, place, bytes, flag) {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  const x = Math.round(plot.valToPos(place, "x", true));
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  const y = Math.round(plot.valToPos(bytes, "y", true));
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = flag.color;
  ctx.lineWidth = ratio;
  ctx.beginPath();
  ctx.moveTo(x + 0.5 * ratio, bbox.top);
  ctx.lineTo(x + 0.5 * ratio, bbox.top + bbox.height);
  ctx.stroke();
  ctx.beginPath();
  ctx.arc(x + 0.5 * ratio, y, 3.5 * ratio, 0, 2 * Math.PI);
  ctx.fill();
  drawFlag(ctx, flag, x, bbox, ratio);
  ctx.restore();
}

function drawFlag(ctx, { text, row, color }, x, bbox, ratio) {
  ctx.font = `600 ${11 * ratio}px ${cssColor("sans")}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const width = ctx.measureText(text).width + 10 * ratio;
  const left = x + width > bbox.left + bbox.width ? x - width : x;
  const top = bbox.top + row * 18 * ratio;
  ctx.fillStyle = color;
  ctx.fillRect(left, top, width, 16 * ratio);
  ctx.fillStyle = cssColor("surface");
  ctx.fillText(text, left + 5 * ratio, top + 8.5 * ratio);
}
