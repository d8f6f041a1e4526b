// The chosen word stays, a hovered one is shown meanwhile; null shows the image alone.
const state = { image: 0, chosen: null, hovered: null, layer: 0, head: 0 };
const STEP_MS = 900;
let shown;
let timer = null;

async function load(index) {
  stop();
  const image = data.images[index];
  await unpack(image, image.layers, ["mean", "heads"]);
  shown = image;
  Object.assign(state, { image: index, chosen: 0, hovered: null, layer: image.layers.length - 1, head: 0 });
  fill();
  draw();
}

const word = () => state.hovered ?? state.chosen;

function draw() {
  const now = word();
  const layer = shown.layers[state.layer];
  if (now === null) drawPicture(shown);
  else drawPicture(shown, rowOf(layer, state.head, now), layer.grid);
  const isMean = state.head > 0 && layer.heads === null;
  const head = isMean ? "mean over heads, single heads left out for size" : headName(state.head);
  byId("state").textContent = now === null ? shown.caption : `${shown.words[now]}: ${layer.name}, ${head}, ${layer.grid.join(" x ")} cells`;
  byId("layer-name").textContent = layer.name;
  pressTile(now === null ? -1 : state.layer, state.head);
  byId("words").childNodes.forEach((button, i) => { button.ariaPressed = String(i === now); });
}

// Bring the controls and the tiles to the chosen word.
function fillControls() {
  const layer = shown.layers[state.layer];
  state.head = Math.min(state.head, layer.numHeads);
  byId("layer").max = shown.layers.length - 1;
  byId("layer").value = state.layer;
  fillHeads(layer.numHeads, state.head);
  byId("all-tiles").hidden = state.chosen === null;
  if (state.chosen === null) return;
  byId("who").textContent = `"${shown.words[state.chosen]}"`;
  fillSheet(shown.layers, (each, head) => rowOf(each, head, state.chosen), pick);
}

function fill() {
  byId("name").textContent = shown.name;
  byId("words").replaceChildren(...shown.words.map((text, index) => {
    const isEnd = index === shown.words.length - 1;
    const button = element("button", { type: "button", textContent: text, className: isEnd ? "end" : "" });
    button.onpointerenter = (event) => { if (event.pointerType === "mouse") hover(index); };
    button.onpointerleave = () => hover(null);
    button.onclick = () => { stop(); choose(state.chosen === index ? null : index); };
    return button;
  }));
  fillControls();
  pressChooser(state.image);
}

function pick(layer, head) {
  Object.assign(state, { layer, head });
  fillControls();
  draw();
}

function hover(index) {
  if (index === state.hovered) return;
  state.hovered = index;
  draw();
}

function choose(index) {
  Object.assign(state, { chosen: index, hovered: null });
  fillControls();
  draw();
}

function move(step) {
  const number = shown.words.length;
  choose(((state.chosen ?? (step > 0 ? -1 : 0)) + step + number) % number);
}

function stop() {
  clearInterval(timer);
  timer = null;
  byId("play").textContent = "Play the caption";
}

byId("play").onclick = () => {
  if (timer !== null) return stop();
  choose(0);
  byId("play").textContent = "Stop";
  timer = setInterval(() => {
    if (state.chosen === shown.words.length - 1) stop();
    else move(1);
  }, STEP_MS);
};
view.onkeydown = (event) => {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  stop();
  move(step);
};
document.onkeydown = (event) => { if (event.key === "Escape") { stop(); choose(null); } };
byId("layer").oninput = (event) => pick(+event.target.value, state.head);
byId("head").onchange = (event) => pick(state.layer, +event.target.value);
for (const id of ["opacity", "smooth"]) byId(id).oninput = draw;
start(load);
