/**
 * The workflow document: the same JSON that the server runs and stores (app/graph/document.py).
 *
 * The editor edits this JSON itself, so keys that it does not know survive untouched. Documents are never changed in
 * place: every function that edits takes an immer draft or returns a new document.
 */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** A wire's start: node id, and the output's name or slot number. */
export type Link = readonly [node: string, output: string | number];

/** `mute`: the node and what needs it do not run. `bypass`: what is wired in is passed on. */
export type NodeMode = "mute" | "bypass";

export type Point = readonly [x: number, y: number];

/** What the editor keeps about a node. All lengths in canvas pixels. */
export interface NodeMeta {
  title?: string;
  pos?: Point;
  width?: number;
  collapsed?: boolean;
  /** Any CSS colour as #rrggbb. */
  color?: string;
  /** Port groups that are unfolded; folded is the default. */
  expanded?: readonly string[];
  /** Widgets that are shown as bare sockets. */
  sockets?: readonly string[];
  /** What happens to a seed when Run is pressed: a new one is rolled, or it stays. */
  seed_mode?: "fixed" | "randomize";
  [key: string]: Json | undefined;
}

export interface WorkflowNode {
  class_type: string;
  inputs: { [name: string]: Json };
  mode?: NodeMode;
  _meta?: NodeMeta;
  [key: string]: unknown;
}

/** A frame around nodes; it owns its members by id, not by overlap. */
export interface Group {
  id: string;
  title: string;
  color?: string;
  nodes: readonly string[];
  pos: Point;
  size: Point;
  [key: string]: unknown;
}

/** A widget pinned to the live panel. */
export interface PanelItem {
  node: string;
  input: string;
  label?: string;
  minimum?: number;
  maximum?: number;
  [key: string]: unknown;
}

export interface Workflow {
  version: number;
  nodes: { [id: string]: WorkflowNode };
  groups?: Group[];
  panel?: PanelItem[];
  [key: string]: unknown;
}

/** A wire from an output to an input. */
export interface Wire {
  source: string;
  output: string | number;
  target: string;
  input: string;
}

export const EMPTY: Workflow = { version: 1, nodes: {} };

/** The link that an input's value is, or null when it is a literal; the same rule as the server's link_of. */
export function linkOf(value: Json | undefined): Link | null {
  if (!Array.isArray(value) || value.length !== 2) return null;
  const [node, output] = value as readonly Json[];
  if (typeof node !== "string") return null;
  return typeof output === "string" || Number.isInteger(output) ? [node, output as string | number] : null;
}

/** A literal's value, unwrapped; undefined stays undefined. */
export function literalOf(value: Json | undefined): Json | undefined {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    const keys = Object.keys(value);
    if (keys.length === 1 && keys[0] === "__value__") return (value as { __value__: Json }).__value__;
  }
  return value;
}

/** A literal as it is written: wrapped when it would read as a link or as a wrapped literal. */
export function written(value: Json): Json {
  return linkOf(value) !== null || literalOf(value) !== value ? { __value__: value } : value;
}

/** Every wire of a document, in node order. */
export function wiresOf(workflow: Workflow): Wire[] {
  const wires: Wire[] = [];
  for (const [target, node] of Object.entries(workflow.nodes)) {
    for (const [input, value] of Object.entries(node.inputs)) {
      const link = linkOf(value);
      if (link) wires.push({ source: link[0], output: link[1], target, input });
    }
  }
  return wires;
}

/** The smallest whole number that is no node id yet, as text. */
export function freeId(nodes: Readonly<Record<string, unknown>>): string {
  let highest = 0;
  for (const id of Object.keys(nodes)) if (/^\d{1,9}$/.test(id)) highest = Math.max(highest, Number(id));
  return String(highest + 1);
}

export function positionOf(node: WorkflowNode): Point {
  const pos = node._meta?.pos;
  return Array.isArray(pos) && Number.isFinite(pos[0]) && Number.isFinite(pos[1]) ? (pos as unknown as Point) : [0, 0];
}
