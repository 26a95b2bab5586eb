// The list of all runs: those at work first.

const RANKS = ["running", "starting", "killed", "damaged", "stopped", "unknown", "finished"];

function sparkline(values, label) {
  const [wide, high] = [120, 28];
  if (values.length < 2) return element("span", { class: "soft" }, values.length ? "·" : "");
  const [low, top] = [Math.min(...values), Math.max(...values)];
  const x = (at) => 2 + (at / (values.length - 1)) * (wide - 4);
  const y = (value) => high - 3 - ((value - low) / Math.max(top - low, 1e-9)) * (high - 6);
  const path = values.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return shape(
    "svg",
    { class: "spark", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": label },
    shape("path", { class: "line", d: path, style: "stroke:var(--c1)" }),
    shape("circle", { cx: x(values.length - 1), cy: y(values[values.length - 1]), r: 2.6, style: "fill:var(--c1)" }),
  );
}

function whatNow(run) {
  if (run.problem) return run.problem;
  if (run.state === "running") return run.left === null ? "" : `${duration(run.left)} left`;
  if (run.state === "starting") return "first round";
  return run.usual === null ? "" : `${seconds(run.usual)} a round`;
}

function listPage(folders) {
  const runs = new Map();
  const rows = new Map();
  const chosen = new Set();
  let [wanted, state] = ["", ""];

  const body = element("tbody", {});
  const status = element("p", { class: "note", role: "status" }, "Looking for runs …");
  const side = element("a", { class: "button", hidden: "" }, "");
  const filter = element("input", {
    type: "search",
    placeholder: "Find a run",
    "aria-label": "Find a run by its name, method or data",
    oninput: (event) => {
      wanted = event.target.value.toLowerCase();
      arrange();
    },
  });
  const states = element(
    "select",
    {
      "aria-label": "State",
      onchange: (event) => {
        state = event.target.value;
        arrange();
      },
    },
    element("option", { value: "" }, "every state"),
    RANKS.map((name) => element("option", { value: name }, STATES[name][0])),
  );

  function choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    side.hidden = chosen.size < 2;
    side.textContent = `Show ${chosen.size} side by side`;
    side.href = `/compare?${[...chosen].map((one) => `run=${encodeURIComponent(one)}`).join("&")}`;
  }

  function row(run) {
    const last = run.last;
    const number = (value) => (value === undefined ? null : value);
    const cell = (label, kind, ...children) => element("td", { class: kind, "data-label": label }, ...children);
    const box = element("input", {
      type: "checkbox",
      "aria-label": `Show ${run.id} side by side`,
      onchange: (event) => choose(run.id, event.target.checked),
    });
    box.checked = chosen.has(run.id);
    return element(
      "tr",
      { "data-run": run.id, class: run.state },
      cell("", "pick", box),
      cell(
        "run",
        "name",
        element("a", { href: address(run.id) }, run.id),
        element("span", { class: "soft" }, `${run.method} · ${run.data} · seed ${run.seed}`),
      ),
      cell("state", "status", stateChip(run.state)),
      cell(
        "rounds",
        "rounds",
        progressBar(run, `Rounds of ${run.id}`),
        element("span", { class: "soft" }, `${run.done} of ${run.rounds}`, whatNow(run) ? ` · ${whatNow(run)}` : ""),
      ),
      cell("Val over rounds", "curve", sparkline(run.val, `Val over rounds, now ${percent(number(last.val) ?? null)}`)),
      cell("Val", "number", percent(number(last.val) ?? null)),
      cell("Test", "number", percent(number(last.test) ?? null)),
      cell("clusters", "number", plain(number(last.clusters) ?? null)),
      cell("on disk", "number", bytes(run.disk)),
    );
  }

  const matches = (run) =>
    (!state || run.state === state) &&
    (!wanted || `${run.id} ${run.method} ${run.data}`.toLowerCase().includes(wanted));

  function arrange() {
    const sorted = [...runs.values()]
      .filter(matches)
      .sort(
        (a, b) =>
          RANKS.indexOf(a.state) - RANKS.indexOf(b.state) ||
          b.written - a.written ||
          a.id.localeCompare(b.id, undefined, { numeric: true }),
      );
    const nodes = sorted.map((run) => rows.get(run.id));
    const same = nodes.length === body.children.length && nodes.every((node, at) => body.children[at] === node);
    if (!same) body.replaceChildren(...nodes);
    const count = (name) => [...runs.values()].filter((run) => run.state === name).length;
    const words = RANKS.filter(count).map((name) => `${count(name)} ${STATES[name][0]}`);
    status.textContent = runs.size
      ? `${plural(runs.size, "run")}: ${words.join(", ")}${sorted.length < runs.size ? `; ${sorted.length} shown` : ""}.`
      : "There is no run here yet. Start one with: hcfl run, and it appears by itself.";
    document.title = `${count("running") ? `▶ ${count("running")} · ` : ""}hcfl watch`;
  }

  listen(
    "",
    {
      runs({ changed, gone }) {
        for (const id of gone) {
          runs.delete(id);
          rows.delete(id);
          choose(id, false);
        }
        for (const run of changed) {
          const before = runs.get(run.id);
          runs.set(run.id, run);
          const fresh = row(run);
          const old = rows.get(run.id);
          if (old) {
            const held = old.contains(document.activeElement) ? document.activeElement.tagName : null;
            old.replaceWith(fresh);
            if (held) fresh.querySelector(held).focus({ preventScroll: true });
          }
          rows.set(run.id, fresh);
          if (before && before.state !== run.state) speak(`${run.id} is ${STATES[run.state][0]}`);
        }
        arrange();
        document.documentElement.dataset.ready = "";
      },
    },
    connection,
  );

  const columns = ["", "run", "state", "rounds", "Val over rounds", "Val", "Test", "clusters", "on disk"];
  const numbers = new Set(["Val", "Test", "clusters", "on disk"]);
  return [
    element("header", {}, element("div", {}, element("h1", {}, "Runs"), status), connectionChip, theme()),
    element(
      "main",
      {},
      element("div", { class: "tools" }, filter, states, side),
      element(
        "div",
        { class: "card scroll runs" },
        element(
          "table",
          {},
          element(
            "thead",
            {},
            element(
              "tr",
              {},
              columns.map((name) => element("th", { scope: "col", class: numbers.has(name) ? "number" : null }, name)),
            ),
          ),
          body,
        ),
      ),
    ),
  ];
}
