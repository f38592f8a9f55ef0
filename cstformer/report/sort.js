// Sort the rows of a table by a click, Enter or Space on the heading of a column; again reverses the order.
"use strict";
const UNITS = { h: 3600, min: 60, s: 1, ms: 0.001 };
function valueOf(text) {
  const times = [...text.matchAll(/([\d.]+) (h|min|ms|s)\b/g)];
  if (times.length) return times.reduce((sum, [, n, unit]) => sum + n * UNITS[unit], 0);
  const plain = text.replace(/,/g, "").replace("−", "-").replace(/^[<>≈ ]+/, "");
  return parseFloat(plain.replace(/^\((\S+) ±[^)]*\)/, "$1")); // (4.88 ± 0.21)e-5 is 4.88e-5
}
function compare(a, b, sign) {
  const x = valueOf(a), y = valueOf(b);
  if (isNaN(x) && isNaN(y)) return sign * a.localeCompare(b);
  return isNaN(x) ? 1 : isNaN(y) ? -1 : sign * (x - y); // what is missing comes last, in both directions
}
function sortBy(heading) {
  const table = heading.closest("table"), column = heading.cellIndex, body = table.tBodies[0];
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = (row) => row.cells[column].textContent.trim();
  body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b), down ? -1 : 1)));
}
for (const heading of document.querySelectorAll("table.sortable thead th")) {
  heading.tabIndex = 0;
  heading.title = "sort by this column";
  heading.addEventListener("click", () => sortBy(heading));
  heading.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    sortBy(heading);
  });
}
