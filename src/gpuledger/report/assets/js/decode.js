// The payload: gzip in base64 in a script element, columns as differences, back into typed arrays.

/** Return the payload of this file as an object. */
async function readPayload() {
  const text = document.getElementById("data").textContent.trim();
  const binary = atob(text);
  const raw = new Uint8Array(binary.length);
  for (let i = 0; i < raw.length; i++) raw[i] = binary.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Return the running sums of `differences`: how every long column is stored. */
function undoDifferences(differences) {
  const values = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < differences.length; i++) {
    sum += differences[i];
    values[i] = sum;
  }
  return values;
}

/** Return whether reserved bytes are known. */
function hasReserved(view) {
  return view.device_idx >= 0 && view.summary.recorded_peak_reserved_bytes !== null;
}

/** Return `view` with its columns decoded and its module tree's accounts indexed. */
function decodeView(view) {
  const timeline = view.timeline;
  return {
    ...view,
    timeline: {
      t: undoDifferences(timeline.t),
      index: undoDifferences(timeline.index),
      categories: timeline.categories,
      bytes: timeline.bytes.map(undoDifferences),
      reserved: undoDifferences(timeline.reserved),
      hasTimes: timeline.has_times,
    },
    instants: decodeInstants(view.instants),
    tree: decodeTree(view.tree),
    time: decodeStep(view.time, view.tree.path.length),
    energy: decodeStep(view.energy, view.tree.path.length),
    power: view.power && { ...view.power, t: undoDifferences(view.power.t), watts: undoDifferences(view.power.tenths_w).map((tenths) => tenths / 10) },
    accounts: decodeAccounts(view.accounts, view.tree.path.length),
    ledgers: new Map(),
  };
}

/** Return one object per instant, in order of time. */
function decodeInstants(columns) {
  const index = undoDifferences(columns.index);
  const t = undoDifferences(columns.t);
  return Array.from(index, (event, k) => ({
    k,
    event,
    t: t[k],
    label: columns.label[k],
    step: columns.step[k],
    phase: columns.phase[k],
    module: columns.module[k],
    allocated: columns.allocated[k],
    active: columns.active[k],
    reserved: columns.reserved[k],
  }));
}

/** Return the module tree: node 0 is the device, parents stand before their children. */
function decodeTree(tree) {
  const count = tree.path.length;
  const children = Array.from({ length: count }, () => []);
  const name = new Array(count);
  const path = tree.path.map(printable);
  const depth = new Uint16Array(count);
  for (let node = 1; node < count; node++) {
    const parent = tree.parent[node];
    children[parent].push(node);
    depth[node] = depth[parent] + 1;
    name[node] = path[node].startsWith(`${path[parent]}.`) && parent > 0 ? path[node].slice(path[parent].length + 1) : path[node];
  }
  name[0] = "all";
  const className = tree.class_id.map((id) => printable(tree.classes[id]));
  const folded = path.map(foldPath);
  return {
    count,
    path,
    name,
    depth,
    children,
    parent: tree.parent,
    className,
    folded,
    foldedId: numbered(folded.map((name_, node) => `${name_} ${className[node]}`)),
    outside: count - 3,
    rounding: count - 1,
  };
}

/** Return a number for each of `texts`, the same for equal ones. */
function numbered(texts) {
  const known = new Map();
  return Uint32Array.from(texts, (text) => known.get(text) ?? known.set(text, known.size).size - 1);
}

/** Return the accounts, sorted by node, with the place of each node's first one in `start`. */
function decodeAccounts(accounts, nodes) {
  const node = undoDifferences(accounts.node);
  return { ...accounts, node, start: startsOf(node, nodes) };
}

/** Return what one step takes in time or energy, its accounts sorted by node; null where there was no such pass. */
function decodeStep(step, nodes) {
  if (!step) return null;
  return { ...step, accounts: { ...step.accounts, start: startsOf(step.accounts.node, nodes) } };
}

/** Return for each node the place of its first account among accounts sorted by node. */
function startsOf(node, nodes) {
  const start = new Uint32Array(nodes + 1);
  for (const owner of node) start[owner + 1] += 1;
  for (let i = 0; i < nodes; i++) start[i + 1] += start[i];
  return start;
}
