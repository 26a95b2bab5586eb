// Light, dark, and paper, which is light: figures are drawn anew in the colours of each.

function theme() {
  return element(
    "button",
    {
      "aria-label": "Switch between light and dark",
      title: "Light or dark",
      onclick: () => {
        document.documentElement.dataset.theme = isDark() ? "light" : "dark";
        redrawAll();
      },
    },
    "◐",
  );
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => {
  printing = true;
  redrawAll();
});
addEventListener("afterprint", () => {
  printing = false;
  redrawAll();
});
