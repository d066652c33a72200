/** Node types and their ports, as GET /api/node_types tells them (app/graph/registry.py). */

import type { Json } from "./document";

/** A tensor's dimension: a number, a symbol, or null for an unnamed free one. */
export type Dimension = number | string | null;

/** What flows on a wire: INT FLOAT BOOLEAN STRING TENSOR IMAGE MASK SAMPLER LIST *, or an extension's own word. */
export interface SocketType {
  type: string;
  /** For TENSOR: numpy's names; absent or empty when not known. */
  dtypes?: readonly string[];
  /** For TENSOR: null or absent when the rank is not known. */
  shape?: readonly Dimension[] | null;
}

export interface InputPort extends SocketType {
  name: string;
  help: string;
  required: boolean;
  /** `feedback` is read at the end of each pass of a loop's body, `steerable` again on every step, `input` once. */
  role: "input" | "feedback" | "steerable";
  pair: "lift" | "accept" | "refuse";
  default?: Json;
  minimum?: number;
  maximum?: number;
  step?: number;
  choices?: readonly string[];
  cfg?: string;
  /** slider, multiline, seed, model, tokenizer, image, color; absent for the type's own. */
  widget?: string;
  literal_only?: boolean;
  group?: string;
}

export interface OutputPort extends SocketType {
  name: string;
  help: string;
  /** Given anew on every pass of the loop's body, else when the node is done. */
  per_step: boolean;
  group?: string;
}

export interface Ports {
  inputs: readonly InputPort[];
  outputs: readonly OutputPort[];
}

export interface NodeType extends Ports {
  name: string;
  display_name: string;
  category: string;
  help: string;
  version: number;
  source: string;
  output_node: boolean;
  is_loop: boolean;
  has_dynamic_ports: boolean;
  search_aliases: readonly string[];
}

const WIDGET_TYPES = new Set(["INT", "FLOAT", "BOOLEAN", "STRING", "LIST"]);

/** Whether an input has a widget of its own: it holds a value until a wire replaces it. */
export function hasWidget(port: InputPort): boolean {
  if (port.literal_only || port.choices?.length || port.widget) return true;
  if (!WIDGET_TYPES.has(port.type)) return false;
  // A required text or number without a default is meant for a wire first; it still takes a value.
  return port.type !== "LIST" || port.default !== undefined;
}
