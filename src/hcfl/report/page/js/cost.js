// What a run costs: bytes by part and direction, seconds by phase.

const PART_ORDER = [
  "extractor",
  "heads",
  "prototypes",
  "weights",
  "counts",
  "class_shares",
  "changes",
  "signatures",
  "reports",
  "moments",
  "other models",
  "clients",
  "server",
  "evaluation",
];
const partName = (part) => part.replaceAll("_", " ");

// Bars over rounds: `up` above the line and, where given, `down` below it; both map part → numbers.
function barChart(name, rounds, up, down, options) {
  const host = figure(name);
  const known = Object.keys({ ...up, ...down });
  const parts = [
    ...PART_ORDER.filter((part) => known.includes(part)),
    ...known.filter((part) => !PART_ORDER.includes(part)),
  ];
  const total = (side, at) => sum(Object.values(side || {}).map((numbers) => numbers[at]));
  const most = (side) => Math.max(0, ...rounds.map((_, at) => total(side, at)));
  const [high, low] = [most(up), most(down)];
  if (!high && !low) return missing(name, options.nothing);
  const paint = (part) => colour(parts.indexOf(part));
  plot(host, {
    label: options.label,
    zoom: "x",
    height: 230,
    x: [Math.min(...rounds) - 0.6, Math.max(...rounds) + 0.6],
    y: [-low * 1.08, high * 1.08],
    margin: { left: 58, top: 20 },
    draw(scene) {
      axes(scene, { xLabel: "round", yFormat: (value) => options.format(Math.abs(value)) });
      const wide = Math.max(0.7, (scene.x(1) - scene.x(0)) * 0.78);
      rounds.forEach((round, at) => {
        const x = scene.x(round) - wide / 2;
        if (x + wide < 0 || x > scene.width) return;
        for (const [side, sign] of [
          [up, 1],
          [down, -1],
        ]) {
          let base = 0;
          for (const part of parts.filter((one) => side && side[one])) {
            const value = side[part][at];
            const [from, to] = [scene.y(sign * base), scene.y(sign * (base + value))];
            base += value;
            if (value)
              scene.inside.append(
                shape("rect", {
                  x,
                  width: wide,
                  y: Math.min(from, to),
                  height: Math.max(0.3, Math.abs(to - from)),
                  style: `fill:${paint(part)}`,
                }),
              );
          }
        }
      });
      if (down) {
        scene.inside.append(shape("line", { class: "frame", x1: 0, x2: scene.width, y1: scene.y(0), y2: scene.y(0) }));
        scene.around.append(
          shape("text", { x: 0, y: -7 }, "↑ clients send"),
          shape("text", { x: scene.width, y: -7, "text-anchor": "end" }, "↓ clients receive"),
        );
      }
    },
    hover(x, _, scene) {
      const at = rounds.indexOf(Math.round(x));
      if (at < 0) return null;
      const place = scene.x(rounds[at]);
      scene.above.append(shape("line", { class: "guide", x1: place, x2: place, y1: 0, y2: scene.height }));
      const line = (part) => [
        paint(part),
        partName(part),
        [up, down]
          .filter(Boolean)
          .map((side, number) => `${down ? "↑↓"[number] : ""} ${options.format(side[part] ? side[part][at] : 0)}`)
          .join("  "),
      ];
      return tipContent(`Round ${rounds[at]}`, parts.map(line));
    },
  });
  const head = element(
    "tr",
    {},
    element("th", {}, options.part),
    (down ? ["sent", "received"] : ["in all"]).map((word) => element("th", { class: "number" }, word)),
  );
  const cells = (part) =>
    [up, down]
      .filter(Boolean)
      .map((side) => element("td", { class: "number" }, side[part] ? options.format(sum(side[part])) : NONE));
  const body = parts.map((part) =>
    element(
      "tr",
      {},
      element("td", {}, element("i", { class: "swatch", style: `background:${paint(part)}` }), ` ${partName(part)}`),
      cells(part),
    ),
  );
  return element("div", {}, host, element("table", {}, head, body));
}

function trafficChart(run) {
  if (!run.up || !run.down) return missing("traffic", "Not recorded.");
  return barChart("traffic", run.curves.round, run.up, run.down, {
    label: "Bytes that travel in every round, by part",
    format: bytes,
    part: "part",
    nothing: "Nothing travels: clients train by themselves.",
  });
}

function timeChart(run) {
  const whole = { round: run.curves.seconds };
  return barChart("time", run.curves.round, run.phases || whole, null, {
    label: "Seconds of every round, by phase",
    format: seconds,
    part: run.phases ? "phase" : "phases were not recorded",
    nothing: "Not recorded.",
  });
}
