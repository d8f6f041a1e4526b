// What is shown: point is null for the classifier's row, otherwise a place in the image as shares of its height and
// width, since every layer has its own grid; pinned keeps it after a tap or a click. Head 0 is the mean.
const state = { image: 0, method: "rollout", layer: data.images[0].layers.length - 1, head: 0, point: null, pinned: false };
let shown;

async function load(index) {
  const image = data.images[index];
  await unpack(image, [...image.layers, ...(image.rollout ? [image.rollout] : [])], ["mean", "heads", "readMean", "readHeads"]);
  state.image = index;
  state.point = null;
  state.pinned = false;
  state.layer = Math.min(state.layer, image.layers.length - 1);
  if (!image.rollout) state.method = "attention";
  shown = image;
  fill();
  draw();
}

function current() {
  return state.method === "rollout" ? shown.rollout : shown.layers[state.layer];
}

function values() {
  const layer = current();
  const head = state.method === "rollout" ? 0 : state.head;
  return state.point === null ? readRow(layer, head) : rowOf(layer, head, patchOf(layer, state.point));
}

function readRow(layer, head) {
  const keys = layer.grid[0] * layer.grid[1];
  return head === 0 ? layer.readMean : layer.readHeads.subarray((head - 1) * keys, head * keys);
}

function draw() {
  const layer = current();
  const context = drawPicture(shown, values(), layer.grid);
  if (state.point !== null) framePatch(context, layer, state.point);
  describe();
}

function describe() {
  const isLayer = state.method === "attention";
  const layer = current();
  byId("layer-name").textContent = shown.layers[state.layer].name;
  for (const id of ["layer", "head"]) byId(id).parentElement.classList.toggle("off", !isLayer);
  const isMean = state.point !== null && state.head > 0 && layer.heads === null;
  const head = isMean ? "mean over heads, single heads left out for size" : headName(state.head);
  const what = isLayer ? `${layer.name}, ${head}, ${layer.grid.join(" x ")} keys` : "rollout";
  const who = state.point === null ? layer.reader : patchName(layer, patchOf(layer, state.point));
  byId("state").textContent = `${who}: ${what}${state.pinned ? " (pinned; click again to release)" : ""}`;
  pressTile(isLayer ? state.layer : -1, state.head);
}

function fill() {
  byId("name").textContent = shown.name;
  byId("reader").textContent = shown.reader;
  byId("rollout").hidden = shown.rollout === null;
  byId("no-rollout").hidden = shown.rollout !== null;
  document.querySelector(`[name=method][value=${state.method}]`).checked = true;
  byId("layer").max = shown.layers.length - 1;
  byId("layer").value = state.layer;
  fillHeadsOfLayer();
  byId("scores").replaceChildren(...shown.scores.map(([name, probability]) => {
    const bar = element("i");
    bar.style.width = `${100 * probability}%`;
    return element("tr", {}, [
      element("td", { textContent: name }),
      element("td", { className: "number", textContent: `${(100 * probability).toFixed(1)}%` }),
      element("td", { className: "bar" }, [bar]),
    ]);
  }));
  fillSheet(shown.layers, readRow, choose);
  pressChooser(state.image);
}

// Layers may differ in their number of heads.
function fillHeadsOfLayer() {
  const { numHeads } = shown.layers[state.layer];
  state.head = Math.min(state.head, numHeads);
  fillHeads(numHeads, state.head);
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
for (const radio of document.getElementsByName("method")) {
  radio.onchange = () => { state.method = radio.value; draw(); };
}
byId("layer").oninput = (event) => choose(+event.target.value, state.head);
byId("head").onchange = (event) => choose(state.layer, +event.target.value);
byId("opacity").oninput = draw;
byId("smooth").onchange = draw;
start(load);
