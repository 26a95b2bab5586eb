// Steps of time: where they begin, who moved when, and how long after the truth changed.

// What a client had in a round, from pairs of [round, value from then on].
const hadIn = (spans, round) => {
  let found = null;
  for (const [from, value] of spans) {
    if (from > round) break;
    found = value;
  }
  return found;
};

const clientName = (run, client) => (run.clients ? run.clients.names[client] : String(client));
const stepOf = (time, round) => time.steps.filter(([, from]) => from <= round).length - 1;

// How long after its concept changed a client's cluster followed, in words.
function followed(delay) {
  if (delay === null) return "its cluster never followed";
  return delay === 0 ? "its cluster followed in the same round" : `its cluster followed ${plural(delay, "round")} later`;
}

// Lines where steps begin, and their numbers along the top. `before` is how far left of a round's number it begins.
function stepLines(scene, time, before) {
  const wide = time.steps.length > 1 ? Math.abs(scene.x(time.steps[1][1]) - scene.x(time.steps[0][1])) : scene.width;
  const each = Math.max(1, Math.ceil(30 / Math.max(1, wide)));
  time.steps.forEach(([step, round], at) => {
    const x = scene.x(round - before);
    if (x < -0.5 || x > scene.width) return;
    if (at) scene.around.append(shape("line", { class: "step", x1: x, x2: x, y1: -2, y2: scene.height }));
    if (at % each === 0)
      scene.around.append(shape("text", { x: x + 3, y: -6 }, wide >= 56 || !at ? `step ${step}` : String(step)));
  });
}

// Clients that went from one cluster to another, by round: {round, from, to, clients}; a split's members are no movers.
function migrations(run) {
  const { time } = run;
  const founded = new Map(
    run.events.filter((event) => event.event === "split").map((event) => [String(event.new_cluster), event.round]),
  );
  const merged = new Map(
    run.events.filter((event) => event.event === "merge").map((event) => [String(event.cluster), event.round]),
  );
  const found = new Map();
  time.clusters.forEach((spans, at) => {
    for (let span = 1; span < spans.length; span += 1) {
      const [round, to] = spans[span];
      const from = spans[span - 1][1];
      if (from < 0 || to < 0 || founded.get(String(to)) === round || merged.get(String(from)) === round) continue;
      const key = `${round} ${from} ${to}`;
      if (!found.has(key)) found.set(key, { round, from: String(from), to: String(to), clients: [] });
      found.get(key).clients.push(time.clients[at]);
    }
  });
  return [...found.values()];
}

// What is known of a client that moved in a round: a true change that it follows, or none.
function whyMoved(time, client, round) {
  if (!time.turns) return null;
  const mine = time.turns.filter(([one, when]) => one === client && when <= round);
  if (!mine.length) return "its concept had not changed";
  const [, when] = mine[mine.length - 1];
  return round === when ? "its concept changed in this round" : `its concept changed ${plural(round - when, "round")} before`;
}

// Rows are clients, columns rounds, colours clusters; a mark where the client's true concept changed.
function timelineChart(run, paintOf) {
  const host = figure("timeline");
  const { time } = run;
  const rounds = run.curves.round;
  const [first, last] = [rounds[0], rounds[rounds.length - 1]];
  const count = time.clients.length;
  const names = time.clients.map((client) => clientName(run, client));
  const longest = Math.min(16, Math.max(1, ...names.map((name) => name.length)));
  const row = new Map(time.clients.map((client, at) => [client, at]));
  plot(host, {
    label: "Each client's cluster in every round, and when its true concept changed",
    zoom: "xy",
    down: true,
    x: [first - 0.5, last + 0.5],
    y: [0, count],
    height: Math.max(90, Math.min(560, count * 18)),
    margin: { left: longest * 6.6 + 14, right: 10, top: 20 },
    draw(scene) {
      axes(scene, { xLabel: "round", onlyX: true });
      stepLines(scene, time, 0.5);
      const high = scene.y(1) - scene.y(0);
      const gap = Math.min(3, high / 6);
      const each = Math.max(1, Math.ceil(12.5 / high));
      time.clusters.forEach((spans, at) => {
        const y = scene.y(at);
        if (y > scene.height || y + high < 0) return;
        spans.forEach(([from, cluster], number) => {
          const to = number + 1 < spans.length ? spans[number + 1][0] : last + 1;
          if (cluster < 0) return;
          const [left, right] = [scene.x(from - 0.5), scene.x(to - 0.5)];
          scene.inside.append(
            shape("rect", {
              x: left,
              width: Math.max(0.5, right - left),
              y: y + gap / 2,
              height: Math.max(0.5, high - gap),
              style: `fill:${paintOf(String(cluster))}`,
              "fill-opacity": 0.8,
            }),
          );
          if (high >= 13 && right - left >= String(cluster).length * 7 + 6)
            scene.inside.append(
              shape("text", { x: (left + right) / 2, y: y + high / 2 + 4, "text-anchor": "middle", class: "on" }, String(cluster)),
            );
        });
        if (at % each === 0 && y + high / 2 >= 0 && y + high / 2 <= scene.height)
          scene.around.append(shape("text", { x: -7, y: y + high / 2 + 4, "text-anchor": "end" }, short(names[at], 16)));
      });
      for (const [client, round, delay] of time.turns || []) {
        if (!row.has(client)) continue;
        const [x, y] = [scene.x(round - 0.5), scene.y(row.get(client))];
        const until = delay === null ? null : scene.x(round - 0.5 + delay);
        if (delay)
          scene.inside.append(
            shape("line", { x1: x, x2: until, y1: y + high / 2, y2: y + high / 2, class: "late" }),
          );
        scene.inside.append(
          shape("line", { x1: x, x2: x, y1: y, y2: y + high, class: delay === null ? "turn missed" : "turn" }),
        );
      }
    },
    hover(x, y) {
      const at = Math.floor(y);
      if (at < 0 || at >= count) return null;
      const round = Math.max(first, Math.min(last, Math.round(x)));
      const cluster = hadIn(time.clusters[at], round);
      const concept = time.concepts ? hadIn(time.concepts[at], round) : null;
      const mine = (time.turns || []).filter(([client, when]) => client === time.clients[at] && when <= round);
      const turn = mine[mine.length - 1];
      return tipContent(`Client ${names[at]}, round ${round}`, [
        [null, "step", String(time.steps[stepOf(time, round)][0])],
        cluster < 0 ? [null, "no cluster yet"] : [paintOf(String(cluster)), "cluster", String(cluster)],
        ...(concept === null ? [] : [[null, "true concept", String(concept)]]),
        ...(turn ? [[null, `its concept changed in round ${turn[1]}; ${followed(turn[2])}`]] : []),
      ]);
    },
  });
  const key = time.turns && time.turns.length
    ? element(
        "div",
        { class: "legend" },
        element("span", {}, element("i", { class: "mark" }), "the true concept changed"),
        element("span", {}, element("i", { class: "mark late" }), "until the cluster followed"),
        element("span", {}, element("i", { class: "mark missed" }), "the cluster never followed"),
      )
    : null;
  const table = dataTable(
    "Each client's clusters, with the round from which it had each",
    () => ["client", "clusters"],
    () => time.clusters.map((spans, at) => [names[at], spans.map(([from, to]) => `${from}: ${to < 0 ? NONE : to}`).join(", ")]),
  );
  return element("div", {}, host, key, table);
}

