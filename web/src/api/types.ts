/** What the server's own API takes and gives (app/server/api, described at /api/openapi.json). */

import type { Json, Workflow } from "../graph/document";
import type { NodeType } from "../graph/node_types";

/** One thing that is wrong. node and input are empty when it concerns the whole. */
export interface Problem {
  message: string;
  code: string;
  node: string;
  title: string;
  input: string;
}

export type RunState = "queued" | "running" | "done" | "failed" | "cancelled";

/** A result. type: image, mask, text, value, preview, audio or an extension's own word. */
export interface Output {
  node: string;
  type: string;
  folder?: "output" | "temp" | "";
  path?: string;
  value?: Json;
  step?: number;
}

export interface Progress {
  current: string | null;
  nodes: Record<string, { state: "running" | "finished" | "cached"; step?: number; steps?: number; seconds?: number }>;
}

export interface RunSummary {
  run: string;
  number: number;
  state: RunState;
  source: "comfy" | "api" | "live" | "workflow";
  name: string;
  client_id: string | null;
  priority: number;
  /** Seconds since 1970 (UTC). */
  created: number;
  started: number | null;
  ended: number | null;
  seconds: number;
  outputs: readonly Output[];
  problems: readonly Problem[];
  progress?: Progress;
}

export interface Run extends RunSummary {
  document: Workflow;
  targets: readonly string[] | null;
  node_types: readonly string[];
  seconds_by_node: Record<string, number>;
  step_seconds_by_loop: Record<string, readonly number[]>;
  cached: readonly string[];
  session_loads: number;
  session_hits: number;
}

/** A loop of a document. body and taps: ids; parent: header of the loop around it; feedback: inputs of the header. */
export interface Loop {
  header: string;
  parent: string | null;
  body: readonly string[];
  taps: readonly string[];
  feedback: readonly string[];
}

export interface Check {
  errors: readonly Problem[];
  loops: readonly Loop[];
}

export interface QueueState {
  running: number;
  queued: number;
  paused: boolean;
}

export interface WorkflowEntry {
  name: string;
  bytes: number;
  modified: number;
  title: string | null;
  node_count: number | null;
  error: string | null;
}

export interface SavedWorkflow {
  name: string;
  version: string;
  document: Workflow;
}

export interface TemplateEntry {
  name: string;
  title: string;
  note: string;
  bytes: number;
}

export interface PackageFile {
  name: string;
  bytes: number;
  modified: number;
}

export interface Package {
  name: string;
  folder: string;
  models: readonly PackageFile[];
  files: readonly PackageFile[];
}

export interface Missing {
  models: readonly { node: string; input: string; name: string }[];
  files: readonly { node: string; input: string; name: string; kind: "tokenizer" | "image" }[];
  node_types: readonly { node: string; class_type: string; sentence: string }[];
}

export interface NodeLibrary {
  node_types: readonly NodeType[];
  extensions: readonly { name: string; node_types: readonly string[]; error?: string }[];
}

export interface LiveShown {
  revision: number;
  settled: boolean;
  kept: boolean;
  run: string;
  seconds: number;
  outputs: readonly Output[];
}

export interface LiveState {
  live_id: string;
  revision: number;
  state: "waiting" | "running" | "settling" | "failed" | "steered" | "settled";
  running_revision: number | null;
  waiting_revision: number | null;
  problems: readonly Problem[];
  session_loads: number;
  session_hits: number;
  shown?: LiveShown;
  note?: string;
}

/** Which run an event belongs to; live_id and revision only for runs of a live session. */
export interface RunPlace {
  run: string;
  live_id?: string;
  revision?: number;
}

export type RunEvent = RunPlace &
  (
    | { type: "started"; nodes: readonly string[] }
    | { type: "cached"; nodes: readonly string[] }
    | { type: "node_started"; node: string }
    | { type: "node_finished"; node: string; seconds: number }
    | { type: "step_finished"; node: string; step: number; steps: number; seconds: number }
    | { type: "output"; output: Output }
    | { type: "steered"; node: string; input: string; step: number }
    | { type: "restarted"; node: string }
    | RunEnd
  );

export interface RunEnd {
  type: "done" | "failed" | "cancelled";
  seconds: number;
  outputs: readonly Output[];
  problems: readonly Problem[];
  session_loads: number;
  session_hits: number;
}

export type ServerEvent =
  | RunEvent
  | ({ type: "queue" } & QueueState)
  | { type: "removed"; runs: readonly string[]; state: RunState }
  | { type: "hello"; client_id: string; stream: string; after: number; too_old?: boolean; message?: string }
  | ({ type: "live.state" } & LiveState)
  | { type: "reply"; ref: number; live_id?: string; revision?: number }
  | { type: "error"; ref: number; errors: readonly Problem[] };

/** The JSON header of a binary preview frame; the picture follows it. */
export interface PreviewHeader extends RunPlace {
  type: "preview";
  node: string;
  index: number;
  step?: number;
  steps?: number;
  format: string;
}
