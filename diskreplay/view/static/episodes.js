"use strict";
// The table of episodes, and the page of one.

const ENDS = [["", "any end"], ["whole", "whole"], ["terminated", "terminated"], ["truncated", "truncated"], ["cut", "cut"], ["unfinished", "unfinished"]];
const PAGE = 50;

function episodesPage(root, store, query) {
  const given = Object.fromEntries(query), state = { order: "newest", reverse: "", start: 0, ...given };
  const body = element("tbody"), head = element("tr"), said = element("p", { className: "note", role: "status" });
  const field = (name, label, attributes) => element("label", { className: "field" }, element("span", {}, label),
    element("input", { name, value: state[name] ?? "", inputMode: "numeric", size: 7, ...attributes }));
  const range = (label, from, to, attributes) => element("div", { className: "range" },
    field(from, `${label} from`, attributes), field(to, "to", attributes));
  const end = element("select", { name: "end" }, ...ENDS.map(([value, words]) => element("option", { value, selected: value === (state.end ?? "") }, words)));
  const form = element("form", { className: "filters", onsubmit: (event) => { event.preventDefault(); apply(); }, onchange: change },
    range("return", "least_return", "most_return"), range("length", "least_length", "most_length"),
    range("recorded", "after", "before", { type: "datetime-local" }), range("first id", "since", "until"), field("env", "env", { size: 4 }), element("label", { className: "field" }, element("span", {}, "ended"), end),
    element("button", { type: "button", onclick: () => go({ order: "newest" }) }, "Clear"),
    element("p", { className: "soft" }, "A row has no time of its own. Times are about right: they are those of the store's files, "
      + "and between two files rows are taken to have come evenly."));
  let found = 0; // episodes, as of the last answer
  const button = (words, start) => element("button", { type: "button", onclick: () => go({ start: start() }) }, words);
  const back = [button("⇤ first", () => 0), button("← before", () => Math.max(0, Number(state.start) - PAGE))];
  const on = [button("next →", () => Number(state.start) + PAGE), button("last ⇥", () => Math.floor((found - 1) / PAGE) * PAGE)];
  root.append(element("header", {}, element("h1", {}, "Episodes")), form, said,
    element("div", { className: "card" }, element("div", { className: "scroll" }, element("table", { className: "rows" }, element("thead", {}, head), body))),
    element("div", { className: "pages" }, ...back, ...on));

  // A time changes with each digit that is typed: it is waited for the next one.
  let later = 0;
  function change(event) {
    clearTimeout(later);
    if (event.target.type === "datetime-local") later = setTimeout(apply, 1500);
    else apply();
  }

  function apply() {
    clearTimeout(later);
    if (form.isConnected) go({ ...read(), start: 0 });
  }

  function read() {
    return Object.fromEntries([...form.elements].filter((each) => each.name).map((each) => [each.name, each.value.trim()]));
  }

  function go(change) {
    const next = change.order === "newest" && Object.keys(change).length === 1 ? change : { ...state, ...change };
    const kept = Object.entries(next).filter(([, value]) => value !== "" && value !== 0 && value !== undefined);
    location.hash = `#/${store.key}/episodes?${new URLSearchParams(kept)}`;
  }

  const heads = [["newest", "episode"], [null, ">env"], ["return", ">return"], ["length", ">transitions"], [null, "ended"], [null, ">recorded about"], [null, ">first id"]];
  head.replaceChildren(...heads.map(([order, words]) => {
    const is = state.order === order || (order === "newest" && state.order === "oldest");
    const cell = element("th", { scope: "col", className: words.startsWith(">") ? "n" : "" });
    if (is) cell.ariaSort = state.reverse ? "ascending" : "descending";
    const words_ = words.replace(">", "");
    cell.append(order ? element("button", { type: "button", className: "plain", onclick: () => go({ order, reverse: is && !state.reverse ? "1" : "", start: 0 }) },
      words_ + (is ? (state.reverse ? " ↑" : " ↓") : "")) : words_);
    return cell;
  }));

  async function beat() {
    let page;
    try {
      page = await ask(`stores/${store.key}/episodes`, { ...state, after: secondsOf(state.after), before: secondsOf(state.before), size: PAGE });
    } catch (error) {
      said.textContent = error.message;
      throw error;
    }
    const start = Number(state.start);
    said.textContent = page.found ? `${numberText(start + 1)} to ${numberText(start + page.episodes.length)} of ${countText(page.found, "episode")}`
      + (page.found < page.total ? `, of ${numberText(page.total)} in all` : "") : "No episode is like that.";
    found = page.found;
    for (const each of back) each.disabled = start === 0;
    for (const each of on) each.disabled = start + PAGE >= found;
    const text = JSON.stringify(page.episodes);
    if (body.dataset.text === text) return;
    body.dataset.text = text;
    const kept = document.activeElement?.getAttribute("href");
    body.replaceChildren(...page.episodes.map((each) => {
      const href = `#/${store.key}/episodes/${each.start_id}`;
      const cells = [element("a", { href }, numberText(each.number)), each.env, numberText(each.return), numberText(each.rows),
        each.end + (each.beginning_lost ? ", its beginning was lost" : each.first_step ? `, from step ${each.first_step}` : ""), whenText(each), each.start_id];
      return element("tr", { onclick: () => { location.hash = href; } }, ...cells.map((value, at) =>
        element("td", { className: heads[at][1].startsWith(">") ? "n" : "" }, value instanceof Node ? value : String(value))));
    }));
    if (kept) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === kept)?.focus();
  }
  return [new Poll(3, beat)];
}

