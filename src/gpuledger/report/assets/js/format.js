// Numbers as text. The same rules as the terminal: GiB = 2^30, exact bytes always one hover away.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const MISSING = "n/a";

/** Return `value` with `decimals` decimals; exact halves go to the even digit, as Python's format does. */
function fixed(value, decimals) {
  const exact = value.toFixed(60);
  const cut = exact.length - 60 + decimals;
  if (!/^50*$/.test(exact.slice(cut))) return value.toFixed(decimals);
  const kept = exact.slice(0, cut);
  return /[02468]\.?$/.test(kept) ? kept.replace(/\.$/, "") : value.toFixed(decimals);
}

/** Return the exponent of 1024 in whose unit `bytes` is shown. */
function byteExponent(bytes) {
  let exponent = 0;
  let size = Math.abs(bytes);
  while (exponent + 1 < BYTE_UNITS.length && Number(fixed(size, exponent ? 1 : 0)) >= 1024) {
    size /= 1024;
    exponent += 1;
  }
  return exponent;
}

/** Return `bytes` as "71.2 GiB". */
function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return MISSING;
  const exponent = byteExponent(bytes);
  return `${fixed(bytes / 1024 ** exponent, exponent ? 1 : 0)} ${BYTE_UNITS[exponent]}`;
}

/** Return `bytes` as "71,234,567 bytes". */
function formatExact(bytes) {
  if (bytes === null || bytes === undefined) return "not measured";
  return `${groupDigits(bytes)} ${Math.abs(bytes) === 1 ? "byte" : "bytes"}`;
}

/** Return a whole number with thousands set apart by commas, in every locale alike. */
function groupDigits(number) {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Return `part / whole` as "51.3 %" or "< 0.1 %"; "" where either is missing. */
function formatShare(part, whole) {
  if (!whole || part === null || part === undefined) return "";
  const share = part / whole;
  return share > 0 && share < 0.0005 ? "< 0.1 %" : `${fixed(share * 100, 1)} %`;
}

const TIME_UNITS = [["ns", 1, 1000], ["µs", 1e3, 1000], ["ms", 1e6, 1000], ["s", 1e9, 120], ["min", 60e9, 120], ["h", 3600e9, Infinity]];

/** Return nanoseconds as "17.84 ms". */
function formatNs(ns) {
  if (ns === null || ns === undefined) return MISSING;
  const size = Math.abs(ns);
  const sign = ns < 0 ? "-" : "";
  const [unit, unitNs] = TIME_UNITS.find(([, one, below]) => Number(fixed(size / one, 2)) < below);
  return `${sign}${fixed(size / unitNs, unit === "ns" ? 0 : 2)} ${unit}`;
}

const JOULE_UNITS = [["µJ", 1e-6], ["mJ", 1e-3], ["J", 1], ["kJ", 1e3], ["MJ", 1e6]];

/** Return joules as "251.30 J"; with an uncertainty, both in the unit of the value, as "1.600 ± 0.007 J". */
function formatJoules(joules, uncertainty = null) {
  if (joules === null || joules === undefined) return MISSING;
  const [unit, factor] = jouleUnit(joules);
  if (uncertainty === null) return `${fixed(joules / factor, 2)} ${unit}`;
  return `${fixed(joules / factor, decimalsFor(uncertainty / factor))} ${formatUncertainty(joules, uncertainty)}`;
}

/** Return the uncertainty of an energy in the unit that the energy has, as "± 0.007 J". */
function formatUncertainty(joules, uncertainty) {
  const [unit, factor] = jouleUnit(joules);
  return `± ${fixed(uncertainty / factor, decimalsFor(uncertainty / factor))} ${unit}`;
}

function jouleUnit(joules) {
  return JOULE_UNITS.find(([, one]) => Number(fixed(Math.abs(joules) / one, 2)) < 1000) || JOULE_UNITS[JOULE_UNITS.length - 1];
}

/** Return how many decimals show a digit of `half`: two to six. */
function decimalsFor(half) {
  return [2, 3, 4, 5, 6].find((decimals) => half * 10 ** decimals >= 1) || 2;
}

/** Return watts as "412 W". */
function formatWatts(watts) {
  if (watts === null || watts === undefined) return MISSING;
  return `${fixed(watts, watts < 100 ? 1 : 0)} W`;
}

/** Return a count a second as "1,234" or "3.4". */
function formatRate(perSecond) {
  return groupDigits(perSecond < 100 ? fixed(perSecond, 1) : Math.round(perSecond));
}

/** Return a category's key as a reader's words: "activation_gradient" as "activation gradient". */
function formatName(key) {
  return key.replace(/_/g, " ");
}

/** Return `text` with what cannot be seen made visible, so that a name cannot reorder or hide its surroundings. */
function printable(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (character) => {
    const code = character.codePointAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
