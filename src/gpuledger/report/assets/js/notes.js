// What a reader should know of the recording.

/** Show the notes of `view`; the section is away where there are none. */
function drawNotes(view) {
  byId("notes-section").hidden = !view.notes.length;
  byId("notes").replaceChildren(...view.notes.map((note) => element("li", {}, printable(note))));
}

registerSection("notes", drawNotes);
