/** One metric over training, with everything one may want to change about it; the address remembers all of it. */

import { useMemo } from "react";

import { useCurvesOf, type CurvePart } from "../api/queries";
import { show } from "../format";
import { useSettings } from "../location";
import { Figure } from "../plots/Figure";
import { LinePlot } from "../plots/LinePlot";
import { bandsOfRuns } from "../plots/seedBands";
import { Answer, Choose, Empty } from "./basics";

const X_WORDS: { [axis: string]: string } = { step: "steps", tokens: "tokens", minutes: "minutes", usd: "dollars" };
const SMOOTH = [["", "as logged"], ["0.6", "smoothed"], ["0.9", "smoothed more"]] as const;

/** What one looks at first: how good it is, how far it moves, how long and how varied its answers are, how it learns. */
const FIRST = [/^(val|eval|test)\/[^=]*$/, /^reward(\/mean)?$/, /(^|[/_])kl($|[/_])/, /(^|[/_])(length|turns|tokens_per_(task|sample|rollout))/, /entropy/, /(^|\/)loss$/];
const COUNTS = /\/(stderr|tasks|failed_samples|unscored_tasks)$/;

/** The metric of each kind that was logged, in the order of `FIRST`. */
export const firstMetrics = (names: string[]): string[] =>
  FIRST.flatMap((kind) => names.filter((name) => kind.test(name) && !COUNTS.test(name)).slice(0, 1));

/** What the runs took of their machines. */
export const machineMetrics = (names: string[]): string[] => names.filter((name) => name.startsWith("system/"));

/** A chart for each metric that one looks at first; a click shows one large. */
export function SmallCurves({ parts, metrics, colour }: { parts: CurvePart[]; metrics: string[]; colour: (run: string) => string }) {
  return (
    <div className="small-curves" role="group" aria-label="small charts">
      {metrics.map((metric) => (
        <SmallCurve key={metric} parts={parts} metric={metric} colour={colour} />
      ))}
    </div>
  );
}

const NOTHING = new Set<string>();

function SmallCurve({ parts, metric, colour }: { parts: CurvePart[]; metric: string; colour: (run: string) => string }) {
  const [settings, change] = useSettings();
  const query = useCurvesOf(parts, { metric, x: settings["x"] ?? "step", points: 120 });
  const aligned = useMemo(() => bandsOfRuns(query.data?.series ?? [], Number(settings["smooth"] ?? 0) || 0), [query.data, settings["smooth"]]);
  return (
    <figure className="figure" aria-label={metric}>
      <button type="button" className="plain clip" aria-pressed={settings["metric"] === metric} onClick={() => change({ metric, from: null, to: null })}>
        {metric}
      </button>
      <LinePlot aligned={aligned} colour={colour} hidden={NOTHING} xLabel="" yLabel={metric} log={false} range={null} onRange={() => undefined} height={150} />
    </figure>
  );
}

export function CurvesFigure(props: {
  parts: CurvePart[];
  colour: (run: string) => string;
  labels?: { [run: string]: string };
  remark?: string;
}) {
  const [settings, change] = useSettings();
  const [metric, axis] = [settings["metric"] ?? "", settings["x"] ?? "step"];
  const from = settings["from"] ? Number(settings["from"]) : null;
  const to = settings["to"] ? Number(settings["to"]) : null;
  const range = useMemo(() => (from !== null && to !== null && to > from ? { from, to } : null), [from, to]);
  const query = useCurvesOf(props.parts, { metric, x: axis, points: 500, start: range?.from, end: range?.to });
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
