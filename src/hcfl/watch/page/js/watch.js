// The page: the list of runs, one run, or several side by side, as its address says.

const page = document.getElementById("page");
const connectionChip = element("span", { class: "chip link", role: "status" }, element("i", {}), "connecting");

function connection(state) {
  connectionChip.className = `chip link ${state}`;
  connectionChip.replaceChildren(
    element("i", {}),
    state === "live" ? "live" : `not connected since ${new Date().toLocaleTimeString()}`,
  );
}

const labelsOf = (runs) => {
  const named = runs.map((run) => run.live.method);
  return named.map((name, at) => (named.filter((one) => one === name).length > 1 ? `${name}, ${runs[at].live.id}` : name));
};

// The last change of the clusters, in words, with its reason.
function lastChange(run) {
  const changes = run.curves ? run.events.filter((event) => event.event in GLYPHS) : [];
  if (!changes.length)
    return card("w6", "Last change of the clusters", null, element("p", { class: "empty" }, "None so far."));
  const last = changes[changes.length - 1];
  const splits = changes.filter((event) => event.event === "split");
  const shown = last.event === "split" || !splits.length ? [last] : [last, splits[splits.length - 1]];
  return card(
    "w6",
    "Last change of the clusters",
    null,
    shown.map((event) => {
      const why = reason(event, run.rule);
      return element(
        "p",
        { class: "change", "data-change": event.event },
        element("b", {}, `Round ${event.round} ${GLYPHS[event.event]} `),
        `Cluster ${changeInWords(event)}`.replace("Cluster moved", "Clients moved"),
        why ? element("span", { class: "soft" }, `Why: ${why}.`) : null,
      );
    }),
  );
}

function missingClients({ live }) {
  const { missing } = live;
  const none = !missing.absent && !missing.refused;
  const now = ["absent", "refused"].filter((kind) => missing.latest[kind]);
  return card(
    "w6",
    "Absent and refused clients",
    null,
    none
      ? element("p", { class: "empty" }, "None so far: the upload of every client that was asked has counted.")
      : element(
          "div",
          {},
          element(
            "p",
            {},
            `In all ${plural(missing.absent, "absence")} and ${plural(missing.refused, "refused upload")}; `,
            now.length
              ? `in the last round ${now.map((kind) => `${missing.latest[kind]} ${kind}`).join(", ")}.`
              : "none in the last round.",
          ),
          element(
            "div",
            { class: "tall short" },
            element(
              "table",
              {},
              element(
                "tr",
                {},
                ["client", "absent", "refused", "last reason"].map((word) => element("th", { scope: "col" }, word)),
              ),
              missing.clients.map(([name, absent, refused, round, why]) =>
                element(
                  "tr",
                  {},
                  element("td", {}, name),
                  element("td", { class: "number" }, String(absent)),
                  element("td", { class: "number" }, String(refused)),
                  element("td", {}, `${why} (round ${round})`),
                ),
              ),
            ),
          ),
          missing.others ? element("p", { class: "note" }, `and ${plural(missing.others, "other client")}`) : null,
        ),
  );
}

const commandList = (commands) =>
  commands.map(([what, command]) =>
    element("div", { class: "command" }, element("span", { class: "soft" }, what), element("code", {}, command), copyButton(command)),
  );

function facts(run) {
  const { live } = run;
  const fact = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  const known = [
    live.usual !== null && fact("a round takes", seconds(live.usual)),
    live.participants !== null && fact("clients in the last round", String(live.participants)),
    live.memory !== null && fact("memory of its process", bytes(live.memory)),
    fact("on disk", bytes(live.disk)),
    live.saved_round !== null && fact("last checkpoint", `round ${live.saved_round}`),
  ];
  return element("dl", { class: "facts" }, known.filter(Boolean));
}

// What is going on now: the progress, the time left, the state in words.
function now(run) {
  const { live } = run;
  const notes = [
    live.problem,
    live.damaged_lines ? `${plural(live.damaged_lines, "line")} of its files cannot be read and are left out.` : null,
    live.cut.length ? `There are too many ${live.cut.join(" and ")} to show: the page has the last ones.` : null,
  ].filter(Boolean);
  const time = live.left !== null ? `about ${duration(live.left)} left` : "";
  return element(
    "div",
    { class: "card now", "data-state": live.state },
    element(
      "div",
      { class: "headline" },
      element("b", {}, live.done ? `Round ${live.done} of ${live.rounds}` : `The first of ${plural(live.rounds, "round")}`),
      element("span", {}, time),
    ),
    progressBar(live, "Rounds"),
    element("p", { class: "soft" }, STATES[live.state][1]),
    notes.map((text) => element("p", { class: "warn" }, text)),
    facts(run),
    commandList(live.commands),
    live.done
      ? element("p", {}, element("a", { class: "button", href: `/report${address(live.id).slice(4)}` }, "Save as one file"))
      : null,
  );
}

