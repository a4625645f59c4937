// Shows one card, and filters and sorts its rows: the answers come from `builder choose`.
"use strict";
const form = document.getElementById("choose");
const sections = [...document.querySelectorAll("section.card")];
const selects = [...form.querySelectorAll("select")];
const drivers = [...form.elements.driver.options].map((each) => each.value); // the newest first
const columns = new Set([...document.querySelectorAll("th[data-key]")].map((each) => each.dataset.key));
const DESCENDING = new Set(["speed", "context"]); // columns whose first click shows the largest
let sort = ""; // a column; with "-" before it from the largest to the smallest; empty: as ranked

// Text is always set as text: none becomes markup.
function add(parent, name, text = "", kind = "") {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  made.className = kind;
  return made;
}

function whyNot(row, wanted) {
  const { context, driver } = row.dataset;
  if (Number(context) < wanted.context) return context ? `its context is ${context} tokens` : "its context is not known";
  const oldest = drivers.indexOf(driver);
  return oldest > 0 && wanted.driver > oldest ? `it needs driver ${driver} or newer` : "";
}

// What starts a preset stands once in the page: a copy of it replaces the link to it.
function unfold(link) {
  const fold = document.createElement("details");
  add(fold, "summary").append(...link.childNodes);
  const start = document.getElementById(decodeURIComponent(link.hash.slice(1)));
  fold.append(...[...start.cloneNode(true).children].slice(1)); // without its heading
  link.replaceWith(fold);
}

function picked(row) {
  const made = document.createElement("li");
  made.className = "pick";
  for (const cell of row.cells) add(made, "div", "", cell.className).append(...cell.cloneNode(true).childNodes);
  const fold = made.querySelector(".start details");
  fold.open = false;
  fold.before(fold.querySelector(".command"));
  return made;
}

// The first row of each model that is known to fit, and whose file need not be named by the user.
function best(rows) {
  const found = new Map();
  for (const row of rows) {
    const { group, sure } = row.dataset;
    if (!found.has(group) && sure !== undefined) found.set(group, row);
  }
  return [...found.values()];
}

function sorted(rows) {
  const key = sort.replace("-", "");
  const sign = sort.startsWith("-") ? -1 : 1;
  const value = ({ dataset }) => (key === "model" || !dataset[key] ? dataset[key] : Number(dataset[key]));
  return [...rows].sort((one, other) => {
    const [left, right] = key ? [value(one), value(other)] : [one.rank, other.rank];
    if (left === right) return one.rank - other.rank;
    if (left === "" || right === "") return left === "" ? 1 : -1; // unknown ones are last
    return sign * (key === "model" ? left.localeCompare(right) : left - right);
  });
}

// Lists the presets that do not run, also by the filters; returns their number.
function refuse(section, rows, wanted) {
  const list = section.querySelector(".excluded > ul");
  for (const each of list.querySelectorAll(".filtered")) each.remove();
  const reasons = new Map();
  for (const row of rows) {
    const why = whyNot(row, wanted);
    if (why && !reasons.has(why)) {
      const item = add(list, "li", "", "filtered");
      add(item, "span", why, "why");
      reasons.set(why, add(item, "ul"));
    }
    if (why) add(reasons.get(why), "li", row.dataset.preset).dataset.group = row.dataset.group;
  }
  let count = 0;
  for (const reason of list.children) {
    const names = [...reason.querySelectorAll("li")];
    for (const each of names) each.hidden = Boolean(wanted.model) && each.dataset.group !== wanted.model;
    const shown = names.filter((each) => !each.hidden).length;
    reason.hidden = !shown;
    count += shown;
  }
  return count;
}

// Filters the runs that are proposed, and the models without one.
function propose(section, wanted) {
  for (const part of section.querySelectorAll(".proposed")) {
    const items = [...part.querySelectorAll("li")];
    for (const each of items) each.hidden = (wanted.model && each.dataset.group !== wanted.model) || ("context" in each.dataset && Boolean(whyNot(each, wanted)));
    part.hidden = items.every((each) => each.hidden);
  }
}

function show(section, rows, wanted) {
  for (const mark of section.querySelectorAll("tbody .mark:not(.composed)")) mark.remove(); // the recommended ones stand above
  for (const link of section.querySelectorAll("tbody .start > a")) unfold(link);
  const ranked = rows.filter((row) => (!wanted.model || row.dataset.group === wanted.model) && !whyNot(row, wanted));
  for (const row of rows) row.hidden = !ranked.includes(row);
  section.querySelector("tbody").append(...sorted(rows));
  section.querySelector(".picks").replaceChildren(...best(ranked).map(picked));
  section.querySelector(".listed").hidden = !ranked.length;
  propose(section, wanted);
  const refused = refuse(section, rows, wanted);
  section.querySelector(".excluded").hidden = !refused;
  section.querySelector(".refused").textContent = refused;
  const count = `${ranked.length} of ${ranked.length + refused}`;
  section.querySelector(".count").textContent = count;
  for (const head of section.querySelectorAll("th[data-key]")) {
    const { key } = head.dataset;
    head.ariaSort = sort === key ? "ascending" : sort === `-${key}` ? "descending" : null;
  }
  document.getElementById("answer").textContent = `${section.querySelector("h2").textContent}: ${count} presets run`;
}

function update() {
  const { card, model, context, driver } = form.elements;
  const wanted = { model: model.value, context: Number(context.value), driver: driver.selectedIndex };
  for (const section of sections) {
    section.classList.toggle("chosen", section.dataset.card === card.value);
    if (section.dataset.card !== card.value) continue;
    if (section.querySelector(".count")) show(section, section.rows, wanted);
    else document.getElementById("answer").textContent = section.textContent; // no image has code for it
  }
}

// The address has all that differs from the first view, and always the card.
function read() {
  const state = new URLSearchParams(location.search);
  if (!state.has("card")) state.set("card", document.querySelector("section.card:target")?.dataset.card ?? "");
  for (const select of selects) {
    const options = [...select.options];
    const found = options.find(({ value }) => value === state.get(select.name));
    (found ?? options.find((each) => each.defaultSelected) ?? options[0]).selected = true;
  }
  const key = state.get("sort") ?? "";
  sort = columns.has(key.replace(/^-/, "")) ? key : "";
  update();
}

function changed() {
  const state = new URLSearchParams();
  for (const { name, value } of selects) if (value) state.set(name, value);
  if (sort) state.set("sort", sort);
  history.replaceState(null, "", `?${state}`);
  update();
}

for (const section of sections) {
  section.rows = [...section.querySelectorAll("tbody tr")];
  section.rows.forEach((row, rank) => Object.assign(row, { rank }));
  for (const head of section.querySelectorAll("th[data-key]")) {
    const { key } = head.dataset;
    const text = head.textContent;
    head.textContent = "";
    add(head, "button", text).addEventListener("click", () => {
      const order = DESCENDING.has(key) ? [`-${key}`, key, ""] : [key, `-${key}`, ""];
      sort = order[(order.indexOf(sort) + 1) % 3];
      changed();
    });
  }
}
form.addEventListener("change", changed);
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", read);
read();
