// Lines and strips along the episode, one column a step, with a cursor, a tip and a click that goes there.

/** What all plots share; `columns` is the number of steps, `read(step, share)` the tip's text at a height of 0 to 1. */
class Plot {
  constructor(columns, read, goTo) {
    Object.assign(this, { columns, read, goTo });
    this.cursor = make("div", { class: "cursor" });
    this.box = make("div", { class: "plot" }, this.cursor);
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerdown", (event) => {
      this.goTo(this.stepAt(event));
      this.point(event);
    });
    this.box.addEventListener("pointerleave", hideTip);
  }

  stepAt(event) {
    const { left, width } = this.box.getBoundingClientRect();
    return Math.max(0, Math.min(this.columns - 1, Math.floor(((event.clientX - left) / width) * this.columns)));
  }

  point(event) {
    const { top, height } = this.box.getBoundingClientRect();
    const share = Math.max(0, Math.min(0.999, (event.clientY - top) / height));
    showTip(this.read(this.stepAt(event), share), event.clientX, event.clientY);
    if (event.buttons === 1 && event.pointerType === "mouse") this.goTo(this.stepAt(event));
  }

  show(step) {
    this.cursor.style.left = `${(100 * Math.min(step + 0.5, this.columns)) / this.columns}%`;
  }
}

/** Lines over one axis: `lines` are {name, values, style}; the legend shows the values at the current step. */
class LinePlot extends Plot {
  constructor(name, lines, goTo, { area = false, steps = false } = {}) {
    const read = (step) => [`step ${step}`, ...lines.map((line) => `${line.name}: ${number(line.values[step])}`)].join("\n");
    super(lines[0].values.length, read, goTo);
    this.lines = lines;
    const all = lines.flatMap((line) => line.values);
    const low = Math.min(0, ...all);
    const high = Math.max(1e-6, ...all);
    const label = `${name}, from ${number(low)} to ${number(high)}`;
    const svg = make("svg", { viewBox: `0 0 ${this.columns} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    const y = (value) => (96 - (92 * (value - low)) / (high - low)).toFixed(1);
    svg.append(make("path", { class: "zero", d: `M0 ${y(0)}H${this.columns}` }));
    for (const [i, { values, style }] of lines.entries()) {
      const points = values.map((value, step) => (steps ? `V${y(value)}H${step + 1}` : `L${step + 0.5} ${y(value)}`)).join("");
      const line = `M${steps ? 0 : 0.5} ${y(values[0])}${points}`;
      if (area && i === 0) svg.append(make("path", { class: "area", d: `${line}V${y(0)}H0.5Z` }));
      svg.append(make("path", { class: style, d: line }));
    }
    this.box.prepend(svg);
    this.readings = lines.map(() => make("span"));
    const legend = make("span", { class: "legend" });
    lines.forEach((line, i) => {
      legend.append(make("span", {}, make("i", { class: line.style }), lines.length > 1 ? `${line.name} ` : "", this.readings[i]));
    });
    this.element = make("div", {}, make("div", { class: "plot-name" }, make("b", {}, name), legend), this.box);
  }

  show(step) {
    super.show(step);
    this.lines.forEach((line, i) => {
      this.readings[i].textContent = step < this.columns ? number(line.values[step]) : "–";
    });
  }
}

/** A strip of colours, a row each; on the keyboard, ↑ and ↓ read its rows at the current step. */
class StripPlot extends Plot {
  constructor(strip, goTo) {
    super(strip.steps, (step, share) => this.text(step, Math.floor(share * strip.rows)), goTo);
    Object.assign(this, { strip, row: 0, step: 0 });
    const label = `${strip.name}, ${strip.rows} rows, from ${number(strip.low)} to ${number(strip.high)}`;
    this.canvas = make("canvas", { width: strip.steps, height: strip.rows, role: "img", "aria-label": label });
    this.canvas.style.height = `${Math.max(22, Math.min(150, strip.rows * 7))}px`;
    this.box.prepend(this.canvas);
    this.box.tabIndex = 0;
    this.box.addEventListener("keydown", (event) => this.readRow(event));
    this.box.addEventListener("blur", hideTip);
    this.scale = make("canvas", { class: "scale", width: 64, height: 1, "aria-hidden": "true" });
    const scale = make("span", { class: "dim" }, number(strip.low), this.scale, number(strip.high));
    this.element = make("div", {}, make("div", { class: "plot-name" }, make("b", {}, strip.name), scale), this.box);
  }

  text(step, row) {
    return `step ${step}\n${this.strip.labels[row]}: ${number(this.strip.value(step, row))}`;
  }

  readRow(event) {
    const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    this.row = Math.max(0, Math.min(this.strip.rows - 1, this.row + move));
    const { left, top } = this.box.getBoundingClientRect();
    showTip(this.text(Math.min(this.step, this.columns - 1), this.row), left, top);
  }

  show(step) {
    super.show(step);
    this.step = step;
  }

  /** Paint in the current colours. */
  paint() {
    const { bytes, rows, steps, low, high } = this.strip;
    const colours = ramp(low, high);
    fillPixels(this.canvas, steps, rows, (column, row) => colours[bytes[column * rows + row]]);
    fillPixels(this.scale, 64, 1, (column) => colours[column * 4]);
  }
}

/** One head at the current step: each slot's row over the slots and, set apart, the input. */
class HeadPlot {
  constructor(strip) {
    this.strip = strip;
    const [rows, columns] = strip.shape;
    this.canvas = make("canvas", { width: columns, height: rows, role: "img" });
    this.canvas.style.aspectRatio = `${columns} / ${rows}`;
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      const cell = row * columns + column;
      showTip(`${strip.labels[cell]}: ${number(strip.value(this.step, cell))}`, event.clientX, event.clientY);
    });
    this.canvas.addEventListener("pointerleave", hideTip);
    this.element = make("figure", {}, this.canvas, make("figcaption", {}, `${strip.name}: slots, then input`));
  }

  show(step) {
    const { strip, canvas } = this;
    this.step = Math.min(step, strip.steps - 1);
    const [rows, columns] = strip.shape;
    const input = Array.from({ length: rows }, (_, row) => strip.value(this.step, row * columns + columns - 1));
    const mean = input.reduce((a, b) => a + b) / rows;
    canvas.setAttribute("aria-label", `${strip.name}: slots look at the input by ${percent(mean)} on average`);
    this.colours ??= ramp(strip.low, strip.high);
    fillPixels(canvas, columns, rows, (column, row) => this.colours[strip.bytes[this.step * strip.rows + row * columns + column]]);
  }

  paint() {
    this.colours = undefined;
    if (this.step !== undefined) this.show(this.step);
  }
}

function fillPixels(canvas, width, height, colourAt) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let row = 0, i = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      image.data.set(colourAt(column, row), i);
      image.data[i + 3] = 255;
      i += 4;
    }
  }
  context.putImageData(image, 0, 0);
}
