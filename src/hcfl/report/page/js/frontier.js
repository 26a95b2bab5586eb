// Val against Test, a circle for each run, its area the number of clusters.
function frontierChart(runs, when, groups = asGroups(runs)) {
  const paintOf = (run) => groups.find((group) => group.runs.includes(run)).paint;
  const first = new Set(groups.map((group) => group.runs[0]));
  const nameOf = (run) => groups.find((group) => group.runs.includes(run)).label;
  const place = (run) => [run.summary[`val_${when}`], run.summary[`test_${when}`]];
  const shown = runs
    .map((run) => ({ run, at: place(run) }))
    .filter(({ at }) => at.every((value) => value !== null));
  if (!shown.length) return missing("frontier", "None of these runs has both Val and Test.");
  const host = figure("frontier");
  const most = Math.max(...shown.map(({ run }) => run.summary.clusters_last));
  const radius = (run) => 5 + 13 * Math.sqrt(run.summary.clusters_last / most);
  // Val with personal parts: an arrow leads there; only the end of a run knows it.
  const own = (run) => (when === "last" ? (run.summary.val_personal_last ?? null) : null);
  const personal = shown.some(({ run }) => own(run) !== null);
  const domain = (axis) => {
    const values = shown.flatMap(({ run, at }) => (axis === 0 && own(run) !== null ? [at[0], own(run)] : [at[axis]]));
    const pad = Math.max(0.02, 0.16 * (Math.max(...values) - Math.min(...values)));
    return [Math.min(...values) - pad, Math.max(...values) + pad];
  };
  plot(host, {
    label: "Val against Test of every run; larger circles have more clusters",
    zoom: "xy",
    height: 330,
    x: domain(0),
    y: domain(1),
    margin: { top: 18, bottom: 34 },
    draw(scene) {
      axes(scene, { xLabel: "Val", yLabel: "Test", yFormat: percentTick, xFormat: percentTick, wholeX: false });
      const taken = shown.map(({ run, at }) => ({
        x: scene.x(at[0]) - radius(run),
        y: scene.y(at[1]) - radius(run),
        w: 2 * radius(run),
        h: 2 * radius(run),
        run,
      }));
      for (const { run, at } of shown) {
        const [x, y] = [scene.x(at[0]), scene.y(at[1])];
        scene.inside.append(
          shape("circle", {
            cx: x,
            cy: y,
            r: radius(run),
            style: `fill:${paintOf(run)};fill-opacity:.35;stroke:${paintOf(run)};stroke-width:2`,
          }),
        );
        if (own(run) !== null) {
          const to = scene.x(own(run));
          const back = to > x ? -6 : 6;
          scene.inside.append(
            shape("path", {
              d: `M${x},${y}L${to},${y}M${to + back},${y - 4}L${to},${y}L${to + back},${y + 4}`,
              style: `stroke:${paintOf(run)};stroke-width:2;fill:none`,
            }),
          );
        }
        if (!first.has(run)) continue;
        const text = short(nameOf(run), 30);
        const [w, h, r] = [text.length * 7, 13, radius(run) + 4];
        const box = [
          [x + r, y - 7],
          [x - r - w, y - 7],
          [x - w / 2, y - r - h],
          [x - w / 2, y + r],
          [x - w / 2, y - r - 2 * h],
          [x - w / 2, y + r + h],
        ]
          .map(([left, top]) => ({ x: left, y: top, w, h, run }))
          .find(
            (one) =>
              one.x >= 0 &&
              one.x + w <= scene.width &&
              one.y >= 0 &&
              !taken.some(
                (other) =>
                  other.run !== run &&
                  one.x < other.x + other.w &&
                  other.x < one.x + w &&
                  one.y < other.y + other.h &&
                  other.y < one.y + h,
              ),
          );
        if (!box) continue;
        taken.push(box);
        scene.inside.append(
          shape("text", { x: box.x + w / 2, y: box.y + 11, "text-anchor": "middle", class: "strong" }, text),
        );
      }
    },
    hover(x, y, scene, now) {
      const apart = ({ at }) => Math.hypot(scene.x(at[0]) - now.px, scene.y(at[1]) - now.py);
      const near = shown.reduce((best, one) => (apart(one) < apart(best) ? one : best));
      if (apart(near) > 40) return null;
      return tipContent(near.run.label, [
        [null, "Val", percent(near.at[0])],
        ...(own(near.run) === null ? [] : [[null, "Val with personal parts", percent(own(near.run))]]),
        [null, "Test", percent(near.at[1])],
        [null, "clusters", plain(near.run.summary.clusters_last)],
      ]);
    },
  });
  const table = dataTable(
    "Val and Test of every run",
    () => ["run", "Val", ...(personal ? ["Val with personal parts"] : []), "Test", "clusters"],
    () =>
      shown.map(({ run, at }) => [
        run.label,
        percent(at[0]),
        ...(personal ? [own(run) === null ? "–" : percent(own(run))] : []),
        percent(at[1]),
        plain(run.summary.clusters_last),
      ]),
  );
  return element("div", {}, host, table);
}
