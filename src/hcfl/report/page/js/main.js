// The page: what belongs to all runs first, then one run in detail.

const report = JSON.parse(document.getElementById("data").textContent);
const { runs } = report;
const page = document.getElementById("page");
const MOST_SPLITS = 12;

const section = (id, title, note, ...children) =>
  element("section", { id }, element("h2", {}, title), note && element("p", { class: "note" }, note), ...children);

function theme() {
  return element("button", {
    "aria-label": "Switch between light and dark", title: "Light or dark",
    onclick: () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      redrawAll();
    },
  }, "◐");
}

function heading() {
  const run = runs[0];
  const several = runs.length > 1;
  const status = several ? `${runs.length} runs` : plural(run.summary.rounds, "round");
  const unfinished = runs.filter((one) => one.summary.rounds < one.rounds_wanted);
  const seeds = new Set(runs.map((one) => one.summary.seed));
  const chips = [run.source, run.summary.partition, `seed ${[...seeds].join(", ")}`, status];
  const warning = several ? `${unfinished.length} of them not complete` : `stopped after ${run.summary.rounds} of ${run.rounds_wanted} rounds`;
  return element("header", {},
    element("div", {}, element("h1", {}, several ? "Runs compared" : run.label),
      element("div", { class: "chips" }, chips.map((text) => element("span", { class: "chip" }, text)),
        unfinished.length ? element("span", { class: "chip warn" }, warning) : null)),
    theme());
}

// A cluster's colour is that of the concept which most of its clients have; what is gone, or nobody knows, has one of its own.
function clusterPaint(run) {
  const truth = truthOf(run);
  const { clients } = run;
  return (id) => {
    if (clients && !clients.clusters.includes(id)) return "var(--none)";
    if (!truth) return "var(--c0)";
    const mine = clients.concepts.filter((_, at) => clients.own[at] === id);
    const count = (name) => mine.filter((one) => one === name).length;
    return mine.length ? truth.paint(truth.names.reduce((best, name) => (count(name) > count(best) ? name : best))) : "var(--none)";
  };
}

function splitCards(run) {
  const events = run.events.filter((event) => event.event === "split");
  if (!events.length) return missing("splits", "No cluster was split in this run.");
  if (!run.splits.length) return missing("splits", "Not recorded: this method splits without distances between clients, or the run is of an older version.");
  const cards = run.splits.map((split) => () => splitMap(run, split, events.find((event) => event.new_cluster === split.new_cluster)));
  const host = element("div", { class: "matrices", "data-figure": "splits" });
  const add = (some) => some.forEach((make) => { const one = element("div", {}); host.append(one); one.replaceWith(make()); });
  add(cards.slice(0, MOST_SPLITS));
  const more = cards.slice(MOST_SPLITS);
  if (!more.length) return host;
  const button = element("button", { onclick: () => { button.remove(); add(more); } }, `Show the other ${more.length}`);
  return element("div", {}, host, element("p", { style: "margin-top:12px" }, button));
}

function overRounds() {
  const known = runs.some((run) => points(run, "ari").length);
  const frontier = element("div", {});
  const show = (when) => frontier.replaceChildren(frontierChart(runs, when));
  show("last");
  const choose = element("select", { "aria-label": "Which round", onchange: (event) => show(event.target.value) },
    element("option", { value: "last" }, "last round"), element("option", { value: "best" }, "best round of each"));
  const several = runs.length > 1;
  const accuracy = card("w7", "Accuracy", "Val: clients' own held-out data. Test: newcomers of every concept.", accuracyChart(runs));
  const clusters = card("w6", "Clusters", null, clustersChart(runs));
  const quality = known ? card("w6", "Agreement with the truth", several ? "Adjusted Rand index of clusters and true concepts." : null, qualityChart(runs)) : null;
  return section("rounds", "Over rounds", "Drag to zoom, double-click to see all again; with a keyboard: + − 0 and arrows.",
    element("div", { class: "grid" }, accuracy, ...(several
      ? [card("w5", "Frontier", "Personalisation (Val) against generalisation (Test): up and right is better. Larger circles have more clusters.", frontier, choose), clusters, quality, differences(runs)]
      : [element("div", { class: "stack w5" }, clusters, quality)])));
}

function detail(run) {
  const more = run.events.length ? card("w5", "Every change", null, eventsTable(run)) : null;
  return [
    section("lineage", "Lineage of clusters", "A lane is a cluster, as thick as the number of clients that have it as their own. At the right: its id and its clients.",
      element("div", { class: "grid" }, card(more ? "w7" : "", "Who came from whom", null, lineageChart(run, clusterPaint(run)), truthOf(run) && truthLegend(truthOf(run))), more)),
    section("members", "Who belongs where", null, element("div", { class: "grid" },
      card("w6", "Weights of clients on clusters", truthOf(run) ? "Clients are ordered by their true concept, then by their cluster." : "Clients are ordered by their cluster.", weightsMap(run)),
      card("w6", "Classes in clusters", "Samples that the clients of each cluster hold, by label as they see it.", classesMap(run)))),
    section("splits", "Why clusters split", "The distances between a cluster's clients in the round in which it split, one part after the other: what is strong off the diagonal are clients who differ.", splitCards(run)),
    section("cost", "Cost", null, element("div", { class: "grid" },
      card("w6", "Bytes", "Summed over the participants of each round.", trafficChart(run)),
      card("w6", "Seconds", "Clients' work (on Flower: waiting for them, too), the server's, evaluation.", timeChart(run)))),
    section("configuration", "Configuration", null, configuration(run)),
  ];
}

function build() {
  const several = runs.length > 1;
  const links = { summary: "Summary", rounds: "Over rounds", lineage: "Lineage", members: "Who belongs where", splits: "Splits", cost: "Cost", configuration: "Configuration" };
  const details = element("main", {});
  const show = (number) => {
    for (const one of plots) if (one.host && details.contains(one.host)) plots.delete(one);
    details.replaceChildren(...detail(runs[number]));
    redrawAll();
  };
  const picker = several ? element("div", { class: "picker" }, element("h2", {}, "One run in detail"),
    element("select", { id: "run", "aria-label": "Run", onchange: (event) => show(Number(event.target.value)) },
      runs.map((run, number) => element("option", { value: number }, run.label)))) : null;
  page.append(heading(),
    element("nav", {}, element("div", {}, Object.entries(links).map(([id, name]) => element("a", { href: `#${id}` }, name)))),
    section("summary", "Summary", several ? "Bold: the best of a column." : null, several ? comparison(runs) : tiles(runs[0]), everyNumber(runs)),
    overRounds(), ...(picker ? [picker] : []), details,
    element("footer", {}, `hcfl ${report.version} · ${runs.map((run) => run.folder).join(", ")}`), tip);
  show(0);
  redrawAll();
}

build();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => { printing = true; redrawAll(); });
addEventListener("afterprint", () => { printing = false; redrawAll(); });
document.documentElement.dataset.ready = "";
