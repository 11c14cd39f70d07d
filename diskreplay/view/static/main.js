"use strict";
// Which page is shown: the part of the address behind the #.

let everyStore = [], leftOut = {}, polls = [], shownVersion = 0;

const TABS = [["live", "Live"], ["episodes", "Episodes"], ["rows", "Rows"], ["vectors", "Vectors"], ["compare", "Compare"]];

async function loadStores() {
  const { stores, left_out } = await ask("stores");
  [everyStore, leftOut] = [stores, left_out];
  const choice = document.getElementById("store"), chosen = currentKey();
  const text = JSON.stringify([stores.map((store) => [store.key, store.title, store.name]), chosen]);
  if (choice.dataset.text === text) return;
  choice.dataset.text = text;
  choice.replaceChildren(element("option", { value: "" }, "all stores"), ...stores.map((store) =>
    element("option", { value: store.key, selected: store.key === chosen },
      store.is_checkpoint ? `${store.title} · ${store.name}` : store.title)));
  if (!chosen) choice.value = "";
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean), query: new URLSearchParams(query ?? "") };
}

function currentKey() {
  const { parts } = route();
  return parts[0] === "compare" ? parts[1] ?? "" : parts[0] ?? "";
}

function showTabs(key, active) {
  const tabs = document.getElementById("tabs");
  tabs.replaceChildren(...(key ? TABS : []).map(([name, words]) => element("li", {}, element("a", {
    href: name === "compare" ? `#/compare/${key}` : `#/${key}/${name}`,
    className: name === active ? "active" : "", ...(name === active ? { "aria-current": "page" } : {}),
  }, words))));
}

async function show() {
  const version = ++shownVersion;
  polls.forEach((poll) => poll.stop());
  polls = [];
  const root = element("main", { id: "page" });
  try {
    await loadStores();
  } catch (error) {
    sayFailed(root)(error);
  }
  if (version !== shownVersion) return;
  const { parts, query } = route();
  if (!parts.length && everyStore.length === 1) return void location.replace(`#/${everyStore[0].key}/live`);
  const key = currentKey(), store = everyStore.find((each) => each.key === key);
  const active = parts[0] === "compare" ? "compare" : parts[1] ?? "live";
  showTabs(store ? key : "", active);
  document.title = store ? `${store.title} · diskreplay` : "diskreplay";
  document.getElementById("page").replaceWith(root);
  if (!key || key === "all") polls = storesPage(root);
  else if (!store) root.append(element("p", { className: "message" }, "There is no store with this address, any more."));
  else if (active === "compare") polls = comparePage(root, store, parts[2]);
  else if (active === "episodes" && parts[2]) polls = episodePage(root, store, parts[2], query);
  else if (active === "episodes") polls = episodesPage(root, store, query);
  else if (active === "rows") polls = rowsPage(root, store, parts[2]);
  else if (active === "vectors") polls = vectorsPage(root, store);
  else polls = livePage(root, store);
  window.scrollTo(0, 0);
}

document.getElementById("store").addEventListener("change", (event) => {
  const { parts } = route(), key = event.target.value;
  const page = parts[0] === "compare" ? "live" : parts[1] ?? "live";
  location.hash = key ? `#/${key}/${page}` : "#/all";
});
window.addEventListener("hashchange", show);
show();
