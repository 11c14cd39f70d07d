"use strict";
// Any row, by its id.

function rowsPage(root, store, id) {
  const input = element("input", { name: "id", value: id ?? "", inputMode: "numeric", ariaLabel: "Row id", size: 12 });
  const form = element("form", { className: "filters", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `#/${store.key}/rows/${input.value.trim().replaceAll(",", "")}`;
  } }, element("label", { className: "field" }, element("span", {}, "row id"), input), element("button", { type: "submit" }, "Show"));
  const content = element("div");
  root.append(element("header", {}, element("h1", {}, id ? `Row ${id}` : "Rows")), form, content);
  showRow(content, store, id).catch(sayFailed(content));
  return [];
}

async function showRow(content, store, id) {
  if (id === undefined) {
    const { first, last, num_envs } = await ask(`stores/${store.key}/rows`);
    const row = (at) => element("a", { href: `#/${store.key}/rows/${at}` }, String(at));
    content.replaceChildren(element("div", { className: "card" }, element("p", { className: "note" }, "An id is row × envs + env."),
      table(["env", ">oldest id", ">newest id"], first.slice(0, 64).map((each, env) => [env, row(each), row(last[env])]))));
    if (num_envs > 64) content.append(element("p", { className: "note" }, `and ${num_envs - 64} envs more`));
    return;
  }
  const row = await ask(`stores/${store.key}/rows/${encodeURIComponent(id)}`);
  const link = (to, words) => (to === null ? null : element("a", { href: `#/${store.key}/rows/${to}` }, words));
  const { episode, priority, transition } = row;
  content.replaceChildren(
    element("p", { className: "links" }, link(row.before, "← before"), link(row.behind, "next →"),
      episode && element("a", { href: `#/${store.key}/episodes/${episode.start_id}?step=${episode.place}` },
        `episode ${numberText(episode.number)}, at ${episode.place} of ${episode.rows}`)),
    section("Transition", element("div", { className: "card" }, ...transitionParts(store, row, transition, priority))),
    section("Neighbours", element("div", { className: "card" }, element("p", { className: "note" },
      `stacks of ${row.stack.size}, ${row.horizon}-step returns`), table(["id", ">step", "action", ">reward", ""], row.window.map((each) => [
      each.id === row.id ? element("strong", {}, String(each.id)) : link(each.id, String(each.id)), each.step, each.is_final ? "–" : each.action,
      each.is_final ? "–" : numberText(each.reward),
      each.is_final ? "final row" : each.terminated ? "terminated" : each.truncated ? "truncated" : ""])))),
    section("Stored values", element("div", { className: "card" }, ...row.fields.map((field) => fieldPart(store, row, field)))));
}

function transitionParts(store, row, transition, priority) {
  if (transition.why_not !== undefined) return [element("p", {}, "It is not sampled: " + transition.why_not)];
  const tiles = new Tiles();
  tiles.say("Reward", numberText(transition.reward), countText(transition.steps, "step"));
  tiles.say("Discount", numberText(transition.discount), transition.terminated ? "it ends the episode" : "of what follows");
  if (priority) {
    tiles.say("Priority", numberText(priority.priority), `above ${numberText(Math.floor(priority.below * 1000) / 10)}% of all; as of the last flush`);
    tiles.say("Drawn", `${numberText(priority.times)} ×`, `as often as evenly; a chance of ${numberText(priority.probability)} a draw`);
  }
  tiles.say("Times drawn", "–", "a buffer does not count it");
  const pictured = row.fields.filter((field) => field.is_picture && field.name.startsWith("observation"));
  const picture = (field, which, words) => element("figure", { className: "still" }, element("img", {
    src: `api/stores/${store.key}/rows/${row.id}/picture?${new URLSearchParams({ field: field.name, which })}`, alt: `${words}: ${field.name}`,
  }), element("figcaption", {}, `${words}: ${field.name}`));
  return [tiles.element, element("div", { className: "stills" }, ...pictured.flatMap((field) => [
    picture(field, "observation", "seen"), picture(field, "next_observation", "led to")]))];
}

function fieldPart(store, row, field) {
  const head = element("h3", {}, field.name, " ", element("small", { className: "soft" }, `${field.shape.join(" × ") || "scalar"}, ${field.dtype}`));
  if (field.is_picture) {
    return element("div", { className: "value" }, head, element("img", { alt: field.name,
      src: `api/stores/${store.key}/rows/${row.id}/picture?${new URLSearchParams({ field: field.name, which: "stored" })}` }));
  }
  const texts = field.values.map((value, at) => (field.names ? `${field.names[at]}: ` : "") + (typeof value === "number" ? numberText(value) : String(value)));
  return element("div", { className: "value" }, head, element("p", { className: "numbers" },
    texts.join("   ") + (field.size > texts.length ? `   … ${field.size - texts.length} more` : "")));
}
