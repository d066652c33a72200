// Runs a prompt with @stable-canvas/comfyui-client and calls its plain methods.
// Arguments: host:port, file with the prompt in API format, file to write what came of it to, as JSON.
import { readFileSync, writeFileSync } from "node:fs";
import { Client } from "@stable-canvas/comfyui-client";

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

const calls = {
  getExtensions: () => client.getExtensions(),
  getEmbeddings: () => client.getEmbeddings(),
  getNodeDefs: () => client.getNodeDefs(),
  getQueue: () => client.getQueue(),
  getHistory: () => client.getHistory(5),
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
  // Left out: getLogs and getRawLogs, which this client asks for under an address with two hosts in it.
  deleteItem: () => client.deleteItem("history", byPolling.prompt_id),
  getPromptStatus: () => client.getPromptStatus(byWebSocket.prompt_id),
  getPromptOutputs: () => client.getPromptOutputs(byWebSocket.prompt_id),
  clearItems: () => client.clearItems("queue"),
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
writeFileSync(result, JSON.stringify({ byWebSocket: byWebSocket.images, byPolling: byPolling.images, progress, answers }));
process.exit(0);
