/** Answering from the data file of an exported page: what a server would filter is filtered here. */

import { Problem, question, type Params } from "./question";
import type { Curves, Items, RolloutLine, Rollouts } from "./types";

type Answers = { [question: string]: unknown };

const BINS = 10;

export function answerFromExport(answers: Answers, path: string, params: Params): unknown {
  const plain = answers[path];
  if (path.endsWith("/curves")) return curvesFrom(answers, path, params);
  if (path.endsWith("/rollouts") && plain !== undefined) return rolloutsFrom(plain as Rollouts, params);
  if (path.endsWith("/items") && plain !== undefined) return itemsFrom(answers, path, plain as Items, params);
  if (plain !== undefined) return plain;
  return missing();
}

function missing(): never {
  throw new Problem(404, "not_exported", "This page was exported without that. Open it with `evsys dashboard`.");
}

/** What was not asked for is as in the first answer. */
function itemsFrom(answers: Answers, path: string, first: Items, params: Params): unknown {
  if (!params["a"] && !params["b"] && !params["metric"]) return first;
  const [a, b, metric] = [params["a"] ?? first.a, params["b"] ?? first.b, params["metric"] ?? first.metric];
  return answers[question(path, { a, b, metric })] ?? missing();
}

function curvesFrom(answers: Answers, path: string, params: Params): Curves {
  const first = answers[path] as Curves | undefined;
  const asked = question(path, { metric: params["metric"] || first?.metric, x: params["x"] ?? "step" });
  const curves = (answers[asked] ?? (params["metric"] ? undefined : first) ?? missing()) as Curves;
  const wanted = (name: string, value: string) => {
    const chosen = params[name];
    return !chosen || (Array.isArray(chosen) ? chosen.length === 0 || chosen.includes(value) : chosen === value);
  };
  return { ...curves, series: curves.series.filter((one) => wanted("arm", one.arm) && wanted("run", one.run)) };
}

function rolloutsFrom(all: Rollouts, params: Params): Rollouts {
  const items = all.items.filter((one) => isWanted(one, params));
  const rewards = items.flatMap((one) => (one.reward === null ? [] : [one.reward]));
  const low = Math.min(0, ...rewards);
  const high = Math.max(1, ...rewards);
  const bins = new Array<number>(BINS).fill(0);
  for (const reward of rewards) {
    const bin = Math.min(Math.floor(((reward - low) / (high - low)) * BINS), BINS - 1);
    bins[bin] = (bins[bin] ?? 0) + 1;
  }
  const begin = Number(params["offset"] ?? 0);
  const page = items.slice(begin, begin + Number(params["limit"] ?? items.length));
  return { ...all, items: page, next: null, total: items.length, rewards: bins, reward_range: [low, high] };
}

function isWanted(one: RolloutLine, params: Params): boolean {
  const same = (name: string, value: string | number) => !params[name] || String(params[name]) === String(value);
  const outcome = one.reward === null ? "error" : one.reward >= 1 ? "passed" : "failed";
  const text = `${one.task} ${one.preview}`.toLowerCase();
  return (
    same("arm", one.arm) &&
    same("split", one.split) &&
    same("name", one.name) &&
    same("step", one.step) &&
    same("task", one.task) &&
    same("outcome", outcome) &&
    (params["min_reward"] == null || (one.reward !== null && one.reward >= Number(params["min_reward"]))) &&
    (params["max_reward"] == null || (one.reward !== null && one.reward <= Number(params["max_reward"]))) &&
    text.includes(String(params["q"] ?? "").toLowerCase())
  );
}
