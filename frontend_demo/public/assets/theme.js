// Before the first paint, so that a dark page never flashes white.
(function () {
  var chosen = null;
  try { chosen = localStorage.getItem("agent-server.theme"); } catch (e) { /* storage may be closed */ }
  var dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
