"use strict";

const scheme = window.matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/* figure -> the lines that are off, and the width and scheme in which it was drawn. */
const drawn = new Map();
let plotly = null;

/* The library is packed; its hash stands in the page's policy, so that nothing else can run. */
function library() {
  plotly ??= unpacked("plotly").then((code) => {
    // It brings a style sheet for maps, which nobody draws here and the policy refuses, and leaves
    // it out where an element of that name is there already.
    for (const [, id] of code.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) {
      document.head.append(make("meta", { id }));
    }
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
    return window.Plotly;
  });
  return plotly;
}

const several = DATA.runs.length > 1;
const tint = (line, place) => `c${(several ? line.run : place) % 8}`;
/* The library reads tags and entities in its texts. */
const inert = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const FORMATS = { share: ".1~%", seconds: ",.3~r", number: ",.4~r" };

function traces(chart, off) {
  return chart.lines.map((line, place) => {
    const sparse = !chart.stacked && (line.x.length < 12 || line.name.startsWith("evaluation/"));
    const own = colour(tint(line, place));
    return {
      x: line.x, y: line.y, name: inert(line.label), type: "scatter",
      mode: sparse ? "lines+markers" : "lines",
      line: { color: own, width: chart.stacked ? 0.5 : 1.6 }, marker: { color: own, size: 5 },
      stackgroup: chart.stacked ? "one" : undefined,
      fillcolor: chart.stacked ? `${own}99` : undefined,
      visible: off.has(place) ? "legendonly" : true,
      hovertemplate: `%{y:${FORMATS[chart.unit]}}`,
    };
  });
}

/* A vertical line for every alarm; a triangle where it speaks of this chart's own figures. */
function alarms(chart) {
  const lines = chart.alarms.map((alarm) => ({
    type: "line", xref: "x", yref: "paper", x0: alarm.step, x1: alarm.step, y0: 0, y1: 1,
    line: { color: colour("alarm"), width: alarm.own ? 1.2 : 0.6, dash: alarm.own ? "solid" : "dot" },
    opacity: alarm.own ? 1 : 0.6, layer: "below",
  }));
  const marks = {
    x: chart.alarms.map((alarm) => alarm.step), y: chart.alarms.map(() => 1), yaxis: "y2",
    type: "scatter", mode: "markers", name: "alarm", hoverinfo: "text",
    hovertext: chart.alarms.map((alarm) => inert(alarm.name)),
    marker: {
      symbol: chart.alarms.map((alarm) => (alarm.own ? "triangle-down" : "triangle-down-open")),
      size: 9, color: colour("alarm"),
    },
    cliponaxis: false,
  };
  return { lines, marks: chart.alarms.length ? [marks] : [] };
}

/* A line that does not move stands in the middle of an axis from zero. */
function reach(chart) {
  if (chart.whole) return [0, 1.02];
  const values = chart.lines.flatMap((line) => line.y);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high && low !== 0 ? [Math.min(0, 2 * low), Math.max(0, 2 * low)] : undefined;
}

function layout(chart, shapes) {
  const steps = chart.lines.flatMap((line) => line.x);
  const few = Math.max(...steps) - Math.min(...steps) <= 8;
  const soft = colour("soft");
  const axis = { gridcolor: colour("line"), zeroline: false, automargin: true, fixedrange: true };
  const ticks = { tickformat: chart.unit === "share" ? ".1~%" : "", separatethousands: true, exponentformat: "none" };
  return {
    autosize: true, height: 200, margin: { l: 44, r: 8, t: 14, b: 34 }, showlegend: false, shapes,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
    hoverlabel: { bgcolor: colour("wash"), bordercolor: colour("line"), font: { color: colour("ink") } },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: soft },
    xaxis: { ...axis, showgrid: false, title: { text: inert(chart.x), standoff: 4 }, nticks: 8, dtick: few ? 1 : undefined, unifiedhovertitle: { text: `${chart.x} %{x}` } },
    yaxis: { ...axis, ...ticks, nticks: 5, rangemode: chart.stacked ? "tozero" : "normal", range: reach(chart) },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

async function draw(figure) {
  const chart = DATA.charts[Number(figure.dataset.chart)];
  const place = figure.querySelector(".plot");
  const state = drawn.get(figure) ?? { off: new Set() };
  drawn.set(figure, state);
  try {
    const Plotly = await library();
    state.drawn = looks(place);
    const { lines, marks } = alarms(chart);
    const options = { displayModeBar: false, responsive: true };
    await Plotly.react(place, [...traces(chart, state.off), ...marks], layout(chart, lines), options);
  } catch (error) {
    place.classList.add("empty");
    place.textContent = "This browser cannot draw the curves; aac report --png writes pictures.";
    console.warn(error);
  }
}

function toggle(figure, button, place) {
  const state = drawn.get(figure) ?? { off: new Set() };
  drawn.set(figure, state);
  const off = state.off;
  if (!off.delete(place)) off.add(place);
  button.setAttribute("aria-pressed", String(!off.has(place)));
  draw(figure);
}

const looks = (place) => `${place.clientWidth} ${scheme.matches}`;

/* What changed while a curve was on a closed tab is made good when that opens. */
function refresh() {
  for (const [figure, state] of drawn) {
    const place = figure.querySelector(".plot");
    if (place.clientWidth && state.drawn !== looks(place)) draw(figure);
  }
}

function startCharts() {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "200px" });
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    seen.observe(figure);
    figure.querySelectorAll(".legend button").forEach((button, place) => {
      button.addEventListener("click", () => toggle(figure, button, place));
    });
  }
  scheme.addEventListener("change", refresh);
  for (const tab of tabs) panel(tab).addEventListener("shown", refresh);
}
