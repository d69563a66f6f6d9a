/** A histogram to choose by: click a bar, or drag over several. */

import { useRef } from "react";

import { plural, show } from "../format";
import { rewardColour } from "../colours";

export function Bars(props: {
  counts: number[];
  range: number[];
  chosen: { from: number; to: number } | null;
  onChoose: (chosen: { from: number; to: number } | null) => void;
}) {
  const { counts, chosen, onChoose } = props;
  const [low, high] = [props.range[0] ?? 0, props.range[1] ?? 1];
  const step = (high - low) / counts.length;
  const edge = (at: number) => Number((low + at * step).toPrecision(6));
  const most = Math.max(1, ...counts);
  const begun = useRef<number | null>(null);
  const choose = (from: number, to: number) => {
    const picked = { from: edge(Math.min(from, to)), to: edge(Math.max(from, to) + 1) };
    onChoose(chosen && chosen.from === picked.from && chosen.to === picked.to && from === to ? null : picked);
  };
  return (
    <div className="bars" role="group" aria-label="rewards, as a histogram">
      {counts.map((count, at) => {
        const inside = !chosen || (edge(at) >= chosen.from - 1e-9 && edge(at + 1) <= chosen.to + 1e-9);
        const text = `${plural(count, "rollout")} with a reward from ${show(edge(at))} to ${show(edge(at + 1))}`;
        return (
          <button
            key={at}
            type="button"
            title={text}
            aria-label={text}
            aria-pressed={chosen ? inside : undefined}
            onPointerDown={() => (begun.current = at)}
            onPointerUp={() => {
              if (begun.current !== null) choose(begun.current, at);
              begun.current = null;
            }}
            onClick={(event) => event.detail === 0 && choose(at, at)}
            style={{ "--bar": rewardColour((at + 0.5) / counts.length) } as React.CSSProperties}
          >
            <i style={{ height: count ? `${Math.max(6, (count / most) * 100)}%` : 0 }} />
          </button>
        );
      })}
    </div>
  );
}
