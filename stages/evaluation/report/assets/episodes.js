"use strict";

const SOURCES = {
  audit: "evaluation, kept for audit",
  last: "training, last iteration",
  first: "training, first iteration",
};
const size = (value) => Math.abs(value).toFixed(value && Math.abs(value) < 0.01 ? 3 : 2);
const signed = (value) => (value < 0 ? "−" : "+") + size(value);
const plain = (value) => (value < 0 ? "−" : "") + size(value);
const words = (name) => name.replaceAll("_", " ");
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
let EPISODES = [];
let PIECES = [];

function fact(name, value) {
  return make("div", {}, make("dt", { text: name }), make("dd", { text: value }));
}

function said(who, text, kind) {
  return make("div", { class: `word ${kind}` }, make("span", { text: who }), make("pre", { text }));
}

function paid(row) {
  const parts = Object.entries(row).map(([name, value]) => `${words(name)} ${signed(value)}`);
  return make("p", { class: "paid", text: parts.length ? `reward: ${parts.join(", ")}` : "reward: none" });
}

/* Filled when it is first opened: prompts are long, and most are never read. */
function fold(kind, title, fill) {
  const details = make("details", { class: kind }, make("summary", { text: title }));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(...fill());
  });
  return details;
}

function probability(logprob) {
  if (logprob === undefined) return "unsure";
  const p = Math.exp(logprob);
  return p >= 0.9 ? "sure" : p >= 0.5 ? "unsure" : "odd";
}

function mask(episode, turn, prompt) {
  const chosen = turn.action.map((piece, place) => {
    const logprob = turn.logprobs[place];
    const told = logprob === undefined ? "" : `probability ${Math.exp(logprob).toFixed(3)}`;
    return make("mark", { class: `token ${probability(logprob)}`, title: told, text: PIECES[piece] });
  });
  const trained = episode.source !== "audit";
  const what = trained
    ? `Coloured: the ${count(chosen.length, "token")} that the actor chose, and the only ones it was trained on.`
    : `Coloured: the ${count(chosen.length, "token")} that the actor chose. This episode is of a held-out evaluation, so none was trained on.`;
  const legend = make("p", { class: "soft" }, `${what} Plain: the ${count(prompt.length, "token")} of its prompt. When it was drawn, a token was `,
    make("mark", { class: "token sure", text: "likely" }), " (0.9 or more), ",
    make("mark", { class: "token unsure", text: "likelier than not" }), " or ",
    make("mark", { class: "token odd", text: "unlikely" }), " (below 0.5).");
  const whole = make("pre", { class: "tokens" }, make("span", { class: "masked", text: prompt.join("") }), ...chosen);
  return [legend, whole];
}

function folds(episode, turn) {
  const made = [];
  if (turn.shown) {
    const prompt = turn.shown.map((piece) => PIECES[piece]);
    made.push(fold("prompt", `prompt, ${count(prompt.length, "token")}`, () => [make("pre", { text: prompt.join("") })]));
    made.push(fold("view", "critic's view", () => view(turn, episode.run)));
    made.push(fold("mask", "tokens trained on", () => mask(episode, turn, prompt)));
  } else if (turn.state?.length) {
    const note = "As messages: the run's tokenizer, which would tell the exact prompt, was not found.";
    made.push(fold("prompt", "prompt", () => [make("p", { class: "soft", text: note }), ...turn.state.map((m) => said(m.role, m.content, "other told"))]));
    made.push(fold("view", "critic's view", () => view(turn, episode.run)));
  } else if (turn.left_out) {
    made.push(make("p", { class: "soft", text: "Prompt and tokens are left out to keep the page small; show fewer episodes with --episodes." }));
  }
  return made.length ? [make("div", { class: "more" }, ...made)] : [];
}

function view(turn, run) {
  if (!turn.view) return [make("p", { class: "soft", text: DATA.runs[run].no_view })];
  return [make("pre", { text: turn.view })];
}

