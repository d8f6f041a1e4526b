// A subject is what attends: { box } by its number, or { point }, shares of the image's height and width, since every
// layer has its own grid. The chosen one stays, a hovered one is shown meanwhile; null shows the boxes alone.
const state = { image: 0, mode: "boxes", chosen: null, hovered: null, layer: { boxes: 0, places: 0 }, head: 0 };
const fields = ["mean", "heads"];
let shown;

async function load(index) {
  const image = data.images[index];
  await unpack(image, [...image.boxLayers, ...image.placeLayers], fields);
  shown = image;
  Object.assign(state, { image: index, mode: "boxes", chosen: { box: 0 }, hovered: null, head: 0 });
  state.layer = { boxes: image.boxLayers.length - 1, places: image.placeLayers.length - 1 };
  fill();
  draw();
}

const subject = () => state.hovered ?? state.chosen;
const kindOf = (each) => each === null ? state.mode : "box" in each ? "boxes" : "places";
const layersOf = (kind) => kind === "boxes" ? shown.boxLayers : shown.placeLayers;

function isSame(one, other) {
  if (one === null || other === null) return one === other;
  if (kindOf(one) !== kindOf(other)) return false;
  if ("box" in one) return one.box === other.box;
  const layer = shown.placeLayers[state.layer.places];
  return patchOf(layer, one.point) === patchOf(layer, other.point);
}

function nameOf(each) {
  return "box" in each ? shown.boxes[each.box].text : "the chosen place";
}

function queryOf(layer, each) {
  return "box" in each ? each.box : patchOf(layer, each.point);
}

// Left, top, width and height of a box in pixels of the view.
function cornersOf(box) {
  const [left, top, right, bottom] = box.corners;
  return [left * view.width, top * view.height, (right - left) * view.width, (bottom - top) * view.height];
}

function draw() {
  const now = subject();
  const kind = kindOf(now);
  const layer = layersOf(kind)[state.layer[kind]];
  const context = now === null ? drawPicture(shown) : drawPicture(shown, rowOf(layer, state.head, queryOf(layer, now)), layer.grid);
  const size = view.width / 560;
  if (now === null || byId("outlines").checked) {
    context.globalAlpha = now === null ? 1 : 0.6;
    for (const box of shown.boxes.toReversed()) frame(context, cornersOf(box), [["#000a", 4 * size], [box.colour, 2 * size]]);
    context.globalAlpha = 1;
  }
  if (now !== null && kind === "boxes") {
    const box = shown.boxes[now.box];
    frame(context, cornersOf(box), [["#000", 7 * size], ["#fff", 5 * size], [box.colour, 2.5 * size]]);
  } else if (now !== null) framePatch(context, layer, now.point);
  describe(now, kind, layer);
}

function describe(now, kind, layer) {
  const isMean = state.head > 0 && layer && layer.heads === null;
  const head = isMean ? "mean over heads, single heads left out for size" : headName(state.head);
  const who = now === null ? "" : kind === "boxes" ? shown.boxes[now.box].text : patchName(layer, patchOf(layer, now.point));
  byId("state").textContent = now === null ? `${shown.boxes.length} boxes` : `${who}: ${layer.name}, ${head}, ${layer.grid.join(" x ")} keys`;
  byId("layer-name").textContent = layer ? layer.name : "";
  for (const id of ["layer", "head"]) byId(id).parentElement.classList.toggle("off", now === null);
  pressTile(now === null ? -1 : state.layer[kind], state.head);
  byId("boxes").childNodes.forEach((button, i) => { button.ariaPressed = String(now !== null && now.box === i); });
}

// Bring the controls to the layers of what is shown; the tiles are those of the subject.
function fillControls() {
  const now = subject();
  const kind = kindOf(now);
  const layers = layersOf(kind);
  const layer = layers[state.layer[kind]];
  state.head = Math.min(state.head, layer ? layer.numHeads : 0);
  byId("layer").max = Math.max(0, layers.length - 1);
  byId("layer").value = state.layer[kind];
  fillHeads(layer ? layer.numHeads : 0, state.head);
  document.querySelector(`[name=mode][value=${state.mode}]`).checked = true;
  byId("all-tiles").hidden = now === null;
  if (now === null) return;
  byId("who").textContent = nameOf(now);
  fillSheet(layers, (each, head) => rowOf(each, head, queryOf(each, now)), pick);
}