// Every change of the truth with the delay until the clients' clusters followed; and the moves for which there is none.
function turnsTable(run) {
  const { time } = run;
  const alike = new Map();
  const add = (step, round, delay, client) => {
    const key = `${step} ${round} ${delay}`;
    if (!alike.has(key)) alike.set(key, { step, round, delay, clients: [] });
    alike.get(key).clients.push(clientName(run, client));
  };
  for (const [client, round, delay] of time.turns) add(time.steps[stepOf(time, round)][0], round, delay, client);
  for (const [step, client] of time.false_moves) add(step, null, null, client);
  const rows = [...alike.values()].sort(
    (a, b) => a.step - b.step || (a.round === null) - (b.round === null) || a.round - b.round || a.delay - b.delay,
  );
  if (!rows.length) return element("p", { class: "empty" }, "No concept changed, and no client moved.");
  const outcome = ({ round, delay }) => {
    if (round === null) return "moved, though their concept stayed";
    if (delay === null) return "concept changed, and no cluster followed";
    return `concept changed, cluster followed ${delay ? `${plural(delay, "round")} later` : "in the same round"}`;
  };
  const listed = (names) => names.slice(0, 12).join(", ") + (names.length > 12 ? ` and ${names.length - 12} more` : "");
  return element(
    "div",
    { class: "tall", "data-table": "turns" },
    element(
      "table",
      {},
      element(
        "tr",
        {},
        ["step", "round", "clients", "what"].map((word) => element("th", {}, word)),
      ),
      rows.map((one) =>
        element(
          "tr",
          {},
          element("td", {}, String(one.step)),
          element("td", {}, one.round === null ? NONE : String(one.round)),
          element("td", {}, listed(one.clients)),
          element("td", {}, outcome(one)),
        ),
      ),
    ),
  );
}

// What came of the steps in four numbers.
function timeTiles(run) {
  const { summary } = run;
  const rounds = (value) => (value === null ? NONE : `${decimal(value)} ${value === 1 ? "round" : "rounds"}`);
  const tile = (title, key, format, note) => {
    const value = summary[key] ?? null;
    return element(
      "div",
      { class: "tile" },
      element("span", {}, title),
      element("b", {}, element("data", { value: value === null ? "" : String(value), "data-key": key }, format(value))),
      element("span", {}, note),
    );
  };
  const [changes, missed] = [summary.concept_changes ?? null, summary.concept_changes_missed ?? null];
  return element(
    "div",
    { class: "tiles", "data-table": "time" },
    tile("Prequential Val", "prequential_mean", percent, "new samples of a step, before any is used to train"),
    tile(
      "Delay of detection",
      "delay_mean",
      rounds,
      changes === null ? "truth not known" : `${plural(changes, "change")} of the truth, ${missed} never followed`,
    ),
    tile("False moves", "false_moves", percent, "of clients whose concept stayed, each step"),
    tile("ARI over time", "ari_mean", decimal, "mean over rounds; 1 is perfect"),
  );
}

// Lineage, who moved when, and how long after the truth changed: nothing for a run without steps.
function timeCards(run) {
  if (!run.time) return [];
  const { time } = run;
  const left = time.all_clients - time.clients.length;
  const known = time.turns !== null;
  return [
    element("div", { class: "card plain" }, timeTiles(run)),
    card(
      known ? "w7" : "",
      "Who moved when",
      `A row is a client, its colour and number its cluster${left ? `; ${left} clients that changed least are left out` : ""}.`,
      timelineChart(run, clusterPaint(run)),
    ),
    known ? card("w5", "How long after the truth changed", null, turnsTable(run)) : null,
  ];
}
