// Above everything else: that memory ran out.

/** Say above everything else that memory ran out, where it did. */
function drawAlarm(view) {
  byId("alarm").hidden = !view.oom.length;
  byId("alarm").replaceChildren(...view.oom.map((one) => element("p", {}, oomSentence(one))));
}

function oomSentence(one) {
  const parts = [`Out of memory: ${formatBytes(one.tried_bytes)} requested`];
  if (one.free_bytes !== null) parts.push(`the ${one.place} had ${formatBytes(one.free_bytes)} free`);
  if (one.largest_free_bytes !== null) parts.push(`the largest free block was ${formatBytes(one.largest_free_bytes)}`);
  return `${parts.join("; ")}.`;
}

registerSection("alarm", drawAlarm);
