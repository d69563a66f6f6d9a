/** Reading a recorded conversation: parts, tool calls, tokens. What is not understood is shown as it is. */

import type { Dict, Json, RolloutDetail } from "../api/types";
import { usd } from "../format";

export type Part = { kind: "text"; text: string } | { kind: "image"; source: string };

export interface Call {
  name: string;
  arguments: string;
}

export interface Turn {
  role: string;
  parts: Part[];
  calls: Call[];
  /** What it took, where that was recorded. */
  remarks: string[];
}

export interface Token {
  text: string;
  logprob: number | null;
  /** False where the loss does not see it. */
  trained: boolean;
}

const isDict = (it: Json | undefined): it is Dict => typeof it === "object" && it !== null && !Array.isArray(it);
const textOf = (it: Json | undefined): string => (typeof it === "string" ? it : it === undefined || it === null ? "" : JSON.stringify(it, null, 2));

export function turnsOf(detail: RolloutDetail): Turn[] {
  const turns = detail.messages.map(turnOf);
  if (turns.length) return turns;
  const prompt = detail.raw["prompt"];
  const asked: Turn[] = Array.isArray(prompt)
    ? prompt.filter(isDict).map(turnOf)
    : typeof prompt === "string" && prompt
      ? [{ role: "user", parts: [{ kind: "text", text: prompt }], calls: [], remarks: [] }]
      : [];
  return [...asked, { role: "assistant", parts: [{ kind: "text", text: detail.text }], calls: [], remarks: [] }];
}

export function turnOf(message: Dict): Turn {
  const calls = Array.isArray(message["tool_calls"]) ? message["tool_calls"].filter(isDict).map(callOf) : [];
  const remarks: string[] = [];
  if (typeof message["name"] === "string") remarks.push(message["name"]);
  if (typeof message["seconds"] === "number") remarks.push(`${message["seconds"].toFixed(2)} s`);
  if (typeof message["tokens"] === "number") remarks.push(`${message["tokens"]} tokens`);
  if (Number(message["cost_usd"]) > 0) remarks.push(usd(Number(message["cost_usd"])));
  return { role: textOf(message["role"]) || "message", parts: partsOf(message["content"]), calls, remarks };
}

export function partsOf(content: Json | undefined): Part[] {
  if (content === undefined || content === null || content === "") return [];
  if (!Array.isArray(content)) return [{ kind: "text", text: textOf(content) }];
  return content.map((one) => {
    if (!isDict(one)) return { kind: "text", text: textOf(one) };
    const source = imageOf(one);
    if (source) return { kind: "image", source };
    return { kind: "text", text: typeof one["text"] === "string" ? one["text"] : textOf(one) };
  });
}

/** Only pictures that are in the record itself; nothing is fetched from an address that somebody wrote. */
export function imageOf(part: Dict): string | null {
  const [link, source] = [part["image_url"], part["source"]];
  const url = isDict(link) ? link["url"] : link;
  if (typeof url === "string") return /^data:image\/(png|jpeg|gif|webp);base64,/.test(url) ? url : null;
  if (!isDict(source)) return null;
  const kind = textOf(source["media_type"]);
  return /^image\/(png|jpeg|gif|webp)$/.test(kind) ? `data:${kind};base64,${textOf(source["data"])}` : null;
}

function callOf(call: Dict): Call {
  const inner = isDict(call["function"]) ? call["function"] : call;
  const given = inner["arguments"] ?? inner["input"] ?? inner["args"];
  return { name: textOf(inner["name"]) || "tool", arguments: textOf(given) };
}

/** Tokens with their log-probabilities, where they were recorded. */
export function tokensOf(raw: Dict): Token[] {
  const [tokens, logprobs, mask] = [raw["token_texts"] ?? raw["tokens"], raw["logprobs"], raw["mask"] ?? raw["weights"]];
  if (!Array.isArray(tokens)) return [];
  return tokens.map((token, at) => {
    const own = isDict(token) ? token : null;
    const logprob = own ? own["logprob"] : Array.isArray(logprobs) ? logprobs[at] : null;
    const trained = own ? own["trained"] ?? own["mask"] : Array.isArray(mask) ? mask[at] : 1;
    return {
      text: own ? textOf(own["text"] ?? own["token"]) : typeof token === "number" ? `${token} ` : textOf(token),
      logprob: typeof logprob === "number" ? logprob : null,
      trained: !(trained === 0 || trained === false),
    };
  });
}
