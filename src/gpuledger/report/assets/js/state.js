// What the reader has chosen. It lives in the address, so a link shows the same picture.

const DEFAULT_STATE = {
  view: "",
  at: "peak",
  zoom: "",
  node: "0",
  q: "",
  group: "folded",
  sort: "",
  rows: "20",
  axis: "time",
  scale: "data",
  shape: "icicle",
  metric: "bytes",
  span: "recording",
  hide: "",
  theme: "",
};

/** Return what `table` holds under a name that the address gives; nothing that every object inherits. */
function own(table, name) {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** Return the state written in `hash`; unknown keys are ignored, missing ones have their default. */
function parseState(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const key of Object.keys(DEFAULT_STATE)) state[key] = given.has(key) ? given.get(key) : DEFAULT_STATE[key];
  return state;
}

/** Return `state` as a hash that holds only what differs from the default. */
function formatState(state) {
  const pairs = Object.keys(DEFAULT_STATE).filter((key) => state[key] !== DEFAULT_STATE[key]);
  const text = new URLSearchParams(pairs.map((key) => [key, state[key]])).toString();
  return `#${text}`;
}

/** Holds the state, keeps the address in step and tells the views what changed. */
class Store {
  constructor() {
    this.state = parseState(location.hash);
    this.listeners = [];
    window.addEventListener("hashchange", () => this.replace(parseState(location.hash)));
  }

  /** Call `listener(state)` after any of `keys` changed. */
  listen(keys, listener) {
    this.listeners.push({ keys, listener });
  }

  /** Change some of the state; a change of view drops what belonged to the old one. */
  set(patch) {
    const belongs = patch.view !== undefined && patch.view !== this.state.view ? { at: "peak", zoom: "", node: "0" } : {};
    const next = { ...this.state, ...belongs, ...patch };
    history.replaceState(null, "", formatState(next));
    this.replace(next);
  }

  replace(next) {
    const changed = Object.keys(next).filter((key) => next[key] !== this.state[key]);
    if (!changed.length) return;
    this.state = next;
    for (const { keys, listener } of this.listeners) if (keys.some((key) => changed.includes(key))) listener(next);
  }
}
