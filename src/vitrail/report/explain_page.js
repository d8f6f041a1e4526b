"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const view = byId("view");
// What is shown: point is null for the classifier's row, otherwise a place in the image as shares of its height and
// width, since every layer has its own grid; pinned keeps it after a tap or a click. Head 0 is the mean.
const state = { image: 0, method: "rollout", layer: 0, head: 0, point: null, pinned: false };
let colours, shown;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load(index) {
  const image = data.images[index];
  if (!image.ready) {
    for (const layer of [...image.layers, ...(image.rollout ? [image.rollout] : [])]) {
      for (const field of ["mean", "heads", "readMean", "readHeads"]) {
        if (layer[field] !== null) layer[field] = await inflate(layer[field]);
      }
    }
    image.element = new Image();
    image.element.src = image.picture;
    await image.element.decode();
    image.ready = true;
  }
  state.image = index;
  state.point = null;
  state.pinned = false;
  state.layer = Math.min(state.layer, image.layers.length - 1);
  if (!image.rollout) state.method = "attention";
  shown = image;
  fill();
  draw();
}

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function current() {
  return state.method === "rollout" ? shown.rollout : shown.layers[state.layer];
}

// The number of the patch of a layer's queries that holds a point.
function patchOf(layer, point) {
  const [row, column] = point.map((share, axis) => Math.min(layer.queryGrid[axis] - 1, Math.floor(share * layer.queryGrid[axis])));
  return row * layer.queryGrid[1] + column;
}

function values() {
  const layer = current();
  const head = state.method === "rollout" ? 0 : state.head;
  if (state.point === null) return readRow(layer, head);
  const keys = layer.grid[0] * layer.grid[1];
  const patch = patchOf(layer, state.point);
  if (head === 0 || layer.heads === null) return layer.mean.subarray(patch * keys, (patch + 1) * keys);
  const start = ((head - 1) * layer.queryGrid[0] * layer.queryGrid[1] + patch) * keys;
  return layer.heads.subarray(start, start + keys);
}

function readRow(layer, head) {
  const keys = layer.grid[0] * layer.grid[1];
  return head === 0 ? layer.readMean : layer.readHeads.subarray((head - 1) * keys, head * keys);
}

