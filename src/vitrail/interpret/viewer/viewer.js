"use strict";
// One viewer for every explanation. A view is a list of layers between two sides: what asks (queries: a grid of patches,
// boxes or words) and what is read (keys: a grid over the picture, drawn as heat on it, or words, drawn as a matrix).
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const view = byId("view");
const map = byId("map");
const STEP_MS = 900;
const [SMALLEST_CELL, LARGEST_CELL, LONGEST_LABEL, STRONG] = [11, 26, 18, 0.8];
const LEADS = {
  grid: "Hover over the image, or tap it, to see what that patch attends to. Escape shows what the whole model reads.",
  boxes: "Hover over a box, or tap it, to see what its detection was read from. Escape shows the boxes alone.",
  tokens: "Hover over a word, or tap it, to see what it was read from. Arrow keys go from word to word.",
};
const ENCODER_LEAD = " Tap outside the boxes to see where the encoder attends from there.";
// A query is the number of a box or word, or a point of the picture as shares of its height and width, since every layer
// has its own grid. The chosen one stays, a hovered one is shown meanwhile; null is what the model reads as a whole, or
// the picture alone. Head 0 is the mean. What a reader has picked stays from explanation to explanation.
const state = { index: 0, view: 0, layer: 0, head: 0, chosen: null, hovered: null, column: null, isPicked: false };
let shown = null;
let colours, frameOfMap;
let playing = null;

const viewOf = () => shown.views[state.view];
const layerOf = () => viewOf().layers[state.layer];
const subject = () => state.hovered ?? state.chosen;
const isPicture = (each) => each.keys.kind === "grid";
const isLoss = (each) => each.name === "occlusion" && !isPicture(each);
// Maps of one layer alone have the tiles of all layers below them.
const sheetOf = () => viewOf().layers.length > 1 ? viewOf() : shown.views.find((each) => each.name === "attention") ?? viewOf();
const findView = (test) => shown.views.findIndex(test);

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpack(explanation) {
  if (explanation.isReady) return;
  colours ??= await inflate(data.colours);
  for (const layer of explanation.views.flatMap((each) => each.layers)) {
    for (const field of ["mean", "heads", "readMean", "readHeads"]) if (layer[field] !== null) layer[field] = await inflate(layer[field]);
  }
  if (explanation.picture !== null) {
    explanation.element = new Image();
    explanation.element.src = explanation.picture;
    await explanation.element.decode();
  }
  explanation.isReady = true;
}

async function load(index) {
  stop();
  const explanation = data.explanations[index];
  await unpack(explanation);
  const before = shown === null || !state.isPicked ? -1 : explanation.views.findIndex((each) => each.name === viewOf().name);
  shown = explanation;
  state.index = index;
  if (before < 0) return showView(shown.first, false);
  Object.assign(state, { view: before, layer: Math.min(state.layer, shown.views[before].layers.length - 1), chosen: firstQuery(shown.views[before]), hovered: null });
  fill();
}

function showView(index, isPicked = true) {
  const kept = shown.views[index].queries?.kind === "grid" && Array.isArray(state.chosen) && isPicked ? state.chosen : firstQuery(shown.views[index]);
  Object.assign(state, { view: index, layer: shown.views[index].first, head: shown.views[index].firstHead ?? 0, chosen: kept, hovered: null, column: null, isPicked: isPicked || state.isPicked });
  fill();
}

// Before anything is chosen: the first box or word, the middle of a grid that nothing stands for, or the whole.
function firstQuery(each) {
  if (each.queries === null || !isPicture(each)) return null;
  if (each.queries.kind !== "grid") return 0;
  return each.layers[each.first].readMean === null ? [0.5, 0.5] : null;
}

// ---- weights ----

const numKeys = (each, layer) => layer.grid === null ? each.keys.texts.length : layer.grid[0] * layer.grid[1];

// What a query attends to; head 0 is the mean, which also stands for heads that were left out for size.
function rowOf(each, layer, head, query) {
  const keys = numKeys(each, layer);
  if (query === null) return head === 0 || layer.readHeads === null ? layer.readMean : layer.readHeads.subarray((head - 1) * keys, head * keys);
  const row = Array.isArray(query) ? patchOf(layer, query) : query;
  if (head === 0 || layer.heads === null) return layer.mean.subarray(row * keys, (row + 1) * keys);
  const start = ((head - 1) * (layer.mean.length / keys) + row) * keys;
  return layer.heads.subarray(start, start + keys);
}

