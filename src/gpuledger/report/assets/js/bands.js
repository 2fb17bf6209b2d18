// Steps and phases as two thin rows above the plot.

const BAND_ROW_HEIGHT = 15;
const BANDS_HEIGHT = 2 * BAND_ROW_HEIGHT + 4;
const PHASE_INITIAL = { setup: "S", forward: "F", backward: "B", optimizer: "O", evaluation: "E" };
const PHASE_WEIGHT = { setup: 0.1, forward: 0.2, backward: 0.36, optimizer: 0.52, evaluation: 0.2, between: 0.04 };

/** Draw the bands ({from, to} on the x axis) that fall between the plot's sides. */
function drawBands(plot, bands) {
  const context = plot.ctx;
  const ratio = uPlot.pxRatio;
  const { left, top, width } = plot.bbox;
  context.save();
  context.beginPath();
  context.rect(left, 0, width, top);
  context.clip();
  context.font = `${11 * ratio}px ${cssColor("sans")}`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = cssColor("ink");
  for (const band of bands) {
    const x0 = Math.max(left, plot.valToPos(band.from, "x", true));
    const x1 = Math.min(left + width, plot.valToPos(band.to, "x", true));
    if (x1 - x0 < 0.5) continue;
    const row = band.kind === "step" ? 0 : 1;
    drawBand(context, band, x0, row * BAND_ROW_HEIGHT * ratio, x1 - x0, (BAND_ROW_HEIGHT - 2) * ratio, ratio);
  }
  context.restore();
}

function drawBand(context, band, x, y, width, height, ratio) {
  context.globalAlpha = band.kind === "step" ? 0.09 : PHASE_WEIGHT[band.label] ?? 0.1;
  context.fillRect(x, y, Math.max(1, width - ratio), height);
  context.globalAlpha = 1;
  const text = band.kind === "step" ? (band.step > 0 ? `step ${band.step}` : band.label) : formatName(band.label);
  const room = width - 8 * ratio;
  const label = context.measureText(text).width <= room ? text : shortBand(band);
  if (context.measureText(label).width > room) return;
  context.fillText(label, x + 4 * ratio, y + height / 2 + ratio);
}

function shortBand(band) {
  return band.kind === "step" ? String(band.step) : PHASE_INITIAL[band.label] ?? "";
}

/** Return "step 2 · backward" for time `t` (ns), from the bands around it. */
function bandAt(bands, t) {
  const around = (kind) => bands.filter((band) => band.kind === kind && band.start <= t && t <= band.end).pop();
  const step = around("step");
  const phase = around("phase");
  return [step && step.step > 0 ? `step ${step.step}` : null, phase ? formatName(phase.label) : null].filter(Boolean).join(" · ");
}
