// Numbers over rounds: Val and Test, K, agreement with the truth; and runs against each other.

const GLYPHS = { split: "▲", merge: "▼", removal: "✕", move: "↔" };
const KINDS = { split: "split", merge: "merge", removal: "removal", move: "move" };

// What happened to the clusters, by round: {round: {split: 2, removal: 1}}.
function changesByRound(run) {
  const found = {};
  for (const event of run.events) {
    if (!(event.event in GLYPHS)) continue;
    const here = (found[event.round] ||= {});
    here[event.event] = (here[event.event] || 0) + 1;
  }
  return found;
}

const changeWords = (changes) =>
  Object.entries(changes)
    .map(([kind, number]) => plural(number, KINDS[kind]))
    .join(", ");

function points(run, key) {
  const values = run.curves[key];
  return run.curves.round.map((round, at) => [round, values[at]]).filter(([, value]) => value !== null);
}

const dashes = (number) => [null, "7 3", "2 3", "9 3 2 3"][Math.floor(number / 7) % 4];

// series: {name, paint, dash, points, step, changes}; options: format, from0, whole, rule, marks, yLabel, height, label.
function lineChart(name, series, options) {
  const host = figure(name);
  const hidden = new Set();
  const everything = series.flatMap((one) => one.points);
  if (!everything.length) return missing(name, options.nothing);
  const rounds = everything.map(([round]) => round);
  const values = [
    ...everything.map(([, value]) => value),
    ...(options.rule ? [options.rule.value] : []),
    ...(options.atLeast ? [options.atLeast] : []),
  ];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (options.from0) low = Math.min(0, low);
  const pad = Math.max((high - low) * 0.06, options.whole ? 0.5 : 0.004);
  const span = Math.max(1, Math.max(...rounds) - Math.min(...rounds));
  const drawn = plot(host, {
    label: options.label,
    height: options.height || 230,
    zoom: "xy",
    x: [Math.min(...rounds) - span * 0.015, Math.max(...rounds) + span * 0.015],
    y: [
      options.from0 ? low : Math.max(low - pad, options.floor ?? -Infinity),
      Math.min(high + pad, options.ceiling ?? Infinity),
    ],
    margin: { top: options.marks ? 26 : 18 },
    draw(scene) {
      axes(scene, {
        xLabel: "round",
        yLabel: options.yLabel,
        yFormat: options.tick || options.format,
        wholeY: options.whole,
      });
      let before = -Infinity;
      for (const [round, changes] of Object.entries(options.marks || {})) {
        const at = scene.x(Number(round));
        scene.inside.append(shape("line", { class: "mark", x1: at, x2: at, y1: 0, y2: scene.height }));
        if (at - before < 12) continue;
        before = at;
        scene.inside.append(
          shape("text", { x: at, y: -4, "text-anchor": "middle", class: "strong" }, GLYPHS[Object.keys(changes)[0]]),
        );
      }
      if (options.rule) {
        const at = scene.y(options.rule.value);
        scene.inside.append(
          shape("line", { class: "rule", x1: 0, x2: scene.width, y1: at, y2: at }),
          shape("text", { x: scene.width - 4, y: at - 5, "text-anchor": "end" }, options.rule.name),
        );
      }
      for (const one of series) {
        if (hidden.has(one.name)) continue;
        const path = one.points
          .map(([x, y], at) => {
            const to = `${scene.x(x).toFixed(1)} ${scene.y(y).toFixed(1)}`;
            return at === 0 ? `M${to}` : one.step ? `H${scene.x(x).toFixed(1)}V${scene.y(y).toFixed(1)}` : `L${to}`;
          })
          .join("");
        scene.inside.append(
          shape("path", { class: "line", d: path, style: `stroke:${one.paint}`, "stroke-dasharray": one.dash }),
        );
        if (one.points.length <= 12) {
          scene.inside.append(
            ...one.points.map(([x, y]) =>
              shape("circle", { cx: scene.x(x), cy: scene.y(y), r: 2.8, style: `fill:${one.paint}` }),
            ),
          );
        }
        for (const [x, y] of one.points) {
          const changes = (one.changes || {})[x];
          if (changes)
            scene.inside.append(
              shape(
                "text",
                { x: scene.x(x), y: scene.y(y) - 5, "text-anchor": "middle", style: `fill:${one.paint}` },
                GLYPHS[Object.keys(changes)[0]],
              ),
            );
        }
      }
    },
    hover(x, _, scene) {
      const shown = series.filter((one) => !hidden.has(one.name) && one.points.length);
      const near = shown
        .flatMap((one) => one.points.map(([round]) => round))
        .reduce((best, round) => (Math.abs(round - x) < Math.abs(best - x) ? round : best), Infinity);
      if (!Number.isFinite(near)) return null;
      const at = scene.x(near);
      scene.above.append(shape("line", { class: "guide", x1: at, x2: at, y1: 0, y2: scene.height }));
      const lines = [];
      for (const one of shown) {
        const found = one.points.find(([round]) => round === near);
        if (!found) continue;
        scene.above.append(shape("circle", { cx: at, cy: scene.y(found[1]), r: 4, style: `fill:${one.paint}` }));
        const also = (one.changes || {})[near];
        lines.push([one.paint, one.name, options.format(found[1]) + (also ? ` (${changeWords(also)})` : "")]);
      }
      const changes = (options.marks || {})[near];
      if (changes) lines.push([null, changeWords(changes)]);
      return tipContent(`Round ${near}`, lines);
    },
  });
  const toggle = (one) =>
    element(
      "button",
      {
        "aria-pressed": "true",
        onclick: (event) => {
          if (!hidden.delete(one.name)) hidden.add(one.name);
          event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(one.name)));
          drawn.redraw();
        },
      },
      element("i", { class: `key${one.dash ? " dashed" : ""}`, style: `border-color:${one.paint}` }),
      one.name,
    );
  const kinds = [...new Set(Object.values(options.marks || {}).flatMap(Object.keys))];
  const signs = kinds.map((kind) =>
    element("span", { class: "soft" }, element("i", { class: "glyph" }, GLYPHS[kind]), KINDS[kind]),
  );
  const legend =
    series.length > 1 || signs.length
      ? element("div", { class: "legend" }, series.length > 1 ? series.map(toggle) : null, signs)
      : null;
  return element("div", {}, host, legend);
}