// Between words the stored bytes are roots of the weights.
const weight = (row, column) => (rowOf(viewOf(), layerOf(), state.head, row)[column] / 255) ** 2;

// The doublings of even attention that a byte of 255 stands for; 0 where it stands for the largest value.
function topOf(layer, head, query) {
  const [mean, heads] = query === null ? ["readMean", "readHeads"] : ["mean", "heads"];
  return layer.tops[head === 0 || layer[heads] === null ? mean : heads] ?? 0;
}

const times = (row, top) => 2 ** (row.reduce((most, value) => Math.max(most, value), 0) * top / 255);

// The brightest colour of one map, in multiples of even attention: as in its picture.
function brightOf(each, layer, head, query) {
  const row = rowOf(each, layer, head, query);
  return Math.max(data.leastBright, row ? times(row, topOf(layer, head, query)) : 0);
}

// The brightest colour of all tiles that are shown together.
function brightest(each, query) {
  return Math.max(...each.layers.flatMap((layer) => Array.from({ length: headsShown(layer) + 1 }, (_, head) => brightOf(each, layer, head, query))));
}

const headsShown = (layer) => layer.numHeads > 1 && (layer.heads ?? layer.readHeads) !== null ? layer.numHeads : 0;

function headName(layer, head) {
  if (layer.numHeads < 2) return "";
  const kept = subject() === null ? layer.readHeads ?? layer.heads : layer.heads;
  return kept === null ? "mean over heads, single heads left out for size" : head ? `head ${head}` : "mean over heads";
}

// The number of the patch of a layer's queries that holds a point.
function patchOf(layer, point) {
  const [row, column] = point.map((share, axis) => Math.min(layer.queryGrid[axis] - 1, Math.floor(share * layer.queryGrid[axis])));
  return row * layer.queryGrid[1] + column;
}

function nameOf(each, layer, query) {
  if (query === null) return layer.reader ?? "";
  if (!Array.isArray(query)) return each.queries.texts[query];
  const patch = patchOf(layer, query);
  return `patch in row ${Math.floor(patch / layer.queryGrid[1]) + 1}, column ${(patch % layer.queryGrid[1]) + 1}`;
}

// ---- heat over a picture ----

