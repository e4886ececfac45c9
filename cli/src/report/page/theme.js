// Light and dark: what the system asks for, until the reader chooses.

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === undefined ? prefersDark.matches : chosen === "dark";
}

// `whenChanged` draws again what is drawn in colours of the theme.
function setUpTheme(whenChanged) {
  const toggle = byId("theme");
  const apply = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    readInks();
    whenChanged();
  };
  toggle.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    apply();
  });
  prefersDark.addEventListener("change", apply);
  apply();
}

// Colours of the style sheet, as a canvas takes them.
const inks = {};

function readInks() {
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  for (const name of ["ink", "quiet", "line", "paper", "raised", "accent", "alarm", "hole"]) {
    probe.style.color = `var(--${name})`;
    inks[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}
