// Elements, numbers for people, colours, the tooltip. Names that users gave only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const shape = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const NONE = "–";
const percent = (value) => (value === null ? NONE : `${(100 * value).toFixed(1)}%`);
const percentTick = (value) => `${Number((100 * value).toPrecision(4))}%`;
const WORDS = new Map([
  [null, NONE],
  [true, "yes"],
  [false, "no"],
]);
const plain = (value) => WORDS.get(value) ?? String(value);
const decimal = (value) => (value === null ? NONE : Number(value.toPrecision(3)).toString());
const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

function bytes(value) {
  if (value === null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return `${unit ? Number(value.toPrecision(3)) : value} ${units[unit]}`;
}

function seconds(value) {
  if (value === null) return NONE;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 120) return `${(value / 60).toFixed(1)} min`;
  return value >= 0.1 || value === 0 ? `${decimal(value)} s` : `${decimal(1000 * value)} ms`;
}

const colour = (number) => `var(--c${number % 7})`;
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// Tables of colours from nothing to the most, in steps: white to blue, or, on a dark page, dark to light.
const HEAT = {
  light: [
    [247, 249, 252],
    [198, 219, 239],
    [107, 174, 214],
    [33, 113, 181],
    [8, 48, 107],
  ],
  dark: [
    [28, 34, 43],
    [29, 66, 108],
    [38, 110, 172],
    [92, 167, 222],
    [214, 236, 255],
  ],
};
let printing = false;

function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function heat(share) {
  const stops = HEAT[isDark() ? "dark" : "light"];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((from, channel) => Math.round(from + (at - low) * (stops[low + 1][channel] - from)));
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
const inkOn = ([red, green, blue]) => (0.3 * red + 0.6 * green + 0.1 * blue > 140 ? "#1b2430" : "#ffffff");

const tip = element("div", { id: "tip", role: "status", hidden: "" });

// A tooltip's content: a title, and lines of [colour or null, name, value].
function tipContent(title, lines) {
  const row = ([paint, name, value]) =>
    element(
      "div",
      {},
      paint && element("span", { class: "swatch", style: `background:${paint}` }),
      element("span", {}, name),
      element("span", {}, value === undefined ? "" : value),
    );
  return [element("b", {}, title), ...lines.map(row)];
}

function showTip(event, content) {
  tip.hidden = !content;
  if (!content) return;
  tip.replaceChildren(...content);
  const { width, height } = tip.getBoundingClientRect();
  const right = event.clientX + 16 + width < innerWidth;
  const left = right ? event.clientX + 16 : event.clientX - 16 - width;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}

const card = (width, title, note, ...children) =>
  element(
    "div",
    { class: `card ${width}` },
    element("h3", {}, title),
    note && element("p", { class: "note" }, note),
    ...children,
  );

// A place for one figure; `name` is how tests and links find it.
const figure = (name) => element("div", { class: "figure", "data-figure": name });
const missing = (name, text) =>
  element("div", { class: "figure empty", "data-figure": name, "data-missing": "" }, text);

// The numbers of a figure as a table, for keyboards, screen readers and copying; its rows are made when it is opened.
const MOST_TABLE_ROWS = 2000;
function dataTable(caption, head, rows) {
  const body = element("div", { class: "scroll" });
  const fillIn = () => {
    if (body.firstChild) return;
    const all = rows();
    const cells = (kind, row) =>
      element(
        "tr",
        {},
        row.map((text, at) => element(at || kind === "th" ? kind : "th", { class: at ? "number" : null }, text)),
      );
    body.append(
      element(
        "table",
        {},
        element(
          "caption",
          {},
          all.length > MOST_TABLE_ROWS ? `${caption} (the first ${MOST_TABLE_ROWS} rows)` : caption,
        ),
        cells("th", head()),
        all.slice(0, MOST_TABLE_ROWS).map((row) => cells("td", row)),
      ),
    );
  };
  return element(
    "details",
    { class: "numbers", ontoggle: (event) => event.currentTarget.open && fillIn() },
    element("summary", {}, "Numbers"),
    body,
  );
}