// From even attention, dark, to the brightest; what speaks for a class is stored as it is drawn.
function shades(row, top, bright) {
  return top ? row.map((value) => Math.max(0, Math.min(255, 255 * (2 ** (value * top / 255) - 1) / (bright - 1)))) : row;
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

function drawPicture() {
  const [now, layer] = [subject(), layerOf()];
  const row = rowOf(viewOf(), layer, state.head, now);
  const { width, height } = shown.element;
  const scale = Math.max(1, Math.ceil(560 / Math.max(width, height)));
  [view.width, view.height] = [width * scale, height * scale];
  const context = view.getContext("2d");
  context.imageSmoothingEnabled = width >= 128;
  // The heat must stand out from the picture: it takes away half of its colour and a third of its light.
  if (row) context.filter = "saturate(50%) brightness(65%)";
  context.drawImage(shown.element, 0, 0, view.width, view.height);
  context.filter = "none";
  if (row) {
    context.imageSmoothingEnabled = byId("smooth").checked;
    context.imageSmoothingQuality = "high";
    const opacity = byId("opacity").value / 100;
    context.drawImage(tile(viewOf(), layer, state.head, brightOf(viewOf(), layer, state.head, now), (value) => value * opacity), ...inPixels(shown.crop));
  }
  if (shown.crop.join() !== "0,0,1,1") markCrop(context, inPixels(shown.crop));
  const boxes = boxesOf();
  if (boxes) drawBoxes(context, boxes, viewOf().queries === boxes ? now : -1);
  if (Array.isArray(now)) framePatch(context, layer, now);
}

// What the model does not see is dark.
function markCrop(context, box) {
  context.beginPath();
  context.rect(0, 0, view.width, view.height);
  context.rect(...box);
  context.fillStyle = "#0009";
  context.fill("evenodd");
  frame(context, box, [["#fff", 2]]);
}

const boxesOf = () => shown.views.find((each) => each.queries?.kind === "boxes")?.queries ?? null;

function drawBoxes(context, boxes, now) {
  const size = view.width / 560;
  if (now === null || byId("outlines").checked) {
    context.globalAlpha = now === null ? 1 : 0.6;
    boxes.corners.toReversed().forEach((corners, i) => frame(context, inPixels(corners), [["#000a", 4 * size], [boxes.colours.at(-1 - i), 2 * size]]));
    context.globalAlpha = 1;
  }
  if (now !== null && now >= 0) frame(context, inPixels(boxes.corners[now]), [["#000", 7 * size], ["#fff", 5 * size], [boxes.colours[now], 2.5 * size]]);
}

function inPixels([left, top, right, bottom]) {
  return [left * view.width, top * view.height, (right - left) * view.width, (bottom - top) * view.height];
}

function frame(context, box, lines = [["#000", 5], ["#fff", 2.5]]) {
  for (const [colour, line] of lines) {
    Object.assign(context, { strokeStyle: colour, lineWidth: line });
    context.strokeRect(...box);
  }
}

function framePatch(context, layer, point) {
  const [rows, columns] = layer.queryGrid;
  const patch = patchOf(layer, point);
  const [row, column] = [Math.floor(patch / columns), patch % columns];
  const [left, top, right, bottom] = shown.crop;
  const [wide, high] = [(right - left) / columns, (bottom - top) / rows];
  frame(context, inPixels([left + column * wide, top + row * high, left + (column + 1) * wide, top + (row + 1) * high]));
}

// ---- a matrix between words ----

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

// Paint all rows in the accent colour, the weight as its opacity, so that it reads on light and on dark.
function paint(each, layer, head) {
  const [rows, columns] = [each.queries.texts.length, each.keys.texts.length];
  const canvas = element("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").split(",").map(Number);
  for (let row = 0; row < rows; row++) rowOf(each, layer, head, row).forEach((value, column) => pixels.data.set([...colour, value], 4 * (row * columns + column)));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function shorten(text) {
  const letters = [...text];
  return letters.length <= LONGEST_LABEL ? text : `${letters.slice(0, LONGEST_LABEL - 1).join("")}\u2026`;
}

function label(text, attributes) {
  const made = svg("text", { ...attributes, "dominant-baseline": "central" }, shorten(text));
  made.append(svg("title", {}, text));
  return made;
}

function drawMatrix() {
  const each = viewOf();
  const [rows, columns] = [each.queries.texts, each.keys.texts];
  const widest = (texts, size) => 12 + 0.62 * size * Math.max(...texts.map((text) => [...shorten(text)].length));
  const left = Math.ceil(widest(rows, 13));
  const cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, Math.floor((map.parentElement.clientWidth - left - 2) / columns.length)));
  const size = Math.min(13, cell);
  const top = Math.ceil(widest(columns, size));
  frameOfMap = { left, top, cell, rows: rows.length, columns: columns.length };
  const [width, height] = [left + cell * columns.length + 2, top + cell * rows.length + 2];
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) map.setAttribute(key, value);
  const box = { x: left, y: top, width: cell * columns.length, height: cell * rows.length };
  const middle = (i) => (i + 0.5) * cell;
  map.replaceChildren(
    svg("image", { ...box, href: paint(each, layerOf(), state.head).toDataURL(), preserveAspectRatio: "none" }),
    svg("rect", { ...box, class: "frame" }),
    ...rows.map((text, i) => label(text, { x: left - 6, y: top + middle(i), "text-anchor": "end", "font-size": size, "data-row": i })),
    ...columns.map((text, i) => label(text, { transform: `translate(${left + middle(i)} ${top - 6}) rotate(-90)`, "font-size": size, "data-column": i })),
    svg("rect", { class: "row", visibility: "hidden" }),
    svg("rect", { class: "column", visibility: "hidden" }),
    svg("rect", { class: "curtain", visibility: "hidden" }),
  );
}

