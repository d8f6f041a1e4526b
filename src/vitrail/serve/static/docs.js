// The API of openapi.json, for people.
function made(name, properties = {}, children = []) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// Text with `code` in it.
function words(text) {
  return text.split("`").map((piece, i) => (i % 2 ? made("code", { textContent: piece }) : piece));
}

function rangeOf({ type, enum: choices, minimum, maximum, items }) {
  if (choices) return choices.join(", ");
  const kind = type === "array" ? `list of ${items.type}s` : type;
  const [low, high] = [minimum ?? "", maximum ?? ""];
  return low === "" && high === "" ? kind : `${kind}, ${low} to ${high}`;
}

function tableOf(header, rows) {
  const head = made("tr", {}, header.map((text) => made("th", { textContent: text })));
  const lines = rows.map((cells) => made("tr", {}, cells.map((cell) => made("td", {}, [cell].flat()))));
  return made("div", { className: "scroll" }, [made("table", {}, [made("thead", {}, [head]), made("tbody", {}, lines)])]);
}

function details(title, children, open = false) {
  return made("details", { open }, [made("summary", { textContent: title }), ...children]);
}

function bodyOf({ content }) {
  const schema = content["application/json"].schema.properties;
  const rows = Object.entries(schema).map(([name, each]) => [made("code", { textContent: name }), rangeOf(each), each.description ?? ""]);
  const types = Object.keys(content).flatMap((type) => [made("code", { textContent: type }), " "]);
  return details("Body", [made("p", {}, types), tableOf(["field of JSON or form", "value", "what it is"], rows)]);
}

function showOperation(path, method, operation) {
  const parts = [
    made("h2", { className: "path" }, [made("b", { textContent: method.toUpperCase() }), made("code", { textContent: path })]),
    made("p", { textContent: operation.summary }),
    made("p", { className: "soft small" }, words(operation.description ?? "")),
  ];
  if (operation.parameters?.length) parts.push(details("Query parameters", [tableOf(["name", "value", "what it is"],
    operation.parameters.map(({ name, schema }) => [made("code", { textContent: name }), rangeOf(schema), schema.description ?? ""]))]));
  if (operation.requestBody) parts.push(bodyOf(operation.requestBody));
  parts.push(details("Answers", [tableOf(["status", "when"], Object.entries(operation.responses).map(([status, { description }]) => [status, description]))]));
  const example = operation.responses[200]?.content?.["application/json"]?.example;
  if (example) parts.push(details("Example", [made("pre", { textContent: JSON.stringify(example, null, 2) })]));
  return made("section", {}, parts);
}

async function show() {
  const { info, paths } = await (await fetch("openapi.json")).json();
  document.getElementById("about").append(...words(info.description));
  const example = `curl -F image=@cat.jpg ${new URL("predict", location)}`;
  document.getElementById("operations").replaceChildren(
    made("pre", { textContent: example }),
    ...Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => showOperation(path, method, operation))),
  );
}

show().catch((error) => { document.getElementById("operations").textContent = `The description cannot be read: ${error.message}`; });
