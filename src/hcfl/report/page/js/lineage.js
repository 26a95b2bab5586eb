// Clusters through the rounds: a lane for each cluster, as thick as its number of clients; splits, merges and removals join and end lanes.

// What decided a split or a merge, in words; `rule` says what the numbers mean.
function reason(event, rule) {
  const [most, mean, threshold] = [event.max_distance, event.mean_distance, event.threshold].map((value) =>
    value === null || value === undefined ? null : decimal(value),
  );
  if (most === null) return "";
  if (rule === "jump") {
    if (event.event === "merge") return `models serve each other's clients: excess loss ${most} < δ = ${threshold}`;
    return event.max_distance > 0 ? `loss rose by ${most} > δ = ${threshold}` : "clients begin alone";
  }
  if (event.event === "merge") return `${["contradiction", "evidence"].includes(rule) ? rule : "1 − cos ="} ${most} < ${threshold}`;
  const words = {
    evidence: () => `evidence ${most} ≥ ${threshold}`,
    contradiction: () => `contradiction ${most} ≥ ρ = ${threshold}`,
    gap: () => `max ${most} − mean ${mean} = ${decimal(event.max_distance - event.mean_distance)} ≥ ρ = ${threshold}`,
    norms: () => `longest update ${most} > ${threshold}, mean update ${mean}`,
    coherence: () => `1 − α = ${most} > ${threshold}`,
    cut: () => `largest distance ${most}, cut at ${threshold}`,
  };
  return rule in words
    ? words[rule]()
    : `max ${most}, mean ${mean}${event.threshold ? `, threshold ${threshold}` : ""}`;
}

const sizesInWords = (event) =>
  Object.entries(event.members)
    .map(([cluster, number]) => `${plural(number, "client")} in ${cluster}`)
    .join(", ");

function changeInWords(event) {
  if (event.event === "split")
    return `${event.cluster} split: ${event.members[event.cluster]} stay, ${event.members[event.new_cluster]} found cluster ${event.new_cluster}`;
  if (event.event === "merge") return `${event.cluster} merged into ${event.new_cluster}`;
  if (event.event === "move") return `moved: ${sizesInWords(event)}`;
  if (event.event === "removal") return `${event.cluster} removed, no client belonged to it`;
  return `${event.event}: ${event.client} (${event.reason})`;
}

// Every cluster that ever was: {id, born, gone, parent, into, sizes: {round: clients}}.
function lanesOf(run) {
  const lanes = new Map();
  const rounds = run.curves.round;
  const lane = (id, born) => {
    if (!lanes.has(String(id)))
      lanes.set(String(id), { id: String(id), born, gone: null, parent: null, into: null, sizes: {} });
    return lanes.get(String(id));
  };
  const founded = new Set(
    run.events.filter((event) => event.event === "split").map((event) => String(event.new_cluster)),
  );
  for (const event of run.events) {
    if (event.event === "merge" || event.event === "removal") {
      if (!founded.has(String(event.cluster))) lane(event.cluster, 0);
    }
  }
  for (const id of Object.keys(run.sizes[0])) if (!founded.has(id)) lane(id, 0);
  for (const event of run.events) {
    if (event.event === "split") lane(event.new_cluster, event.round).parent = String(event.cluster);
    if (event.event === "removal") lane(event.cluster, 0).gone = event.round;
    if (event.event === "merge")
      Object.assign(lane(event.cluster, 0), { gone: event.round, into: String(event.new_cluster) });
  }
  rounds.forEach((round, at) => {
    for (const [id, size] of Object.entries(run.sizes[at])) lane(id, 0).sizes[round] = size;
  });
  return lanes;
}

// Lanes from top to bottom such that no connection crosses a lane: a child lies beside its parent, later ones nearer.
function inOrder(lanes) {
  const nearTo = (one) => (one.parent !== null ? one.parent : one.into);
  const time = (one) => (one.parent !== null ? -one.born : one.gone);
  const below = new Map();
  for (const one of lanes.values()) {
    const near = nearTo(one);
    const key = near !== null && lanes.has(near) && near !== one.id ? near : null;
    below.set(key, [...(below.get(key) || []), one]);
  }
  const order = [];
  const visit = (one) => {
    if (order.includes(one)) return;
    order.push(one);
    (below.get(one.id) || []).sort((a, b) => time(a) - time(b)).forEach(visit);
  };
  (below.get(null) || []).forEach(visit);
  [...lanes.values()].forEach(visit);
  return order;
}

