/** Asking the server, or the data file next to an exported page: the same questions, the same answers. */

import { answerFromExport } from "./exported";
import { Problem, question, type Params } from "./question";
import type { PageSession } from "./types";

export { Problem, question, type Params };

const PREFIX = "api/dashboard/api";

/** What an exported page carries in `data.js`: answers by question. */
interface Exported {
  session: PageSession;
  experiment: string;
  /** What was left out. */
  remarks: string[];
  answers: { [question: string]: unknown };
}

declare global {
  // eslint-disable-next-line no-var
  var EVSYS_EXPORT: Exported | undefined;
}

export const exported: Exported | undefined = globalThis.EVSYS_EXPORT;

export async function ask<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  if (exported) {
    return answerFromExport(exported.answers, path, params) as T;
  }
  return send<T>("GET", question(path, params), undefined, signal);
}

/** Change something; the header tells the server that this page did it, and no other. */
export function tell<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown): Promise<T> {
  return send<T>(method, path, body);
}

async function send<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { "X-Evsys-Request": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(PREFIX + path, { method, headers, body: body === undefined ? null : JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "The dashboard does not answer. Is `evsys dashboard` still running?");
  }
  if (answer.status === 204) return undefined as T;
  const told: unknown = await answer.json().catch(() => null);
  if (answer.ok) return told as T;
  const problem = told as { error?: string; message?: string } | null;
  throw new Problem(answer.status, problem?.error ?? "error", problem?.message ?? `The server answered ${answer.status}.`);
}

export const streamAddress = `${PREFIX}/events`;

/** Segments of a path, each escaped: ids and names may hold anything. */
export const path = (...segments: string[]): string => segments.map((one) => `/${encodeURIComponent(one)}`).join("");