function accuracyChart(runs) {
  const alone = runs.length === 1;
  const series = runs
    .flatMap((run, number) => [
      {
        name: alone ? "Test" : `${run.label}: Test`,
        paint: colour(number),
        points: points(run, "test"),
        dash: dashes(number),
      },
      {
        name: alone ? "Val" : `${run.label}: Val`,
        paint: alone ? colour(1) : colour(number),
        points: points(run, "val"),
        dash: alone ? null : "1.5 3.5",
      },
    ])
    .filter((one) => one.points.length);
  return lineChart("accuracy", series, {
    label: "Val and Test accuracy over rounds",
    format: percent,
    tick: percentTick,
    floor: 0,
    ceiling: 1.005,
    height: 330,
    marks: alone ? changesByRound(runs[0]) : null,
    nothing: "No round of this run was measured.",
  });
}

function clustersChart(runs) {
  const alone = runs.length === 1;
  const series = runs.map((run, number) => ({
    name: run.label,
    paint: colour(number),
    points: points(run, "clusters"),
    step: true,
    dash: dashes(number),
    changes: alone ? null : changesByRound(run),
  }));
  const truth = runs[0].summary.clusters_true;
  return lineChart("clusters", series, {
    label: "Number of clusters over rounds",
    format: plain,
    from0: true,
    whole: true,
    height: 128,
    marks: alone ? changesByRound(runs[0]) : null,
    rule: truth === null ? null : { value: truth, name: `${truth} in truth` },
  });
}

function qualityChart(runs) {
  const alone = runs.length === 1;
  const names = alone ? { ari: "ARI", nmi: "NMI", purity: "purity" } : { ari: "ARI" };
  const series = runs
    .flatMap((run, number) =>
      Object.entries(names).map(([key, name], at) => ({
        name: alone ? name : run.label,
        paint: colour(alone ? at : number),
        points: points(run, key),
        dash: alone ? [null, "7 3", "2 3"][at] : dashes(number),
      })),
    )
    .filter((one) => one.points.length);
  return lineChart("quality", series, {
    label: "Agreement of clusters with true concepts over rounds",
    format: decimal,
    from0: true,
    height: 128,
    atLeast: 1,
    nothing: "The true concepts are not known, so nothing can be compared with them.",
  });
}
