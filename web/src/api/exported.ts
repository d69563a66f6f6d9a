/** Answering from the data file of an exported page: what a server would filter is filtered here. */

import { Problem, question, type Params } from "./question";
import type { Curves, Rollout, Rollouts } from "./types";

type Answers = { [question: string]: unknown };

const BINS = 10;

export function answerFromExport(answers: Answers, path: string, params: Params): unknown {
  const exact = answers[question(path, params)];
  if (exact !== undefined) return exact;
  const plain = answers[path];
  if (path.endsWith("/curves")) return curvesFrom(answers, path, params);
  if (path.endsWith("/rollouts") && plain !== undefined) return rolloutsFrom(plain as Rollouts, params);
  if (path.endsWith("/items")) return answers[question(path, pick(params, ["a", "b", "metric"]))] ?? plain ?? missing();
  if (plain !== undefined) return plain;
  return missing();
}

function missing(): never {
  throw new Problem(404, "not_exported", "This page was exported without that. Open it with `evsys dashboard`.");
}

const pick = (params: Params, names: string[]): Params =>
  Object.fromEntries(names.filter((name) => params[name]).map((name) => [name, params[name]]));

function curvesFrom(answers: Answers, path: string, params: Params): Curves {
  const found = answers[question(path, { metric: params["metric"] ?? "", x: params["x"] ?? "step" })] ?? answers[path];
  if (found === undefined) return missing();
  const curves = found as Curves;
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
  return { ...all, items, next: null, total: items.length, rewards: bins, reward_range: [low, high] };
}

function isWanted(one: Rollout, params: Params): boolean {
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
