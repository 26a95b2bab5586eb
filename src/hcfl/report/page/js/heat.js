// A matrix as colours.

// options: label, rows, columns (names), value(row, column), most, height, strip(row) → colour beside it, tipFor(row, column),
// text(row, column), lines (rows above which one is drawn; columns, too, where it is square), bare (no names), below (what columns are).
function heatMap(name, options) {
  const host = figure(name);
  const { rows, columns } = options;
  const longest = (names) => Math.min(16, Math.max(1, ...names.map((one) => one.length)));
  const left = options.bare ? 12 : longest(rows) * 6.6 + 14 + (options.strip ? 16 : 0);
  const bottom = options.bare ? 4 : 30;
  const canvas = element("canvas", { width: columns.length, height: rows.length });

  function paint() {
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns.length, rows.length);
    let at = 0;
    for (let row = 0; row < rows.length; row += 1) {
      for (let column = 0; column < columns.length; column += 1, at += 4) {
        image.data.set([...heat(options.value(row, column) / options.most), 255], at);
      }
    }
    context.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  plot(host, {
    label: options.label,
    zoom: "xy",
    down: true,
    x: [0, columns.length],
    y: [0, rows.length],
    height: options.height,
    margin: { left, bottom, right: options.bare ? 2 : 8, top: options.bare ? 2 : 8 },
    draw(scene) {
      const [x, y] = [scene.x(0), scene.y(0)];
      const [width, height] = [scene.x(columns.length) - x, scene.y(rows.length) - y];
      const [wide, high] = [width / columns.length, height / rows.length];
      scene.inside.append(shape("image", { href: paint(), x, y, width, height, preserveAspectRatio: "none" }));
      scene.around.append(
        shape("rect", { class: "frame", x: -0.5, y: -0.5, width: scene.width + 1, height: scene.height + 1 }),
      );
      for (const line of options.lines || []) {
        const at = scene.y(line);
        if (at > 0 && at < scene.height)
          scene.inside.append(
            shape("line", { x1: 0, x2: scene.width, y1: at, y2: at, style: "stroke:var(--card);stroke-width:2" }),
          );
        if (options.square) {
          const across = scene.x(line);
          scene.inside.append(
            shape("line", {
              x1: across,
              x2: across,
              y1: 0,
              y2: scene.height,
              style: "stroke:var(--card);stroke-width:2",
            }),
          );
        }
      }
      const inView = (at, length) => at >= -0.5 && at <= length + 0.5;
      const each = Math.max(1, Math.ceil(12.5 / high));
      rows.forEach((row, number) => {
        const middle = scene.y(number + 0.5);
        if (!inView(middle, scene.height)) return;
        if (options.strip)
          scene.around.append(
            shape("rect", {
              x: -13,
              width: 9,
              y: scene.y(number),
              height: high + 0.6,
              style: `fill:${options.strip(number)}`,
              "shape-rendering": "crispEdges",
            }),
          );
        if (!options.bare && number % each === 0)
          scene.around.append(
            shape("text", { x: options.strip ? -19 : -7, y: middle + 4, "text-anchor": "end" }, short(row, 16)),
          );
      });
      const apart = Math.max(1, Math.ceil((longest(columns) * 6.8 + 8) / wide));
      if (!options.bare) {
        columns.forEach((column, number) => {
          const middle = scene.x(number + 0.5);
          if (inView(middle, scene.width) && number % apart === 0)
            scene.around.append(
              shape("text", { x: middle, y: scene.height + 15, "text-anchor": "middle" }, short(column, 16)),
            );
        });
        scene.around.append(
          shape("text", { x: scene.width, y: scene.height + 29, "text-anchor": "end" }, options.below),
        );
      }
      if (options.text && wide >= 26 && high >= 15) {
        rows.forEach((_, row) =>
          columns.forEach((_, column) => {
            const label = options.text(row, column);
            const [cx, cy] = [scene.x(column + 0.5), scene.y(row + 0.5)];
            if (!label || label.length * 6.6 > wide || !inView(cx, scene.width) || !inView(cy, scene.height)) return;
            const ink = inkOn(heat(options.value(row, column) / options.most));
            scene.inside.append(
              shape("text", { x: cx, y: cy + 4, "text-anchor": "middle", style: `fill:${ink}` }, label),
            );
          }),
        );
      }
    },
    hover(x, y, scene) {
      const [row, column] = [Math.floor(y), Math.floor(x)];
      if (row < 0 || column < 0 || row >= rows.length || column >= columns.length) return null;
      scene.above.append(
        shape("rect", {
          x: scene.x(column),
          y: scene.y(row),
          width: scene.x(1) - scene.x(0),
          height: scene.y(1) - scene.y(0),
          style: "fill:none;stroke:var(--c1);stroke-width:2",
        }),
      );
      return options.tipFor(row, column);
    },
  });
  const table = dataTable(
    options.label,
    () => ["", ...columns],
    () =>
      rows.map((row, at) => [
        row,
        ...columns.map((_, column) => (options.text && options.text(at, column)) || decimal(options.value(at, column))),
      ]),
  );
  return element("div", {}, host, table);
}

function colourScale(from, to) {
  const bar = element("i", {});
  const redraw = () => {
    bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((share) => css(heat(share))).join(",")})`;
  };
  plots.add({ redraw });
  redraw();
  return element("div", { class: "scale" }, from, bar, to);
}
