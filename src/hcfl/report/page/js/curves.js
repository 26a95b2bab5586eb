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

// series: {name, paint, dash, points, step, changes, band: [x, low, high] each}; options: format, from0, whole, rule, marks, yLabel, height, label.
function lineChart(name, series, options) {
  const host = figure(name);
  const hidden = new Set();
  const everything = series.flatMap((one) => one.points);
  if (!everything.length) return missing(name, options.nothing);
  const rounds = everything.map(([round]) => round);
  const values = [
    ...everything.map(([, value]) => value),
    ...series.flatMap((one) => (one.band || []).flatMap(([, low, high]) => [low, high])),
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
        xLabel: options.xLabel || "round",
        xFormat: options.xTick,
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
        if (one.band && one.band.length > 1) {
          const at = (x, y) => `${scene.x(x).toFixed(1)} ${scene.y(y).toFixed(1)}`;
          const there = one.band.map(([x, , high]) => at(x, high));
          const back = one.band.map(([x, low]) => at(x, low)).reverse();
          scene.inside.append(
            shape("path", { class: "band", d: `M${[...there, ...back].join("L")}Z`, style: `fill:${one.paint}` }),
          );
        }
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
      return tipContent(options.xTick ? `${options.xLabel} ${options.xTick(near)}` : `Round ${near}`, lines);
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
  const table = dataTable(
    options.label,
    () => [options.xLabel || "round", ...series.map((one) => one.name)],
    () => {
      const known = series.map((one) => new Map(one.points));
      return [...new Set(rounds)]
        .sort((a, b) => a - b)
        .map((round) => [
          options.xTick ? options.xTick(round) : String(round),
          ...known.map((one) => (one.has(round) ? options.format(one.get(round)) : NONE)),
        ]);
    },
  );
  return element("div", {}, host, legend, table);
}

// One thing with a colour: a run, or the runs of a group as mean and deviation. {label, runs, paint}
const asGroups = (runs) => runs.map((run, number) => ({ label: run.label, runs: [run], paint: colour(number) }));

// The mean of a curve over the runs of a group, and its band of one deviation where there are several.
function meanOf(group, key, change = (value) => value) {
  const rounds = new Map();
  for (const run of group.runs)
    for (const [round, value] of points(run, key)) {
      if (!rounds.has(round)) rounds.set(round, []);
      rounds.get(round).push(value);
    }
  const all = [...rounds].sort(([a], [b]) => a - b);
  const mean = (values) => sum(values) / values.length;
  const spread = (values) =>
    values.length < 2 ? 0 : Math.sqrt(sum(values.map((one) => (one - mean(values)) ** 2)) / (values.length - 1));
  return {
    points: all.map(([round, values]) => [round, change(mean(values))]),
    band:
      group.runs.length > 1
        ? all.map(([round, values]) => [
            round,
            change(mean(values) - spread(values)),
            change(mean(values) + spread(values)),
          ])
        : null,
  };
}

function accuracyChart(runs, groups = asGroups(runs)) {
  const alone = runs.length === 1;
  const series = groups
    .flatMap((group) => [
      { name: alone ? "Test" : `${group.label}: Test`, paint: group.paint, ...meanOf(group, "test") },
      {
        name: alone ? "Val" : `${group.label}: Val`,
        paint: alone ? colour(1) : group.paint,
        ...meanOf(group, "val"),
        dash: alone ? null : "1.5 3.5",
      },
    ])
    .filter((one) => one.points.length);
  const majority = alone ? (runs[0].majority ?? null) : null;
  return lineChart("accuracy", series, {
    label: "Val and Test accuracy over rounds",
    format: percent,
    tick: percentTick,
    floor: 0,
    ceiling: 1.005,
    height: 330,
    marks: alone ? changesByRound(runs[0]) : null,
    rule: majority === null ? null : { value: majority, name: "always the most frequent class" },
    nothing: "No round of this run was measured.",
  });
}

// K over rounds; where one method has many times the clusters of another, on a scale of powers of two.
function clustersChart(runs, groups = asGroups(runs)) {
  const alone = runs.length === 1;
  const largest = groups.map((group) =>
    Math.max(1, ...group.runs.flatMap((run) => points(run, "clusters").map(([, value]) => value))),
  );
  const wide = Math.max(...largest) > 6 * Math.min(...largest);
  const change = wide ? (value) => Math.log2(Math.max(1, value)) : (value) => value;
  const back = wide ? (value) => decimal(2 ** value) : (value) => decimal(value);
  const series = groups.map((group) => ({
    name: group.label,
    paint: group.paint,
    ...meanOf(group, "clusters", change),
    step: group.runs.length === 1,
    changes: alone || group.runs.length > 1 ? null : changesByRound(group.runs[0]),
  }));
  const truth = runs[0].summary.clusters_true;
  return lineChart("clusters", series, {
    label: wide ? "Number of clusters over rounds, on a scale of powers of two" : "Number of clusters over rounds",
    format: back,
    from0: true,
    whole: true,
    height: 128,
    marks: alone ? changesByRound(runs[0]) : null,
    rule: (truth ?? null) === null ? null : { value: change(truth), name: `${truth} in truth` },
  });
}

function qualityChart(runs, groups = asGroups(runs)) {
  const alone = runs.length === 1;
  const names = alone ? { ari: "adjusted Rand index", nmi: "mutual information", purity: "purity" } : { ari: "" };
  const series = groups
    .flatMap((group) =>
      Object.entries(names).map(([key, name], at) => ({
        name: alone ? name : group.label,
        paint: alone ? colour(at) : group.paint,
        ...meanOf(group, key),
        dash: alone ? [null, "7 3", "2 3"][at] : null,
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

// Val, Test and K of a sweep against the settings that were varied, mean and deviation over seeds.
function sweepCharts(groups, swept) {
  const places = groups.map((group) => swept[group.label]).filter(Boolean);
  const names = [...new Set(places.flatMap(Object.keys))];
  if (names.length !== 1 || places.length !== groups.length || groups.length < 2) return [];
  const [name] = names;
  const ordered = groups
    .map((group) => ({ group, text: String(swept[group.label][name]) }))
    .sort((one, two) => Number(one.text) - Number(two.text) || 0);
  const line = (key, label, paint) => {
    const cells = ordered.map(({ group }) => group.cells[key] || { mean: null, std: null });
    const known = cells.map((cell, at) => [at, cell]).filter(([, cell]) => cell.mean !== null);
    const band = known.map(([at, { mean, std }]) => [at, mean - (std || 0), mean + (std || 0)]);
    return { name: label, paint, points: known.map(([at, cell]) => [at, cell.mean]), band };
  };
  const chart = (figureName, series, options) =>
    lineChart(figureName, series.filter((one) => one.points.length), {
      ...options,
      xLabel: name,
      xTick: (at) => (Number.isInteger(at) && ordered[at] ? ordered[at].text : ""),
      nothing: "Not measured.",
    });
  return [
    card(
      "w7",
      `Accuracy against ${name}`,
      null,
      chart("sweep-accuracy", [line("test_last", "Test", colour(0)), line("val_last", "Val", colour(1))], {
        label: `Val and Test against ${name}`,
        format: percent,
        tick: percentTick,
        height: 230,
      }),
    ),
    card(
      "w5",
      `Clusters against ${name}`,
      null,
      chart("sweep-clusters", [line("clusters_last", "clusters", colour(2))], {
        label: `Number of clusters against ${name}`,
        format: decimal,
        from0: true,
        height: 230,
      }),
    ),
  ];
}
