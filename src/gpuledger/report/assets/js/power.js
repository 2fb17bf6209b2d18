// The strip of watts under the timeline, on the timeline's own axis.

/** The power of one view's GPU. */
class PowerStrip {
  constructor(timeline) {
    this.timeline = timeline;
    this.host = byId("power");
  }

  /** Build the strip anew; it is away where the GPU's power was not read. */
  draw() {
    const { power } = this.timeline.view;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    byId("power-section").hidden = !power;
    if (!power) return;
    const x = Float64Array.from(power.t, (t) => this.timeline.axisPlace(t));
    this.plot = new uPlot(this.options(), [x, power.watts], this.host);
    this.timeline.listenTo(this.plot);
    byId("power-caption").textContent = printable(power.source);
    this.read(null);
  }

  options() {
    const axis = this.timeline.axisStyle();
    const [min, max] = this.timeline.range();
    const most = Math.max(1, ...this.timeline.view.power.watts);
    return {
      width: this.host.clientWidth,
      height: this.host.clientHeight,
      padding: [6, 28, 0, 0],
      legend: { show: false },
      cursor: this.timeline.cursor(),
      scales: { x: { time: false, min, max }, y: { range: [0, most * 1.08] } },
      axes: [
        { ...axis, size: 4, values: (plot, ticks) => ticks.map(() => "") },
        { ...axis, size: 76, space: 26, values: (plot, ticks) => ticks.map((tick) => `${tick} W`) },
      ],
      series: [{}, { label: "power", stroke: cssColor("power"), fill: cssColor("power-fill"), width: 1.25, points: { show: false } }],
      hooks: this.timeline.hooks((plot) => this.read(plot.cursor.left >= 0 ? plot.cursor.idx : null)),
    };
  }

  /** Say the watts at reading `index`; the highest in sight without one. */
  read(index) {
    const { power } = this.timeline.view;
    const [min, max] = this.timeline.range();
    const inside = power.watts.filter((_, i) => min <= this.timeline.axisPlace(power.t[i]) && this.timeline.axisPlace(power.t[i]) <= max);
    const most = inside.length ? `at most ${formatWatts(Math.max(...inside))}` : "no sample in this range, see Whole run";
    byId("power-value").textContent = index === null || index === undefined ? most : formatWatts(power.watts[index]);
  }

  zoom() {
    if (!this.plot) return;
    const [min, max] = this.timeline.range();
    this.plot.setScale("x", { min, max });
    this.read(null);
  }

  resize() {
    if (this.plot && this.host.clientWidth > 0) this.plot.setSize({ width: this.host.clientWidth, height: this.host.clientHeight });
  }
}
