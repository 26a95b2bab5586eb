// A deployment on Flower: what the server waits for, and its nodes, those with the lowest Val first.

function ago(time, now) {
  if (time === null) return "never";
  const past = Math.max(0, now - time);
  return past < 10 ? "now" : `${duration(past)} ago`;
}

const listed = (names) =>
  names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} others` : names.join(", ");

// What the server does now, in one sentence.
function serverNow({ now, nodes, quorum }, state) {
  const away = nodes.filter((node) => !node.connected).map((node) => node.name);
  if (state === "finished") return "The run has ended.";
  if (state !== "running" && state !== "starting") return "The server is not running.";
  if (now.doing === "gathering" && away.length)
    return `Before the first round, the server waits for ${listed(away)} to connect; ${nodes.length - away.length} of ${nodes.length} are here.`;
  if (now.doing === "gathering") return "All clients are connected; the run begins.";
  const asked = now.asked.length;
  const needs = `A round needs ${now.needed} of ${plural(asked, "client")} (quorum ${quorum}).`;
  if (now.doing === "connecting") {
    const missing = now.asked.filter((name) => away.includes(name));
    if (missing.length && asked - missing.length >= now.needed)
      return `Round ${now.round} begins without ${listed(missing)}. ${needs}`;
    return missing.length
      ? `Round ${now.round} waits until enough clients are connected; not connected: ${listed(missing)}. ${needs}`
      : `Round ${now.round} begins. ${needs}`;
  }
  if (now.doing === "training" && now.waiting.length)
    return `Round ${now.round} waits for ${listed(now.waiting)}; ${asked - now.waiting.length} of ${asked} have answered. ${needs}`;
  if (now.doing === "training") return `Round ${now.round}: all have answered.`;
  if (now.doing === "measuring") return `The final models are measured; awaited: ${listed(now.waiting) || "none"}.`;
  if (now.doing === "asking") return `The server asks its clients who they are; awaited: ${listed(now.waiting) || "none"}.`;
  return now.doing === "ended" ? "The run has ended." : `Round ${now.round} has ended.`;
}

function clusterPath(moves) {
  if (!moves.length) return NONE;
  const last = moves.slice(-3);
  return element(
    "span",
    {},
    moves.length > last.length ? "… → " : "",
    last.map(([round, cluster], at) =>
      element(
        "span",
        { title: `since round ${round}` },
        at ? " → " : "",
        at === last.length - 1 ? element("b", {}, String(cluster)) : String(cluster),
        at === last.length - 1 && moves.length > 1 ? element("small", { class: "soft" }, ` since round ${round}`) : null,
      ),
    ),
  );
}

function nodeRow(node, now, asked, waiting) {
  const val = node.val.length ? node.val[node.val.length - 1][1] : null;
  const cell = (label, kind, ...children) => element("td", { class: kind, "data-label": label }, ...children);
  const why = node.refused ? `refused: ${node.refused}` : node.reason ? `last missed: ${node.reason}` : "";
  const word = node.connected ? (waiting.includes(node.name) ? "at work" : "connected") : "not connected";
  return element(
    "tr",
    { "data-node": node.name },
    cell("node", "name", element("b", {}, node.name), why ? element("span", { class: "soft" }, why) : null),
    cell(
      "state",
      "status",
      element("span", { class: `chip state ${node.connected ? "running" : "killed"}` }, element("i", {}), word),
    ),
    cell("last seen", "", ago(node.seen, now)),
    cell("cluster", "", clusterPath(node.clusters)),
    cell("Val over rounds", "curve", sparkline(node.val.map(([, value]) => value), `Val of ${node.name}, now ${percent(val)}`)),
    cell("Val", "number", percent(val)),
    cell("last round", "number", node.round ? String(node.round) : NONE),
    cell("rounds missed", "number", String(node.missed)),
  );
}

function nodesSection(run) {
  const { nodes: table, live } = run;
  if (!table) return null;
  const lastVal = (node) => (node.val.length ? node.val[node.val.length - 1][1] : Infinity);
  const sorted = [...table.nodes].sort((a, b) => a.connected - b.connected || lastVal(a) - lastVal(b));
  const columns = ["node", "state", "last seen", "cluster", "Val over rounds", "Val", "last round", "rounds missed"];
  const numbers = new Set(["Val", "last round", "rounds missed"]);
  return element(
    "div",
    { class: "card" },
    element("p", { class: "sentence", "data-now": table.now.doing }, serverNow(table, live.state)),
    element(
      "div",
      { class: "scroll runs nodes" },
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element("tr", {}, columns.map((name) => element("th", { scope: "col", class: numbers.has(name) ? "number" : null }, name))),
        ),
        element("tbody", {}, sorted.map((node) => nodeRow(node, table.written, table.now.asked, table.now.waiting))),
      ),
    ),
    table.strangers.length
      ? element(
          "details",
          {},
          element("summary", {}, `${plural(table.strangers.length, "node")} of no client of this run`),
          table.strangers.map(([name, why]) => element("p", {}, element("b", {}, name), ` ${why}`)),
        )
      : null,
    element(
      "p",
      { class: "note" },
      "Nodes that are not connected come first, then those with the lowest Val. A node that died counts as connected for about a minute.",
    ),
  );
}