function judged(turn) {
  const total = Object.values(turn.paid).reduce((sum, value) => sum + value, 0);
  const figures = [fact("reward", signed(total))];
  if ("value" in turn) figures.push(fact("value", plain(turn.value)));
  if ("review" in turn) figures.push(fact("review", signed(turn.review)));
  if ("advantage" in turn) figures.push(fact("advantage", signed(turn.advantage)));
  return make("dl", {}, ...figures);
}

function turnOf(episode, turn, place) {
  const head = make("header", {}, make("h3", { text: `Turn ${place + 1}` }), judged(turn));
  const parts = [head, said("actor", turn.said || "(nothing)", "actor")];
  if (turn.error) parts.push(make("p", { class: "paid alarm", text: turn.error }));
  for (const message of turn.seen) parts.push(said(message.role, message.content || "(nothing)", "other"));
  parts.push(paid(turn.paid));
  if (turn.words) parts.push(make("p", { class: "paid", text: `the critic's words: ${turn.words}` }));
  return make("article", { class: "turn" }, ...parts, ...folds(episode, turn));
}

function opening(episode) {
  return episode.opening.map((message) =>
    message.role === "system" && message.content.length > 400
      ? make("div", { class: "more" }, fold("system", "system message", () => [make("pre", { text: message.content })]))
      : said(message.role, message.content, "other told"));
}

/* What the critic expected before each turn, at a glance. */
function course(episode) {
  const values = episode.turns.map((turn) => turn.value);
  if (values.length < 2 || values.includes(undefined)) return null;
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  const places = values.map((value, i) =>
    [6 + (228 * i) / (values.length - 1), 38 - (32 * (value - low)) / (high - low)]);
  const svg = drawing(240, 44,
    ["polyline", { points: places.map((place) => place.join(",")).join(" ") }],
    ...places.map(([cx, cy]) => ["circle", { cx, cy, r: 2.5 }]));
  svg.setAttribute("class", "course");
  const ends = `The critic's value, turn by turn: ${plain(values[0])} before the first, ${plain(values.at(-1))} before the last`;
  return make("div", {}, make("p", { class: "soft", text: ends }), svg);
}

const MEANINGS = [
  ["reward", "what the turn was paid, in units of success = 1, by component below it"],
  ["value", "what the critic expected of the rest of the episode, before the turn"],
  ["review", "reward + γ · value after the turn − value before it: how much better it went than expected"],
  ["advantage", "what the turn's tokens were weighed by in training: positive makes them likelier (GAE over turns, whitened)"],
];

function read(episode) {
  const run = DATA.runs[episode.run];
  const verdict = DATA.verdicts[episode.id];
  const facts = [
    fact("outcome", episode.success ? "success" : "no success"),
    fact("reward", signed(episode.total)),
    fact("iteration", episode.step),
    fact("from", SOURCES[episode.source]),
    fact("kind", episode.kind || "–"),
    fact("task", episode.task || "–"),
  ];
  if (several) facts.push(fact("run", run.label));
  const sums = Object.entries(episode.components).map(([name, value]) => `${words(name)} ${signed(value)}`);
  const meanings = make("details", {}, make("summary", { text: "what the figures mean" }),
    make("dl", { class: "fold" }, ...MEANINGS.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })])));
  const whole = episode.opening.length || episode.turns.some((turn) => turn.shown || turn.state);
  const parts = [
    make("h2", { text: episode.goal || "(no goal)" }),
    make("dl", { class: "facts" }, ...facts),
    make("p", { class: "soft", text: sums.length ? `reward in all: ${sums.join(", ")}` : "" }),
    make("ul", { class: "why" }, ...episode.why.map((text) => make("li", { text }))),
  ];
  if (verdict) parts.push(make("p", { class: verdict.verdict === "bad" ? "alarm" : "good", text: `A person said: ${verdict.verdict}${verdict.note ? `, ${verdict.note}` : ""}` }));
  if (episode.ended) parts.push(make("p", { text: `It ${episode.ended}.` }));
  if (run.note) parts.push(make("p", { class: "soft", text: run.note }));
  if (!whole) parts.push(make("p", { class: "soft", text: "Of this episode the page holds words only; --episodes takes more of them whole." }));
  const values = course(episode);
  if (values) parts.push(values);
  parts.push(meanings, ...opening(episode), ...episode.turns.map((turn, place) => turnOf(episode, turn, place)));
  document.getElementById("reader").replaceChildren(...parts);
}

