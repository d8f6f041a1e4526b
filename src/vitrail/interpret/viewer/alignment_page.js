"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const map = byId("map");
const SIDES = {
  cross: { name: "translation to sentence", rows: "written", columns: "source" },
  source: { name: "sentence to itself", rows: "source", columns: "source" },
  target: { name: "translation to itself", rows: "written", columns: "read" },
};
const [SMALLEST_CELL, LARGEST_CELL, LONGEST_LABEL, STRONG] = [11, 26, 18, 0.8];
// Layer is a place among all layers; head 0 is the mean over heads; row is null where none is highlighted.
const state = { text: 0, layer: 0, head: 0, row: null, column: null, pinned: false };
let shown, frame;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load(index) {
  const text = data.texts[index];
  if (!text.ready) {
    for (const layer of text.layers) {
      layer.mean = await inflate(layer.mean);
      if (layer.heads !== null) layer.heads = await inflate(layer.heads);
    }
    text.ready = true;
  }
  shown = text;
  Object.assign(state, { text: index, layer: text.firstShown, head: 0, row: null, column: null, pinned: false });
  byId("text").value = index;
  fillSides();
  fillPieces();
  choose(state.layer, state.head);
}

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function svg(name, attributes = {}, content = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content) made.textContent = content;
  return made;
}

function piecesOf(layer) {
  const { rows, columns } = SIDES[layer.side];
  return [shown.pieces[rows], shown.pieces[columns]];
}

// The stored bytes are roots of the weights.
function bytesOf(layer, head) {
  if (head === 0) return layer.mean;
  const [rows, columns] = piecesOf(layer);
  const size = rows.length * columns.length;
  return layer.heads.subarray((head - 1) * size, head * size);
}

function weight(row, column) {
  const layer = shown.layers[state.layer];
  const [, columns] = piecesOf(layer);
  return (bytesOf(layer, state.head)[row * columns.length + column] / 255) ** 2;
}

function accent() {
  return getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").split(",").map(Number);
}

