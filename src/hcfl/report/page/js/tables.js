// Numbers and words: the summary, every change of clusters, the configuration.

const FORMATS = [
  [/^((val|test)_(best|last|at_best_val|served|worst_client)|balanced_accuracy|macro_f1)$/, percent],
  [/^val_(personal_last|worst_tenth|spread|personal_worst_tenth|personal_spread)$/, percent],
  [/^bytes/, bytes],
  [/^ari/, (value) => (value === null ? NONE : value.toFixed(2))],
  [/^seconds/, seconds],
];

// A number of summary.json, as people read it; its `value` is exactly the file's.
function datum(run, number, key) {
  const value = run.summary[key] ?? null;
  const format = (FORMATS.find(([pattern]) => pattern.test(key)) || [null, plain])[1];
  return element(
    "data",
    { value: value === null ? "" : String(value), "data-run": number, "data-key": key },
    format(value),
  );
}

// What should be known before a result is used, in sentences.
function warnings(runs) {
  const told = runs.flatMap((run) =>
    (run.summary.warnings || []).map((text) => (runs.length > 1 ? `${run.label}: ${text}` : text)),
  );
  if (!told.length) return null;
  return element(
    "ul",
    { class: "card warnings", "aria-label": "Warnings" },
    told.map((text) => element("li", {}, text)),
  );
}

// What a run says of given groups and of forecasts without a model, in sentences.
function sentences(runs) {
  const told = runs.flatMap((run) =>
    ["forecast", "groups"]
      .filter((key) => run.summary[key])
      .map((key) => (runs.length > 1 ? `${run.label}: ${run.summary[key]}` : run.summary[key])),
  );
  if (!told.length) return null;
  return element(
    "ul",
    { class: "card", "aria-label": "Compared with" },
    told.map((text) => element("li", {}, text)),
  );
}

// The metrics of the task over all held-out data: RMSE, MAE and R² of numbers, AUROC and others of classes.
function taskScores(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.summary)))].filter((key) => key.startsWith("score_"));
  if (!keys.length) return null;
  return element(
    "div",
    { class: "card scroll", id: "task-scores" },
    element(
      "table",
      {},
      headerRow(
        `${runs[0].summary.task}, held-out data`,
        runs.map((run) => run.label),
      ),
      keys.map((key) =>
        element(
          "tr",
          {},
          element("td", {}, key.replace("score_", "").replaceAll("_", " ")),
          runs.map((run) => element("td", { class: "number" }, plain(run.summary[key] ?? null))),
        ),
      ),
    ),
  );
}

function tiles(run) {
  const show = (key) => datum(run, 0, key);
  const tile = (title, main, ...also) =>
    element("div", { class: "tile" }, element("span", {}, title), element("b", {}, main), element("span", {}, also));
  const { summary } = run;
  return element(
    "div",
    { class: "tiles" },
    tile(
      "Val, last round",
      show("val_last"),
      "best ",
      show("val_best"),
      summary.val_best_round === null ? "" : " in round ",
      summary.val_best_round === null ? "" : show("val_best_round"),
    ),
    (summary.val_personal_last ?? null) === null
      ? ""
      : tile(
          "Val with personal parts",
          show("val_personal_last"),
          "worst tenth of clients ",
          show("val_personal_worst_tenth"),
          ", without ",
          show("val_worst_tenth"),
        ),
    tile(
      "Test, last round",
      show("test_last"),
      ...(summary.test_best === null
        ? ["there is no test set"]
        : ["best ", show("test_best"), " in round ", show("test_best_round")]),
    ),
    summary.served_by === "likelihood"
      ? tile(
          "Served",
          ["round ", show("served_round")],
          "Val ",
          show("val_served"),
          ", Test ",
          show("test_served"),
          ", on samples that did not choose it",
        )
      : tile("Test at best Val", show("test_at_best_val"), "chosen without test data"),
    (summary.val_worst_client ?? null) === null
      ? null
      : tile(
          "Worst client",
          show("val_worst_client"),
          "balanced accuracy ",
          show("balanced_accuracy"),
          ", macro F1 ",
          show("macro_f1"),
        ),
    tile(
      "Clusters",
      show("clusters_last"),
      ...(summary.clusters_true === null ? ["truth not known"] : ["true ", show("clusters_true")]),
      ", at most ",
      show("clusters_max"),
    ),
    tile(
      "Agreement with the truth",
      show("ari_last"),
      ...(summary.ari_affected_last === null
        ? [summary.ari_last === null ? "truth not known" : "adjusted Rand index, 1 is perfect"]
        : ["affected clients ", show("ari_affected_last")]),
    ),
    tile("Clients send", show("bytes_up"), "and receive ", show("bytes_down")),
    tile("A round takes", show("seconds_per_round"), show("rounds"), ` of ${run.rounds_wanted} rounds played`),
  );
}

function headerRow(first, names) {
  return element(
    "tr",
    {},
    element("th", {}, first),
    names.map((name) => element("th", { class: "number" }, name)),
  );
}

function everyNumber(runs) {
  const keys = Object.keys(runs[0].summary).filter((key) => key !== "warnings");
  return element(
    "details",
    { id: "every-number" },
    element("summary", {}, "Every number of summary.json"),
    element(
      "div",
      { class: "card scroll" },
      element(
        "table",
        {},
        headerRow(
          "",
          runs.map((run) => run.label),
        ),
        keys.map((key) =>
          element(
            "tr",
            {},
            element("td", {}, key),
            runs.map((run, number) => {
              const value = run.summary[key] ?? null;
              return element(
                "td",
                { class: "number" },
                element(
                  "data",
                  { value: value === null ? "" : String(value), "data-run": number, "data-key": key },
                  plain(value),
                ),
              );
            }),
          ),
        ),
      ),
    ),
  );
}

