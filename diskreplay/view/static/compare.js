"use strict";
// Two stores or checkpoints side by side.

function comparePage(root, store, other) {
  const choice = element("select", { ariaLabel: "The other store", onchange: () => { location.hash = `#/compare/${store.key}/${choice.value}`; } },
    element("option", { value: "" }, "choose a store or a checkpoint"),
    ...everyStore.filter((each) => each.key !== store.key).map((each) => element("option", { value: each.key, selected: each.key === other },
      `${each.title} · ${each.name}`)));
  const figures = element("div", { className: "card spaced compared", hidden: true }), grid = new ChartGrid(), message = element("p", { className: "message", hidden: true });
  root.append(element("header", {}, element("h1", {}, "Compare"), element("p", { className: "soft" }, `${store.title} · ${store.name}, beside`), choice),
    message, figures, element("section", { className: "spaced" }, grid.element));
  if (!other) return [];
  async function beat() {
    try {
      const found = await ask(`compare/${store.key}/${other}`);
      message.hidden = true;
      grid.update(found.charts);
      const [left, right] = found.charts[0]?.names_of_series ?? [store.name, "the other"];
      figures.hidden = false;
      figures.replaceChildren(table(["", `>${left}`, `>${right}`], found.figures.map(([name, ...values]) =>
        [name, ...values.map((value) => (name.startsWith("bytes") ? sizeText(value) : numberText(value)))])));
    } catch (error) {
      message.hidden = false;
      message.textContent = error.message;
      throw error;
    }
  }
  return [new Poll(5, beat)];
}
