// The figure of a run in a notebook: drawn from the data that came with it, and anew whenever the notebook sends more.

const page = document.getElementById("page");

function show(run) {
  plots.clear();
  const lineage = card("", "Lineage of the clusters", null, lineageChart(run, clusterPaint(run)));
  const right = element("div", { class: "stack w5" }, card("", "Clusters", null, clustersChart([run])), lineage);
  const left = card("w7", "Accuracy", "Val: clients' own held-out data. Test: newcomers of every concept.", accuracyChart([run]));
  page.replaceChildren(element("div", { class: "grid notebook" }, left, right), tip);
  redrawAll();
  document.documentElement.dataset.round = run.curves.round[run.curves.round.length - 1];
}

addEventListener("message", ({ data }) => {
  if (!data || !data.hcfl) return;
  document.documentElement.dataset.theme = data.dark ? "dark" : "light";
  show(data.hcfl);
});

const given = JSON.parse(document.getElementById("data").textContent);
if (given) show(given);
else page.append(element("p", { class: "empty" }, "The first round is under way."));
