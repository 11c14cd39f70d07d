"use strict";
// Charts as SVG, drawn anew for each width, so that their letters stay legible on a phone.

const CHART_HEIGHT = 232, CHART_TOP = 14, CHART_BOTTOM = 42, CHART_RIGHT = 12, LETTER = 6.7;

// From values to pixels, linear or logarithmic, with ticks at round numbers.
function makeScale(low, high, start, stop, { log = false, integers = false, most = 6 } = {}) {
  const place = (value) => (log ? Math.log10(value) : value);
  if (low === high && !log) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  let [from, to] = [place(Math.max(low, -Number.MAX_VALUE)), place(Math.min(high, Number.MAX_VALUE))];
  if (from === to) [from, to] = [from - 0.5, to + 0.5];
  const part = Number.isFinite(to - from) ? 1 : 2; // the distance of two of the largest numbers is none
  const scale = (value) => start + ((place(value) / part - from / part) / (to / part - from / part)) * (stop - start);
  scale.invert = (pixel) => {
    const share = (pixel - start) / (stop - start), value = from * (1 - share) + to * share;
    return log ? 10 ** value : value;
  };
  scale.ticks = log ? logTicks(from, to, most) : roundTicks(from, to, integers, most);
  return scale;
}

// About `most` round numbers; both ends where the range is so narrow, for its distance from zero, or so
// wide that there are none between.
function roundTicks(low, high, integers, most) {
  const span = high - low;
  let step = 10 ** Math.floor(Math.log10(span / most));
  step *= [1, 2, 5, 10].find((factor) => span / (step * factor) <= most) ?? 10;
  if (integers) step = Math.max(step, 1);
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
  const isExact = Number.isSafeInteger(first) && Number.isSafeInteger(first + count);
  if (!isExact || !Number.isFinite(step)) return [low, high];
  return Array.from({ length: count }, (_, at) => (first + at) * step);
}

function logTicks(low, high, most) {
  const [first, last] = [Math.ceil(low - 1e-9), Math.floor(high + 1e-9)];
  if (last - first < 1) return [10 ** low, 10 ** high];
  const step = Math.ceil((last - first + 1) / most), ticks = [];
  for (let power = first; power <= last; power += step) ticks.push(10 ** power);
  return ticks;
}

function leftRoom(up) {
  return 30 + LETTER * Math.max(1, ...up.ticks.map((tick) => axisText(tick).length));
}

// Grid lines, ticks and the names of both axes.
function drawFrame(svg, { left, width, floor, across, up, xLabel, yLabel }) {
  for (const tick of up.ticks) {
    const y = up(tick).toFixed(1);
    svg.append(shape("line", { class: "grid", x1: left, x2: width - CHART_RIGHT, y1: y, y2: y }));
    svg.append(shape("text", { class: "up", x: left - 8, y: Number(y) + 4 }, axisText(tick)));
  }
  let clear = -Infinity; // labels do not touch each other
  for (const [x, label] of across) {
    const half = (label.length * LETTER) / 2;
    const middle = Math.min(Math.max(x, half), width - half);
    if (middle - half < clear) continue;
    clear = middle + half + 8;
    svg.append(shape("text", { class: "across", x: middle.toFixed(1), y: floor + 18 }, label));
  }
  svg.append(shape("line", { class: "axis", x1: left, x2: width - CHART_RIGHT, y1: floor, y2: floor }));
  svg.append(shape("text", { class: "label", x: (left + width - CHART_RIGHT) / 2, y: CHART_HEIGHT - 4 }, xLabel));
  const turned = `translate(12 ${(floor + CHART_TOP) / 2}) rotate(-90)`;
  svg.append(shape("text", { class: "label", transform: turned }, yLabel));
}

