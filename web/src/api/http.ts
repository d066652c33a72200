/** HTTP to our own server: JSON in, JSON out, and every refusal as one kind of error. */

import type { Problem } from "./types";

/** An answer that is no success. `problems` are the server's own sentences, in the order it gave them. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly problems: readonly Problem[],
    readonly body: unknown = null,
  ) {
    super(problems[0]?.message ?? `The server answered with status ${status}.`);
    this.name = "ServerError";
  }
}

const UNREACHABLE: Problem = {
  message: "The server does not answer; check that ortloom is still running, then try again.",
  code: "unreachable",
  node: "",
  title: "",
  input: "",
};

async function send(method: string, path: string, body?: BodyInit, headers?: Record<string, string>): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { method, ...(body !== undefined && { body }), ...(headers && { headers }) });
  } catch {
    throw new ServerError(0, [UNREACHABLE]);
  }
  if (response.ok) return response;
  let answer: unknown = null;
  try {
    answer = await response.json();
  } catch {
    // A refusal without JSON, from a proxy in between say: the status alone has to do.
  }
  throw new ServerError(response.status, problemsIn(answer), answer);
}

function problemsIn(answer: unknown): readonly Problem[] {
  if (typeof answer !== "object" || answer === null || !("errors" in answer) || !Array.isArray(answer.errors)) return [];
  return answer.errors as readonly Problem[];
}

async function json<T>(response: Response): Promise<T> {
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Throws ServerError, as all of these do. */
export async function getJson<T>(path: string): Promise<T> {
  return json<T>(await send("GET", path));
}

export async function sendJson<T>(method: "POST" | "PUT" | "PATCH" | "DELETE", path: string, body?: unknown): Promise<T> {
  if (body === undefined) return json<T>(await send(method, path));
  return json<T>(await send(method, path, JSON.stringify(body), { "Content-Type": "application/json" }));
}

export async function postForm<T>(path: string, form: FormData): Promise<T> {
  return json<T>(await send("POST", path, form));
}

export async function postBytes<T>(path: string, bytes: Blob): Promise<T> {
  return json<T>(await send("POST", path, bytes));
}