function heat(row, [rows, columns], opacityOf) {
  const canvas = element("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  row.forEach((value, i) => {
    const colour = opacityOf ? Math.round(64 + value * 0.749) : value;
    for (let channel = 0; channel < 3; channel++) pixels.data[4 * i + channel] = colours[3 * colour + channel];
    pixels.data[4 * i + 3] = opacityOf ? opacityOf(value) : 255;
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function draw() {
  const layer = current();
  const scale = Math.max(1, Math.ceil(560 / Math.max(shown.width, shown.height)));
  view.width = shown.width * scale;
  view.height = shown.height * scale;
  const context = view.getContext("2d");
  context.imageSmoothingEnabled = shown.width >= 128;
  // The heat must stand out from the picture: it takes away half of its colour and a third of its light.
  context.filter = "saturate(50%) brightness(65%)";
  context.drawImage(shown.element, 0, 0, view.width, view.height);
  context.filter = "none";
  context.imageSmoothingEnabled = byId("smooth").checked;
  context.imageSmoothingQuality = "high";
  const opacity = byId("opacity").value / 100;
  context.drawImage(heat(values(), layer.grid, (value) => value * opacity), 0, 0, view.width, view.height);
  if (state.point !== null) {
    const [rows, columns] = layer.queryGrid;
    const [height, width] = [view.height / rows, view.width / columns];
    const patch = patchOf(layer, state.point);
    const box = [(patch % columns) * width, Math.floor(patch / columns) * height, width, height];
    for (const [colour, line] of [["#000", 5], ["#fff", 2.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(...box);
    }
  }
  describe();
}

function headName(head) {
  return head === 0 ? "mean over heads" : `head ${head - 1}`;
}

function describe() {
  const isLayer = state.method === "attention";
  const layer = current();
  byId("layer-name").textContent = shown.layers[state.layer].name;
  for (const id of ["layer", "head"]) byId(id).parentElement.classList.toggle("off", !isLayer);
  const isMean = state.point !== null && state.head > 0 && layer.heads === null;
  const head = isMean ? "mean over heads, single heads left out for size" : headName(state.head);
  const what = isLayer ? `${layer.name}, ${head}, ${layer.grid.join(" x ")} keys` : "rollout";
  const patch = state.point === null ? null : patchOf(layer, state.point);
  const columns = layer.queryGrid[1];
  const who = patch === null ? layer.reader : `patch in row ${Math.floor(patch / columns)}, column ${patch % columns}`;
  byId("state").textContent = `${who}: ${what}${state.pinned ? " (pinned; click again to release)" : ""}`;
  for (const button of byId("sheet").querySelectorAll("button")) {
    button.ariaPressed = String(isLayer && +button.dataset.layer === state.layer && +button.dataset.head === state.head);
  }
}

function fill() {
  byId("name").textContent = shown.name;
  byId("reader").textContent = shown.reader;
  byId("rollout").hidden = shown.rollout === null;
  byId("no-rollout").hidden = shown.rollout !== null;
  document.querySelector(`[name=method][value=${state.method}]`).checked = true;
  byId("layer").max = shown.layers.length - 1;
  byId("layer").value = state.layer;
  fillHeads();
  byId("scores").replaceChildren(...shown.scores.map(([name, probability]) => {
    const bar = element("i");
    bar.style.width = `${100 * probability}%`;
    return element("tr", {}, [
      element("td", { textContent: name }),
      element("td", { className: "number", textContent: `${(100 * probability).toFixed(1)}%` }),
      element("td", { className: "bar" }, [bar]),
    ]);
  }));
  fillSheet();
  byId("chooser").childNodes.forEach((button, i) => { button.ariaPressed = String(i === state.image); });
}

// Layers may differ in their number of heads.
function fillHeads() {
  const { numHeads } = shown.layers[state.layer];
  state.head = Math.min(state.head, numHeads);
  byId("head").replaceChildren(...Array.from({ length: numHeads + 1 }, (_, head) => element("option", { value: head, textContent: headName(head) })));
  byId("head").value = state.head;
}

function fillSheet() {
  const sheet = byId("sheet");
  const most = Math.max(...shown.layers.map((layer) => layer.numHeads));
  sheet.style.gridTemplateColumns = `auto repeat(${most + 1}, auto)`;
  const cells = [element("span", { className: "label" })];
  for (let head = 0; head <= most; head++) cells.push(element("span", { textContent: head ? `head ${head - 1}` : "mean" }));
  shown.layers.forEach((layer, index) => {
    cells.push(element("span", { className: "label", textContent: layer.name }));
    for (let head = 0; head <= most; head++) {
      if (head > layer.numHeads) {
        cells.push(element("span"));
        continue;
      }
      const button = element("button", { type: "button", ariaLabel: `${layer.name}, ${headName(head)}` }, [heat(readRow(layer, head), layer.grid)]);
      Object.assign(button.dataset, { layer: index, head });
      button.onclick = () => choose(index, head);
      cells.push(button);
    }
  });
  sheet.replaceChildren(...cells);
}

function choose(layer, head) {
  Object.assign(state, { method: "attention", layer, head });
  document.querySelector("[name=method][value=attention]").checked = true;
  byId("layer").value = layer;
  fillHeads();
  draw();
}

function pointAt(event) {
  const frame = view.getBoundingClientRect();
  // object-fit: contain may leave a margin on two sides.
  const scale = Math.min(frame.width / view.width, frame.height / view.height);
  const left = frame.left + (frame.width - view.width * scale) / 2;
  const top = frame.top + (frame.height - view.height * scale) / 2;
  const point = [(event.clientY - top) / (view.height * scale), (event.clientX - left) / (view.width * scale)];
  return point.every((share) => share >= 0 && share < 1) ? point : null;
}

function isSamePatch(point, other) {
  if (point === null || other === null) return point === other;
  return patchOf(current(), point) === patchOf(current(), other);
}

function show(point) {
  const isSame = isSamePatch(point, state.point);
  state.point = point;
  if (!isSame) draw();
}

view.onpointermove = (event) => { if (!state.pinned && event.pointerType === "mouse") show(pointAt(event)); };
view.onpointerleave = () => { if (!state.pinned) show(null); };
view.onclick = (event) => {
  const point = pointAt(event);
  state.pinned = !(state.pinned && isSamePatch(point, state.point)) && point !== null;
  state.point = state.pinned || event.pointerType === "mouse" ? point : null;
  draw();
};
view.onkeydown = (event) => {
  const [rows, columns] = current().queryGrid;
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (event.key === "Escape") {
    state.pinned = false;
    show(null);
  } else if (steps[event.key]) {
    event.preventDefault();
    const from = patchOf(current(), state.point ?? [0.5, 0.5]);
    const row = Math.min(rows - 1, Math.max(0, Math.floor(from / columns) + steps[event.key][0]));
    const column = Math.min(columns - 1, Math.max(0, (from % columns) + steps[event.key][1]));
    state.pinned = true;
    show([(row + 0.5) / rows, (column + 0.5) / columns]);
  }
};
for (const radio of document.getElementsByName("method")) {
  radio.onchange = () => { state.method = radio.value; draw(); };
}
byId("layer").oninput = (event) => choose(+event.target.value, state.head);
byId("head").onchange = (event) => choose(state.layer, +event.target.value);
byId("opacity").oninput = draw;
byId("smooth").onchange = draw;
if (data.images.length > 1) {
  byId("chooser").append(...data.images.map((image, i) => {
    const button = element("button", { type: "button", title: image.name }, [element("img", { src: image.picture, alt: image.name })]);
    button.onclick = () => load(i);
    return button;
  }));
}
inflate(data.colours).then((table) => {
  colours = table;
  state.layer = data.images[0].layers.length - 1;
  return load(0);
}).catch((error) => { byId("lead").textContent = `This page needs a browser of 2023 or later (${error}).`; });
