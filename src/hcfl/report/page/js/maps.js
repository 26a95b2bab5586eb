// What the matrices of a run are: weights of clients, classes of clusters, distances of a split.

// True concepts: their names in order, and each one's colour; null where they are not known.
function truthOf(run) {
  const concepts = run.clients && run.clients.concepts;
  if (!concepts) return null;
  const names = [...new Set(concepts)].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return { names, paint: (name) => (names.includes(name) ? colour(names.indexOf(name)) : "var(--none)") };
}

function truthLegend(truth) {
  const many = truth.names.length > 14;
  return element(
    "div",
    { class: "legend" },
    element("span", { class: "soft" }, "true concept:"),
    truth.names
      .slice(0, 14)
      .map((name) =>
        element(
          "span",
          {},
          element("i", { class: "swatch", style: `background:${truth.paint(name)}` }),
          short(name, 24),
        ),
      ),
    many ? element("span", {}, "…") : null,
  );
}

// Clusters as columns: those of the first concept's clients first, so that what belongs together lies on a diagonal.
function clusterOrder(run) {
  const { clients } = run;
  const truth = truthOf(run);
  const place = (cluster) => {
    const mine = clients.names.map((_, at) => at).filter((at) => clients.own[at] === cluster);
    if (!mine.length) return Infinity;
    return truth ? sum(mine.map((at) => truth.names.indexOf(clients.concepts[at]))) / mine.length : 0;
  };
  const places = clients.clusters.map(place);
  return clients.clusters.map((_, at) => at).sort((a, b) => (places[a] === places[b] ? a - b : places[a] - places[b]));
}

function weightsMap(run) {
  const { clients } = run;
  if (!clients) return missing("weights", "Not recorded: clients.csv is written when a run ends.");
  const truth = truthOf(run);
  const columns = clusterOrder(run);
  const place = (name) => (name === null ? columns.length : columns.indexOf(clients.clusters.indexOf(name)));
  const order = clients.names
    .map((_, at) => at)
    .sort(
      (a, b) =>
        (truth ? truth.names.indexOf(clients.concepts[a]) - truth.names.indexOf(clients.concepts[b]) : 0) ||
        place(clients.own[a]) - place(clients.own[b]) ||
        a - b,
    );
  const lines = truth
    ? order.map((_, at) => at).filter((at) => at && clients.concepts[order[at]] !== clients.concepts[order[at - 1]])
    : [];
  const map = heatMap("weights", {
    label: "Weights of every client on every cluster",
    rows: order.map((at) => clients.names[at]),
    columns: columns.map((at) => clients.clusters[at]),
    below: "cluster",
    value: (row, column) => clients.weights[order[row]][columns[column]],
    most: 1,
    lines,
    height: Math.max(120, Math.min(560, order.length * 15)),
    strip: truth && ((row) => truth.paint(clients.concepts[order[row]])),
    tipFor(row, column) {
      const at = order[row];
      return tipContent(`Client ${clients.names[at]}`, [
        [
          null,
          `weight on cluster ${clients.clusters[columns[column]]}`,
          clients.weights[at][columns[column]].toFixed(3),
        ],
        [null, "its own cluster", plain(clients.own[at])],
        [null, "training samples", plain(clients.samples[at])],
        ...(truth ? [[truth.paint(clients.concepts[at]), "true concept", clients.concepts[at] || NONE]] : []),
        ...(clients.corruptions ? [[null, "corruption", plain(clients.corruptions[at])]] : []),
      ]);
    },
  });
  return element("div", {}, map, colourScale("0", "1"), truth && truthLegend(truth));
}

function classesMap(run) {
  const { classes } = run;
  if (!classes)
    return missing(
      "classes",
      run.ended
        ? "Not recorded: the server does not know what clients hold, or the run is of an older version."
        : "Not recorded: classes.csv is written when a run ends.",
    );
  const { names } = classes;
  const columns = clusterOrder(run);
  const [clusters, counts] = [classes.clusters, classes.counts].map((all) => columns.map((at) => all[at]));
  const most = Math.max(1, ...counts.flat());
  const map = heatMap("classes", {
    label: "Samples of every class in every cluster",
    rows: names,
    columns: clusters,
    below: "cluster",
    most,
    value: (row, column) => counts[column][row],
    text: (row, column) => (counts[column][row] ? String(counts[column][row]) : ""),
    height: Math.max(120, Math.min(560, names.length * 26)),
    tipFor(row, column) {
      const number = counts[column][row];
      const total = sum(counts.map((one) => one[row]));
      return tipContent(`Class ${names[row]}`, [
        [null, `in cluster ${clusters[column]}`, plural(number, "sample")],
        [null, "of all its samples", total ? percent(number / total) : NONE],
      ]);
    },
  });
  return element("div", {}, map, colourScale("0", `${most} samples`));
}

// Clients such that neighbours are near each other: from each to the nearest that is left.
function nearestFirst(clients, apart) {
  const left = [...clients];
  const order = left.splice(0, 1);
  while (left.length) {
    const last = order[order.length - 1];
    const next = left.reduce((best, one, at) => (apart(last, one) < apart(last, left[best]) ? at : best), 0);
    order.push(...left.splice(next, 1));
  }
  return order;
}

