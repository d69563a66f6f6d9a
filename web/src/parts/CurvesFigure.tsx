/** One metric over training, with everything one may want to change about it; the address remembers all of it. */

import { useMemo } from "react";

import { useCurves } from "../api/queries";
import { show } from "../format";
import { useSettings } from "../location";
import { Figure } from "../plots/Figure";
import { LinePlot } from "../plots/LinePlot";
import { bandsOfRuns } from "../plots/seedBands";
import { Answer, Choose, Empty } from "./basics";

const X_WORDS: { [axis: string]: string } = { step: "steps", tokens: "tokens", minutes: "minutes" };
const SMOOTH = [["", "as logged"], ["0.6", "smoothed"], ["0.9", "smoothed more"]] as const;

export function CurvesFigure(props: {
  id: string;
  /** Only these runs or arms; all where empty. */
  runs?: string[];
  arms?: string[];
  colour: (run: string) => string;
  labels?: { [run: string]: string };
  remark?: string;
}) {
  const [settings, change] = useSettings();
  const [metric, axis] = [settings["metric"] ?? "", settings["x"] ?? "step"];
  const from = settings["from"] ? Number(settings["from"]) : null;
  const to = settings["to"] ? Number(settings["to"]) : null;
  const range = useMemo(() => (from !== null && to !== null && to > from ? { from, to } : null), [from, to]);
  const query = useCurves(props.id, { metric, x: axis, points: 500, run: props.runs, arm: props.arms, start: range?.from, end: range?.to });
  const smoothing = Number(settings["smooth"] ?? 0) || 0;
  const hidden = useMemo(() => new Set((settings["hide"] ?? "").split("\n").filter(Boolean)), [settings["hide"]]);
  const aligned = useMemo(() => bandsOfRuns(query.data?.series ?? [], smoothing), [query.data, smoothing]);
  const toggle = (run: string) => {
    const next = new Set(hidden);
    if (!next.delete(run)) next.add(run);
    change({ hide: [...next].join("\n") });
  };
  return (
    <Answer query={query} lines={10}>
      {(curves) =>
        !curves.metrics.length ? (
          <Empty title="Nothing was logged yet">The first step draws the first point, here, by itself.</Empty>
        ) : (
          <Figure
            title={`${curves.metric} over ${X_WORDS[curves.x] ?? curves.x}`}
            data={() => [["run", "seed", curves.x, curves.metric], ...curves.series.flatMap((one) => one.x.map((x, at) => [one.run, one.seed, x, one.y[at]]))]}
            controls={
              <span className="row no-print">
                <Choose label="metric" value={curves.metric} options={curves.metrics} onChange={(value) => change({ metric: value })} />
                <Choose label="x axis" value={axis} options={curves.axes.map((one) => [one, `over ${X_WORDS[one] ?? one}`] as const)} onChange={(value) => change({ x: value === "step" ? null : value, from: null, to: null })} />
                <Choose label="smoothing" value={settings["smooth"] ?? ""} options={SMOOTH} onChange={(value) => change({ smooth: value })} />
                <button type="button" aria-pressed={settings["log"] === "1"} onClick={() => change({ log: settings["log"] === "1" ? null : "1" })}>
                  log
                </button>
                {range && (
                  <button type="button" onClick={() => change({ from: null, to: null })}>
                    whole range
                  </button>
                )}
              </span>
            }
          >
            <LinePlot
              aligned={aligned}
              colour={props.colour}
              hidden={hidden}
              xLabel={X_WORDS[curves.x] ?? curves.x}
              yLabel={curves.metric}
              log={settings["log"] === "1"}
              range={range}
              onRange={(next) => change({ from: next ? String(Number(next.from.toPrecision(6))) : null, to: next ? String(Number(next.to.toPrecision(6))) : null })}
            />
            {aligned.curves.length > 1 && (
              <div className="legend" role="group" aria-label="runs that are shown">
                {aligned.curves.map((curve) => (
                  <button key={curve.run} type="button" aria-pressed={!hidden.has(curve.run)} onClick={() => toggle(curve.run)}>
                    <i className="swatch" style={{ background: props.colour(curve.run) }} />
                    {props.labels?.[curve.run] ?? curve.run}
                    <span className="quiet">{show(curve.mean.findLast((one) => one !== null))}</span>
                  </button>
                ))}
              </div>
            )}
            <p className="small quiet">
              {aligned.curves.some((curve) => curve.n > 1) ? "Lines are means, bands reach from the lowest to the highest seed. " : ""}
              Drag to zoom, double-click for all. {props.remark ?? ""}
            </p>
          </Figure>
        )
      }
    </Answer>
  );
}