function markMatrix(row, column) {
  const { left, top, cell, rows, columns } = frameOfMap;
  place(map.querySelector(".row"), row, { x: left, y: top + cell * row, width: cell * columns, height: cell });
  place(map.querySelector(".column"), column, { x: left + cell * column, y: top, width: cell, height: cell * rows });
  for (const text of map.querySelectorAll("text")) {
    const { row: ofRow, column: ofColumn } = text.dataset;
    text.classList.toggle("current", ofRow === undefined ? +ofColumn === column : +ofRow === row);
  }
  // While a translation plays, its later words are hidden.
  const next = playing === null || state.chosen === null ? rows : state.chosen + 1;
  place(map.querySelector(".curtain"), next < rows ? next : null, { x: 0, y: top + cell * next, width: left + cell * columns + 2, height: cell * (rows - next) + 2 });
  byId("queries").childNodes.forEach((button, i) => { button.style.visibility = i < next ? "" : "hidden"; });
  byId("said").style.visibility = next < rows ? "hidden" : "";
  // The row's weights over the words themselves, above the matrix.
  byId("keys").childNodes.forEach((span, at) => {
    const share = row === null ? 0 : Math.sqrt(weight(row, at));
    span.style.setProperty("--share", share.toFixed(3));
    span.classList.toggle("strong", share > STRONG);
  });
}

function place(rectangle, index, box) {
  rectangle.setAttribute("visibility", index === null ? "hidden" : "visible");
  if (index !== null) for (const [key, value] of Object.entries(box)) rectangle.setAttribute(key, value);
}

// ---- words beside it ----

function draw() {
  if (isPicture(viewOf())) drawPicture();
  else markMatrix(subject(), state.column);
  describe();
  fillBeam();
}

// The hypotheses of beam search after the chosen word; the translation's own stands out.
function fillBeam() {
  const beam = shown.beams[viewOf().steps[subject()]] ?? [];
  byId("beam").parentElement.hidden = beam.length === 0;
  byId("beam").replaceChildren(...beam.map(([text, logProbability, isFinished, isChosen]) => {
    const score = element("small", { textContent: `${isFinished ? "ended, " : ""}${logProbability.toFixed(2)}` });
    return element("li", { dir: "auto", className: isChosen ? "chosen" : "" }, [text, score]);
  }));
}

function describe() {
  const [each, layer, now] = [viewOf(), layerOf(), subject()];
  const where = [layer.title, headName(layer, state.head)].filter(Boolean).join(", ");
  const who = nameOf(each, layer, now);
  const row = isPicture(each) ? rowOf(each, layer, state.head, now) : null;
  const top = row ? topOf(layer, state.head, now) : 0;
  const most = row ? times(row, top) : 0;
  const scale = top ? `. Dark: even or less; bright: ${digits(brightOf(each, layer, state.head, now))} times even` : "";
  byId("state").textContent = each.className ? `${layer.grid.join(" x ")} patches, ${each.said}${scale}`
    : !isPicture(each) ? (now === null ? where : `${who} ${isLoss(each) ? "loses without" : "reads"} ${mostAttended(now)} \u00b7 ${where}`)
    : who ? `${who}: ${where}, ${layer.grid.join(" x ")} patches${nearly(most)}, up to ${digits(most)} times even attention${scale}` : shown.title;
  byId("layer-name").textContent = layer.title;
  const asked = sheetOf().queries?.kind === "tokens" ? "word" : "query";
  byId("reader").textContent = now === null ? sheetOf().layers[0].reader ?? asked : Array.isArray(now) ? "chosen patch" : `${asked} "${who}"`;
  byId("queries").childNodes.forEach((button, i) => { button.ariaPressed = String(boxesOf() && each.queries?.kind !== "boxes" ? false : now === i); });
  for (const button of byId("sheet").querySelectorAll("button")) {
    button.ariaPressed = String(each === sheetOf() && +button.dataset.layer === state.layer && +button.dataset.head === state.head);
  }
}

const digits = (value) => `${+value.toPrecision(value < 2 ? 3 : 2)}`;
const nearly = (most) => most <= data.nearlyEven ? ", nearly even" : "";