const drawn = (run) => run.curves !== null && run.curves !== undefined;
const only = (make) => (run) => (drawn(run) ? make(run) : null);

function overRoundsPart(make, width, title, note) {
  return only((run) => card(width, title, note, make([run])));
}

function clusterNote(run) {
  if (!run.condensed) return null;
  const { clients, rows, clusters, columns } = run.condensed;
  const words = [
    rows < clients ? `${clients} clients in ${rows} rows: a row is the mean of clients with the same cluster` : null,
    columns < clusters ? `the ${columns} largest of ${clusters} clusters` : null,
  ].filter(Boolean);
  return element("p", { class: "note", "data-condensed": "" }, `Summarised: ${words.join("; ")}.`);
}

function membersSection(run) {
  const { live } = run;
  const after = live.saved_round !== null && live.state !== "finished" ? ` As of round ${live.saved_round}.` : "";
  const order = truthOf(run) ? "Clients are ordered by their true concept, then by their cluster." : "Clients are ordered by their cluster.";
  return element(
    "div",
    { class: "grid" },
    card("w6", "Weights of clients on clusters", order + after, clusterNote(run), weightsMap(run)),
    card("w6", "Classes in clusters", "Samples that the clients of each cluster hold, by label as they see it.", classesMap(run)),
  );
}

function lineageSection(run) {
  const many = run.sizes.some((sizes) => !Object.keys(sizes).length);
  const changes = { ...run, events: run.events.filter((event) => event.event in GLYPHS) };
  const more = changes.events.length ? card("w5", "Every change", null, eventsTable(changes)) : null;
  return element(
    "div",
    { class: "grid" },
    card(
      more ? "w7" : "",
      "Lineage of the clusters",
      "A lane is a cluster, as thick as the number of its clients. At the right: its id and its clients.",
      many ? missing("lineage", "There are too many clusters to draw.") : lineageChart(changes, clusterPaint(run)),
      !run.time && truthOf(run) ? truthLegend(truthOf(run)) : null,
    ),
    more,
    ...timeCards(run),
  );
}

const CURVES = ["curves", "events", "summary"];

function runPage(id) {
  const run = { live: null };
  const heading = livePart(["live", "summary"], ({ live, summary }) => {
    const partition = summary ? [summary.partition, `seed ${summary.seed}`] : [];
    return element(
      "div",
      {},
      element("h1", {}, live.method),
      element(
        "div",
        { class: "chips" },
        stateChip(live.state),
        [live.id, live.data, ...partition].map((text) => element("span", { class: "chip" }, text)),
      ),
    );
  });
  const sections = {
    now: ["Now", [livePart(["live"], now), livePart(["live", "events", "rule"], (data) => element("div", { class: "grid" }, lastChange(data), missingClients(data)))]],
    nodes: ["Nodes", [livePart(["nodes", "live"], nodesSection)]],
    summary: ["Summary", [livePart(["summary", "rounds_wanted"], only(tiles))]],
    rounds: [
      "Over rounds",
      [
        livePart(CURVES, overRoundsPart(accuracyChart, "", "Accuracy", "Val: clients' own held-out data. Test: newcomers of every concept.")),
        livePart(CURVES, only((data) => element("div", { class: "grid" }, card("w6", "Clusters", null, clustersChart([data])), points(data, "ari").length ? card("w6", "Agreement with the truth", null, qualityChart([data])) : null))),
      ],
    ],
    lineage: ["Lineage", [livePart(["sizes", "curves", "events", "clients", "rule", "time", "summary"], only(lineageSection))]],
    members: ["Who belongs where", [livePart(["clients", "classes"], only(membersSection))]],
    splits: ["Splits", [livePart(["splits", "clients"], only(splitCards))]],
    cost: [
      "Cost",
      [
        livePart(["up", "down", "phases", "curves"], only((data) => element("div", { class: "grid" }, card("w6", "Bytes", "Summed over the participants of each round.", trafficChart(data)), card("w6", "Seconds", "Clients' work (on Flower: waiting for them, too), the server's, evaluation.", timeChart(data))))),
      ],
    ],
    configuration: ["Configuration", [livePart(["config"], only(configuration))]],
  };
  const parts = [heading, ...Object.values(sections).flatMap(([, some]) => some)];
  const nodes = Object.entries(sections).map(([name, [title, some]]) =>
    element("section", { id: name }, element("h2", {}, title), some.map(({ host }) => host)),
  );
  const links = Object.entries(sections).map(([name, [title]]) => element("a", { href: `#${name}` }, title));
  const tell = (before) => {
    const { live } = run;
    document.title = `${live.state === "running" ? "▶" : "■"} ${live.done}/${live.rounds} · ${live.method} · hcfl watch`;
    if (!before) return;
    if (before.state !== live.state) speak(`The run is ${STATES[live.state][0]}`);
  };
  listen(
    `?run=${encodeURIComponent(id)}`,
    {
      run({ parts: fresh }) {
        const before = run.live;
        const changes = (run.events || []).length;
        Object.assign(run, fresh);
        if (!drawn(run)) run.curves = null;
        const changed = before ? new Set(Object.keys(fresh)) : null;
        for (const part of parts) part.update(run, changed);
        nodes.forEach((node, at) => {
          const empty = [...node.querySelectorAll(":scope > .part")].every((host) => host.hidden);
          node.hidden = empty;
          links[at].hidden = empty;
        });
        tell(before);
        if (changes && run.events.length > changes) speak(changeInWords(run.events[run.events.length - 1]));
        document.documentElement.dataset.ready = "";
        document.documentElement.dataset.round = run.live.done;
      },
      gone() {
        for (const node of [...nodes, ...links]) node.hidden = true;
        heading.host.replaceChildren(element("h1", {}, "There is no such run"), element("p", { class: "soft" }, id));
        document.documentElement.dataset.ready = "";
      },
    },
    connection,
  );
  return [
    element("header", {}, element("div", {}, element("a", { class: "back", href: "/" }, "← All runs"), heading.host), connectionChip, theme()),
    element("nav", { "aria-label": "Sections" }, element("div", {}, links)),
    element("main", {}, nodes),
  ];
}

