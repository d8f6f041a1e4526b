// What is shown: point is null for the classifier's row, otherwise a place in the image as shares of its height and
// width, since every layer has its own grid; pinned keeps it after a tap or a click. Head 0 is the mean.
const state = { image: 0, method: null, layer: Infinity, head: 0, point: null, pinned: false };
// Methods of one class, which have one map of the whole image.
const CLASS_METHODS = {
  relevance: "relevance", gradient_input: "gradient times input", occlusion: "occlusion", integrated_gradients: "integrated gradients",
};
let shown;

async function load(index) {
  const image = data.images[index];
  await unpack(image, [...image.layers, ...(image.rollout ? [image.rollout] : []), ...(image.ofClass ?? [])], ["mean", "heads", "readMean", "readHeads"]);
  state.image = index;
  state.point = null;
  state.pinned = false;
  state.layer = Math.max(0, Math.min(state.layer, image.layers.length - 1));
  // What a reader has chosen stays from image to image.
  if (!methodsOf(image).includes(state.method)) state.method = image.first || methodsOf(image)[0];
  shown = image;
  fill();
  draw();
}

function methodsOf(image) {
  return [...(image.rollout ? ["rollout"] : []), ...(image.layers.length ? ["attention"] : []), ...(image.ofClass ?? []).map((each) => each.method)];
}

function classMap() {
  return (shown.ofClass ?? []).find((each) => each.method === state.method);
}

function current() {
  return state.method === "rollout" ? shown.rollout : classMap() ?? shown.layers[state.layer];
}

function values() {
  const layer = current();
  if (classMap()) return layer.readMean;
  const head = state.method === "rollout" ? 0 : state.head;
  return state.point === null ? readRow(layer, head) : rowOf(layer, head, patchOf(layer, state.point));
}

// The tiles follow the chosen patch: what each head attends to from there.
function tileRow(layer, head) {
  return state.point === null ? readRow(layer, head) : rowOf(layer, head, patchOf(layer, state.point));
}

function readRow(layer, head) {
  const keys = layer.grid[0] * layer.grid[1];
  return head === 0 ? layer.readMean : layer.readHeads.subarray((head - 1) * keys, head * keys);
}

function draw() {
  const layer = current();
  const context = drawPicture(shown, values(), layer.grid);
  if (state.point !== null && shown.layers.length) framePatch(context, layer, state.point);
  describe();
}

function describe() {
  const isLayer = state.method === "attention";
  const layer = current();
  byId("layer-name").textContent = shown.layers[state.layer]?.name ?? "";
  for (const id of ["layer", "head"]) byId(id).parentElement.classList.toggle("off", !isLayer);
  const isMean = state.point !== null && state.head > 0 && layer.heads === null;
  const head = isMean ? "mean over heads, single heads left out for size" : headName(state.head);
  const what = isLayer ? `${layer.name}, ${head}, ${layer.grid.join(" x ")} keys` : "rollout";
  const who = state.point === null ? layer.reader : patchName(layer, patchOf(layer, state.point));
  const shownText = classMap() ? `${layer.className}: ${CLASS_METHODS[layer.method]}, ${layer.grid.join(" x ")} cells` : `${who}: ${what}`;
  byId("state").textContent = `${shownText}${state.pinned ? " (pinned; click again to release)" : ""}`;
  byId("reader").textContent = state.point === null ? shown.reader : "chosen patch";
  pressTile(isLayer ? state.layer : -1, state.head);
}

function fill() {
  byId("name").textContent = shown.name;
  byId("rollout").hidden = shown.rollout === null;
  byId("no-rollout").hidden = shown.rollout !== null || !shown.layers.length;
  const hasLayers = shown.layers.length > 0;
  for (const part of [byId("attention"), byId("lead"), byId("layer").parentElement, byId("head").parentElement, byId("sheet").closest("section")]) {
    part.hidden = !hasLayers;
  }
  byId("of-class").replaceChildren(...(shown.ofClass ?? []).map(methodChoice));
  document.querySelector(`[name=method][value=${state.method}]`).checked = true;
  byId("layer").max = shown.layers.length - 1;
  byId("layer").value = state.layer;
  fillHeadsOfLayer();
  byId("scores").replaceChildren(...scoreRows(shown.scores));
  fillSheet(shown.layers, tileRow, choose);
  pressChooser(state.image);
}

// Layers may differ in their number of heads.
function fillHeadsOfLayer() {
  const { numHeads } = shown.layers[state.layer] ?? { numHeads: 0 };
  state.head = Math.min(state.head, numHeads);
  fillHeads(numHeads, state.head);
}

function methodChoice({ method, className }) {
  const radio = element("input", { type: "radio", name: "method", value: method });
  radio.onchange = chooseMethod;
  return element("label", {}, [radio, ` ${CLASS_METHODS[method]}: ${className}`]);
}

function chooseMethod(event) {
  state.method = event.target.value;
  draw();
}

function choose(layer, head) {
  Object.assign(state, { method: "attention", layer, head });
  document.querySelector("[name=method][value=attention]").checked = true;
  byId("layer").value = layer;
  fillHeadsOfLayer();
  draw();
}

function isSamePatch(point, other) {
  if (point === null || other === null) return point === other;
  return patchOf(current(), point) === patchOf(current(), other);
}

function show(point) {
  const isSame = isSamePatch(point, state.point);
  state.point = point;
  if (isSame) return;
  draw();
  paintSheet(shown.layers, tileRow);
}

view.onpointermove = (event) => { if (!state.pinned && event.pointerType === "mouse") show(pointAt(event)); };
view.onpointerleave = () => { if (!state.pinned) show(null); };
view.onclick = (event) => {
  const point = pointAt(event);
  state.pinned = !(state.pinned && isSamePatch(point, state.point)) && point !== null;
  state.point = state.pinned || event.pointerType === "mouse" ? point : null;
  draw();
  paintSheet(shown.layers, tileRow);
};
view.onkeydown = (event) => {
  if (event.key === "Escape") {
    state.pinned = false;
    show(null);
    return;
  }
  const point = neighbour(current(), state.point, event.key);
  if (point === null) return;
  event.preventDefault();
  state.pinned = true;
  show(point);
};
for (const radio of document.getElementsByName("method")) radio.onchange = chooseMethod;
byId("layer").oninput = (event) => choose(+event.target.value, state.head);
byId("head").onchange = (event) => choose(state.layer, +event.target.value);
byId("opacity").oninput = draw;
byId("smooth").onchange = draw;
start(load);
