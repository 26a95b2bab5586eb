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
      "ARI with the truth",
      show("ari_last"),
      ...(summary.ari_affected_last === null
        ? [summary.ari_last === null ? "truth not known" : "1 is perfect"]
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
  ["val_last", "Val", 1],
  ["val_best", "best Val", 1],
  ["val_personal_last", "personal Val", 1],
  ["test_last", "Test", 1],
  ["test_best", "best Test", 1],
  ["test_at_best_val", "Test at best Val", 1],
  ["clusters_last", "clusters", 0],
  ["ari_last", "ARI", 1],
  ["bytes_up", "sent", -1],
  ["bytes_down", "received", -1],
  ["seconds_per_round", "a round", -1],
];

function comparison(runs) {
  const best = Object.fromEntries(
    COMPARED.map(([key, , sign]) => {
      const values = runs.map((run) => run.summary[key]).filter((value) => value !== null && value !== undefined);
      return [key, sign && values.length > 1 ? (sign > 0 ? Math.max : Math.min)(...values) : undefined];
    }),
  );
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
          element("td", {}, element("i", { class: "swatch", style: `background:${colour(number)}` }), ` ${run.label}`),
          COMPARED.map(([key]) =>
            element(
              "td",
              { class: `number${best[key] !== undefined && run.summary[key] === best[key] ? " best" : ""}` },
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