function extent(...lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

const pointsText = (across, up, xs, ys) => xs.map((x, at) => `${across(x).toFixed(1)},${up(ys[at]).toFixed(1)}`);

// Lines over time, each with a band perhaps; dots behind them.
function drawLines(svg, chart, width) {
  const floor = CHART_HEIGHT - CHART_BOTTOM;
  const lines = chart.lines ?? [{ x: chart.line_x, y: chart.line_y, band: chart.band, name: chart.line_name }];
  const dots = chart.x ?? [], heights = chart.y ?? [];
  let [low, high] = extent(heights, ...lines.flatMap((line) => [line.y, ...(line.band ?? [])]));
  if (chart.from_zero) low = Math.min(low, 0);
  if (chart.from_zero && high === low) high = low + 1; // nothing lies on the axis, not amid the chart
  const room = (high - low) * 0.05;
  const counted = (dots.length ? heights : lines.flatMap((line) => line.y)).every(Number.isInteger);
  const up = makeScale(chart.from_zero ? low : low - room, high + room, floor, CHART_TOP, { integers: counted, most: 5 });
  const left = leftRoom(up), most = Math.max(2, Math.floor(width / 90));
  const [first, last] = extent(dots, ...lines.map((line) => line.x));
  const across = makeScale(first, last, left + 6, width - CHART_RIGHT - 6, { integers: true, most });
  const name = chart.seconds ? (tick) => secondsText(tick) : axisText;
  drawFrame(svg, {
    left, width, floor, up, across: across.ticks.map((tick) => [across(tick), name(tick)]),
    xLabel: chart.x_label, yLabel: chart.y_label,
  });
  lines.forEach((line, at) => {
    if (!line.band) return;
    const [below, above] = line.band.map((edge) => pointsText(across, up, line.x, edge));
    svg.append(shape("polygon", { class: `band s${at}`, points: [...below, ...above.reverse()].join(" ") }));
  });
  dots.forEach((x, at) => {
    svg.append(shape("circle", { class: "dot", cx: across(x).toFixed(1), cy: up(heights[at]).toFixed(1), r: 3 }));
  });
  lines.forEach((line, at) => {
    const points = pointsText(across, up, line.x, line.y);
    if (points.length === 1) { // a line of one point would not be seen
      const [x, y] = points[0].split(",");
      svg.append(shape("circle", { class: `end s${at}`, cx: x, cy: y, r: 3.5 }));
    } else {
      svg.append(shape("polyline", { class: `line s${at}`, points: points.join(" ") }));
    }
  });
  readOut(svg, { chart, lines, across, up, left, width, floor, name });
}

function secondsText(seconds) {
  if (seconds === 0) return "now";
  const size = Math.abs(seconds);
  return size >= 120 ? `−${Number((size / 60).toFixed(1))} min` : `−${Math.round(size)} s`;
}

// What the lines say below the pointer.
function readOut(svg, { chart, lines, across, up, left, width, floor, name }) {
  const cursor = shape("line", { class: "cursor", y1: CHART_TOP, y2: floor, visibility: "hidden" });
  const said = shape("text", { class: "said", x: width - CHART_RIGHT, y: CHART_TOP - 2 });
  svg.append(cursor, said);
  svg.onpointermove = (event) => {
    const line = lines.find((each) => each.x.length);
    if (!line) return;
    const box = svg.getBoundingClientRect();
    const wanted = across.invert(event.clientX - box.left);
    const nearest = (xs) => {
      let best = 0;
      xs.forEach((x, at) => { if (Math.abs(x - wanted) < Math.abs(xs[best] - wanted)) best = at; });
      return best;
    };
    const at = across(line.x[nearest(line.x)]);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", "visible");
    const values = lines.filter((each) => each.x.length).map((each) => numberText(each.y[nearest(each.x)]));
    said.textContent = `${name(line.x[nearest(line.x)])}: ${values.join(" · ")}`;
  };
  svg.onpointerleave = () => {
    cursor.setAttribute("visibility", "hidden");
    said.textContent = "";
  };
}

// Counts of named values or between edges, of one store or of two.
function drawBars(svg, chart, width) {
  const floor = CHART_HEIGHT - CHART_BOTTOM;
  const series = chart.series ?? [chart.counts];
  const top = Math.max(...series.map((counts) => Math.max(...counts)), chart.series ? 1e-9 : 1);
  const up = chart.log_counts
    ? makeScale(0.6, Math.max(top, 2), floor, CHART_TOP, { log: true, most: 5 })
    : makeScale(0, top, floor, CHART_TOP, { integers: !chart.series, most: 5 });
  const left = leftRoom(up) + 4, right = width - CHART_RIGHT - 4;
  let places, across, names;
  if (chart.labels.length) {
    const wide = (right - left) / chart.labels.length, gap = Math.max(wide * 0.28, wide - 64) / 2;
    places = chart.labels.map((_, at) => [left + at * wide + gap, left + (at + 1) * wide - gap]);
    names = chart.labels;
    let ticks = names;
    if (Math.max(...names.map((text) => text.length)) * LETTER > wide) {
      ticks = names.map((text) => text.split(" ")[0]); // "2 RIGHT": the tooltip has the rest
    }
    across = ticks.map((text, at) => [(places[at][0] + places[at][1]) / 2, text]);
  } else {
    const most = Math.max(2, Math.floor(width / 80));
    const scale = makeScale(chart.edges[0], chart.edges.at(-1), left, right, { log: chart.log_edges, most });
    const edges = chart.edges.map((edge) => scale(edge));
    places = edges.slice(1).map((edge, at) => [edges[at] + 0.5, edge - 0.5]);
    names = places.map((_, at) => `${numberText(chart.edges[at])} to ${numberText(chart.edges[at + 1])}`);
    across = scale.ticks.map((tick) => [scale(tick), axisText(tick)]);
  }
  const yLabel = chart.y_label + (chart.log_counts ? ", logarithmic" : "");
  drawFrame(svg, { left: left - 4, width, floor, up, across, xLabel: chart.x_label, yLabel });
  series.forEach((counts, which) => {
    counts.forEach((count, at) => {
      if (!count) return;
      let [from, to] = places[at];
      if (chart.labels.length && series.length > 1) {
        const half = (to - from) / series.length;
        [from, to] = [from + which * half, from + (which + 1) * half];
      }
      const y = up(count);
      const bar = shape("rect", {
        class: series.length > 1 ? `bar pair s${which}` : "bar", x: from.toFixed(1), y: y.toFixed(1),
        width: Math.max(to - from, 0.5).toFixed(1), height: Math.max(floor - y, 0).toFixed(1),
      });
      bar.append(shape("title", {}, `${chart.x_label} ${names[at]}: ${numberText(count)} ${chart.y_label}`));
      svg.append(bar);
    });
  });
}

// Bytes of each field, in memory and on disk.
function drawSizes(svg, chart, width) {
  const line = 46, largest = Math.max(1, ...chart.raw, ...chart.disk);
  chart.names.forEach((name, at) => {
    const y = 4 + at * line;
    svg.append(shape("text", { class: "named", x: 0, y: y + 12 }, name));
    const figures = `${sizeText(chart.raw[at])} → ${sizeText(chart.disk[at])}`;
    svg.append(shape("text", { class: "figure", x: width, y: y + 12 }, figures));
    [[chart.raw[at], "raw", 18], [chart.disk[at], "disk", 27]].forEach(([bytes, kind, down]) => {
      const wide = Math.max(1.5, (bytes / largest) * width);
      svg.append(shape("rect", { class: kind, x: 0, y: y + down, width: wide.toFixed(1), height: 7, rx: 2 }));
    });
  });
  return 4 + line * chart.names.length;
}

// How the values of a component of a vector are spread.
function spreadChart({ name, min, max, mean, histogram }) {
  return {
    kind: "bars", title: name, note: `${numberText(min)} to ${numberText(max)}, mean ${numberText(mean)}`,
    x_label: "value", y_label: "rows", labels: [], ...histogram, log_counts: false, log_edges: false,
  };
}

// A few words for those who cannot see it.
function describeChart(chart) {
  const head = `${chart.title}: ${chart.note}.`;
  if (chart.kind === "sizes") {
    const each = chart.names.map((name, at) => `${name} ${sizeText(chart.raw[at])} as arrays, ${sizeText(chart.disk[at])} on disk`);
    return `${head} ${each.join("; ")}`;
  }
  if (chart.kind === "bars" && chart.counts) {
    const most = chart.counts.indexOf(Math.max(...chart.counts));
    const name = chart.labels.length ? chart.labels[most] : `${numberText(chart.edges[most])} to ${numberText(chart.edges[most + 1])}`;
    return `${head} Most often ${name}, ${numberText(chart.counts[most])} ${chart.y_label}.`;
  }
  if (chart.kind === "trend" && chart.line_y.length) {
    const [low, high] = extent(chart.line_y);
    return `${head} From ${numberText(low)} to ${numberText(high)} ${chart.y_label}; ends at ${numberText(chart.line_y.at(-1))}.`;
  }
  return head;
}

function legendOf(chart) {
  if (chart.kind === "sizes") return [["raw", "as arrays in memory"], ["disk", "on disk"]];
  if (chart.names_of_series) return chart.names_of_series.map((name, at) => [`s${at}`, name]);
  if (chart.kind === "trend" && chart.line_name) {
    return [...(chart.x.length ? [["dots", "an episode"]] : []), ["trend", chart.line_name]];
  }
  return [];
}

// A card with a chart, which is drawn anew when it is told of another one, or gets another width.
class ChartCard {
  constructor(chart) {
    this.title = element("h3");
    this.note = element("p", { className: "note" });
    this.svg = shape("svg", { class: "chart", role: "img" });
    this.legend = element("ul", { className: "key" });
    this.element = element("figure", { className: "card" }, this.title, this.note, this.svg, this.legend);
    this.width = 0;
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    this.update(chart);
  }

  update(chart) {
    const text = JSON.stringify(chart);
    if (text === this.text) return;
    [this.chart, this.text, this.width] = [chart, text, 0];
    this.title.textContent = chart.title;
    this.note.textContent = chart.note;
    this.legend.replaceChildren(
      ...legendOf(chart).map(([kind, words]) => element("li", { className: kind }, words)));
    this.draw();
  }

  draw() {
    const width = Math.floor(this.svg.parentNode ? this.element.clientWidth - 36 : 0);
    if (width < 60 || width === this.width) return;
    this.width = width;
    this.svg.replaceChildren();
    const drawers = { trend: drawLines, lines: drawLines, bars: drawBars, sizes: drawSizes };
    const height = drawers[this.chart.kind](this.svg, this.chart, width) ?? CHART_HEIGHT;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("aria-label", describeChart(this.chart));
  }
}

// Cards of several charts, kept from one update to the next by their titles. A store may call two alike.
class ChartGrid {
  constructor(className = "grid") {
    this.element = element("div", { className });
    this.cards = new Map();
  }

  update(charts) {
    const counted = new Map();
    const keys = charts.map(({ title }) => {
      counted.set(title, (counted.get(title) ?? 0) + 1);
      return `${counted.get(title)} ${title}`;
    });
    for (const [key, card] of this.cards) {
      if (keys.includes(key)) continue;
      card.observer.disconnect();
      card.element.remove();
      this.cards.delete(key);
    }
    charts.forEach((chart, at) => {
      let card = this.cards.get(keys[at]);
      if (card) card.update(chart);
      else this.cards.set(keys[at], (card = new ChartCard(chart)));
      if (this.element.children[at] !== card.element) this.element.insertBefore(card.element, this.element.children[at] ?? null);
    });
  }
}
