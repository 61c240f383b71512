// The page works without this script. It adds: following the store, keys, copying, the matrix under the pointer, scrolling values.
const $ = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  return `${Math.floor(seconds)} s ago`;
}

// A number as the server writes it: six significant digits; counts, and whole numbers below a million, in full.
function written(value, isCount = false) {
  const sign = (words) => words.replaceAll("-", "\u2212");
  if (isCount || Number.isInteger(value) && Math.abs(value) < 1e6) return sign(value.toLocaleString("en").replaceAll(",", "\u202f"));
  const [digits, exponent] = value.toExponential(5).split("e");
  if (exponent >= -4 && exponent < 6) return sign(String(Number(value.toPrecision(6))));
  return sign(`${Number(digits)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`);
}

// On the screen, how long ago something was; on paper, when it was.
const showAges = () => { for (const time of all("time[data-since]")) { time.title ||= time.textContent; time.textContent = ago(time.dataset.since); } };
window.onbeforeprint = () => { for (const time of all("time[data-since]")) time.textContent = time.title; };
window.onafterprint = showAges;

function adorn() {
  showAges();
  for (const button of all(".copy")) {
    button.hidden = !navigator.clipboard;
    button.onclick = async () => {
      await navigator.clipboard.writeText($("pre", button.parentElement).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
  }
  for (const field of all("[data-submit]")) field.onchange = () => field.form.requestSubmit();
  for (const form of all("form")) form.onformdata = ({formData}) => { for (const [name, value] of [...formData]) if (!value) formData.delete(name); };
  for (const svg of all("svg.matrix")) new ResizeObserver(() => fitMatrix(svg)).observe(svg.closest(".scroll"));
  const matrix = $("#matrix[data-url]");
  if (matrix) followMatrix(matrix);
  const ribbon = $("#ribbon");
  if (ribbon) ribbon.onclick = (event) => openOperator(ribbon, event);
  for (const box of all(".values[data-url]")) scrollValues(box);
}

// A narrow window shows all steps: the cells of a matrix get narrower, and fewer numbers stand below them.
function fitMatrix(svg) {
  const left = Number(svg.dataset.left), full = svg.dataset.columns * svg.dataset.cellWidth, margin = 8;
  const share = Math.min(1, (svg.closest(".scroll").clientWidth - left - margin) / full), width = left + full * share + margin;
  svg.dataset.share = share;
  svg.setAttribute("width", width); svg.viewBox.baseVal.width = width;
  $(".cells", svg).setAttribute("transform", `matrix(${share} 0 0 1 ${left * (1 - share)} 0)`);
  let last = -Infinity;
  for (const tick of all(".tick.mid", svg)) {
    tick.dataset.x ??= tick.getAttribute("x");
    const x = left + (tick.dataset.x - left) * share, fits = x - last >= 34;
    tick.setAttribute("x", x); tick.setAttribute("visibility", fits ? "visible" : "hidden");
    if (fits) last = x;
  }
}

// The matrix: cells under the pointer, arrow keys, brushing.
async function followMatrix(box) {
  const svg = $("svg", box), say = $("#cell");
  const number = (name) => Number(svg.dataset[name]);
  const left = number("left"), top = number("top"), wide = number("cellWidth"), high = number("cellHeight");
  const rows = number("rows"), columns = number("columns");
  const isCount = "counts" in box.dataset, nothing = isCount ? "not known" : "no finite";  // JSON has no Inf
  const cursor = $(".cursor", svg), brush = $(".brush", svg);
  let data = null, at = (box.dataset.at ?? "0,0").split(",").map(Number), from = null;
  const answer = await fetch(box.dataset.url);
  if (answer.ok) data = await answer.json();
  box.dataset.ready = answer.ok;
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  const place = (event) => {
    const frame = svg.getBoundingClientRect();
    return [clamp(Math.floor((event.clientY - frame.top - top) / high), rows), clamp(Math.floor((event.clientX - frame.left - left) / (wide * svg.dataset.share)), columns)];
  };
  const ends = (pair) => pair[0] === pair[1] ? `${pair[0]}` : `${pair[0]}-${pair[1]}`;
  const show = ([row, column]) => {
    at = [row, column]; box.dataset.at = at;
    cursor.setAttribute("x", left + column * wide); cursor.setAttribute("y", top + row * high);
    if (!data) return;
    const value = data.values[row][column], missing = data.missing[row][column];
    const words = ["not committed", "", "partial", "damaged"][data.state[row][column]];
    say.textContent = `rank ${ends(data.ranks[row])}, step ${ends(data.steps[column])}: ` + (data.state[row][column] === 0 ? words :
      `${value === null ? nothing : written(value, isCount)} ${data.title}` + (words ? `, ${words}` : "") + (data.not_finite[row][column] && !data.title.includes("NaN") ? ", has NaN or Inf" : "") + (missing ? `, ${missing} not committed` : ""));
  };
  const range = (kind, a, b) => { const low = Math.min(a, b), up = Math.max(a, b); return `${data[kind][low][0]}-${data[kind][up][1]}`; };
  const closer = (a, b) => {
    const url = new URL(location.href);
    url.pathname = new URL(box.dataset.view, location.href).pathname;
    url.searchParams.set("ranks", range("ranks", a[0], b[0])); url.searchParams.set("steps", range("steps", a[1], b[1]));
    location.assign(url);
  };
  const open = ([row, column]) => {
    if (!data || data.state[row][column] === 0) return;
    if (data.ranks[row][0] !== data.ranks[row][1] || data.steps[column][0] !== data.steps[column][1]) { closer([row, column], [row, column]); return; }
    const url = new URL(box.dataset.cell, location.href), stat = new URL(location.href).searchParams.get("stat");
    url.searchParams.set("rank", data.ranks[row][0]); url.searchParams.set("step", data.steps[column][0]);
    if (stat && $(`select[name=stat] optgroup:last-child option[value="${CSS.escape(stat)}"]`)) url.searchParams.set("stat", stat);
    location.assign(url);
  };
  svg.onpointermove = (event) => {
    show(place(event));
    if (!from) return;
    const [row, column] = at, top1 = Math.min(row, from[0]), left1 = Math.min(column, from[1]);
    brush.setAttribute("x", left + left1 * wide); brush.setAttribute("y", top + top1 * high);
    brush.setAttribute("width", (Math.abs(column - from[1]) + 1) * wide); brush.setAttribute("height", (Math.abs(row - from[0]) + 1) * high);
  };
  svg.onpointerdown = (event) => { if (event.pointerType === "mouse" && event.button === 0) { from = place(event); event.preventDefault(); box.focus({preventScroll: true}); } };
  // A property, so that the matrix that takes the place of this one takes its listener, too.
  window.onpointerup = (event) => {
    if (!from) return;
    const begin = from; from = null;
    brush.setAttribute("width", 0);
    if (event.target.closest && event.target.closest("#matrix") !== box) return;
    const end = place(event);
    if (begin[0] === end[0] && begin[1] === end[1]) open(end); else if (data) closer(begin, end);
  };
  svg.onclick = (event) => { if (event.pointerType && event.pointerType !== "mouse") { show(place(event)); open(at); } };
  box.onkeydown = (event) => {
    const by = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (by) { show([clamp(at[0] + by[0], rows), clamp(at[1] + by[1], columns)]); event.preventDefault(); }
    if (event.key === "Enter") open(at);
  };
}

function openOperator(box, event) {
  const svg = $("svg", box), frame = svg.getBoundingClientRect(), per = Number(box.dataset.perPage);
  const place = Math.floor((event.clientX - frame.left) / frame.width * Number(svg.dataset.total));
  const url = new URL(box.dataset.view, location.href);
  const page = Math.floor(place / per) + 1;
  if (page > 1) url.searchParams.set("page", page);
  const rows = all(".operators tbody");
  url.hash = url.search === location.search && rows[place % per] ? rows[place % per].id : `op${place}`;
  location.assign(url);
}

// Values: only what is in sight is fetched.
function scrollValues(box) {
  const rows = Number(box.dataset.rows), columns = Number(box.dataset.columns), high = 22, wide = 92, head = 26, side = 72;
  const page = document.createElement("div"), table = document.createElement("table");
  page.className = "sheet"; box.replaceChildren(page); page.append(table);
  page.style.height = `${Math.min(rows * high, 8e6) + head}px`; page.style.width = `${Math.min(columns * wide, 8e6) + side}px`;
  page.style.position = "relative"; table.style.position = "absolute";
  let asked = "";
  const stretch = (length, size) => Math.max(1, length * size / 8e6);
  const draw = async () => {
    const row = Math.min(Math.floor(box.scrollTop / high * stretch(rows, high)), Math.max(rows - 1, 0)), column = Math.min(Math.floor(box.scrollLeft / wide * stretch(columns, wide)), Math.max(columns - 1, 0));
    const tall = Math.min(rows - row, Math.ceil(box.clientHeight / high) + 2), broad = Math.min(columns - column, Math.ceil(box.clientWidth / wide) + 2);
    const url = new URL(box.dataset.url, location.href);
    for (const [name, value] of Object.entries({row, column, rows: tall, columns: broad})) url.searchParams.set(name, value);
    if (url.href === asked) return;
    asked = url.href;
    const answer = await fetch(url);
    if (!answer.ok || asked !== url.href) return;
    const sheet = await answer.json();
    const bad = new Map([["nan", "NaN"], ["inf", "Inf"], ["-inf", "\u2212Inf"]]);
    const cell = (kind, words) => { const made = document.createElement(kind); made.textContent = bad.get(words) ?? words; if (bad.has(words)) made.className = "bad"; return made; };
    const headRow = document.createElement("tr"); headRow.append(cell("td", ""), ...sheet.columns.map((name) => cell("th", name)));
    const thead = document.createElement("thead"); thead.append(headRow);
    const body = document.createElement("tbody");
    sheet.values.forEach((line, number) => { const made = document.createElement("tr"); made.append(cell("th", sheet.rows[number]), ...line.map((words) => cell("td", words))); body.append(made); });
    table.replaceChildren(thead, body);
    table.style.transform = `translate(${box.scrollLeft}px, ${box.scrollTop}px)`;
  };
  box.onscroll = () => requestAnimationFrame(draw);
  draw();
}

// Following the store: a small question every few seconds; the view is fetched again when something was committed.
let isFollowing = false;
async function follow() {
  if (!document.body.dataset.moment || document.hidden || isFollowing) return;
  isFollowing = true;  // a view that takes longer than the pause between questions is fetched once at a time
  await followOnce(document.body).finally(() => { isFollowing = false; });
}

const isTyping = () => $("#main").contains(document.activeElement) && document.activeElement.matches("input, select");

// What has the focus keeps it; so do the chosen cell of a matrix, and what is scrolled its place.
function replaceMain(main) {
  const old = $("#main"), focused = document.activeElement;
  const isLike = (element) => ["id", "href", "class"].every((name) => element.getAttribute(name) === focused.getAttribute(name));
  const alike = (root) => all("[tabindex], a[href], button, summary", root).filter(isLike);
  const scrolled = (root) => all(".scroll, .values", root);
  const number = alike(old).indexOf(focused), cell = $("#matrix", old)?.dataset.at;
  const offsets = scrolled(old).map((box) => [box.scrollLeft, box.scrollTop]);
  old.replaceWith(main);
  main.classList.add("is-new");
  if (cell && $("#matrix", main)) $("#matrix", main).dataset.at = cell;
  adorn();
  scrolled(main).forEach((box, order) => box.scrollTo(...(offsets[order] ?? [0, 0])));
  if (number >= 0) alike(main)[number]?.focus({preventScroll: true});
}

function tell(what, why) {
  const banner = $("#away");
  banner.hidden = !what; $("strong", banner).textContent = what; $("span", banner).textContent = why;
  $("#state").classList.toggle("is-away", Boolean(what));
}

async function followOnce(body) {
  showAges();
  try {
    const answer = await fetch(body.dataset.moment);
    const now = await answer.json();
    const away = answer.ok ? now.away : now.error.message, isOfStore = answer.ok || answer.status === 503;
    tell(away && (isOfStore ? "The store does not answer." : "The server of this page refuses to answer."), away);
    if (!answer.ok) return;
    $("#state time").textContent = now.clock;
    if (now.token !== body.dataset.token && !isTyping()) {
      const page = await fetch(location.href);
      if (!page.ok) return;
      const fresh = new DOMParser().parseFromString(await page.text(), "text/html");
      if (isTyping()) return;
      replaceMain(document.adoptNode($("#main", fresh)));
      body.dataset.token = now.token;
    }
  } catch {
    tell("The server of this page does not answer.", "");
  }
}

let chord = "";
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = {i: "incidents", m: "matrix", l: "live", c: "compare"};
  if (chord === "g" && views[event.key]) { const tab = $(`.bar nav a[href*="/${views[event.key]}"]`); if (tab) tab.click(); }
  chord = event.key === "g" ? "g" : "";
  const near = $(`[data-key="${CSS.escape(event.key)}"]`);
  if (near) near.click();
  if (event.key === "?") { const keys = $(".keys"); keys.scrollIntoView(); }
});
adorn();
if (document.body.dataset.poll) setInterval(follow, Number(document.body.dataset.poll));
document.addEventListener("visibilitychange", follow);
