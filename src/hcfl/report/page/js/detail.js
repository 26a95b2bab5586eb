// One run in detail: its lineage, who belongs where, why clusters split, what it cost.

const MOST_SPLITS = 12;

const section = (id, title, note, ...children) =>
  element("section", { id }, element("h2", {}, title), note && element("p", { class: "note" }, note), ...children);

// A cluster's colour is that of the concept which most of its clients have; clusters that were removed, and clusters without a known concept, have a colour of their own.
function clusterPaint(run) {
  if (run.time) return paintOverTime(run);
  const truth = truthOf(run);
  const { clients } = run;
  const paints = new Map(
    (clients ? clients.clusters : []).map((id) => {
      if (!truth) return [id, "var(--c0)"];
      const mine = clients.concepts.filter((_, at) => clients.own[at] === id);
      const count = (name) => mine.filter((one) => one === name).length;
      return [
        id,
        mine.length
          ? truth.paint(truth.names.reduce((best, name) => (count(name) > count(best) ? name : best)))
          : "var(--none)",
      ];
    }),
  );
  return (id) => (clients ? paints.get(id) || "var(--none)" : "var(--c0)");
}

// Where clients change, each cluster has a colour of its own, in the order in which they came.
function paintOverTime(run) {
  const ids = [...new Set(run.sizes.flatMap(Object.keys))].sort((a, b) => a - b);
  const place = new Map(ids.map((id, at) => [id, at]));
  return (id) => (place.has(id) ? colour(place.get(id)) : "var(--none)");
}

function splitCards(run) {
  const events = run.events.filter((event) => event.event === "split");
  if (!events.length) return missing("splits", "No cluster was split in this run.");
  if (!run.splits.length)
    return missing(
      "splits",
      "Not recorded: this method splits without distances between clients, or the run is of an older version.",
    );
  const cards = run.splits.map(
    (split) => () =>
      splitMap(
        run,
        split,
        events.find((event) => event.new_cluster === split.new_cluster),
      ),
  );
  const host = element("div", { class: "matrices", "data-figure": "splits" });
  const add = (some) => host.append(...some.map((make) => make()));
  add(cards.slice(0, MOST_SPLITS));
  const more = cards.slice(MOST_SPLITS);
  if (!more.length) return host;
  const button = element(
    "button",
    {
      onclick: () => {
        button.remove();
        add(more);
      },
    },
    `Show the other ${more.length}`,
  );
  return element("div", {}, host, element("p", { style: "margin-top:12px" }, button));
}

function detail(run) {
  const more = run.events.length ? card("w5", "Every change", null, eventsTable(run)) : null;
  return [
    section(
      "lineage",
      "Lineage of clusters",
      "A lane is a cluster, as thick as the number of clients that have it as their own. At the right: its id and its clients.",
      element(
        "div",
        { class: "grid" },
        card(
          more ? "w7" : "",
          "Lineage of the clusters",
          null,
          lineageChart(run, clusterPaint(run)),
          !run.time && truthOf(run) ? truthLegend(truthOf(run)) : null,
        ),
        more,
        ...timeCards(run),
      ),
    ),
    section(
      "members",
      "Who belongs where",
      null,
      element(
        "div",
        { class: "grid" },
        card(
          "w6",
          "Weights of clients on clusters",
          truthOf(run)
            ? "Clients are ordered by their true concept, then by their cluster."
            : "Clients are ordered by their cluster.",
          weightsMap(run),
        ),
        card(
          "w6",
          "Classes in clusters",
          "Samples that the clients of each cluster hold, by label as they see it.",
          classesMap(run),
        ),
      ),
    ),
    section(
      "accuracy-by",
      "By client and by class",
      "On clients' held-out samples, after the last round.",
      element(
        "div",
        { class: "grid" },
        card("w6", "Accuracy of every client", null, clientAccuracy(run)),
        card("w6", "Labels and predictions", null, confusionMap(run)),
      ),
    ),
    section(
      "splits",
      "Why clusters split",
      "The distances between a cluster's clients in the round in which it split, one part after the other: what is strong off the diagonal are clients who differ.",
      splitCards(run),
    ),
    section(
      "cost",
      "Cost",
      null,
      element(
        "div",
        { class: "grid" },
        card("w6", "Bytes", "Summed over the participants of each round.", trafficChart(run)),
        card(
          "w6",
          "Seconds",
          "Clients' work (on Flower: waiting for them, too), the server's, evaluation.",
          timeChart(run),
        ),
      ),
    ),
    section("configuration", "Configuration", null, configuration(run)),
  ];
}
