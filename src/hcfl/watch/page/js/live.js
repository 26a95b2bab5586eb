// Parts of the page that are made anew, in place, when the data they need change. What the reader did to them stays.

const STATES = {
  running: ["running", "Its process is at work."],
  starting: ["starting", "Its first round is under way."],
  finished: ["finished", "All rounds were played."],
  stopped: ["stopped", "It was told to stop, saved what it had, and can be resumed."],
  killed: ["killed", "Its process ended without a word. It can be resumed from its last checkpoint."],
  unknown: ["quiet", "Its process is on another machine, and nothing was written for long."],
  damaged: ["damaged", "A file of it cannot be read."],
};

const stateChip = (state) =>
  element("span", { class: `chip state ${state}`, title: STATES[state][1] }, element("i", {}), STATES[state][0]);

// How long something takes, as people say it.
function duration(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return "a few seconds";
  if (value < 90) return `${Math.round(value / 5) * 5} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 48 * 3600 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} days`;
}

const address = (id) => `/run/${id.split("/").map(encodeURIComponent).join("/")}`;
const shareDone = (run) => (run.rounds ? Math.min(1, run.done / run.rounds) : 0);

function progressBar(run, label) {
  const share = Math.round(100 * shareDone(run));
  return element(
    "div",
    {
      class: `progress ${run.state}`,
      role: "progressbar",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": run.rounds,
      "aria-valuenow": run.done,
      "aria-valuetext": `round ${run.done} of ${run.rounds}`,
    },
    element("i", { style: `width:${share}%` }),
  );
}

// What is new on a page for people who do not see it: only what they would want to hear.
const spoken = element("div", { class: "spoken", role: "status", "aria-live": "polite" });
const speak = (text) => {
  spoken.textContent = text;
};

function copyButton(text) {
  const button = element(
    "button",
    {
      class: "copy",
      "aria-label": `Copy: ${text}`,
      onclick: () => {
        const done = () => {
          button.textContent = "Copied";
        };
        if (navigator.clipboard) navigator.clipboard.writeText(text).then(done);
        else {
          getSelection().selectAllChildren(button.previousElementSibling); // without TLS there is no clipboard
          button.textContent = "Selected";
        }
      },
    },
    "Copy",
  );
  return button;
}

const isHeld = (node) =>
  node.querySelector(".reset:not([hidden]), .command:hover") !== null || (!tip.hidden && node.matches(":hover"));

// Take what the reader did to the old node over to the new one: hidden curves, open lists, scroll, focus.
function carryOver(old, fresh) {
  const pairs = (selector) => {
    const after = [...fresh.querySelectorAll(selector)];
    return [...old.querySelectorAll(selector)].map((one, at) => [one, after[at]]).filter(([, two]) => two);
  };
  for (const [one, two] of pairs(".legend button")) {
    if (one.getAttribute("aria-pressed") === "false" && one.textContent === two.textContent) two.click();
  }
  for (const [one, two] of pairs("details")) two.open = one.open;
  for (const [one, two] of pairs(".tall, .scroll")) {
    [two.scrollTop, two.scrollLeft] = [one.scrollTop, one.scrollLeft];
  }
  for (const [one, two] of pairs("button, svg, a, summary, select, input")) {
    if (one === document.activeElement) two.focus({ preventScroll: true });
  }
}

// A part of the page: `needs` are the keys of the data that it shows, `make` returns its node from the data.
function livePart(needs, make) {
  const host = element("div", { class: "part" });
  let late = null;
  const show = (data) => {
    late = null;
    const made = make(data);
    const before = host.firstElementChild;
    for (const one of plots) if (one.host && host.contains(one.host)) plots.delete(one);
    host.replaceChildren(...(made ? [made] : []));
    host.hidden = !made;
    for (const one of plots) if (one.host && host.contains(one.host)) one.redraw();
    if (before && made) carryOver(before, made);
  };
  const release = () => {
    if (late && !isHeld(host)) show(late);
  };
  for (const event of ["pointerleave", "click", "dblclick", "keyup"])
    host.addEventListener(event, () => setTimeout(release, 0));
  return {
    host,
    update(data, changed) {
      if (changed && !needs.some((key) => changed.has(key))) return;
      if (host.firstElementChild && isHeld(host)) late = data;
      else show(data);
    },
  };
}

// A stream of server-sent events that rests while the page is not seen: a browser has few connections for each server.
function listen(query, handlers, onState) {
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(`/events${query}`);
    source.addEventListener("open", () => onState("live"));
    source.addEventListener("error", () => {
      onState("lost");
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(open, 5000);
      }
    });
    for (const [kind, handle] of Object.entries(handlers))
      source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) open();
    else if (source) {
      source.close();
      source = null;
    }
  });
  open();
}
