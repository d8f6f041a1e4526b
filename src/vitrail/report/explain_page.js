"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const view = byId("view");
// What is shown: patch is null for the classifier's row, pinned keeps a patch after a tap or a click.
const state = { image: 0, method: "rollout", layer: 0, head: 0, patch: null, pinned: false };
let colours, shown;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load(index) {
  const image = data.images[index];
  if (!image.ready) {
    for (const field of ["read", "readRollout", "patches", "patchesRollout"]) image[field] = await inflate(image[field]);
    image.element = new Image();
    image.element.src = image.picture;
    await image.element.decode();
    image.ready = true;
  }
  state.image = index;
  state.patch = null;
  state.pinned = false;
  state.layer = Math.min(state.layer, image.layers.length - 1);
  state.head = Math.min(state.head, image.heads);
  shown = image;
  fill();
  draw();
}

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Head 0 is the mean, head i + 1 is head i.
function values() {
  const patches = shown.grid[0] * shown.grid[1];
  if (state.method === "rollout") {
    if (state.patch === null) return shown.readRollout;
    return shown.patchesRollout.subarray(state.patch * patches, (state.patch + 1) * patches);
  }
  if (state.patch === null) return readRow(state.layer, state.head);
  const heads = shown.hasHeads ? shown.heads + 1 : 1;
  const head = shown.hasHeads ? state.head : 0;
  const start = ((state.layer * heads + head) * patches + state.patch) * patches;
  return shown.patches.subarray(start, start + patches);
}

function readRow(layer, head) {
  const patches = shown.grid[0] * shown.grid[1];
  const start = (layer * (shown.heads + 1) + head) * patches;
  return shown.read.subarray(start, start + patches);
}

function heat(row, opacityOf) {
  const [rows, columns] = shown.grid;
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
  context.drawImage(heat(values(), (value) => value * opacity), 0, 0, view.width, view.height);
  if (state.patch !== null) {
    const [rows, columns] = shown.grid;
    const [height, width] = [view.height / rows, view.width / columns];
    const box = [(state.patch % columns) * width, Math.floor(state.patch / columns) * height, width, height];
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
  byId("layer-name").textContent = shown.layers[state.layer];
  for (const id of ["layer", "head"]) byId(id).parentElement.classList.toggle("off", !isLayer);
  const head = state.patch !== null && !shown.hasHeads ? "mean over heads, single heads left out for size" : headName(state.head);
  const what = isLayer ? `${shown.layers[state.layer]}, ${head}` : "rollout";
  const [, columns] = shown.grid;
  const who = state.patch === null ? shown.reader : `patch in row ${Math.floor(state.patch / columns)}, column ${state.patch % columns}`;
  byId("state").textContent = `${who}: ${what}${state.pinned ? " (pinned; click again to release)" : ""}`;
  for (const button of byId("sheet").querySelectorAll("button")) {
    button.ariaPressed = String(isLayer && +button.dataset.layer === state.layer && +button.dataset.head === state.head);
  }
}

function fill() {
  byId("name").textContent = shown.name;
  byId("reader").textContent = shown.reader;
  byId("layer").max = shown.layers.length - 1;
  byId("layer").value = state.layer;
  byId("head").replaceChildren(...Array.from({ length: shown.heads + 1 }, (_, head) => element("option", { value: head, textContent: headName(head) })));
  byId("head").value = state.head;
  byId("scores").replaceChildren(...shown.scores.map(([name, probability]) => {
    const bar = element("i");
    bar.style.width = `${100 * probability}%`;
    return element("tr", {}, [
      element("td", { textContent: name }),
      element("td", { className: "number", textContent: `${(100 * probability).toFixed(1)}%` }),
      element("td", { className: "bar" }, [bar]),
    ]);
  }));
  const sheet = byId("sheet");
  sheet.style.gridTemplateColumns = `auto repeat(${shown.heads + 1}, auto)`;
  const cells = [element("span", { className: "label" })];
  for (let head = 0; head <= shown.heads; head++) cells.push(element("span", { textContent: head ? `head ${head - 1}` : "mean" }));
  shown.layers.forEach((name, layer) => {
    cells.push(element("span", { className: "label", textContent: name }));
    for (let head = 0; head <= shown.heads; head++) {
      const button = element("button", { type: "button", ariaLabel: `${name}, ${headName(head)}` }, [heat(readRow(layer, head))]);
      Object.assign(button.dataset, { layer, head });
      button.onclick = () => choose(layer, head);
      cells.push(button);
    }
  });
  sheet.replaceChildren(...cells);
  byId("chooser").childNodes.forEach((button, i) => { button.ariaPressed = String(i === state.image); });
}

function choose(layer, head) {
  Object.assign(state, { method: "attention", layer, head });
  document.querySelector("[name=method][value=attention]").checked = true;
  byId("layer").value = layer;
  byId("head").value = head;
  draw();
}

function patchAt(event) {
  const frame = view.getBoundingClientRect();
  // object-fit: contain may leave a margin on two sides.
  const scale = Math.min(frame.width / view.width, frame.height / view.height);
  const left = frame.left + (frame.width - view.width * scale) / 2;
  const top = frame.top + (frame.height - view.height * scale) / 2;
  const [rows, columns] = shown.grid;
  const column = Math.floor(((event.clientX - left) / (view.width * scale)) * columns);
  const row = Math.floor(((event.clientY - top) / (view.height * scale)) * rows);
  return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : null;
}

function show(patch) {
  if (patch !== state.patch) {
    state.patch = patch;
    draw();
  }
}

view.onpointermove = (event) => { if (!state.pinned && event.pointerType === "mouse") show(patchAt(event)); };
view.onpointerleave = () => { if (!state.pinned) show(null); };
view.onclick = (event) => {
  const patch = patchAt(event);
  state.pinned = !(state.pinned && patch === state.patch) && patch !== null;
  state.patch = state.pinned || event.pointerType === "mouse" ? patch : null;
  draw();
};
view.onkeydown = (event) => {
  const [rows, columns] = shown.grid;
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (event.key === "Escape") {
    state.pinned = false;
    show(null);
  } else if (steps[event.key]) {
    event.preventDefault();
    const from = state.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const row = Math.min(rows - 1, Math.max(0, Math.floor(from / columns) + steps[event.key][0]));
    const column = Math.min(columns - 1, Math.max(0, (from % columns) + steps[event.key][1]));
    state.pinned = true;
    show(row * columns + column);
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
