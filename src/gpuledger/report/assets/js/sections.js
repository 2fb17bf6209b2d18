// The sections of the page: the script of each registers how it is drawn.

const SECTIONS = new Map();

/** Have `draw(view, store)` called at first, and whenever another rank or device is chosen. */
function registerSection(name, draw) {
  SECTIONS.set(name, draw);
}

/** Draw every section for `view`; those that a watched GPU has nothing for are away. */
function drawSections(view, store) {
  for (const name of view.without) byId(`${name}-section`).hidden = true;
  for (const [name, draw] of SECTIONS) if (!view.without.includes(name)) draw(view, store);
}