function mostAttended(row) {
  const texts = viewOf().keys.texts;
  const order = texts.map((_, column) => column).sort((a, b) => weight(row, b) - weight(row, a));
  const listed = (state.column === null ? order.slice(0, 3) : [state.column]).map((column) => `${texts[column]} ${weight(row, column).toFixed(2)}`).join(", ");
  const evenly = weight(row, order[0]) * texts.length / order.reduce((sum, column) => sum + weight(row, column), 0);
  return listed + (isLoss(viewOf()) ? "" : nearly(evenly));
}

// ---- controls ----

function fill() {
  const each = viewOf();
  const kind = each.queries?.kind ?? "grid";
  const isHeat = isPicture(each);
  byId("explanation").classList.toggle("of-text", shown.picture === null);
  byId("name").textContent = shown.name;
  byId("said").textContent = shown.scores.length ? "" : shown.title;
  byId("scores").replaceChildren(...scoreRows(shown.scores));
  byId("lead").textContent = (shown.views.every((other) => other.className) ? "Bright is what speaks for the class." : LEADS[boxesOf() ? "boxes" : kind]) + (boxesOf() && findView((other) => other.queries?.kind === "grid") >= 0 ? ENCODER_LEAD : "");
  byId("views").replaceChildren(...shown.views.map(viewChoice));
  byId("views").parentElement.hidden = shown.views.length < 2 && !each.note;
  view.hidden = !isHeat;
  for (const id of ["matrix", "sentence"]) byId(id).hidden = isHeat;
  for (const [name, isShown] of [["of-picture", isHeat], ["of-boxes", boxesOf()], ["of-words", (isHeat && kind === "tokens") || each.steps.length]]) {
    for (const part of document.getElementsByClassName(name)) part.hidden = !isShown;
  }
  fillQueries(each, isHeat);
  byId("keys").replaceChildren(...(isHeat ? [] : each.keys.texts.map((text) => element("span", { textContent: text, dir: "auto" }))));
  byId("chooser").childNodes.forEach((button, i) => { button.ariaPressed = String(i === state.index); });
  fillLayer();
}

// What belongs to the layer and the head: heads to choose among, tiles, and the picture or the matrix.
function fillLayer() {
  const [each, layer] = [viewOf(), layerOf()];
  state.head = Math.min(state.head, headsShown(layer));
  byId("layer").max = each.layers.length - 1;
  byId("layer").value = state.layer;
  byId("layer").parentElement.hidden = each.layers.length < 2;
  byId("head").parentElement.hidden = headsShown(layer) === 0;
  byId("head").replaceChildren(...Array.from({ length: headsShown(layer) + 1 }, (_, head) => element("option", { value: head, textContent: head ? `head ${head}` : headName(layer, 0) })));
  byId("head").value = state.head;
  byId("note").textContent = state.layer === each.first ? each.note : "";
  if (!isPicture(each)) drawMatrix();
  fillSheet();
  draw();
}

function fillQueries(each, isHeat) {
  const queries = boxesOf() ?? (each.queries?.kind === "tokens" ? each.queries : null);
  byId(isHeat ? "choices" : "sentence").append(byId("queries"));
  byId("queries").replaceChildren(...(queries?.texts ?? []).map((text, index) => {
    const button = element("button", { type: "button", dir: "auto" }, [text]);
    if (queries.colours) {
      const mark = element("i");
      mark.style.setProperty("--colour", queries.colours[index]);
      button.prepend(mark);
    }
    button.onpointerenter = (event) => { if (event.pointerType === "mouse" && viewOf().queries === queries) hover(index); };
    button.onpointerleave = () => hover(null);
    button.onclick = () => { stop(); toggle(queries, index); };
    return button;
  }));
}

function viewChoice(each, index) {
  const radio = element("input", { type: "radio", name: "shown", value: each.name, checked: index === state.view });
  radio.onchange = () => { stop(); showView(index); };
  return element("label", {}, [radio, ` ${each.title}`]);
}

