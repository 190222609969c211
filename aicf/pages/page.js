
"use strict";
// Nothing here makes markup of names: what is inserted was escaped when the page was written.
const regions = Array.from(document.querySelectorAll("details.region"));
const boxes = new Map(Array.from(document.querySelectorAll("svg g.region"), (g) => [g.dataset.n, g]));
const search = document.getElementById("search");
const found = document.getElementById("found");

function fill(details) {
  const waiting = details.dataset.later && document.getElementById(details.dataset.later);
  if (!waiting) return;
  delete details.dataset.later;
  const body = document.createElement("div");
  body.innerHTML = waiting.textContent;
  details.append(body);
}

document.addEventListener("toggle", (event) => {
  if (event.target.open) fill(event.target);
}, true);

function show(n) {
  const details = regions[n];
  if (!details) return;
  details.classList.remove("away");
  details.open = true;
  fill(details);
  details.scrollIntoView({ block: "start" });
  details.firstElementChild.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const box = event.target.closest("svg g[data-n]");
  if (box) show(Number(box.dataset.n));
  const link = event.target.closest("a[href^='#r']");
  if (link && /^#r\d+$/.test(link.hash)) {
    event.preventDefault();
    show(Number(link.hash.slice(2)));
  }
});

document.addEventListener("focusin", (event) => {
  for (const box of document.querySelectorAll("svg g.region.at")) box.classList.remove("at");
  const details = event.target.closest("details.region");
  if (details) boxes.get(details.id.slice(1))?.classList.add("at");
});

// What is searched for each region: its line, and the names of what it reads and makes.
let words;
let wait;
function look() {
  words ??= regions.map((r) => (r.firstElementChild.textContent + " " + r.dataset.names).toLowerCase());
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  regions.forEach((region, n) => {
    const fits = wanted.every((word) => words[n].includes(word));
    count += fits;
    region.classList.toggle("away", !fits);
    boxes.get(String(n))?.classList.toggle("off", !fits);
  });
  found.textContent = wanted.length ? `${count} of ${regions.length} regions` : "";
  // What was found is out of sight if the page was elsewhere.
  const list = document.getElementById("regions");
  const place = list.getBoundingClientRect();
  if (wanted.length && (place.top > innerHeight / 2 || place.bottom < innerHeight / 4)) list.scrollIntoView();
}
search.addEventListener("input", () => {
  clearTimeout(wait);
  wait = setTimeout(look, 120);
});

function step(by) {
  const shown = regions.filter((r) => !r.classList.contains("away"));
  const at = shown.indexOf(document.activeElement?.closest("details.region"));
  const next = shown[Math.min(Math.max(at + by, 0), shown.length - 1)];
  next?.firstElementChild.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
document.getElementById("theme").addEventListener("click", theme);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    search.value = "";
    look();
    search.blur();
  } else if (event.key === "Enter" && event.target === search) {
    event.preventDefault(); // or the region that gets the focus would be opened by the same key
    clearTimeout(wait);
    look();
    step(1);
  } else if (event.target !== search) {
    const act = { "/": () => search.focus(), j: () => step(1), k: () => step(-1), t: theme }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  }
});

if (/^#r\d+$/.test(location.hash)) show(Number(location.hash.slice(2)));