// Paint a map in the accent colour, the weight as its opacity, so that it reads on light and on dark.
function paint(layer, head) {
  const [rows, columns] = piecesOf(layer).map((pieces) => pieces.length);
  const canvas = element("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  const colour = accent();
  bytesOf(layer, head).forEach((value, i) => pixels.data.set([...colour, value], 4 * i));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function headName(layer, head) {
  if (head) return `head ${head - 1}`;
  return layer.numHeads === 0 ? "mean over heads, single heads left out for size" : layer.numHeads === 1 ? "its one head" : "mean over heads";
}

function choose(layer, head) {
  const chosen = shown.layers[layer];
  const isOtherSide = chosen.side !== shown.layers[state.layer].side;
  Object.assign(state, { layer, head: Math.min(head, chosen.numHeads === 1 ? 0 : chosen.numHeads) });
  if (isOtherSide) Object.assign(state, { row: null, column: null, pinned: false });
  fillChoices();
  fillSheet();
  draw();
}

function fillSides() {
  const present = Object.keys(SIDES).filter((side) => shown.layers.some((layer) => layer.side === side));
  byId("side").replaceChildren(...present.map((side) => element("option", { value: side, textContent: SIDES[side].name })));
  byId("side").parentElement.hidden = present.length < 2;
}

function fillChoices() {
  const current = shown.layers[state.layer];
  byId("side").value = current.side;
  byId("layer").replaceChildren(...shown.layers.flatMap((layer, index) =>
    layer.side === current.side ? [element("option", { value: index, textContent: layer.name })] : []));
  byId("layer").value = state.layer;
  const heads = current.numHeads === 1 ? 1 : current.numHeads + 1;
  byId("head").replaceChildren(...Array.from({ length: heads }, (_, head) => element("option", { value: head, textContent: headName(current, head) })));
  byId("head").value = state.head;
  byId("note").textContent = state.layer === shown.firstShown ? shown.note : "";
}

function fillPieces() {
  for (const [id, pieces] of [["source", shown.pieces.source], ["target", shown.pieces.written]]) {
    byId(id).replaceChildren(...pieces.map((piece) => element("span", { textContent: piece, dir: "auto" })));
  }
  byId("target").childNodes.forEach((span, row) => {
    span.onpointerenter = () => { if (isCross() && !state.pinned) highlight(row, null); };
    span.onpointerleave = () => { if (isCross() && !state.pinned) highlight(null, null); };
    span.onclick = () => { if (isCross()) pin(row); };
  });
}

function isCross() {
  return shown.layers[state.layer].side === "cross";
}

function fillSheet() {
  const sheet = byId("sheet");
  const current = shown.layers[state.layer];
  const layers = shown.layers.map((layer, index) => [layer, index]).filter(([layer]) => layer.side === current.side);
  const most = Math.max(...layers.map(([layer]) => (layer.numHeads === 1 ? 0 : layer.numHeads)));
  sheet.style.gridTemplateColumns = `auto repeat(${most + 1}, auto)`;
  const cells = [element("span", { className: "label" })];
  for (let head = 0; head <= most; head++) cells.push(element("span", { textContent: head ? `head ${head - 1}` : most ? "mean" : "" }));
  for (const [layer, index] of layers) {
    cells.push(element("span", { className: "label", textContent: layer.name }));
    for (let head = 0; head <= most; head++) {
      if (head > (layer.numHeads === 1 ? 0 : layer.numHeads)) {
        cells.push(element("span"));
        continue;
      }
      const isShown = index === state.layer && head === state.head;
      const button = element("button", { type: "button", ariaPressed: String(isShown), ariaLabel: `${layer.name}, ${headName(layer, head)}` }, [paint(layer, head)]);
      button.onclick = () => choose(index, head);
      cells.push(button);
    }
  }
  sheet.replaceChildren(...cells);
}

function shorten(piece) {
  const letters = [...piece];
  return letters.length <= LONGEST_LABEL ? piece : `${letters.slice(0, LONGEST_LABEL - 1).join("")}\u2026`;
}

function label(piece, attributes) {
  const made = svg("text", attributes, shorten(piece));
  made.append(svg("title", {}, piece));
  return made;
}

function draw() {
  const layer = shown.layers[state.layer];
  const [rows, columns] = piecesOf(layer);
  const widest = (pieces, size) => 12 + 0.62 * size * Math.max(...pieces.map((piece) => [...shorten(piece)].length));
  const room = map.parentElement.clientWidth;
  const left = Math.ceil(widest(rows, 13));
  const cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, Math.floor((room - left - 2) / columns.length)));
  const size = Math.min(13, cell);
  const top = Math.ceil(widest(columns, size));
  frame = { left, top, cell, rows: rows.length, columns: columns.length };
  const [width, height] = [left + cell * columns.length + 2, top + cell * rows.length + 2];
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) map.setAttribute(key, value);
  const box = { x: left, y: top, width: cell * columns.length, height: cell * rows.length };
  const href = paint(layer, state.head).toDataURL();
  const middle = (i) => (i + 0.5) * cell;
  map.replaceChildren(
    svg("image", { ...box, href, preserveAspectRatio: "none" }),
    svg("rect", { ...box, class: "frame" }),
    ...rows.map((piece, i) => label(piece, { x: left - 6, y: top + middle(i), "text-anchor": "end", "dominant-baseline": "central", "font-size": size, "data-row": i })),
    ...columns.map((piece, i) => label(piece, { transform: `translate(${left + middle(i)} ${top - 6}) rotate(-90)`, "dominant-baseline": "central", "font-size": size, "data-column": i })),
    svg("rect", { class: "row", visibility: "hidden" }),
    svg("rect", { class: "column", visibility: "hidden" }),
  );
  highlight(state.row, state.column);
}

function highlight(row, column) {
  Object.assign(state, { row, column });
  const { left, top, cell, rows, columns } = frame;
  place(map.querySelector(".row"), row, { x: left, y: top + cell * row, width: cell * columns, height: cell });
  place(map.querySelector(".column"), column, { x: left + cell * column, y: top, width: cell, height: cell * rows });
  for (const text of map.querySelectorAll("text")) {
    const { row: ofRow, column: ofColumn } = text.dataset;
    text.classList.toggle("current", ofRow === undefined ? +ofColumn === column : +ofRow === row);
  }
  shadePieces();
  describe();
}