// A tile for each layer and head: of the query that is shown, or the whole matrix.
function fillSheet() {
  const each = sheetOf();
  const most = Math.max(0, ...each.layers.map(headsShown));
  byId("sheet").style.gridTemplateColumns = `auto repeat(${most + 1}, auto)`;
  const isAlone = each === viewOf() && each.layers.length === 1 && most === 0;
  byId("all-tiles").hidden = isAlone || (isPicture(each) && rowOf(each, each.layers[0], 0, subject()) === null);
  if (byId("all-tiles").hidden) return byId("sheet").replaceChildren();
  const [cells, bright] = [[element("span", { className: "label" })], isPicture(each) ? brightest(each, subject()) : 0];
  for (let head = 0; head <= most; head++) cells.push(element("span", { textContent: head ? `head ${head}` : most ? "mean" : "" }));
  each.layers.forEach((layer, index) => {
    cells.push(element("span", { className: "label", textContent: layer.title }));
    for (let head = 0; head <= most; head++) {
      if (head > headsShown(layer)) {
        cells.push(element("span"));
        continue;
      }
      const button = element("button", { type: "button", ariaLabel: `${layer.title}, ${head ? `head ${head}` : "mean over heads"}` }, [tile(each, layer, head, bright)]);
      Object.assign(button.dataset, { layer: index, head });
      button.onclick = () => { if (viewOf() !== each) showView(findView((other) => other === each)); pick(index, head); };
      cells.push(button);
    }
  });
  byId("sheet").replaceChildren(...cells);
}

function tile(each, layer, head, bright, opacityOf) {
  if (!isPicture(each)) return paint(each, layer, head);
  const row = rowOf(each, layer, head, subject());
  return row ? heat(shades(row, topOf(layer, head, subject()), bright), layer.grid, opacityOf) : null;
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

// ---- choosing ----

function pick(layer, head) {
  Object.assign(state, { layer, head, isPicked: true });
  fillLayer();
}

function isSame(one, other) {
  if (!Array.isArray(one) || !Array.isArray(other)) return one === other;
  return patchOf(layerOf(), one) === patchOf(layerOf(), other);
}

function hover(query, column = null) {
  if (isSame(query, state.hovered) && column === state.column) return;
  Object.assign(state, { hovered: query, column });
  if (isPicture(sheetOf())) fillSheet();
  draw();
}

function choose(query) {
  Object.assign(state, { chosen: query, hovered: null, column: null });
  if (isPicture(sheetOf())) fillSheet();
  draw();
}

// Choose a query of these, in the view that they belong to; the same one again lets it go.
function toggle(queries, query) {
  const index = viewOf().queries === queries ? state.view : findView((each) => each.queries === queries);
  if (index === state.view) return choose(isSame(query, state.chosen) ? null : query);
  showView(index);
  choose(query);
}

function pointAt(event) {
  const at = view.getBoundingClientRect();
  // object-fit: contain may leave a margin on two sides.
  const scale = Math.min(at.width / view.width, at.height / view.height);
  const left = at.left + (at.width - view.width * scale) / 2;
  const top = at.top + (at.height - view.height * scale) / 2;
  const point = [(event.clientY - top) / (view.height * scale), (event.clientX - left) / (view.width * scale)];
  return point.every((share) => share >= 0 && share < 1) ? point : null;
}

// The smallest box that holds a point: larger ones can be reached beside it, or in the list.
function boxAt({ corners }, [row, column]) {
  const area = ([left, top, right, bottom]) => (right - left) * (bottom - top);
  const holding = corners.filter(([left, top, right, bottom]) => left <= column && column < right && top <= row && row < bottom);
  return holding.length ? corners.indexOf(holding.reduce((one, other) => area(other) < area(one) ? other : one)) : null;
}

// A point of the picture as shares of what the model saw of it; null outside.
function inCrop([row, column]) {
  const [left, top, right, bottom] = shown.crop;
  const point = [(row - top) / (bottom - top), (column - left) / (right - left)];
  return point.every((share) => share >= 0 && share < 1) ? point : null;
}

function queryAt(event) {
  const [point, queries] = [pointAt(event), viewOf().queries];
  if (point === null || queries === null) return null;
  if (queries.kind === "grid") return inCrop(point);
  return queries.kind === "boxes" ? boxAt(queries, point) : null;
}

view.onpointermove = (event) => { if (event.pointerType === "mouse" && viewOf().queries?.kind !== "tokens") hover(queryAt(event)); };
view.onpointerleave = () => hover(null);
view.onclick = (event) => {
  const { queries } = viewOf();
  if (queries === null || queries.kind === "tokens") return;
  const [query, point] = [queryAt(event), pointAt(event)];
  const encoder = findView((each) => each.queries?.kind === "grid");
  if (query === null && point !== null && queries.kind === "boxes" && encoder >= 0) {
    showView(encoder);
    return choose(inCrop(point));
  }
  choose(query !== null && isSame(query, state.chosen) ? null : query);
};

// The next query in the direction of an arrow key; undefined for another key.
function neighbour(key) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  const { queries } = viewOf();
  if (!step || queries === null) return undefined;
  if (queries.kind !== "grid") {
    const [count, by] = [queries.texts.length, step[0] + step[1]];
    return ((state.chosen ?? (by > 0 ? -1 : 0)) + by + count) % count;
  }
  const [rows, columns] = layerOf().queryGrid;
  const from = patchOf(layerOf(), state.chosen ?? [0.5, 0.5]);
  const row = Math.min(rows - 1, Math.max(0, Math.floor(from / columns) + step[0]));
  const column = Math.min(columns - 1, Math.max(0, (from % columns) + step[1]));
  return [(row + 0.5) / rows, (column + 0.5) / columns];
}

