"use strict";
// The report: charts, and episodes that play, from what stands in the page.

function reelCard(reel) {
  const { steps } = reel;
  const part = (first, count) => ({
    ids: steps.ids.slice(first, first + count), actions: steps.actions.slice(first, first + count),
    rewards: steps.rewards.slice(first, first + count),
    values: Object.fromEntries(Object.entries(steps.values).map(([name, values]) => [name, values.slice(first, first + count)])),
  });
  const player = new Player({
    count: reel.count, frames: reel.frames, firstStep: reel.first_step, stride: reel.stride, cameras: reel.cameras,
    lines: reel.lines, stack: reel.stack, poster: reel.poster, steps: part,
    strip: (camera, number) => `data:image/png;base64,${reel.strips[reel.cameras.indexOf(camera)][number]}`,
  });
  const thinned = reel.stride > 1 ? `, one frame in ${reel.stride}` : "";
  return element("article", { className: "card reel" }, element("h3", {}, reel.title),
    element("p", { className: "note" }, `return ${numberText(reel.return)}, ${countText(reel.rows, "transition")}, ${reel.end}${thinned}`),
    player.element);
}

function vectorSections(fields) {
  return fields.filter((field) => field.group === "observation" || field.size > 1).map((field) => {
    const grid = new ChartGrid("grid small");
    grid.update(field.components.filter((each) => each.histogram).map(spreadChart));
    return section(field.name, element("p", { className: "note" }, `${countText(field.rows, "row")} looked at`), grid.element);
  });
}

function showReport(root, data) {
  const parts = data.sections.map(({ name, charts }) => {
    const grid = new ChartGrid(name === "Transitions" ? "grid small" : "grid");
    grid.update(charts);
    return section(name, grid.element);
  });
  const episodes = data.reels.length
    ? section("Episodes to watch", element("p", { className: "note" },
      "Marks above the slider are rewards: green for positive, red for negative ones. Keys: space, ← →, + −, f."),
    element("div", { className: "grid reels" }, ...data.reels.map(reelCard)))
    : section("Episodes to watch", element("p", { className: "card" }, "There is no episode to watch."));
  parts.splice(1, 0, episodes);
  root.append(...parts, ...vectorSections(data.vectors), section("Fields", element("div", { className: "card" },
    element("p", { className: "note" }, "What each row holds"),
    table(["field", "shape", "dtype", ">in memory", ">on disk", ">ratio", ">files"], data.fields))));
}

showReport(document.getElementById("report"), JSON.parse(document.getElementById("data").textContent));