function comparePage(ids) {
  const runs = new Map();
  const progress = livePart(["live"], () =>
    element(
      "div",
      { class: "grid" },
      [...runs.values()].map((run) =>
        element(
          "div",
          { class: "card w4" },
          element("h3", {}, element("a", { href: address(run.live.id) }, run.label)),
          element("div", { class: "headline small" }, `Round ${run.live.done} of ${run.live.rounds}`, stateChip(run.live.state)),
          progressBar(run.live, `Rounds of ${run.label}`),
          element("p", { class: "soft" }, run.live.left === null ? STATES[run.live.state][1] : `about ${duration(run.live.left)} left`),
        ),
      ),
    ),
  );
  const shown = () => [...runs.values()].filter(drawn);
  const together = (make) => () => (shown().length ? make(shown()) : null);
  const parts = [
    progress,
    livePart(["summary"], together(comparison)),
    livePart(CURVES, together((some) => card("", "Accuracy", "Dotted: Val, clients' own held-out data. Drawn through: Test, newcomers of every concept.", accuracyChart(some)))),
    livePart(
      CURVES,
      together((some) =>
        element(
          "div",
          { class: "grid" },
          card("w6", "Clusters", null, clustersChart(some)),
          some.some((run) => points(run, "ari").length) ? card("w6", "Agreement with the truth", "Adjusted Rand index of clusters and true concepts.", qualityChart(some)) : null,
        ),
      ),
    ),
    livePart(["config"], together((some) => (some.length > 1 ? differences(some) : null))),
  ];
  const other = element("p", { class: "warn", hidden: "" }, "These runs use different data, so their accuracies cannot be compared.");
  listen(
    `?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`,
    {
      run({ id, parts: fresh }) {
        const known = runs.has(id);
        runs.set(id, { curves: null, ...runs.get(id), ...fresh });
        const inOrder = ids.map((one) => runs.get(one)).filter(Boolean);
        labelsOf(inOrder).forEach((label, at) => {
          inOrder[at].label = label;
        });
        runs.clear();
        inOrder.forEach((one) => runs.set(one.live.id, one));
        other.hidden = new Set(inOrder.map((run) => run.live.data)).size < 2;
        const changed = known ? new Set(Object.keys(fresh)) : null;
        for (const part of parts) part.update(null, changed);
        document.title = `${plural(runs.size, "run")} side by side · hcfl watch`;
        document.documentElement.dataset.ready = "";
      },
    },
    connection,
  );
  return [
    element(
      "header",
      {},
      element("div", {}, element("a", { class: "back", href: "/" }, "← All runs"), element("h1", {}, "Side by side"), other),
      connectionChip,
      theme(),
    ),
    element("main", {}, parts.map(({ host }) => element("section", {}, host))),
  ];
}

function content() {
  const { pathname, search } = location;
  if (pathname.startsWith("/run/")) return runPage(pathname.slice(5).split("/").map(decodeURIComponent).join("/"));
  if (pathname === "/compare") return comparePage(new URLSearchParams(search).getAll("run"));
  return listPage();
}

page.append(...content(), element("footer", {}, "hcfl watch reads the run folders and changes nothing."), spoken, tip);
