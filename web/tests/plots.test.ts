import { describe, expect, it } from "vitest";

import { retentionOf } from "../src/plots/Retention";
import { frontier, type Point } from "../src/plots/Scatter";
import { linear, padded, roundTicks } from "../src/plots/scale";
import { bandsOfRuns, onAxis, smooth } from "../src/plots/seedBands";
import { toCsv, toMarkdown } from "../src/plots/tables";

const series = (run: string, seed: number, x: number[], y: (number | null)[]) => ({ arm: `${run}${seed}`, run, seed, n: x.length, x, y, low: y, high: y });

describe("bands of seeds", () => {
  it("are means with the lowest and highest seed", () => {
    const { x, curves } = bandsOfRuns([series("a", 1, [0, 2], [1, 3]), series("a", 2, [0, 2], [3, 5])]);
    expect(x).toEqual([0, 2]);
    expect(curves).toEqual([{ run: "a", n: 2, mean: [2, 4], low: [1, 3], high: [3, 5] }]);
  });
  it("are interpolated where seeds were logged at other places, and nowhere else", () => {
    expect(onAxis([0, 4], [0, 8], [0, 1, 4, 5])).toEqual([0, 2, 8, null]);
    expect(onAxis([1, 2, 3], [1, null, 3], [1, 1.5, 2, 3])).toEqual([1, null, null, 3]);
  });
  it("can be smoothed without a bias to the first point", () => {
    expect(smooth([4, 4, 4], 0.9)).toEqual([4, 4, 4]);
    expect(smooth([0, null, 1], 0.5)).toEqual([0, null, 2 / 3]);
  });
});

describe("axes", () => {
  it("have ticks at round numbers", () => {
    expect(roundTicks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(roundTicks(-0.07, 0.68, 5)).toEqual([0, 0.2, 0.4, 0.6]);
    expect(roundTicks(3, 3, 5)).toEqual([3]);
  });
  it("lead there and back", () => {
    const scale = linear(10, 20, 0, 100);
    expect([scale(15), scale.invert(50)]).toEqual([50, 15]);
    expect(padded([])).toEqual([0, 1]);
  });
});

describe("what a plot is made of", () => {
  const point = (id: string, x: number, y: number): Point => ({ id, label: id, x, y, colour: "" });
  it("joins the runs that nothing beats in both", () => {
    const points = [point("cheap", 1, 0.4), point("worse", 2, 0.3), point("dear", 3, 0.9), point("same", 3, 0.9)];
    expect(frontier(points, "max").map((one) => one.id)).toEqual(["cheap", "dear"]);
    expect(frontier(points, "min").map((one) => one.id)).toEqual(["cheap", "worse"]);
  });
  it("is written so that no spreadsheet runs it", () => {
    expect(toCsv([["a", "b"], ['=1+1,"x"', -2]])).toBe('a,b\n"\'=1+1,""x""",-2\n');
    expect(toMarkdown([["a"], ["x|y"], [null]])).toBe("| a |\n|---|\n| x\\|y |\n|  |\n");
  });
  it("is the retention matrix of the checkpoints", () => {
    const [matrix] = retentionOf([
      { metrics: { "retention/one/one/acc": 0.9, loss: 1 } },
      { metrics: { "retention/two/one/acc": 0.1, "retention/two/two/acc": 1 } },
      {},
    ]);
    expect(matrix?.stages).toEqual(["one", "two"]);
    expect([matrix?.cell("one", "two"), matrix?.cell("two", "one")]).toEqual([null, 0.1]);
  });
});
