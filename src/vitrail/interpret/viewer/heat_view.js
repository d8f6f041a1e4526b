"use strict";
// What pages share that lay heat over a picture: data, drawing, the place under a pointer, tiles of layers and heads.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const view = byId("view");
let colours;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const ready = inflate(data.colours).then((table) => { colours = table; });

async function unpack(image, layers, fields) {
  await ready;
  if (image.element) return;
  for (const layer of layers) {
    for (const field of fields) if (layer[field] !== null) layer[field] = await inflate(layer[field]);
  }
  image.element = new Image();
  image.element.src = image.picture;
  await image.element.decode();
}

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function headName(head) {
  return head === 0 ? "mean over heads" : `head ${head - 1}`;
}

// What one query of a layer attends to; head 0 is the mean, which also stands for heads that were left out for size.
function rowOf(layer, head, query) {
  const keys = layer.grid[0] * layer.grid[1];
  if (head === 0 || layer.heads === null) return layer.mean.subarray(query * keys, (query + 1) * keys);
  const queries = layer.mean.length / keys;
  const start = ((head - 1) * queries + query) * keys;
  return layer.heads.subarray(start, start + keys);
}

// The number of the patch of a layer's queries that holds a point: shares of the image's height and width.
function patchOf(layer, point) {
  const [row, column] = point.map((share, axis) => Math.min(layer.queryGrid[axis] - 1, Math.floor(share * layer.queryGrid[axis])));
  return row * layer.queryGrid[1] + column;
}

function patchName(layer, patch) {
  return `patch in row ${Math.floor(patch / layer.queryGrid[1])}, column ${patch % layer.queryGrid[1]}`;
}

// The middle of the neighbouring patch in the direction of an arrow key; null for another key.
function neighbour(layer, point, key) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  if (!step) return null;
  const [rows, columns] = layer.queryGrid;
  const from = patchOf(layer, point ?? [0.5, 0.5]);
  const row = Math.min(rows - 1, Math.max(0, Math.floor(from / columns) + step[0]));
  const column = Math.min(columns - 1, Math.max(0, (from % columns) + step[1]));
  return [(row + 0.5) / rows, (column + 0.5) / columns];
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

// Draw the picture, under heat where there is any: bytes of a row and their grid.
function drawPicture(image, row, grid) {
  const scale = Math.max(1, Math.ceil(560 / Math.max(image.width, image.height)));
  view.width = image.width * scale;
  view.height = image.height * scale;
  const context = view.getContext("2d");
  context.imageSmoothingEnabled = image.width >= 128;
  // The heat must stand out from the picture: it takes away half of its colour and a third of its light.
  if (row) context.filter = "saturate(50%) brightness(65%)";
  context.drawImage(image.element, 0, 0, view.width, view.height);
  context.filter = "none";
  if (!row) return context;
  context.imageSmoothingEnabled = byId("smooth").checked;
  context.imageSmoothingQuality = "high";
  const opacity = byId("opacity").value / 100;
  context.drawImage(heat(row, grid, (value) => value * opacity), 0, 0, view.width, view.height);
  return context;
}

// Frame left, top, width and height in pixels of the view.
function frame(context, box, lines = [["#000", 5], ["#fff", 2.5]]) {
  for (const [colour, line] of lines) {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(...box);
  }
}

function framePatch(context, layer, point) {
  const [rows, columns] = layer.queryGrid;
  const [height, width] = [view.height / rows, view.width / columns];
  const patch = patchOf(layer, point);
  frame(context, [(patch % columns) * width, Math.floor(patch / columns) * height, width, height]);
}

function pointAt(event) {
  const place = view.getBoundingClientRect();
  // object-fit: contain may leave a margin on two sides.
  const scale = Math.min(place.width / view.width, place.height / view.height);
  const left = place.left + (place.width - view.width * scale) / 2;
  const top = place.top + (place.height - view.height * scale) / 2;
  const point = [(event.clientY - top) / (view.height * scale), (event.clientX - left) / (view.width * scale)];
  return point.every((share) => share >= 0 && share < 1) ? point : null;
}

function fillHeads(numHeads, head) {
  byId("head").replaceChildren(...Array.from({ length: numHeads + 1 }, (_, each) => element("option", { value: each, textContent: headName(each) })));
  byId("head").value = head;
}

// A tile for each layer and head: which row is shown in it, and what choosing it does.
function fillSheet(layers, rowFor, choose) {
  const sheet = byId("sheet");
  const most = Math.max(0, ...layers.map((layer) => layer.numHeads));
  sheet.style.gridTemplateColumns = `auto repeat(${most + 1}, auto)`;
  const cells = [element("span", { className: "label" })];
  for (let head = 0; head <= most; head++) cells.push(element("span", { textContent: head ? `head ${head - 1}` : "mean" }));
  layers.forEach((layer, index) => {
    cells.push(element("span", { className: "label", textContent: layer.name }));
    for (let head = 0; head <= most; head++) {
      if (head > layer.numHeads) {
        cells.push(element("span"));
        continue;
      }
      const button = element("button", { type: "button", ariaLabel: `${layer.name}, ${headName(head)}` }, [heat(rowFor(layer, head), layer.grid)]);
      Object.assign(button.dataset, { layer: index, head });
      button.onclick = () => choose(index, head);
      cells.push(button);
    }
  });
  sheet.replaceChildren(...cells);
}

// Paint other rows into the tiles that there are.
function paintSheet(layers, rowFor) {
  for (const button of byId("sheet").querySelectorAll("button")) {
    const layer = layers[button.dataset.layer];
    button.replaceChildren(heat(rowFor(layer, +button.dataset.head), layer.grid));
  }
}

// A table's rows of classes, each with its probability as a bar.
function scoreRows(scores) {
  return scores.map(([name, probability]) => {
    const bar = element("i");
    bar.style.width = `${100 * probability}%`;
    return element("tr", {}, [
      element("td", { textContent: name }),
      element("td", { className: "number", textContent: `${(100 * probability).toFixed(1)}%` }),
      element("td", { className: "bar" }, [bar]),
    ]);
  });
}

function pressTile(layer, head) {
  for (const button of byId("sheet").querySelectorAll("button")) {
    button.ariaPressed = String(+button.dataset.layer === layer && +button.dataset.head === head);
  }
}

function fillChooser(load) {
  if (data.images.length < 2) return;
  byId("chooser").replaceChildren(...data.images.map((image, i) => {
    const button = element("button", { type: "button", title: image.name }, [element("img", { src: image.picture, alt: image.name })]);
    button.onclick = () => load(i);
    return button;
  }));
}

function pressChooser(index) {
  byId("chooser").childNodes.forEach((button, i) => { button.ariaPressed = String(i === index); });
}

function start(load) {
  fillChooser(load);
  const first = data.images.length ? load(0) : ready; // others may come later
  first.catch((error) => { byId("lead").textContent = `This page needs a browser of 2023 or later (${error}).`; });
}
