import { describe, expect, it } from "vitest";

import { ago, compact, duration, interval, score, show, signed, spend, tick, value } from "../src/format";

describe("numbers", () => {
  it("have three digits", () => {
    expect([0, 1, 0.12345, 12.345, 1234.5, 0.5].map(show)).toEqual(["0", "1", "0.123", "12.3", "1230", "0.500"]);
  });
  it("have a letter when large and an exponent when small", () => {
    expect([12_345, 1_460_000, 0.00002, -0.00002].map(show)).toEqual(["12.3k", "1.46M", "2.0e−5", "−2.0e−5"]);
    expect(compact(2_500_000_000)).toBe("2.5G");
  });
  it("say when there are none", () => {
    expect([show(null), show(Number.NaN), show(Infinity), score(undefined)]).toEqual(["–", "–", "∞", "–"]);
  });
  it("line up as scores and have a sign as differences", () => {
    expect([score(0.5), score(1), score(12.5), signed(0.486), signed(-0.1)]).toEqual(["0.500", "1.000", "12.5", "+0.486", "−0.100"]);
    expect(interval(0.1, 0.9)).toBe("[0.100, 0.900]");
    expect(interval(null, 0.9)).toBe("");
  });
  it("lose empty zeros on an axis", () => {
    expect([tick(0.5), tick(0.06), tick(10), tick(100), tick(0)]).toEqual(["0.5", "0.06", "10", "100", "0"]);
  });
});

describe("amounts and times", () => {
  it("name what is known, money first", () => {
    expect(spend({ usd: 1.2, wall_s: 5 })).toBe("$1.20");
    expect(spend({ usd: 0, tokens_trained: 1000, tokens_sampled: 500 })).toBe("1.5k tok");
    expect(spend({ wall_s: 90 })).toBe("1 min 30 s");
    expect(spend({})).toBe("–");
  });
  it("are short", () => {
    expect([0.04, 5.23, 90, 7200].map(duration)).toEqual(["40 ms", "5.2 s", "1 min 30 s", "2 h 0 min"]);
    expect([ago(1000, 1010), ago(1000, 1300), ago(1000, 8200), ago(null)]).toEqual(["now", "5 min", "2 h", "–"]);
  });
  it("show config values as they were written", () => {
    expect([value(0.0001), value("a"), value([1, 2]), value(null), value(40)]).toEqual(["1e−4", "a", "[1,2]", "–", "40"]);
  });
});
