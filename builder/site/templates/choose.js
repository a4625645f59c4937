// Filters the rows of the page: the answers themselves come from `builder choose`.
"use strict";
const form = document.getElementById("choose");
const answer = document.getElementById("answer");
const cards = [...document.querySelectorAll("details.card")];

function fits(row, wanted) {
  if (wanted.model && row.dataset.model !== wanted.model) return false;
  if (Number(row.dataset.context) < wanted.context) return false;
  return row.dataset.driver === undefined || Number(row.dataset.driver) >= wanted.driver;
}

function whyNot(row, wanted) {
  if (Number(row.dataset.context) < wanted.context)
    return Number(row.dataset.context) ? `its context is ${row.dataset.context} tokens` : "its context is not known";
  return `it needs driver ${row.dataset.needs} or newer`;
}

// Elements are made with textContent alone: no text becomes markup.
function add(parent, name, text) {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  return made;
}

function show(card, wanted) {
  const rows = [...card.querySelectorAll(".fits > li")];
  for (const row of rows) row.hidden = !fits(row, wanted);
  const others = [...card.querySelectorAll(".excluded > li")];
  for (const row of others) row.hidden = Boolean(wanted.model) && row.dataset.model !== wanted.model;
  const asked = [...rows, ...others].filter((row) => !wanted.model || row.dataset.model === wanted.model);
  card.querySelector(".count").textContent = `${rows.filter((row) => !row.hidden).length} of ${asked.length}`;
  if (card.dataset.card !== wanted.card) return;
  const best = rows.find((row) => !row.hidden);
  const name = card.querySelector("h2").textContent;
  if (best) {
    add(answer, "p", `The fastest preset that runs on ${name} is ${best.dataset.preset}:`);
    answer.append(...[...best.querySelectorAll(".figures, pre, .compose")].map((each) => each.cloneNode(true)));
    return;
  }
  add(answer, "p", `No preset${wanted.model ? ` of ${wanted.model}` : ""} runs on ${name}:`);
  const reasons = new Map();
  const refuse = (preset, why) => reasons.set(why, [...(reasons.get(why) ?? []), preset]);
  for (const row of rows)
    if (!wanted.model || row.dataset.model === wanted.model) refuse(row.dataset.preset, whyNot(row, wanted));
  for (const row of others)
    if (!row.hidden) refuse(row.querySelector("b").textContent, row.querySelector("span").textContent);
  const list = add(answer, "ul", "");
  for (const [why, presets] of reasons)
    add(list, "li", `${presets.length === 1 ? presets[0] : `${presets.length} presets`}: ${why}`);
}

function update() {
  const found = new FormData(form);
  const wanted = {
    card: found.get("card"),
    model: found.get("model"),
    driver: Number(found.get("driver")),
    context: Number(found.get("context")),
  };
  answer.replaceChildren();
  for (const card of cards) {
    card.hidden = Boolean(wanted.card) && card.dataset.card !== wanted.card;
    if (wanted.card === card.dataset.card) card.open = true;
    show(card, wanted);
  }
  answer.hidden = !answer.hasChildNodes();
}

if (form && answer) {
  form.hidden = false;
  form.addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}