/* Each prompt is kept as what it shares with the one before and what follows. */
function spellOut(episode) {
  let before = [];
  for (const turn of episode.turns) {
    before = turn.prompt ? before.slice(0, turn.same).concat(turn.prompt) : [];
    if (turn.prompt) turn.shown = before;
  }
}

function item(episode) {
  const place = several ? `${DATA.runs[episode.run].label}, ` : "";
  const from = episode.source === "audit" ? "audit" : "training";
  const end = `${episode.success ? "success" : "no success"} ${signed(episode.total)}`;
  const button = make("button", { type: "button", "data-id": episode.id },
    make("span", { class: "goal", text: episode.goal || "(no goal)" }),
    make("span", { class: "meta" },
      make("span", { text: `${place}${from}, iteration ${episode.step}` }),
      make("span", { class: episode.success ? "good" : "", text: end })));
  button.addEventListener("click", () => {
    address(`episodes/${episode.id}`);
    pick(episode);
    if (window.matchMedia("(max-width: 52rem)").matches) document.getElementById("reader").scrollIntoView();
  });
  return make("li", {}, button);
}

function pick(episode) {
  spellOut(episode);
  read(episode);
  for (const button of document.querySelectorAll("#episode-list button")) {
    button.setAttribute("aria-current", String(button.dataset.id === episode.id));
  }
}

const filter = (name) => document.getElementById(`episode-${name}`);

function matches(episode) {
  const [run, source, outcome] = ["run", "source", "outcome"].map((name) => filter(name)?.value ?? "");
  const text = filter("text").value.toLowerCase();
  const all = () => [episode.goal, episode.kind, ...episode.turns.map((turn) => turn.said)];
  return (!run || String(episode.run) === run)
    && (!source || episode.source === source)
    && (!outcome || String(episode.success) === outcome)
    && (!text || all().join(" ").toLowerCase().includes(text));
}

function list(id = null) {
  const found = EPISODES.filter(matches);
  document.getElementById("episode-list").replaceChildren(...found.map(item));
  document.getElementById("episode-count").textContent = `${found.length} of ${EPISODES.length}`;
  const chosen = found.find((episode) => episode.id === id) ?? found[0];
  if (chosen) pick(chosen);
  else document.getElementById("reader").replaceChildren(make("p", { class: "soft", text: "No episode matches." }));
}

const loaded = (async () => {
  ({ episodes: EPISODES, pieces: PIECES } = JSON.parse(await unpacked("episodes-data")));
})();

async function openEpisode(id) {
  await loaded;
  for (const name of ["run", "source", "outcome", "text"]) if (filter(name)) filter(name).value = "";
  list(id);
  document.querySelector(`#episode-list [data-id="${CSS.escape(id)}"]`)?.scrollIntoView({ block: "nearest" });
}

async function startEpisodes() {
  if (!filter("text")) return;
  for (const name of ["run", "source", "outcome"]) filter(name)?.addEventListener("change", () => list());
  filter("text").addEventListener("input", () => list());
  try {
    await loaded;
    if (!document.querySelector("#episode-list button")) list();
  } catch (error) {
    document.getElementById("reader").textContent = "This browser is too old to unpack the episodes.";
    console.warn(error);
  }
}
