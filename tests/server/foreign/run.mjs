// Runs a prompt with @stable-canvas/comfyui-client and calls its plain methods.
// Arguments: host:port, file with the prompt in API format, file to write what came of it to, as JSON.
import { readFileSync, writeFileSync } from "node:fs";
import { Client, Workflow } from "@stable-canvas/comfyui-client";

const [host, file, result] = process.argv.slice(2);
const prompt = JSON.parse(readFileSync(file, "utf8"));
const client = new Client({ api_host: host, WebSocket, fetch });
client.connect();

const progress = [];
const byWebSocket = await client.enqueue(prompt, {
  disable_random_seed: true,
  progress: ({ value, max }) => progress.push([value, max]),
});
const byPolling = await client.enqueue_polling(prompt, { disable_random_seed: true });

// The client's own way to write a workflow: node types as functions, wires by slot number.
const workflow = new Workflow();
const { Text, ShowText } = workflow.classes;
const [text] = Text({ text: "told by a foreign client" });
ShowText({ text });
const resolver = (result, output) => ({ ...result, data: [...(result.data ?? []), ...output.text] });
const invoked = await workflow.invoke(client, { resolver });
const polled = await workflow.invoke_polling(client, { resolver, polling_ms: 100 });

async function pictures(result) {
  const bytes = async ({ data }) => Buffer.from(await (await fetch(data)).arrayBuffer()).toString("base64");
  return Promise.all(result.images.map(bytes));
}

const calls = {
  getExtensions: () => client.getExtensions(),
  getEmbeddings: () => client.getEmbeddings(),
  getNodeDefs: () => client.getNodeDefs(),
  getQueue: () => client.getQueue(),
  getHistory: () => client.getHistory(5),
  getHistoryPage: () => client.getHistory(1, { offset: 0 }),
  getQueueItems: () => client.getItems("queue"),
  getHistoryItems: () => client.getItems("history"),
  getSystemStats: () => client.getSystemStats(),
  interrupt: () => client.interrupt(),
  free: () => client.free({ unload_models: false, free_memory: false }),
  getUserConfig: () => client.getUserConfig(),
  storeSetting: () => client.storeSetting("Test.Value", { a: 1 }),
  getSetting: () => client.getSetting("Test.Value"),
  storeSettings: () => client.storeSettings({ "Test.Other": 2 }),
  getSettings: () => client.getSettings(),
  storeUserData: () => client.storeUserData("notes.json", { b: 2 }, { stringify: true }),
  getUserData: async () => (await client.getUserData("notes.json")).json(),
  getModelFolders: () => client.getModelFolders(),
  getModels: () => client.getModels("checkpoints"),
  viewMetadata: () => client.viewMetadata("checkpoints", "none.safetensors"),
  getSamplers: () => client.getSamplers(),
  getSchedulers: () => client.getSchedulers(),
  getSDModels: () => client.getSDModels(),
  getCNetModels: () => client.getCNetModels(),
  getUpscaleModels: () => client.getUpscaleModels(),
  getHyperNetworks: () => client.getHyperNetworks(),
  getLoRAs: () => client.getLoRAs(),
  getVAEs: () => client.getVAEs(),
  createUser: () => client.createUser("somebody"), // refused: there is one user
  // Left out: getLogs and getRawLogs, which this client asks for under an address with two hosts in it.
  getPromptResult: async () => (await client.getPromptResult(byPolling.prompt_id)).images.length,
  waitForPrompt: () => client.waitForPrompt(byPolling.prompt_id, 100, 10000),
  runPrompt: async () => (await client.runPrompt(prompt, { disable_random_seed: true, polling_ms: 100 })).images.length,
  queuePrompt: async () => Object.keys(await client.queuePrompt(-1, { prompt, workflow: {} })),
  deleteItem: () => client.deleteItem("history", byPolling.prompt_id),
  getPromptStatus: () => client.getPromptStatus(byWebSocket.prompt_id),
  getPromptOutputs: () => client.getPromptOutputs(byWebSocket.prompt_id),
  clearItems: () => client.clearItems("queue"),
  clearHistory: () => client.clearItems("history"),
};
const answers = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    const answer = await call();
    answers[name] = answer instanceof Response ? answer.status : answer ?? null;
  } catch (error) {
    answers[name] = { threw: String(error) };
  }
}
client.disconnect();
const told = {
  byWebSocket: await pictures(byWebSocket),
  byPolling: await pictures(byPolling),
  invoked: invoked.data,
  polled: polled.data,
  progress,
  answers,
};
writeFileSync(result, JSON.stringify(told));
process.exit(0);
