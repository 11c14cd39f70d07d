"use strict";
// What happens in a store now.

const STATES = {
  writing: ["writing", "rows come in"],
  idle: ["open", "a writer has it open; no row has come lately"],
  closed: ["closed", "its last writer closed it"],
  abandoned: ["not closed", "its last writer ended without closing it"],
  checkpoint: ["checkpoint", "nothing changes it"],
  gone: ["gone", "no store is at this path now; what is shown is of before"],
  unreadable: ["unreadable", "it cannot be read; what is shown is of before"],
};
const RATE_SECONDS = 900;

class Tiles {
  constructor() {
    this.element = element("dl", { className: "tiles" });
    this.tiles = new Map();
  }

  say(name, value, remark = "") {
    let tile = this.tiles.get(name);
    if (!tile) {
      const [dd, words, small] = [element("dd"), element("span"), element("small")];
      dd.append(words, small);
      this.element.append(element("div", { className: "tile" }, element("dt", {}, name), dd));
      this.tiles.set(name, (tile = { words, small }));
    }
    if (tile.words.textContent !== value) tile.words.textContent = value;
    if (tile.small.textContent !== remark) tile.small.textContent = remark;
  }
}

// Rows a second from the counts of several moments.
function ratesOf(counts, now) {
  const x = [], y = [];
  for (let at = 1; at < counts.length; at++) {
    const [[then, before], [time, count]] = [counts[at - 1], counts[at]];
    if (now - time > RATE_SECONDS || time - then > 30) continue;
    x.push(time - now);
    y.push((count - before) / (time - then));
  }
  return [x, y];
}

function stateBadge() {
  const badge = element("span", { className: "state" });
  badge.say = (state, message) => {
    const [words, meaning] = STATES[state] ?? [state, ""];
    badge.dataset.state = state;
    badge.textContent = words;
    badge.title = message ?? meaning;
  };
  return badge;
}

function livePage(root, store) {
  const badge = stateBadge(), tiles = new Tiles(), said = element("p", { className: "soft" });
  const noted = element("p", { className: "soft" }), message = element("p", { className: "message", hidden: true });
  const rate = new ChartGrid(), lower = element("div"), events = element("div"), sections = new Map();
  root.append(
    element("header", {}, element("h1", {}, store.title, " ", badge), said,
      element("p", { className: "soft path" }, store.path), noted, message, tiles.element),
    section("Now", rate.element), events, lower);
  let counts = [], version = null, look = null;

  async function beat() {
    const pulse = await ask(`stores/${store.key}/pulse`, { after: counts.at(-1)?.[0] ?? 0 });
    counts = [...counts.filter(([time]) => time >= pulse.begun), ...pulse.counts].slice(-1800);
    badge.say(pulse.state, pulse.message);
    message.hidden = pulse.message === null;
    message.textContent = pulse.message ?? "";
    sayPulse(pulse);
    const heard = pulse.events.slice().reverse().map((event) =>
      [new Date(event.time * 1000).toLocaleTimeString(), event.text]);
    events.replaceChildren(...(heard.length ? [section("What happened", element("div", { className: "card" }, table(["time", "event"], heard)))] : []));
    await refresh();
  }

  function sayPulse(pulse) {
    const [x, y] = ratesOf(counts, pulse.time);
    const recent = y.filter((_, at) => x[at] > -6);
    const now = recent.length ? recent.reduce((a, b) => a + b) / recent.length : null;
    tiles.say("Rows a second", pulse.state === "checkpoint" ? "–" : numberText(now === null ? null : Math.round(now * 10) / 10),
      pulse.pid && ["writing", "idle"].includes(pulse.state) ? `process ${pulse.pid}` : STATES[pulse.state]?.[0] ?? "");
    if (pulse.transitions !== undefined) {
      tiles.say("Transitions ever", numberText(pulse.transitions),
        pulse.capacity ? `${numberText(pulse.rows)} rows kept, ${Math.floor((100 * pulse.rows) / pulse.capacity)}% of the capacity` : `${numberText(pulse.rows)} rows kept`);
      tiles.say("Last write", pulse.last_write ? agoText(Math.max(0, pulse.time - pulse.last_write)) : "–",
        pulse.last_write ? new Date(pulse.last_write * 1000).toLocaleString() : "");
    }
    const charts = pulse.state === "checkpoint" ? [] : [{
      kind: "lines", title: "Rows a second", note: y.length ? `now ${numberText(now)}` : "it is watched while this page is open",
      x_label: "time", y_label: "rows", seconds: true, from_zero: true,
      lines: [{ x: y.length > 1 ? x : [-10, 0], y: y.length > 1 ? y : [y[0] ?? 0, y[0] ?? 0], name: "rows" }],
    }];
    rate.charts = charts;
    drawNow();
  }

  function drawNow() {
    const episodes = look?.sections.find((each) => each.name === "Episodes")?.charts ?? [];
    rate.update([...(rate.charts ?? []), ...episodes]);
  }

  async function refresh() {
    const answered = await ask(`stores/${store.key}/look`, { seen: version });
    if (answered.unchanged) return;
    [look, version] = [answered, answered.version];
    const { overview, episodes, priorities } = look;
    said.textContent = look.described;
    noted.textContent = overview.metadata_texts.join(", ");
    tiles.say("Episodes", numberText(episodes.count), `${numberText(episodes.whole)} of them whole`);
    tiles.say("Mean return lately", numberText(episodes.mean_return),
      episodes.recent ? `last ${countText(episodes.recent, "whole episode")}; best ${numberText(episodes.best_return)}` : "no whole episode yet");
    tiles.say("Median length", numberText(episodes.median_length), "transitions");
    if (priorities) {
      tiles.say("Age of a draw", numberText(Math.round(priorities.mean_drawn_age)), `rows, on average; of all ${numberText(Math.round(priorities.mean_age))}`);
      tiles.say("Never updated", `${numberText(Math.round(priorities.never_updated * 1000) / 10)}%`, "of the priorities, an estimate");
    }
    tiles.say("On disk", sizeText(overview.disk_bytes), `${sizeText(overview.raw_bytes)} as arrays`);
    drawNow();
    sayCheckpoints(overview.checkpoints);
    for (const { name, charts } of look.sections) {
      if (name === "Episodes") continue;
      let grid = sections.get(name);
      if (!grid) {
        sections.set(name, (grid = new ChartGrid(name === "Transitions" ? "grid small" : "grid")));
        lower.append(section(name, grid.element));
      }
      grid.update(charts);
    }
    sayFields(overview);
  }

  const checkpoints = element("div"), fields = element("div", { className: "card spaced" });
  function sayCheckpoints(found) {
    if (!found.length) return checkpoints.replaceChildren();
    const rows = found.slice(-12).reverse().map((each) => {
      const known = everyStore.find((other) => other.path === each.path);
      const name = known ? element("a", { href: `#/${known.key}/live` }, each.suffix) : each.suffix;
      return [name, new Date(each.saved * 1000).toLocaleString(), each.whole ? "whole" : "not whole", known ? element("a", { href: `#/compare/${store.key}/${known.key}` }, "compare") : ""];
    });
    const more = found.length > 12 ? element("p", { className: "note" }, `the newest 12 of ${found.length}`) : null;
    checkpoints.replaceChildren(section("Checkpoints", element("div", { className: "card" }, more, table(["number", "saved", "", ""], rows))));
    return undefined;
  }
  function sayFields(overview) {
    const rows = Object.entries(overview.fields).map(([name, field]) => [
      name, field.shape.join(" × ") || "scalar", field.dtype, field.compressor, sizeText(field.raw_bytes),
      sizeText(field.disk_bytes), numberText(field.segments)]);
    fields.replaceChildren(element("h3", {}, "Fields"), element("p", { className: "note" }, "What each row holds"),
      table(["field", "shape", "dtype", "stored as", ">in memory", ">on disk", ">files"], rows));
    lower.append(fields, checkpoints);
  }
  return [new Poll(1, beat)];
}

