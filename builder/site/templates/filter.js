// Shows the rows of the table that have every word of the field.
"use strict";
const field = document.querySelector(".filter input");
const rows = [...document.querySelectorAll("table.images tbody tr")];

field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/);
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("answer").textContent = `${shown} of ${rows.length} images`;
});
