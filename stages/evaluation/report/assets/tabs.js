"use strict";

/* Every text that a model or a world produced goes through `text`: nothing here parses HTML. */
function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function drawing(width, height, ...shapes) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true");
  for (const [name, attributes] of shapes) {
    const shape = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    svg.append(shape);
  }
  return svg;
}

async function unpacked(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const DATA = JSON.parse(document.getElementById("data").textContent);
const tabs = [...document.querySelectorAll("[role=tab]")];
const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

function show(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    panel(other).hidden = !chosen;
  }
  if (focus) tab.focus();
  panel(tab).dispatchEvent(new CustomEvent("shown"));
}

function address(hash) {
  try { history.replaceState(null, "", `#${hash}`); } catch { /* a page from memory has none */ }
}

function choose(tab, focus = false) {
  show(tab, focus);
  address(tab.id.replace("tab-", ""));
}

function onTabKey(event) {
  const place = tabs.indexOf(event.target);
  const next = {
    ArrowRight: (place + 1) % tabs.length,
    ArrowLeft: (place + tabs.length - 1) % tabs.length,
    Home: 0,
    End: tabs.length - 1,
  }[event.key];
  if (place < 0 || next === undefined) return;
  event.preventDefault();
  choose(tabs[next], true);
}

function followHash() {
  const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  const tab = document.getElementById(`tab-${name}`);
  show(tabs.includes(tab) ? tab : tabs[0]);
  if (rest.length) openEpisode(rest.join("/"));
}

function startTabs() {
  const list = document.querySelector("[role=tablist]");
  list.hidden = false;
  list.addEventListener("keydown", onTabKey);
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  window.addEventListener("hashchange", followHash);
}
