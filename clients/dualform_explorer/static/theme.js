// Before anything is painted: the theme that the reader chose, if any.
try {
  const chosen = localStorage.getItem("dualform-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be closed to us, as in some frames: the system's theme stands.
}