function place(rectangle, index, box) {
  rectangle.setAttribute("visibility", index === null ? "hidden" : "visible");
  if (index !== null) for (const [key, value] of Object.entries(box)) rectangle.setAttribute(key, value);
}

// The row's weights over the pieces of the sentence itself, above the map.
function shadePieces() {
  const { side } = shown.layers[state.layer];
  const asking = byId(side === "source" ? "source" : "target");
  const read = side === "target" ? null : byId("source");
  for (const span of document.querySelectorAll(".pieces span")) {
    span.style.removeProperty("--share");
    span.className = "";
  }
  if (state.row === null) return;
  asking.childNodes[state.row].classList.add("current");
  read?.childNodes.forEach((span, column) => {
    const share = weight(state.row, column);
    span.style.setProperty("--share", Math.sqrt(share).toFixed(3));
    span.classList.toggle("strong", Math.sqrt(share) > STRONG);
  });
}

function describe() {
  const layer = shown.layers[state.layer];
  const where = `${layer.name}, ${headName(layer, state.head)}`;
  if (state.row === null) {
    byId("state").textContent = where;
    return;
  }
  const [rows, columns] = piecesOf(layer);
  const order = columns.map((_, column) => column).sort((a, b) => weight(state.row, b) - weight(state.row, a));
  const named = state.column === null ? order.slice(0, 3) : [state.column];
  const read = named.map((column) => `${columns[column]} ${weight(state.row, column).toFixed(2)}`).join(", ");
  byId("state").textContent = `${rows[state.row]} reads ${read} \u00b7 ${where}${state.pinned ? " (pinned; click again to release)" : ""}`;
}

function cellAt(event) {
  const { left, top, width } = map.getBoundingClientRect();
  const scale = +map.getAttribute("width") / width;
  const row = Math.floor(((event.clientY - top) * scale - frame.top) / frame.cell);
  const column = Math.floor(((event.clientX - left) * scale - frame.left) / frame.cell);
  if (row < 0 || row >= frame.rows || column >= frame.columns) return null;
  return [row, column < 0 ? null : column];
}

function pin(row) {
  state.pinned = !(state.pinned && row === state.row);
  highlight(row, null);
}

map.onpointermove = (event) => {
  if (event.pointerType !== "mouse") return;
  const [row, column] = cellAt(event) ?? [null, null];
  if (!state.pinned) highlight(row, column);
  else if (row === state.row) highlight(row, column);
};
map.onpointerleave = () => highlight(state.pinned ? state.row : null, null);
map.onclick = (event) => {
  const cell = cellAt(event);
  if (cell !== null) pin(cell[0]);
};
map.onkeydown = (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (event.key === "Escape") {
    state.pinned = false;
    highlight(null, null);
  } else if (step) {
    event.preventDefault();
    state.pinned = true;
    highlight(state.row === null ? 0 : Math.min(frame.rows - 1, Math.max(0, state.row + step)), null);
  }
};
byId("side").onchange = (event) => choose(lastOf(event.target.value), state.head);
byId("layer").onchange = (event) => choose(+event.target.value, state.head);
byId("head").onchange = (event) => choose(state.layer, +event.target.value);
byId("text").onchange = (event) => load(+event.target.value);
matchMedia("(prefers-color-scheme:dark)").onchange = () => {
  if (!shown) return;
  fillSheet();
  draw();
};
addEventListener("resize", () => { if (frame) draw(); });
if (data.texts.length > 1) {
  byId("chooser").hidden = false;
  byId("text").append(...data.texts.map((text, i) => element("option", { value: i, textContent: `${i + 1}. ${text.source}` })));
}

// What a side shows first: the layer shown first of all, or the side's last.
function lastOf(side) {
  if (shown.layers[shown.firstShown].side === side) return shown.firstShown;
  return shown.layers.findLastIndex((layer) => layer.side === side);
}

if (data.texts.length) load(0).catch((error) => { byId("lead").textContent = `This page needs a browser of 2023 or later (${error}).`; });
