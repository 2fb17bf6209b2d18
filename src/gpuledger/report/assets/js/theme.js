// Light and dark: the system's choice until the reader makes one.

/** Return "light" or "dark": what is shown now. */
function shownTheme(state) {
  if (state.theme === "light" || state.theme === "dark") return state.theme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Set the page's theme, keep it with the state, and call `repaint` after each change. */
function watchTheme(store, repaint) {
  const apply = () => {
    const theme = shownTheme(store.state);
    document.documentElement.dataset.theme = theme;
    byId("theme").setAttribute("aria-label", `${theme === "dark" ? "Light" : "Dark"} colours`);
  };
  const change = () => {
    apply();
    repaint();
  };
  byId("theme").addEventListener("click", () => store.set({ theme: shownTheme(store.state) === "dark" ? "light" : "dark" }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change);
  store.listen(["theme"], change);
  window.addEventListener("beforeprint", () => preparePrint(repaint));
  window.addEventListener("afterprint", change);
  apply();
}

/** Paper is white, and shows every definition. */
function preparePrint(repaint) {
  document.documentElement.dataset.theme = "light";
  for (const details of document.querySelectorAll("details")) details.open = true;
  repaint();
}
