// A live session on a template: every change of a form field is sent at once, the newest picture is shown.

const TEMPLATE = "text-to-image";
const FIELDS = [
  { place: "Prompt.text", label: "Prompt", type: "text" },
  { place: "Denoise.steps", label: "Steps", type: "range", min: 1, max: 50, step: 1 },
  { place: "Denoise.cfg", label: "cfg", type: "range", min: 1, max: 8, step: 0.1 },
  { place: "Denoise.start_step", label: "Start step", type: "range", min: 0, max: 19, step: 1 },
  { place: "Denoise.seed", label: "Seed", type: "number", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

const form = document.getElementById("inputs");
const picture = document.getElementById("picture");
const state = document.getElementById("state");
const error = document.getElementById("error");

const template = await (await fetch(`api/templates/${TEMPLATE}`)).json();
let documentNow = template.document;
let socket;
let liveId;

for (const field of FIELDS) form.append(control(field));
form.addEventListener("submit", (event) => event.preventDefault());
connect();

/** A labelled field that sends its value whenever it changes. */
function control({ place, label, ...attributes }) {
  const [node, name] = find(place);
  const line = document.createElement("label");
  const input = Object.assign(document.createElement("input"), attributes);
  const shown = document.createElement("output");
  input.name = place;
  input.value = node.inputs[name];
  shown.value = attributes.type === "range" ? input.value : "";
  line.className = attributes.type === "text" ? "text" : "";
  line.append(label, input, ...(attributes.type === "text" ? [] : [shown]));
  input.addEventListener("input", () => {
    if (attributes.type === "range") shown.value = input.value;
    const value = attributes.type === "text" ? input.value : Number(input.value);
    node.inputs[name] = value;
    if (place === "Denoise.steps") form.elements["Denoise.start_step"].max = value - 1;
    send({ type: "live.set", live_id: liveId, set: { [place]: value } });
  });
  return line;
}

/** The node with a title, and the input's name, of `Title.input`. */
function find(place) {
  const [title, name] = place.split(".");
  return [Object.values(documentNow.nodes).find((node) => node._meta?.title === title), name];
}

function connect() {
  const address = new URL("api/events", location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(address);
  socket.addEventListener("open", () => send({ type: "live.open", document: documentNow, name: TEMPLATE }));
  socket.addEventListener("message", ({ data }) => typeof data === "string" && JSON.parse(data).events.forEach(take));
  socket.addEventListener("close", () => {
    state.textContent = "the server is gone; trying again";
    setTimeout(connect, 1000);
  });
}

function send(message) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function take(event) {
  if (event.type === "reply") {
    liveId = event.live_id;
    error.textContent = "";
  } else if (event.type === "error") {
    error.textContent = event.errors.map(({ title, input, message }) => [title, input, message].filter(Boolean).join(": ")).join(" ");
  } else if (event.type === "step_finished") {
    state.textContent = `step ${event.step} of ${event.steps}`;
  } else if (event.type === "live.state") {
    show(event);
  }
}

function show({ state: word, problems, shown }) {
  state.textContent = problems.length ? problems[0].message : word;
  const image = shown?.outputs.find(({ type }) => type === "image");
  if (!image) return;
  const parts = image.path.split("/");
  const query = new URLSearchParams({ filename: parts.pop(), subfolder: parts.join("/"), type: image.folder, rand: shown.run });
  picture.src = `view?${query}`;
  picture.alt = `Picture of revision ${shown.revision}, ${shown.settled ? "settled" : "not settled"}`;
}