function leftOutText() {
  const { stores, checkpoints, directories } = leftOut;
  const parts = [[stores, "store"], [checkpoints, "checkpoint"]].filter(([count]) => count).map(([count, noun]) => countText(count, noun));
  const said = parts.length ? `Not shown: ${parts.join(" and ")}. ` : "";
  const unseen = directories ? `Not looked into: ${numberText(directories)} director${directories === 1 ? "y" : "ies"}. ` : "";
  return said || unseen ? `${said}${unseen}A store that is named on the command line is always shown.` : "";
}

function storesPage(root) {
  const cards = element("div", { className: "grid small" }), seen = new Map(), more = element("p", { className: "soft" });
  root.append(element("header", {}, element("h1", {}, "Stores"), more), element("section", {}, cards));
  async function beat() {
    await loadStores();
    more.textContent = leftOutText();
    const there = new Set(everyStore.map((store) => store.key));
    for (const [key, { card }] of seen) {
      if (there.has(key)) continue;
      card.remove();
      seen.delete(key);
    }
    for (const store of everyStore) {
      if (seen.has(store.key)) continue;
      const badge = stateBadge(), facts = element("p", { className: "note" });
      const card = element("a", { className: "card store", href: `#/${store.key}/live` },
        element("h3", {}, store.title, " ", badge), element("p", { className: "note path" }, store.path), facts);
      seen.set(store.key, { badge, facts, card, before: null });
      cards.append(card);
    }
    if (!everyStore.length) cards.replaceChildren(element("p", { className: "card" }, "No store is below this path yet. This page waits for one."));
    else cards.querySelector("p.card")?.remove();
    for (const store of everyStore.slice(0, 16)) {
      const shown = seen.get(store.key);
      if (store.is_checkpoint && shown.before) continue;
      const pulse = await ask(`stores/${store.key}/pulse`, { after: shown.before?.[0] ?? 0 });
      const last = pulse.counts.at(-1);
      shown.badge.say(pulse.state, pulse.message);
      if (shown.before?.[0] < pulse.begun) shown.before = null; // of other rows
      const rate = shown.before && last ? (last[1] - shown.before[1]) / (last[0] - shown.before[0]) : 0;
      shown.facts.textContent = pulse.rows === undefined ? pulse.message
        : `${numberText(pulse.transitions)} transitions` + (pulse.state === "writing" ? `, ${numberText(Math.round(rate))} rows a second` : "");
      shown.before = last ?? shown.before;
    }
  }
  return [new Poll(2, beat)];
}
