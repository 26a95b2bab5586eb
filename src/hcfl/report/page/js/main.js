// The page: what belongs to all runs first, then one run in detail.

const report = JSON.parse(document.getElementById("data").textContent);
const { runs } = report;
const page = document.getElementById("page");
// Runs that belong together have one colour; single runs are shown on request.
const groups = report.compared
  ? report.compared.groups.map((group, number) => ({
      ...group,
      runs: group.runs.map((at) => runs[at]),
      paint: colour(number),
    }))
  : asGroups(runs);

function heading() {
  const run = runs[0];
  const several = runs.length > 1;
  const status = several ? `${runs.length} runs` : plural(run.summary.rounds, "round");
  const unfinished = runs.filter((one) => one.summary.rounds < one.rounds_wanted);
  const seeds = new Set(runs.map((one) => one.summary.seed));
  const chips = [run.source, run.summary.partition, `seed ${[...seeds].join(", ")}`, status];
  const warning = several
    ? `${unfinished.length} of them not complete`
    : `stopped after ${run.summary.rounds} of ${run.rounds_wanted} rounds`;
  return element(
    "header",
    {},
    element(
      "div",
      {},
      element("h1", {}, several ? "Runs compared" : run.label),
      element(
        "div",
        { class: "chips" },
        chips.map((text) => element("span", { class: "chip" }, text)),
        unfinished.length ? element("span", { class: "chip warn" }, warning) : null,
      ),
    ),
    theme(),
  );
}

function overRounds() {
  const known = runs.some((run) => points(run, "ari").length);
  const frontier = element("div", {});
  const show = (when) => frontier.replaceChildren(frontierChart(runs, when, groups));
  show("last");
  const choose = element(
    "select",
    { "aria-label": "Which round", onchange: (event) => show(event.target.value) },
    element("option", { value: "last" }, "last round"),
    element("option", { value: "best" }, "best round of each"),
  );
  const several = runs.length > 1;
  const accuracy = card(
    "w7",
    "Accuracy",
    several && groups.some((group) => group.runs.length > 1)
      ? "Val: clients' own held-out data. Test: newcomers of every concept. Lines are means over seeds, bands one deviation."
      : "Val: clients' own held-out data. Test: newcomers of every concept.",
    accuracyChart(runs, groups),
  );
  const clusters = card("w6", "Clusters", null, clustersChart(runs, groups));
  const quality = known
    ? card(
        "w6",
        "Agreement with the truth",
        several ? "Adjusted Rand index of clusters and true concepts." : null,
        qualityChart(runs, groups),
      )
    : null;
  return section(
    "rounds",
    "Over rounds",
    "Drag to zoom, double-click to see all again; with a keyboard: + − 0 and arrows.",
    element(
      "div",
      { class: "grid" },
      ...sweepCharts(groups, report.swept || {}),
      accuracy,
      ...(several
        ? [
            card(
              "w5",
              "Frontier",
              "Personalisation (Val) against generalisation (Test): up and right is better. Larger circles have more clusters.",
              frontier,
              choose,
            ),
            clusters,
            quality,
          ]
        : [element("div", { class: "stack w5" }, clusters, quality)]),
    ),
  );
}

function build() {
  const several = runs.length > 1;
  const links = {
    summary: "Summary",
    rounds: "Over rounds",
    lineage: "Lineage",
    members: "Who belongs where",
    "accuracy-by": "Clients and classes",
    splits: "Splits",
    cost: "Cost",
    configuration: "Configuration",
  };
  const details = element("main", {});
  const show = (number) => {
    for (const one of plots) if (one.host && details.contains(one.host)) plots.delete(one);
    details.replaceChildren(...detail(runs[number]));
    redrawAll();
  };
  const picker = several
    ? element(
        "div",
        { class: "picker" },
        element("span", {}, "Show "),
        element(
          "select",
          { id: "run", "aria-label": "Run", onchange: (event) => show(Number(event.target.value)) },
          runs.map((run, number) => element("option", { value: number }, run.label)),
        ),
      )
    : null;
  page.append(
    heading(),
    element(
      "nav",
      {},
      element(
        "div",
        {},
        Object.entries(links).map(([id, name]) => element("a", { href: `#${id}` }, name)),
      ),
    ),
    section(
      "summary",
      "Summary",
      several ? report.compared.verdict : judgement(runs[0]),
      several ? groupTable(report.compared, groups) : tiles(runs[0]),
      taskScores(runs),
      sentences(runs),
      warnings(runs),
      several ? singleRuns(runs) : everyNumber(runs),
    ),
    overRounds(),
    several
      ? element(
          "details",
          { id: "one-run" },
          element("summary", {}, element("h2", {}, "One run in detail")),
          picker,
          details,
        )
      : details,
    element("footer", {}, `hcfl ${report.version} · ${runs.map((run) => run.folder).join(", ")}`),
    tip,
  );
  show(0);
}

build();
const oneRun = document.getElementById("one-run");
const openFor = () => {
  const target = oneRun && location.hash && document.getElementById(location.hash.slice(1));
  if (target && oneRun.contains(target)) oneRun.open = true;
};
addEventListener("hashchange", openFor);
openFor();
document.documentElement.dataset.ready = "";
