import { describe, expect, it } from "vitest";

import { answerFromExport } from "../src/api/exported";
import { question } from "../src/api/question";
import { href, splitHash } from "../src/location";
import { markNew } from "../src/parts/diff";
import { blocksOf } from "../src/parts/Markdown";
import { imageOf, partsOf, tokensOf, turnOf } from "../src/parts/transcripts";
import { outline } from "../src/parts/Tree";

describe("addresses", () => {
  it("hold any name", () => {
    const address = href(["e", "a/b %&?"], { tab: "curves", empty: "", q: "x y" });
    expect(address).toBe("#/e/a%2Fb%20%25%26%3F?tab=curves&q=x+y");
    expect(splitHash(address)).toEqual({ path: "/e/a%2Fb%20%25%26%3F", search: "tab=curves&q=x+y" });
    expect(splitHash("#token=abc").path).toBe("/");
  });
  it("of a question do not depend on the order of its parameters", () => {
    expect(question("/x", { b: ["1", "2"], a: "", c: null, d: 0 })).toBe("/x?b=1&b=2&d=0");
  });
});

describe("texts", () => {
  it("are compared word by word", () => {
    expect(markNew("the cat sat", "the dog sat down")).toEqual([
      { text: "the ", isNew: false },
      { text: "dog", isNew: true },
      { text: " sat ", isNew: false },
      { text: "down", isNew: true },
    ]);
    expect(markNew("same", "same")).toEqual([{ text: "same", isNew: false }]);
  });
  it("in Markdown are blocks and never HTML", () => {
    const text = "# Title\n\nA `b`\nand <b>c</b>.\n\n- one\n  more\n- two\n\n| a | b |\n|---|---|\n| 1 | x\\|y |\n\n> said\n\n```\ncode\n```";
    expect(blocksOf(text)).toEqual([
      { kind: "heading", text: "Title" },
      { kind: "text", text: "A `b` and <b>c</b>." },
      { kind: "list", items: ["one more", "two"] },
      { kind: "table", head: ["a", "b"], rows: [["1", "x|y"]] },
      { kind: "quote", text: "said" },
      { kind: "code", text: "code" },
    ]);
  });
  it("of a config read like YAML", () => {
    expect(outline({ name: "a", none: null, list: [1, 2], deep: { on: true }, rows: [{ x: 1, y: "b: c" }] }, 0)).toEqual([
      "name: a",
      "list: [1, 2]",
      "deep:",
      "  on: true",
      "rows:",
      "  - x: 1",
      '    y: "b: c"',
    ]);
  });
});

describe("transcripts", () => {
  it("have parts, tool calls and what a turn took", () => {
    const turn = turnOf({ role: "assistant", content: "hi", tool_calls: [{ function: { name: "f", arguments: "{}" } }], seconds: 1.234, tokens: 5 });
    expect(turn).toEqual({ role: "assistant", parts: [{ kind: "text", text: "hi" }], calls: [{ name: "f", arguments: "{}" }], remarks: ["1.23 s", "5 tokens"] });
    expect(partsOf([{ type: "text", text: "a" }, 3])).toEqual([{ kind: "text", text: "a" }, { kind: "text", text: "3" }]);
  });
  it("show pictures that are in the record, and fetch none", () => {
    expect(imageOf({ type: "image_url", image_url: { url: "data:image/png;base64,AA==" } })).toBe("data:image/png;base64,AA==");
    expect(imageOf({ type: "image", source: { type: "base64", media_type: "image/jpeg", data: "AA==" } })).toBe("data:image/jpeg;base64,AA==");
    expect(imageOf({ type: "image_url", image_url: { url: "https://example.org/x.png" } })).toBeNull();
    expect(imageOf({ type: "image_url", image_url: { url: "data:image/svg+xml;base64,AA==" } })).toBeNull();
  });
  it("show tokens in either form", () => {
    expect(tokensOf({ token_texts: ["a", "b"], logprobs: [-1, null], mask: [1, 0] })).toEqual([
      { text: "a", logprob: -1, trained: true },
      { text: "b", logprob: null, trained: false },
    ]);
    expect(tokensOf({ tokens: [{ text: "a", logprob: -2 }] })).toEqual([{ text: "a", logprob: -2, trained: true }]);
    expect(tokensOf({ tokens: 12 })).toEqual([]);
  });
});

describe("an exported page", () => {
  const rollout = (task: string, reward: number | null) => ({ id: task, arm: "a", split: "val", name: "b", step: 1, task, sample: 0, status: "", reward, tokens: null, turns: null, preview: "Text" });
  const answers = {
    "/experiments/x/rollouts": { items: [rollout("t1", 1), rollout("t2", 0), rollout("t3", null)], next: null, total: 3, arms: [], sets: [], steps: [], rewards: [], reward_range: [] },
    "/experiments/x/curves": { metric: "loss", x: "step", axes: [], metrics: [], series: [{ arm: "a", run: "r" }, { arm: "b", run: "q" }] },
    "/experiments/x/items": { a: "r", b: "q", metric: "m" },
    "/experiments/x/items?a=r&b=z&metric=m": { a: "r", b: "z", metric: "m" },
  };
  const ask = (path: string, params = {}) => answerFromExport(answers, `/experiments/x/${path}`, params);
  it("narrows rollouts as the server does", () => {
    expect(ask("rollouts", { outcome: "failed" })).toMatchObject({ total: 1, items: [{ task: "t2" }] });
    expect(ask("rollouts", { q: "t3" })).toMatchObject({ total: 1 });
    expect(ask("rollouts", { limit: 1, offset: 1 })).toMatchObject({ total: 3, items: [{ task: "t2" }] });
    expect(ask("rollouts", { min_reward: 0.5 })).toMatchObject({ total: 1, rewards: [0, 0, 0, 0, 0, 0, 0, 0, 0, 1] });
  });
  it("narrows curves, finds pairs, and says what it has not", () => {
    expect(ask("curves", { arm: ["b"] })).toMatchObject({ series: [{ arm: "b" }] });
    expect(ask("items", { b: "z" })).toMatchObject({ b: "z" });
    expect(() => ask("items", { b: "unknown" })).toThrow("exported without that");
    expect(() => ask("nothing")).toThrow("exported without that");
  });
});