function splitMap(run, split, event) {
  const title = `Round ${split.round}: ${split.cluster} → ${split.cluster} | ${split.new_cluster}`;
  const about = `${split.in_first_part} | ${split.clients.length - split.in_first_part} clients. ${event ? reason(event, run.rule) : ""}`;
  if (!split.values)
    return card("", title, about, missing("split", "Left out to keep this page small; splits.jsonl has it."));
  const truth = truthOf(run);
  const concept = new Map(truth ? run.clients.names.map((name, at) => [name, run.clients.concepts[at]]) : []);
  const apart = (one, two) => {
    const [a, b] = [Math.max(one, two), Math.min(one, two)];
    return a === b ? 0 : split.values[(a * (a - 1)) / 2 + b] / 999;
  };
  const second = (at) => at >= split.in_first_part;
  const rank = (at) => truth.names.indexOf(concept.get(split.clients[at]));
  const all = split.clients.map((_, at) => at);
  const order = [false, true].flatMap((part) => {
    const mine = all.filter((at) => second(at) === part);
    return truth ? mine.sort((a, b) => rank(a) - rank(b) || a - b) : nearestFirst(mine, apart);
  });
  const value = (row, column) => apart(order[row], order[column]);
  const some =
    split.clients_compared > split.clients.length
      ? `${split.clients.length} of ${split.clients_compared} clients shown. `
      : "";
  return card(
    "",
    title,
    some + about,
    heatMap("split", {
      label: `Distances between the clients of cluster ${split.cluster} in round ${split.round}`,
      bare: true,
      square: true,
      most: 1,
      rows: order.map((at) => split.clients[at]),
      columns: order.map((at) => split.clients[at]),
      value,
      lines: [split.in_first_part],
      strip: truth && ((row) => truth.paint(concept.get(split.clients[order[row]]))),
      height: (width) => width,
      tipFor: (row, column) =>
        tipContent(`${split.clients[order[row]]} and ${split.clients[order[column]]}`, [
          [null, "distance", decimal(value(row, column) * split.largest)],
          [null, second(order[row]) === second(order[column]) ? "same part" : "different parts"],
        ]),
    }),
    colourScale("0", decimal(split.largest)),
  );
}

// What held-out samples are and what they are taken for, over all clusters or in one.
function confusionMap(run) {
  const { confusion } = run;
  if (!confusion)
    return missing("confusion", "Not recorded: clients measure by themselves, there are many classes, or the run is of an older version.");
  const { names, clusters } = confusion;
  const total = names.map((_, row) => names.map((_, column) => sum(Object.values(clusters).map((one) => one[row][column]))));
  const draw = (counts) => {
    const most = Math.max(1, ...counts.flat());
    return heatMap("confusion", {
      label: "Held-out samples by label (rows) and predicted class (columns)",
      rows: names,
      columns: names,
      below: "predicted class",
      most,
      value: (row, column) => counts[row][column],
      text: (row, column) => (counts[row][column] ? String(counts[row][column]) : ""),
      height: Math.max(120, Math.min(560, names.length * 26)),
      tipFor: (row, column) =>
        tipContent(`Label ${names[row]}`, [
          [null, `taken for ${names[column]}`, plural(counts[row][column], "sample")],
          [null, "of all with this label", sum(counts[row]) ? percent(counts[row][column] / sum(counts[row])) : NONE],
        ]),
    });
  };
  const host = element("div", {}, draw(total));
  const choose = element(
    "select",
    {
      "aria-label": "Which cluster",
      onchange: (event) => {
        const counts = event.target.value === "" ? total : clusters[event.target.value];
        host.replaceChildren(draw(counts));
      },
    },
    element("option", { value: "" }, "all clusters"),
    Object.keys(clusters).map((id) => element("option", { value: id }, id ? `cluster ${id}` : "no cluster")),
  );
  return element("div", {}, Object.keys(clusters).length > 1 ? choose : null, host);
}

// Accuracy of every client, the worst first.
function clientAccuracy(run) {
  const { clients } = run;
  if (!clients || !clients.accuracy) return missing("confusion", "Not recorded: clients measure by themselves, or the run is of an older version.");
  const order = clients.names
    .map((_, at) => at)
    .filter((at) => clients.accuracy[at] !== null)
    .sort((a, b) => clients.accuracy[a] - clients.accuracy[b] || a - b);
  const shown = order.slice(0, 200);
  return element(
    "div",
    { class: "tall", "data-table": "clients" },
    element(
      "table",
      {},
      element("caption", {}, order.length > shown.length ? `The worst ${shown.length} of ${order.length} clients` : "The worst first"),
      headerRow("client", ["accuracy", "held-out samples", "cluster"]),
      shown.map((at) =>
        element(
          "tr",
          {},
          element("th", {}, clients.names[at]),
          element("td", { class: "number" }, percent(clients.accuracy[at])),
          element("td", { class: "number" }, plain(clients.held_out[at])),
          element("td", { class: "number" }, plain(clients.own[at])),
        ),
      ),
    ),
  );
}