// Of what the field of a time has, in seconds since the epoch.
function secondsOf(local) {
  return local ? new Date(local).getTime() / 1000 : "";
}

// About when an episode ended; the day where it is not today.
function whenText({ ended, is_latest }) {
  if (ended === null) return "–";
  const time = new Date(ended * 1000), hours = { hour: "2-digit", minute: "2-digit" };
  const text = time.toDateString() === new Date().toDateString() ? time.toLocaleTimeString([], hours)
    : time.toLocaleString([], { ...hours, year: "numeric", month: "short", day: "numeric" });
  return (is_latest ? "by " : "") + text;
}

function episodePage(root, store, id, query) {
  let stop = () => {};
  openEpisode(root, store, id, query).then((player) => { stop = () => player.stop(); }, sayFailed(root));
  return [{ stop: () => stop() }];
}

async function openEpisode(root, store, id, query) {
  const base = `stores/${store.key}/episodes/${id}`;
  const found = await ask(base);
  const place = element("a", { href: "#" }, "row");
  let player = null, noting = 0, noted = null;
  player = new Player({
    count: found.rows, frames: found.cameras.length ? found.frames : found.rows, firstStep: found.first_step, stride: 1,
    cameras: found.cameras, lines: found.lines, stack: found.stack,
    strip: (camera, number) => `api/${base}/frames?${new URLSearchParams({ field: camera.name, first: number * camera.per,
      count: Math.min(camera.per, found.frames - number * camera.per) })}`,
    steps: (first, count) => ask(`${base}/steps`, { first, count }),
    poster: Number(query.get("step") ?? 0),
  }, {
    onstep(at, row) {
      place.hidden = row === null;
      place.href = `#/${store.key}/rows/${row}`;
      place.textContent = `row ${row}`;
      if (!player || at === noted) return;
      noted = at;
      clearTimeout(noting);
      noting = setTimeout(() => history.replaceState(null, "", `#/${store.key}/episodes/${id}?step=${at}`), 250);
    },
  });
  const link = (to, words) => (to === null ? null : element("a", { href: `#/${store.key}/episodes/${to}` }, words));
  root.append(element("header", {}, element("h1", {}, `Episode ${numberText(found.number)}`),
    element("p", { className: "soft" }, `return ${numberText(found.return)}, ${countText(found.rows, "transition")}, ${found.end}`
      + (found.ended === null ? "" : `, recorded ${found.is_latest ? "" : "about "}${whenText(found)}`)
      + (found.num_envs > 1 ? `, env ${found.env}` : "") + (found.beginning_lost ? "; its beginning was lost" : found.first_step ? `; its beginning, to step ${found.first_step}, is evicted` : "")),
    element("p", { className: "links" }, element("a", { href: `#/${store.key}/episodes` }, "all episodes"), link(found.before, "← the one before"),
      link(found.behind, "the next one →"), place)),
    element("div", { className: "card" }, player.element),
    element("p", { className: "note keys" }, "Keys: space plays, ← → step (with shift ten), Home End, + − speed, s stacks, f larger, Esc back. A click on a line goes there."));
  const stop = player.stop.bind(player);
  player.stop = () => { clearTimeout(noting); stop(); };
  player.element.focus({ preventScroll: true });
  return player;
}