view.onkeydown = map.onkeydown = (event) => {
  const query = neighbour(event.key);
  if (query === undefined) return;
  event.preventDefault();
  stop();
  choose(query);
};
document.addEventListener("keydown", (event) => {
  if (!shown || event.key !== "Escape") return;
  stop();
  choose(null);
});

function cellAt(event) {
  const { left, top, width } = map.getBoundingClientRect();
  const scale = +map.getAttribute("width") / width;
  const row = Math.floor(((event.clientY - top) * scale - frameOfMap.top) / frameOfMap.cell);
  const column = Math.floor(((event.clientX - left) * scale - frameOfMap.left) / frameOfMap.cell);
  if (row < 0 || row >= frameOfMap.rows || column >= frameOfMap.columns) return [null, null];
  return [row, column < 0 ? null : column];
}

map.onpointermove = (event) => {
  if (event.pointerType !== "mouse") return;
  const [row, column] = cellAt(event);
  if (state.chosen === null) hover(row, column);
  else hover(null, row === state.chosen ? column : null); // a chosen row stays; its cells can be read
};
map.onpointerleave = () => hover(null);
map.onclick = (event) => {
  const [row] = cellAt(event);
  if (row !== null) choose(row === state.chosen ? null : row);
};

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play the words";
}

byId("play").onclick = () => {
  const isStopped = playing !== null;
  stop();
  if (isStopped) return draw();
  byId("play").textContent = "Stop";
  playing = setInterval(() => {
    if (state.chosen !== viewOf().queries.texts.length - 1) return choose(neighbour("ArrowRight"));
    stop();
    draw();
  }, STEP_MS);
  choose(0);
};
byId("layer").oninput = (event) => pick(+event.target.value, state.head);
byId("head").onchange = (event) => pick(state.layer, +event.target.value);
for (const id of ["opacity", "smooth", "outlines"]) byId(id).oninput = draw;
const redraw = () => { if (shown) fillLayer(); };
matchMedia("(prefers-color-scheme:dark)").onchange = redraw;
addEventListener("resize", () => { if (shown && !isPicture(viewOf())) redraw(); });

function fillChooser() {
  if (data.explanations.length < 2) return byId("chooser").replaceChildren();
  byId("chooser").replaceChildren(...data.explanations.map((each, i) => {
    const content = each.picture === null ? `${i + 1}. ${each.name}` : element("img", { src: each.picture, alt: each.name });
    const button = element("button", { type: "button", title: each.name, className: each.picture === null ? "text" : "" }, [content]);
    button.onclick = () => load(i);
    return button;
  }));
}

fillChooser();
if (data.explanations.length) load(0).catch((error) => { byId("lead").textContent = `This page needs a browser of 2023 or later (${error}).`; });
