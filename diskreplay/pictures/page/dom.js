"use strict";
// Elements, and figures as people read them. Text becomes text, never markup.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function section(name, ...content) {
  return element("section", {}, element("h2", {}, name), ...content);
}

// Rows of texts, numbers and elements; columns of numbers have a head that begins with ">".
function table(heads, rows) {
  const classOf = (at) => (heads[at].startsWith(">") ? "n" : "");
  return element("div", { className: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, at) =>
      element("th", { className: classOf(at), scope: "col" }, head.replace(">", ""))))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, at) =>
      element("td", { className: classOf(at) }, value instanceof Node ? value : String(value))))))));
}

function shape(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// A number for an axis or a sentence: four digits that matter, thousands apart.
function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-3) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (size >= 1000 || Number.isInteger(value)) {
    return Math.round(value).toLocaleString("en");
  }
  return String(Number(value.toPrecision(4)));
}

function axisText(value) {
  const size = Math.abs(value);
  if (size >= 1e15) return numberText(value);
  for (const [unit, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${Number((value / (unit === 1e4 ? 1e3 : unit)).toPrecision(4))}${sign}`;
  }
  return numberText(Number(value.toPrecision(6)));
}

function sizeText(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1024) return `${bytes} B`;
  let size = bytes, unit = "";
  for (unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= 1024;
    if (size < 1023.95) break;
  }
  return `${size.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ${unit}`;
}

function countText(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

function agoText(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(seconds / length);
    if (count > 0) return `${numberText(count)}\u00a0${unit}\u00a0ago`; // in one line, in a narrow tile too
  }
  return "just now";
}
