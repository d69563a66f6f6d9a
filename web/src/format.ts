/** Numbers and times as people read them: three digits, the interval beside the value, units once. */

import type { Amounts, Json } from "./api/types";

export const MISSING = "–";

/** Three significant digits; large counts with a letter, small ones with an exponent. */
export function show(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return minus(value.toExponential(1).replace("e-", "e−"));
  if (size >= 1e4) return compact(value);
  if (Number.isInteger(value)) return minus(String(value));
  // From 1000 on, toPrecision writes an exponent.
  return minus(size >= 100 ? String(Number(value.toPrecision(3))) : trim(value.toPrecision(3), size));
}

/** A number on an axis: without zeros that say nothing. */
export const tick = (value: number): string => show(value).replace(/(\.\d*?)0+(?=$|[a-zA-Z])/, "$1").replace(/\.(?=$|[a-zA-Z])/, "");

/** A score: always three decimals between -1 and 1, so that columns line up; below 1e-6 is rounding. */
export function score(value: number | null | undefined): string {
  if (value === null || value === undefined) return MISSING;
  const size = Math.abs(value);
  if (size > 1.0005 || (size > 1e-6 && size < 0.005)) return show(value);
  return minus(value.toFixed(3)).replace(/^−(?=0\.000$)/, "");
}

export const signed = (value: number): string => (value >= 0 ? "+" : "") + score(value);

export const interval = (low: number | null, high: number | null): string =>
  low === null || high === null ? "" : `[${score(low)}, ${score(high)}]`;

function trim(text: string, size: number): string {
  return size < 1 || !text.includes(".") ? text : text.replace(/\.?0+$/, "");
}

const minus = (text: string): string => text.replace(/^-/, "−");

export function compact(value: number): string {
  const units: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [unit, letter] of units) {
    if (Math.abs(value) >= unit) return minus(`${trim((value / unit).toPrecision(3), 1)}${letter}`);
  }
  return show(value);
}

export function usd(value: number | undefined | null): string {
  if (value === undefined || value === null) return MISSING;
  if (value !== 0 && Math.abs(value) < 0.01) return `$${value.toPrecision(1)}`;
  return `$${value.toFixed(2)}`;
}

/** What something took, by what is known of it: money, else tokens, else time. */
export function spend(amounts: Amounts): string {
  if (amounts["usd"]) return usd(amounts["usd"]);
  const tokens = (amounts["tokens_trained"] ?? 0) + (amounts["tokens_sampled"] ?? 0);
  if (tokens) return `${compact(tokens)} tok`;
  if (amounts["wall_s"]) return duration(amounts["wall_s"]);
  return amounts["usd"] === 0 ? "$0" : MISSING;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return MISSING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${trim(seconds.toPrecision(2), 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${trim((seconds / 86_400).toPrecision(3), 1)} d`;
}

export function ago(time: number | null, now = Date.now() / 1000): string {
  if (time === null) return MISSING;
  const passed = now - time;
  if (passed < 45) return "now";
  if (passed < 3570) return `${Math.max(1, Math.round(passed / 60))} min`;
  if (passed < 84_600) return `${Math.round(passed / 3600)} h`;
  if (passed < 30 * 86_400) return `${Math.round(passed / 86_400)} d`;
  return new Date(time * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const clock = (time: number | null): string =>
  time === null ? MISSING : new Date(time * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function bytes(count: number | null): string {
  return count === null ? MISSING : count < 1000 ? `${count} B` : `${compact(count).replace(/(?=[a-zA-Z]$)/, " ")}B`;
}

/** A config value in one line. */
export function value(it: Json | undefined): string {
  if (it === undefined || it === null) return MISSING;
  if (typeof it === "number") return Math.abs(it) < 1e-3 && it !== 0 ? it.toExponential().replace("e-", "e−") : String(it);
  return typeof it === "string" ? it : JSON.stringify(it);
}

export const plural = (count: number, word: string): string =>
  `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** The last part of a dotted path: what a column is called where nothing else is. */
export const shortPath = (path: string): string => path.split(".").pop() ?? path;
