"use strict";
const rows = document.querySelectorAll(
  "#principals li, #groups li, #kafka-4 tbody tr, #tokens tbody tr, #next tbody tr, #clients tbody tr");
const box = document.createElement("input");
box.type = "search";
box.placeholder = "Filter by name, library or address";
box.setAttribute("aria-label", box.placeholder);
box.addEventListener("input", () => {
  const wanted = box.value.trim().toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  for (const folded of document.querySelectorAll("#clients > details")) {
    const found = folded.querySelectorAll("tbody tr:not([hidden])").length;
    folded.hidden = !found;
    folded.open = wanted !== "" && found > 0;
  }
});
if (rows.length) document.querySelector("nav").append(box);