function lineageChart(run, paintOf) {
  const host = figure("lineage");
  const lanes = lanesOf(run);
  const order = inOrder(lanes);
  const at = new Map(order.map((one, number) => [one.id, number]));
  const last = run.curves.round[run.curves.round.length - 1];
  const tall = Math.min(44 * order.length, Math.max(620, Math.min(900, 8 * order.length)));
  const most = Math.max(1, ...order.flatMap((one) => Object.values(one.sizes)));
  // What merged has the colour of where it ended.
  const ends = (id) => (lanes.get(id).into === null ? id : ends(lanes.get(id).into));
  const paint = (id) => paintOf(ends(String(id)));
  const moves = run.time ? migrations(run).filter((one) => at.has(one.from) && at.has(one.to)) : [];
  const between = (one, y) => {
    const ends = [at.get(one.from), at.get(one.to)];
    return y >= Math.min(...ends) - 0.1 && y <= Math.max(...ends) + 0.1;
  };
  const few = run.events.filter((event) => event.event === "split").length <= 14;
  plot(host, {
    label: "Clusters through the rounds: splits, merges and removals",
    zoom: "xy",
    down: true,
    x: [0, last + 0.5],
    y: [-0.5, order.length - 0.5],
    height: Math.max(90, tall),
    margin: { left: 34, right: 74, top: run.time ? 20 : 8 },
    draw(scene) {
      axes(scene, { xLabel: "round", onlyX: true });
      if (run.time) stepLines(scene, run.time, 1);
      const high = Math.min(44, scene.y(1) - scene.y(0));
      const thick = (size) => Math.max(Math.min(2, high), high * 0.82 * Math.sqrt(size / most));
      const visible = (y) => y >= 0 && y <= scene.height;
      let labelled = -Infinity;
      for (const one of order) {
        const y = scene.y(at.get(one.id));
        const end = one.gone === null ? last + 0.5 : one.gone;
        const steps = [];
        for (let round = one.born; round < end; round += 1) {
          const size = one.sizes[round] ?? one.sizes[round + 1] ?? 0;
          const previous = steps[steps.length - 1];
          if (previous && previous.size === size) previous.to = Math.min(round + 1, end);
          else steps.push({ from: round, to: Math.min(round + 1, end), size });
        }
        for (const { from, to, size } of steps) {
          scene.inside.append(
            shape("rect", {
              x: scene.x(from),
              width: Math.max(0.5, scene.x(to) - scene.x(from) + 0.3),
              y: y - thick(size) / 2,
              height: thick(size),
              style: `fill:${paint(one.id)}`,
              "fill-opacity": one.into !== null ? 0.5 : size ? 0.85 : 0.35,
            }),
          );
        }
        if (one.gone !== null && one.into === null && scene.x(end) >= 0) {
          scene.inside.append(shape("text", { x: scene.x(end) + 2, y: y + 4, class: "strong" }, GLYPHS.removal));
        }
        if (high >= 12 && one.born === 0 && scene.x(0) >= 0 && visible(y)) {
          scene.around.append(shape("text", { x: -6, y: y + 4, "text-anchor": "end", class: "strong" }, one.id));
        }
        if (one.gone === null && visible(y) && (high >= 12 || y - labelled >= 12)) {
          labelled = y;
          const size = one.sizes[last] ?? 0;
          scene.around.append(
            shape(
              "text",
              { x: scene.width + 6, y: y + 4 },
              shape("tspan", { class: "strong", style: "font-weight:650;fill:var(--ink)" }, one.id),
              ` · ${size}`,
            ),
          );
        }
      }
      for (const one of moves) {
        const [x, y1, y2] = [scene.x(one.round), scene.y(at.get(one.from)), scene.y(at.get(one.to))];
        const tip = y1 < y2 ? -1 : 1;
        const wide = Math.min(7, 1 + Math.sqrt(one.clients.length));
        scene.inside.append(
          shape("path", { d: `M${x} ${y1}V${y2}M${x - 4} ${y2 + 6 * tip}L${x} ${y2}L${x + 4} ${y2 + 6 * tip}`, class: "moved", "stroke-width": wide }),
        );
      }
      for (const event of run.events) {
        const [from, to] = [at.get(String(event.cluster)), at.get(String(event.new_cluster))];
        if (!["split", "merge"].includes(event.event) || from === undefined || to === undefined) continue;
        const [x, y1, y2] = [scene.x(event.round), scene.y(from), scene.y(to)];
        scene.inside.append(
          shape("line", {
            x1: x,
            x2: x,
            y1,
            y2,
            style: `stroke:${paint(event.event === "split" ? event.new_cluster : event.cluster)};stroke-width:2`,
          }),
        );
        if (event.event === "split" || high >= 12)
          scene.inside.append(
            shape("circle", {
              cx: x,
              cy: event.event === "split" ? y1 : y2,
              r: Math.min(4, high / 5),
              style: "fill:var(--card);stroke:var(--ink);stroke-width:1.5",
            }),
          );
        if (few && high >= 20 && event.event === "split" && event.max_distance) {
          const gap = run.rule === "gap" ? event.max_distance - event.mean_distance : event.max_distance;
          const sign = ["gap", "contradiction", "evidence"].includes(run.rule) ? "≥" : ">";
          const words = event.threshold ? `${decimal(gap)} ${sign} ${decimal(event.threshold)}` : decimal(gap);
          const left = x + 8 + words.length * 6.6 > scene.width;
          scene.inside.append(
            shape(
              "text",
              { x: left ? x - 6 : x + 6, y: Math.max(y1, y2) - high / 2 + 4, "text-anchor": left ? "end" : "start" },
              words,
            ),
          );
        }
      }
    },
    hover(x, y, scene, now) {
      const moved = moves.filter((one) => Math.abs(scene.x(one.round) - now.px) < 7 && between(one, y));
      if (moved.length)
        return tipContent(
          `Round ${moved[0].round}`,
          moved.flatMap((one) => [
            [null, `${plural(one.clients.length, "client")} moved from ${one.from} to ${one.to}`],
            ...one.clients.slice(0, 8).map((client) => [null, `${clientName(run, client)}: ${whyMoved(run.time, client, one.round) || "moved"}`]),
          ]),
        );
      const near = run.events
        .filter((event) => ["split", "merge", "removal"].includes(event.event))
        .map((event) => {
          const ends = [event.cluster, event.new_cluster]
            .filter((id) => id !== null)
            .map((id) => scene.y(at.get(String(id)) ?? 0));
          const off = now.py < Math.min(...ends) - 6 || now.py > Math.max(...ends) + 6;
          return { event, apart: Math.abs(scene.x(event.round) - now.px) + (off ? 100 : 0) };
        })
        .filter(({ apart }) => apart < 7);
      if (near.length) {
        const { event } = near.reduce((best, one) => (one.apart < best.apart ? one : best));
        const why = reason(event, run.rule);
        return tipContent(`Round ${event.round}`, [[null, changeInWords(event)], ...(why ? [[null, why]] : [])]);
      }
      const one = order[Math.round(y)];
      if (!one || x < one.born || (one.gone !== null && x > one.gone)) return null;
      const round = Math.max(1, Math.min(last, Math.round(x)));
      const from = one.parent === null ? "there from the start" : `split from ${one.parent} in round ${one.born}`;
      const size = one.sizes[round];
      return tipContent(`Cluster ${one.id}`, [
        [null, from],
        ...(size === undefined ? [] : [[null, `round ${round}`, plural(size, "client")]]),
      ]);
    },
  });
  const table = dataTable(
    "Clients of every cluster over rounds",
    () => ["round", "clients by cluster"],
    () =>
      run.curves.round.map((round, at) => [
        String(round),
        Object.entries(run.sizes[at])
          .map(([id, size]) => `${id}: ${size}`)
          .join(", "),
      ]),
  );
  return element("div", {}, host, table);
}
