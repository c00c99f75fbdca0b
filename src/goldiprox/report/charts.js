"use strict";
(() => {
  const { runs } = JSON.parse(document.getElementById("payload").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [12, 6], [1, 4], [6, 2, 1, 2]];
  const UNITS = { step: "training step", flops: "FLOPs", seconds: "seconds of training" };
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

  function amount(value) {
    const [size, prefix] = PREFIXES.find(([s]) => Math.abs(value) >= s) ?? [1, ""];
    return `${+(value / size).toPrecision(3)}${prefix}`;
  }
  const readable = { step: (v) => whole.format(v), flops: amount, seconds: (v) => `${+v.toPrecision(3)} s` };

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function decode(text, Type) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Type(bytes.buffer);
  }

  function axis(label, values, more = {}) {
    const font = "12px system-ui, sans-serif";
    return {
      label, values, font, labelFont: font, labelSize: 22, size: 50, labelGap: 2, stroke: colour("muted"),
      grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 5 }, ...more,
    };
  }

  /** A chart of lines that is drawn anew when colours, data or the window change. */
  class Lines {
    constructor(element, describe) {
      this.element = element;
      this.describe = describe;
      this.hidden = new Set();
      this.legend = make("ul", { className: "legend" });
      element.after(this.legend);
      element.addEventListener("keydown", (event) => this.step(event));
      new ResizeObserver(() => this.resize()).observe(element);
      this.draw();
    }

    draw() {
      this.plot?.destroy();
      const { lines, xLabel, yLabel, xValue, yValue, xRange, yRange, levels = [], log = false } = this.describe();
      this.lines = lines;
      const data = uPlot.join(lines.map((line) => [line.x, line.y]));
      const show = (u) => this.read(u);
      this.plot = new uPlot({
        width: Math.max(this.element.clientWidth, 50),
        height: Math.max(this.element.clientHeight, 50),
        padding: [10, 14, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 7 } },
        scales: { x: { time: false, distr: log ? 3 : 1, ...(xRange && { range: (u, low, high) => (low === high || low == null ? xRange : [Math.max(low, xRange[0]), Math.min(high, xRange[1])]) }) }, y: { range: yRange } },
        axes: [
          axis(xLabel, (_, splits) => splits.map((v) => (v === null ? "" : xValue(v))), { size: 34, space: 70 }),
          axis(yLabel, (_, splits) => splits.map(plain)),
        ],
        series: [{}, ...lines.map((line, number) => ({
          stroke: colour(line.role), width: 2.25, dash: DASHES[line.dash % DASHES.length], spanGaps: true,
          points: { show: line.x.length === 1 }, show: !this.hidden.has(number),
        }))],
        hooks: { setCursor: [show], draw: [(u) => levels.forEach((level) => this.level(u, level))] },
      }, data, this.element);
      this.value = { x: xValue, y: yValue };
      this.listed();
    }

    level(u, { y, role }) {
      const at = u.valToPos(y, "y", true), { ctx, bbox } = u;
      if (at < bbox.top || at > bbox.top + bbox.height) return;
      ctx.save();
      ctx.strokeStyle = colour(role);
      ctx.lineWidth = uPlot.pxRatio;
      ctx.setLineDash([2, 4].map((v) => v * uPlot.pxRatio));
      ctx.beginPath();
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
      ctx.stroke();
      ctx.restore();
    }

    listed() {
      this.readouts = [];
      this.legend.replaceChildren(...this.lines.map((line, number) => {
        const box = make("input", { type: "checkbox", checked: !this.hidden.has(number) });
        box.addEventListener("change", () => {
          box.checked ? this.hidden.delete(number) : this.hidden.add(number);
          this.plot.setSeries(number + 1, { show: box.checked });
        });
        const swatch = make("span", { className: "line" });
        swatch.style.borderTopColor = `var(--${line.role})`;
        swatch.style.borderTopStyle = ["solid", "dashed", "dotted"][line.dash % 3];
        const readout = make("b");
        this.readouts.push(readout);
        return make("li", {}, make("label", {}, box, swatch, make("span", { textContent: line.label }), readout));
      }));
      this.where = make("li", { className: "small" });
      this.where.setAttribute("aria-live", "polite");
      this.legend.append(this.where);
    }

    read(u) {
      if (!this.readouts) return;
      const index = u.cursor.idx;
      this.where.textContent = index == null ? "" : `at ${this.value.x(u.data[0][index])}`;
      this.readouts.forEach((readout, number) => {
        let at = index ?? -1;
        while (at >= 0 && u.data[number + 1][at] == null) at -= 1; // the last point before it
        readout.textContent = at < 0 ? "" : this.value.y(u.data[number + 1][at]);
      });
    }

    step(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const u = this.plot, xs = u.data[0];
      const index = Math.min(Math.max((u.cursor.idx ?? (move > 0 ? -1 : xs.length)) + move, 0), xs.length - 1);
      u.setCursor({ left: u.valToPos(xs[index], "x"), top: u.over.clientHeight / 2 });
    }

    resize() {
      const { clientWidth: width, clientHeight: height } = this.element;
      if (width && height && (width !== this.plot.width || height !== this.plot.height)) this.plot.setSize({ width, height });
    }
  }

  const title = (run, method) => (runs.length > 1 ? `${run.name}: ${method.label}` : method.label);
  const each = (pick) => runs.flatMap((run, dash) => run.methods.flatMap((method) => {
    const found = pick(method, run);
    return found ? [{ ...found, role: method.role, dash, label: title(run, method) }] : [];
  }));
  const one = (v) => `${v.toFixed(1)} %`, plain = (v) => String(+v.toFixed(1));

  function accuracy() {
    const unit = document.querySelector("input[name=unit]:checked").value;
    const billed = document.getElementById("billed").checked;
    const lines = each((method) => {
      const x = unit === "step" ? method.step : billed ? method.billed[unit] : method[unit];
      return x && !x.includes(null) ? { x, y: method.accuracy } : null;
    });
    document.querySelector(".only-cost").hidden = unit === "step";
    document.getElementById("unit-note").textContent =
      unit === "step" ? "A step is one update of the model, on equally many examples in each case."
        : billed ? "The sequence's curve begins where all that is made only once is paid for: what a single model costs."
          : "What training the model alone costs: the view of whoever was given the sequence.";
    const later = lines.flatMap(({ y }) => y.slice(Math.floor(y.length / 8))); // the first steps would take half the height
    const low = Math.max(0, 5 * Math.floor((Math.min(...later) - 1) / 5));
    const top = Math.max(...lines.flatMap(({ y }) => y));
    const high = Math.min(100, Math.max(5 * Math.ceil((top + 1) / 5), low + 10));
    const levels = runs.flatMap((run) => run.methods).filter((m) => m.role === "uniform").map((m) => ({ y: m.accuracy.at(-1), role: "uniform" }));
    return { lines, xLabel: UNITS[unit], yLabel: "test accuracy (%)", xValue: readable[unit], yValue: one, yRange: [low, high], levels };
  }

  function overTime(key, yLabel, levels) {
    return () => {
      const lines = each((method) => (method[key] ? { x: method.step, y: method[key] } : null));
      const top = Math.max(5, ...lines.flatMap(({ y }) => y));
      return { lines, xLabel: UNITS.step, yLabel, xValue: readable.step, yValue: one, yRange: [0, Math.min(100, 1.05 * top)], levels };
    };
  }

  function finding(run) {
    const { looked, precision, recall } = run.finding;
    const percent = (values) => values.map((v) => 100 * v);
    const lines = [
      { x: looked, y: percent(precision), role: "ink", dash: 0, label: "precision" },
      { x: looked, y: percent(recall), role: "ink", dash: 1, label: "recall" },
    ];
    return () => ({ lines, xLabel: "examples looked at, highest irreducible loss first", yLabel: "share (%)", xValue: readable.step, yValue: one, xRange: [1, looked.at(-1)], yRange: [0, 102], log: true });
  }

  /** Loss against irreducible loss: the picks of one part of training over a sample of all examples. */
  class Cloud {
    constructor(figure, cloud) {
      this.cloud = cloud;
      this.element = figure.querySelector(".plot");
      this.slider = figure.querySelector("input[type=range]");
      this.output = figure.querySelector("output");
      this.size = cloud.bins;
      this.allX = cloud.allX && decode(cloud.allX, Uint16Array);
      this.allFlags = cloud.allFlags && decode(cloud.allFlags, Uint8Array);
      this.parts = cloud.parts.map((part) => ({
        ...part,
        cells: decode(part.cells, Uint8Array), x: decode(part.x, Uint16Array), y: decode(part.y, Uint16Array),
        flags: decode(part.flags, Uint8Array), all: part.all && decode(part.all, Uint16Array),
      }));
      this.buttons = this.parts.map((part, number) => {
        const button = make("button", { type: "button" }, make("canvas", { width: 160, height: 160 }), whole.format(part.step ?? part.end));
        button.setAttribute("aria-label", `Steps ${whole.format(part.first)} to ${whole.format(part.end)}`);
        button.addEventListener("click", () => this.show(number));
        return button;
      });
      figure.querySelector(".parts").append(...this.buttons);
      this.slider.addEventListener("input", () => this.show(+this.slider.value));
      new ResizeObserver(() => this.resize()).observe(this.element);
      this.number = Math.floor((2 * this.parts.length) / 3);
      this.draw();
    }

    draw() {
      this.plot?.destroy();
      const { low, high } = this.cloud;
      const powers = () => Array.from({ length: Math.floor(high) - low + 1 }, (_, n) => low + n);
      const value = (_, splits) => splits.map((v) => String(+(10 ** v).toPrecision(1)));
      const range = [low, high];
      this.plot = new uPlot({
        width: Math.max(this.element.clientWidth, 50),
        height: Math.max(this.element.clientHeight, 50),
        padding: [8, 12, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, range }, y: { range } },
        axes: [
          axis("irreducible loss (nats)", value, { splits: powers, size: 34 }),
          axis("loss under the proxy (nats)", value, { splits: powers }),
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { draw: [(u) => this.paint(u.ctx, u.bbox, this.parts[this.number], uPlot.pxRatio)] },
      }, [range, range], this.element);
      this.buttons.forEach((button, number) => {
        const canvas = button.firstChild, context = canvas.getContext("2d");
        context.clearRect(0, 0, canvas.width, canvas.height);
        this.paint(context, { left: 0, top: 0, width: canvas.width, height: canvas.height }, this.parts[number], 0.8);
      });
      this.show(this.number);
    }

    paint(ctx, box, part, ratio) {
      const ink = colour("ink"), kept = colour("sequence"), data = colour("data");
      const px = (v) => box.left + (v / 65535) * box.width, py = (v) => box.top + (1 - v / 65535) * box.height;
      ctx.save();
      ctx.beginPath();
      ctx.rect(box.left, box.top, box.width, box.height);
      ctx.clip();
      const dots = (xs, ys, flags, style, radius, alpha) => {
        ctx.globalAlpha = alpha;
        ctx.fillStyle = style;
        ctx.beginPath();
        for (let n = 0; n < xs.length; n += 1) {
          if (flags?.[n]) continue;
          const x = px(xs[n]), y = py(ys[n]);
          ctx.moveTo(x + radius, y);
          ctx.arc(x, y, radius, 0, 7);
        }
        ctx.fill();
      };
      const crosses = (xs, ys, flags, style, size, alpha) => {
        ctx.globalAlpha = alpha;
        ctx.strokeStyle = style;
        ctx.lineWidth = 1.5 * ratio;
        ctx.beginPath();
        for (let n = 0; n < xs.length; n += 1) {
          if (!flags?.[n]) continue;
          const x = px(xs[n]), y = py(ys[n]);
          ctx.moveTo(x - size, y - size);
          ctx.lineTo(x + size, y + size);
          ctx.moveTo(x - size, y + size);
          ctx.lineTo(x + size, y - size);
        }
        ctx.stroke();
      };
      ctx.globalAlpha = 1;
      ctx.strokeStyle = colour("muted");
      ctx.lineWidth = ratio;
      ctx.beginPath();
      ctx.moveTo(box.left, box.top + box.height);
      ctx.lineTo(box.left + box.width, box.top);
      ctx.stroke();
      if (part.all) {
        dots(this.allX, part.all, this.allFlags, data, 1.6 * ratio, 0.45);
        crosses(this.allX, part.all, this.allFlags, data, 2.4 * ratio, 0.9);
      }
      ctx.fillStyle = kept;
      const width = box.width / this.size, height = box.height / this.size;
      part.cells.forEach((count, cell) => {
        if (!count) return;
        ctx.globalAlpha = 0.06 + (0.34 * count) / 255;
        ctx.fillRect(box.left + (cell % this.size) * width, box.top + box.height - (Math.floor(cell / this.size) + 1) * height, width, height);
      });
      dots(part.x, part.y, part.flags, kept, 1.9 * ratio, 0.85);
      crosses(part.x, part.y, part.flags, ink, 3 * ratio, 1);
      ctx.restore();
    }

    show(number) {
      this.number = number;
      const part = this.parts[number];
      this.slider.value = number;
      const words = `Steps ${whole.format(part.first)} to ${whole.format(part.end)}: ${whole.format(part.picks)} picks, ${one(100 * part.above)} of them above the diagonal`;
      this.output.textContent = this.allFlags?.includes(1) ? `${words}, ${one(100 * part.damaged)} damaged` : words;
      this.slider.setAttribute("aria-valuetext", words);
      this.buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === number)));
      this.plot.redraw(false);
    }

    resize() {
      const { clientWidth: width, clientHeight: height } = this.element;
      if (width && height && (width !== this.plot.width || height !== this.plot.height)) this.plot.setSize({ width, height });
    }
  }

  const charts = [];
  const describe = {
    accuracy: () => accuracy,
    corrupted: () => overTime("corrupted", "damaged picks (%)", runs.flatMap((run) => (run.damagedShare == null ? [] : [{ y: 100 * run.damagedShare, role: "data" }]))),
    coverage: () => overTime("coverage", "training side seen (%)"),
    finding: (element) => finding(runs[+element.dataset.run]),
  };
  for (const element of document.querySelectorAll("[data-chart]")) {
    charts.push(new Lines(element, describe[element.dataset.chart](element)));
  }
  for (const figure of document.querySelectorAll("[data-cloud]")) {
    charts.push(new Cloud(figure, runs[+figure.dataset.cloud].cloud));
  }
  for (const input of document.querySelectorAll("input[name=unit], #billed")) {
    input.addEventListener("change", () => charts[0].draw());
  }
  const redraw = () => charts.forEach((chart) => chart.draw());
  dark.addEventListener("change", redraw);
  // Paper is white, whatever the screen is.
  addEventListener("beforeprint", () => { root.classList.add("printing"); redraw(); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); redraw(); });
  root.dataset.ready = String(Math.round(performance.now()));
})();