function fill() {
  byId("name").textContent = shown.name;
  document.querySelector("main").classList.toggle("no-places", shown.placeLayers.length === 0);
  byId("boxes").replaceChildren(...shown.boxes.map((box, index) => {
    const mark = element("i");
    mark.style.setProperty("--colour", box.colour);
    const button = element("button", { type: "button" }, [mark, element("span", { textContent: box.text })]);
    button.onpointerenter = (event) => { if (event.pointerType === "mouse") hover({ box: index }); };
    button.onpointerleave = () => hover(null);
    button.onclick = () => choose(isSame(state.chosen, { box: index }) ? null : { box: index });
    return button;
  }));
  fillControls();
  pressChooser(state.image);
}

function pick(layer, head) {
  state.layer[kindOf(subject())] = layer;
  state.head = head;
  fillControls();
  draw();
}

function hover(each) {
  if (isSame(each, state.hovered)) return;
  const was = kindOf(subject());
  state.hovered = each;
  state.head = Math.min(state.head, layersOf(kindOf(subject()))[0]?.numHeads ?? 0);
  draw();
  const now = subject();
  // The tiles follow, unless they are those of other layers, which a choice fills.
  if (now === null || kindOf(now) !== was || byId("all-tiles").hidden) return;
  byId("who").textContent = nameOf(now);
  paintSheet(layersOf(was), (layer, head) => rowOf(layer, head, queryOf(layer, now)));
}

function choose(each) {
  Object.assign(state, { chosen: each, hovered: null });
  fillControls();
  draw();
}

// The smallest box that holds a point: larger ones can be reached beside it, or in the list.
function boxAt([row, column]) {
  const area = ({ corners: [left, top, right, bottom] }) => (right - left) * (bottom - top);
  const holding = shown.boxes.filter(({ corners: [left, top, right, bottom] }) => left <= column && column < right && top <= row && row < bottom);
  return holding.length ? { box: shown.boxes.indexOf(holding.reduce((one, other) => area(other) < area(one) ? other : one)) } : null;
}

function subjectAt(event, isTap) {
  const point = pointAt(event);
  if (point === null) return null;
  const hasPlaces = shown.placeLayers.length > 0;
  if (state.mode === "places") return { point };
  return boxAt(point) ?? (isTap && hasPlaces ? { point } : null);
}

view.onpointermove = (event) => { if (event.pointerType === "mouse") hover(subjectAt(event, false)); };
view.onpointerleave = () => hover(null);
view.onclick = (event) => {
  const tapped = subjectAt(event, true);
  choose(isSame(tapped, state.chosen) ? null : tapped);
};
view.onkeydown = (event) => {
  if (event.key === "Escape") return choose(null);
  if (kindOf(state.chosen) === "places" && shown.placeLayers.length) {
    const point = neighbour(shown.placeLayers[state.layer.places], state.chosen?.point ?? null, event.key);
    if (point === null) return;
    event.preventDefault();
    return choose({ point });
  }
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const number = shown.boxes.length;
  choose({ box: ((state.chosen?.box ?? (step > 0 ? -1 : 0)) + step + number) % number });
};
document.onkeydown = (event) => { if (shown && event.key === "Escape" && event.target !== view) choose(null); };
for (const radio of document.getElementsByName("mode")) {
  radio.onchange = () => {
    state.mode = radio.value;
    choose(state.mode === "boxes" ? { box: 0 } : { point: [0.5, 0.5] });
  };
}
byId("layer").oninput = (event) => pick(+event.target.value, state.head);
byId("head").onchange = (event) => pick(state.layer[kindOf(subject())], +event.target.value);
for (const id of ["opacity", "smooth", "outlines"]) byId(id).oninput = draw;
start(load);
