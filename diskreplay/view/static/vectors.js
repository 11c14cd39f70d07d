"use strict";
// Vectors, each component: how its values are spread, and over time.

function vectorsPage(root, store) {
  const content = element("div");
  root.append(element("header", {}, element("h1", {}, "Vectors"), element("p", { className: "soft" },
    "Observations, actions and extras that are no pictures, of a sample of rows spread evenly over time. Their traces in an episode are on its page.")), content);
  showVectors(content, store).catch(sayFailed(content));
  return [];
}

async function showVectors(content, store) {
  const fields = await ask(`stores/${store.key}/vectors`);
  if (!fields.length) return void content.replaceChildren(element("p", { className: "card" }, "There are no vectors, or no rows yet."));
  content.replaceChildren(...fields.map((field) => {
    const grid = new ChartGrid("grid small"), figures = [];
    const charts = field.components.flatMap((each) => {
      figures.push([each.name, ...["min", "mean", "max", "std"].map((name) => numberText(each[name])), each.not_finite || ""]);
      if (!each.histogram) return [];
      return [
        spreadChart(each),
        { kind: "lines", title: `${each.name} over time`, note: "median, and 10% to 90%", x_label: "rows recorded", y_label: "value",
          lines: [{ name: each.name, x: each.time.x, y: each.time.middle, band: [each.time.low, each.time.high] }] },
      ];
    });
    grid.update(charts);
    const more = field.size > field.components.length ? `, the first ${field.components.length} of ${field.size} components` : "";
    return section(field.name, element("p", { className: "note" }, `${countText(field.rows, "row")} looked at${more}`), grid.element,
      element("div", { className: "card spaced" }, table(["component", ">least", ">mean", ">most", ">deviation", ">not finite"], figures)));
  }));
}
