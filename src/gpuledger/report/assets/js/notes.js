// What a reader should know of the recording.

/** Show the notes of `view`. */
function drawNotes(view) {
  const notes = view.notes.map((note) => element("li", {}, printable(note)));
  byId("notes").replaceChildren(...(notes.length ? notes : [element("li", { className: "muted" }, "No notes.")]));
}

registerSection("notes", drawNotes);