const COMPARED = [
  ["val_last", "Val"],
  ["val_best", "best Val"],
  ["val_personal_last", "personal Val"],
  ["test_last", "Test"],
  ["test_best", "best Test"],
  ["test_at_best_val", "Test at best Val"],
  ["clusters_last", "clusters"],
  ["ari_last", "adjusted Rand index"],
  ["bytes_up", "sent"],
  ["bytes_down", "received"],
  ["seconds_per_round", "a round"],
];

// The mean ± deviation over seeds of every group; bold is what is ahead of all others beyond the spread.
function groupTable(compared, groups) {
  return element(
    "div",
    { class: "card scroll" },
    element(
      "table",
      { "data-table": "groups" },
      element("caption", {}, "Mean ± deviation over seeds. Bold: ahead of all others, beyond the spread of both."),
      headerRow("", ["seeds", ...compared.columns.map((column) => column.title)]),
      groups.map((group) =>
        element(
          "tr",
          {},
          element(
            "th",
            {},
            element("i", { class: "swatch", style: `background:${group.paint}` }),
            ` ${group.label}`,
          ),
          element("td", { class: "number" }, String(group.runs.length)),
          compared.columns.map(({ key }) =>
            element(
              "td",
              { class: `number${group.cells[key].ahead ? " best" : ""}` },
              group.cells[key].text,
            ),
          ),
        ),
      ),
    ),
  );
}

function singleRuns(runs) {
  return element(
    "details",
    { id: "single-runs" },
    element("summary", {}, `Every single run (${runs.length})`),
    comparison(runs),
    differences(runs),
    everyNumber(runs),
  );
}

// What a single run came to, in a sentence.
function judgement(run) {
  const { summary } = run;
  const parts = [];
  const k = summary.clusters_last;
  const truth = summary.clusters_true ?? null;
  parts.push(
    truth === null
      ? `${plural(k, "cluster")} at the end`
      : `${plural(k, "cluster")} for ${plural(truth, "true concept")}`,
  );
  if ((summary.val_last ?? null) !== null) {
    const base = run.majority ?? null;
    const against = base === null ? "" : `, where always naming the most frequent class has ${percent(base)}`;
    parts.push(`Val ${percent(summary.val_last)}${against}`);
  }
  if ((summary.val_worst_client ?? null) !== null) parts.push(`the worst client has ${percent(summary.val_worst_client)}`);
  return `${parts.join("; ")}.`;
}

function comparison(runs) {
  return element(
    "div",
    { class: "card scroll" },
    element(
      "table",
      {},
      headerRow(
        "run",
        COMPARED.map(([, name]) => name),
      ),
      runs.map((run, number) =>
        element(
          "tr",
          {},
          element("td", {}, run.label),
          COMPARED.map(([key]) =>
            element(
              "td",
              { class: "number" },
              datum(run, number, key),
            ),
          ),
        ),
      ),
    ),
  );
}

function eventsTable(run) {
  if (!run.events.length) return element("p", { class: "empty" }, "The clusters never changed.");
  return element(
    "div",
    { class: "tall" },
    element(
      "table",
      {},
      element(
        "tr",
        {},
        ["round", "what", "why"].map((word) => element("th", {}, word)),
      ),
      run.events.map((event) =>
        element(
          "tr",
          {},
          element("td", {}, String(event.round)),
          element("td", {}, changeInWords(event)),
          element("td", {}, reason(event, run.rule) || NONE),
        ),
      ),
    ),
  );
}

// Where several runs are compared: settings in which they differ.
function differences(runs) {
  const flat = (text) => {
    let section = "";
    const found = {};
    for (const line of text.split("\n")) {
      const match = /^( *)([^:]+):(.*)$/.exec(line);
      if (!match) continue;
      if (!match[1]) section = match[2];
      if (match[3].trim()) found[match[1] ? `${section}.${match[2]}` : match[2]] = match[3].trim();
    }
    return found;
  };
  const all = runs.map((run) => flat(run.config));
  const keys = [...new Set(all.flatMap(Object.keys))].filter((key) => new Set(all.map((one) => one[key])).size > 1);
  return card(
    "scroll",
    "Where the configurations differ",
    null,
    element(
      "table",
      {},
      element(
        "tr",
        {},
        element("th", {}, ""),
        runs.map((run) => element("th", {}, run.label)),
      ),
      keys.map((key) =>
        element(
          "tr",
          {},
          element("td", {}, key),
          all.map((one) => element("td", {}, (one[key] ?? "null").replace(/^null$/, NONE))),
        ),
      ),
    ),
  );
}

function configuration(run) {
  const copy = element(
    "button",
    {
      onclick: () =>
        navigator.clipboard.writeText(run.config).then(() => {
          copy.textContent = "Copied";
        }),
    },
    "Copy",
  );
  return element(
    "div",
    { class: "card" },
    element(
      "p",
      { class: "note" },
      "What is set; config.yaml has everything, and hcfl run --config runs it again. ",
      copy,
    ),
    element("pre", { class: "columns" }, run.config.replace(/^ *[^:\n]+: null\n/gm, "")),
  );
}
