// A frame with two axes that can be zoomed: drag, Ctrl + wheel, or + − and arrow keys; double click or 0 shows all.

const plots = new Set();
const redrawAll = () => plots.forEach((one) => one.redraw());

function ticks(from, to, wanted, whole) {
  const rough = (to - from) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-9; at += 1)
    found.push(Number((at * step).toPrecision(12)));
  return found;
}

// options: label, height (of the inside, or a function of its width), x, y (domains), margin, zoom ("x" or "xy"),
// draw(scene), hover(x, y, scene) → content or null. A scene has the inside's size, scales and groups.
function plot(host, options) {
  const self = { redraw, host, width: 0 };
  const margin = { top: 10, right: 12, bottom: 30, left: 46, ...options.margin };
  const all = { x: options.x, y: options.y };
  let view = all;
  let scene = null;
  const svg = shape("svg", { role: "img", tabindex: 0, "aria-label": options.label });
  const reset = element("button", { class: "reset", hidden: "", onclick: () => look(all) }, "Reset zoom");
  host.append(svg, reset);
  const clip = `clip${plots.size}-${Math.round(performance.now() * 1000)}`;

  function redraw() {
    const full = host.clientWidth;
    self.width = full;
    if (!full) return;
    const width = Math.max(60, full - margin.left - margin.right);
    const height = typeof options.height === "function" ? options.height(width) : options.height;
    const total = height + margin.top + margin.bottom;
    svg.setAttribute("viewBox", `0 0 ${full} ${total}`);
    const scale =
      ([from, to], length, flip) =>
      (value) => {
        const share = (value - from) / (to - from);
        return (flip ? 1 - share : share) * length;
      };
    const inside = shape("g", { "clip-path": `url(#${clip})` });
    const around = shape("g", {});
    const above = shape("g", {});
    scene = {
      width,
      height,
      inside,
      around,
      above,
      view,
      margin,
      x: scale(view.x, width, false),
      y: scale(view.y, height, !options.down),
    };
    svg.replaceChildren(
      shape(
        "defs",
        {},
        shape(
          "clipPath",
          { id: clip },
          shape("rect", { x: 0, y: -margin.top + 2, width, height: height + margin.top }),
        ),
      ),
      shape("g", { transform: `translate(${margin.left} ${margin.top})` }, around, inside, above),
    );
    options.draw(scene);
    reset.hidden = view === all;
  }

  function look(next) {
    view =
      next === all
        ? all
        : Object.fromEntries(
            ["x", "y"].map((axis) => {
              const [low, high] = [Math.max(all[axis][0], next[axis][0]), Math.min(all[axis][1], next[axis][1])];
              return [axis, high - low > (all[axis][1] - all[axis][0]) * 1e-4 ? [low, high] : view[axis]];
            }),
          );
    const whole = ["x", "y"].every((axis) => view[axis][0] <= all[axis][0] && view[axis][1] >= all[axis][1]);
    if (whole) view = all;
    showTip(null, null);
    redraw();
  }

  // Where the pointer is: inside the frame in pixels, and in the units of the axes.
  function where(event) {
    const box = svg.getBoundingClientRect();
    const factor = host.clientWidth / box.width;
    const px = (event.clientX - box.left) * factor - margin.left;
    const py = (event.clientY - box.top) * factor - margin.top;
    const share = options.down ? py / scene.height : 1 - py / scene.height;
    const value = (domain, part) => domain[0] + part * (domain[1] - domain[0]);
    return { px, py, x: value(view.x, px / scene.width), y: value(view.y, share) };
  }

  const zoomed = (domain, centre, factor) => domain.map((end) => centre + (end - centre) * factor);
  const both = () => options.zoom === "xy";
  let start = null;
  let brush = null;

  svg.addEventListener("pointerdown", (event) => {
    if (!scene || event.button !== 0) return;
    start = where(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!scene) return;
    const now = where(event);
    if (!start) {
      const inside =
        now.px >= -margin.left && now.px <= scene.width + 8 && now.py >= -margin.top && now.py <= scene.height + 6;
      scene.above.replaceChildren();
      showTip(event, inside && options.hover ? options.hover(now.x, now.y, scene, now) : null);
      return;
    }
    showTip(null, null);
    if (brush) brush.remove();
    const tall = both() && Math.abs(now.py - start.py) > 14;
    brush = shape("rect", {
      class: "brush",
      x: Math.min(start.px, now.px),
      width: Math.abs(now.px - start.px),
      y: tall ? Math.min(start.py, now.py) : 0,
      height: tall ? Math.abs(now.py - start.py) : scene.height,
    });
    scene.above.append(brush);
  });
  svg.addEventListener("pointerup", (event) => {
    if (!start) return;
    const [from, to] = [start, where(event)];
    start = null;
    if (brush) brush.remove();
    brush = null;
    if (Math.abs(to.px - from.px) < 8) return;
    const tall = both() && Math.abs(to.py - from.py) > 14;
    const sorted = (one, two) => (one < two ? [one, two] : [two, one]);
    look({ x: sorted(from.x, to.x), y: tall ? sorted(from.y, to.y) : view.y });
  });
  svg.addEventListener("pointercancel", () => {
    start = null;
    if (brush) brush.remove();
  });
  svg.addEventListener("pointerleave", () => {
    showTip(null, null);
    if (scene && !start) scene.above.replaceChildren();
  });
  svg.addEventListener("dblclick", () => look(all));
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      const now = where(event);
      const factor = event.deltaY < 0 ? 0.8 : 1.25;
      look({ x: zoomed(view.x, now.x, factor), y: both() ? zoomed(view.y, now.y, factor) : view.y });
    },
    { passive: false },
  );
  svg.addEventListener("keydown", (event) => {
    const middle = ([from, to]) => (from + to) / 2;
    const scaled = (factor) => ({
      x: zoomed(view.x, middle(view.x), factor),
      y: both() ? zoomed(view.y, middle(view.y), factor) : view.y,
    });
    const moved = (axis, share) => {
      const by = share * (view[axis][1] - view[axis][0]);
      const held = Math.max(all[axis][0] - view[axis][0], Math.min(all[axis][1] - view[axis][1], by));
      return { ...view, [axis]: view[axis].map((end) => end + held) };
    };
    const keys = {
      "+": () => scaled(0.7),
      "=": () => scaled(0.7),
      "-": () => scaled(1.43),
      0: () => all,
      Escape: () => all,
      ArrowLeft: () => moved("x", -0.2),
      ArrowRight: () => moved("x", 0.2),
      ...(both() && {
        ArrowUp: () => moved("y", options.down ? -0.2 : 0.2),
        ArrowDown: () => moved("y", options.down ? 0.2 : -0.2),
      }),
    };
    const steps = view === all && event.key.startsWith("Arrow");
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || steps) return;
    event.preventDefault();
    look(keys[event.key]());
  });

  plots.add(self);
  new ResizeObserver(() => {
    if (host.clientWidth !== self.width) redraw();
  }).observe(host);
  return self;
}

// Lines and numbers along both axes.
function axes(scene, { xLabel, yLabel, yFormat, xFormat, wholeX = true, wholeY = false, onlyX = false }) {
  const { around, width, height, view } = scene;
  for (const value of onlyX ? [] : ticks(...view.y, height / (wholeY ? 32 : 45), wholeY)) {
    const at = scene.y(value);
    around.append(
      shape("line", { class: "tick", x1: 0, x2: width, y1: at, y2: at }),
      shape("text", { x: -8, y: at + 4, "text-anchor": "end" }, (yFormat || String)(value)),
    );
  }
  for (const value of ticks(...view.x, width / 70, wholeX)) {
    const at = scene.x(value);
    around.append(
      shape("line", { class: "frame", x1: at, x2: at, y1: height, y2: height + 4 }),
      shape("text", { x: at, y: height + 17, "text-anchor": "middle" }, (xFormat || String)(value)),
    );
  }
  around.append(shape("line", { class: "frame", x1: 0, x2: width, y1: height, y2: height }));
  if (xLabel) around.append(shape("text", { x: width, y: height + 29, "text-anchor": "end" }, xLabel));
  if (yLabel) around.append(shape("text", { x: -scene.margin.left + 2, y: -4 }, yLabel));
}
