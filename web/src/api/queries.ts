/** One hook for each question; what is shown stays on the screen while it is asked again. */

import { keepPreviousData, useInfiniteQuery, useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { ask, path, question, type Params } from "./client";
import type * as t from "./types";

/** Keys begin with what a change is about, so that one event refreshes exactly what shows it. */
const about = (id: string, rest: string) => ["experiment", id, rest];

function useAnswer<T>(key: string[], where: string, params: Params = {}, enabled = true) {
  return useQuery({
    queryKey: key,
    queryFn: ({ signal }) => ask<T>(where, params, signal),
    placeholderData: keepPreviousData,
    enabled,
  });
}

function usePages<T extends { next: string | null }>(key: string[], where: string, params: Params, limit: number) {
  return useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => ask<T>(where, { ...params, limit, cursor: pageParam }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: keepPreviousData,
  });
}

export interface Paged<A extends { items: unknown[]; total: number }> {
  /** The first page, and what it says about the whole list. */
  first: A | undefined;
  total: number;
  error: unknown;
  /** A row, if its page has arrived. */
  rowAt: (index: number) => A["items"][number] | undefined;
  /** Which rows are on the screen: their pages are fetched. */
  onRange: (from: number, to: number) => void;
  refetch: () => unknown;
}

const ROWS_PER_PAGE = 100;
const WHILE_READING_MS = 1000;
const POINTED_MS = 80;

/** A list that can be scrolled to any place: only the pages on the screen are asked for. */
function usePaged<A extends { items: unknown[]; total: number }>(key: string[], where: string, params: Params, everyMs: number | false = false): Paged<A> {
  const [range, setRange] = useState<[number, number]>([0, 0]);
  const page = (number: number) => ({
    queryKey: [...key, "page", number],
    queryFn: ({ signal }: { signal: AbortSignal }) =>
      ask<A>(where, { ...params, limit: ROWS_PER_PAGE, ...(number ? { offset: number * ROWS_PER_PAGE } : {}) }, signal),
  });
  const first = useQuery({ ...page(0), placeholderData: keepPreviousData, refetchInterval: everyMs });
  const numbers: number[] = [];
  for (let number = Math.max(1, range[0]); number <= range[1]; number += 1) numbers.push(number);
  const others = useQueries({ queries: numbers.map(page) });
  const found = new Map([[0, first.data], ...others.map((one, at): [number, A | undefined] => [numbers[at] ?? 0, one.data])]);
  const onRange = useCallback((from: number, to: number) => {
    const next: [number, number] = [Math.floor(from / ROWS_PER_PAGE), Math.floor(to / ROWS_PER_PAGE)];
    setRange((old) => (old[0] === next[0] && old[1] === next[1] ? old : next));
  }, []);
  return {
    first: first.data,
    total: first.data?.total ?? 0,
    error: first.error,
    rowAt: (index) => found.get(Math.floor(index / ROWS_PER_PAGE))?.items[index % ROWS_PER_PAGE] as A["items"][number] | undefined,
    onRange,
    refetch: first.refetch,
  };
}

/** A large project takes a while to be read for the first time: what is there is shown, and asked for again. */
export function useOverview() {
  const queries = useQueryClient();
  const overview = useQuery({
    queryKey: ["experiments", "overview"],
    queryFn: ({ signal }) => ask<t.Overview>("/overview", {}, signal),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (state.data?.reading ? WHILE_READING_MS : false),
  });
  const reading = Boolean(overview.data?.reading);
  const wasReading = useRef(reading);
  useEffect(() => {
    if (wasReading.current && !reading) void queries.invalidateQueries({ queryKey: ["experiments"] });
    wasReading.current = reading;
  }, [queries, reading]);
  return overview;
}

export const useExperimentList = (params: Params, reading: boolean) =>
  usePaged<t.Experiments>(["experiments", "list", question("", params)], "/experiments", params, reading && WHILE_READING_MS);

/** All of them, page by page. */
export const useExperiments = (params: Params) =>
  usePages<t.Experiments>(["experiments", question("", params)], "/experiments", params, 500);

export const useExperiment = (id: string) => useAnswer<t.ExperimentDetail>(about(id, "detail"), path("experiments", id));

/** Who points at an experiment for a moment is likely to open it: it is asked for meanwhile. */
export function useReadyExperiment(id: string) {
  const queries = useQueryClient();
  const timer = useRef(0);
  return {
    onPointerEnter: () => {
      const queryFn = ({ signal }: { signal: AbortSignal }) => ask<t.ExperimentDetail>(path("experiments", id), {}, signal);
      timer.current = window.setTimeout(() => void queries.prefetchQuery({ queryKey: about(id, "detail"), queryFn }), POINTED_MS);
    },
    onPointerLeave: () => window.clearTimeout(timer.current),
  };
}

export const useArm = (id: string, arm: string) =>
  useAnswer<t.ArmDetail>(about(id, `arm ${arm}`), path("experiments", id, "arms", arm));

/** Some runs or arms of one experiment whose curves are drawn, with a name for them where several experiments meet. */
export interface CurvePart {
  id: string;
  run?: string[];
  arm?: string[];
  label?: string;
}

/** One metric of runs of several experiments, as one answer. */
export function useCurvesOf(parts: CurvePart[], params: Params) {
  const all = useQueries({
    queries: parts.map(({ id, run, arm }) => {
      const where = path("experiments", id, "curves");
      const asked = { ...params, run, arm };
      return {
        queryKey: about(id, question(where, asked)),
        queryFn: ({ signal }: { signal: AbortSignal }) => ask<t.Curves>(where, asked, signal),
        placeholderData: keepPreviousData,
      };
    }),
  });
  const first = all[0]?.data;
  const known = all.map((one) => one.data).filter((one) => one !== undefined);
  const stamp = all.map((one) => one.dataUpdatedAt).join(" ") + parts.map((part) => part.label ?? "").join("\n");
  const data = useMemo<t.Curves | undefined>(() => {
    if (!first) return undefined;
    const series = all.flatMap((one, at) => {
      const label = parts[at]?.label;
      if (one.data?.metric !== first.metric) return [];
      return label ? one.data.series.map((each) => ({ ...each, run: label })) : one.data.series;
    });
    const shared = (of: (curves: t.Curves) => string[]) => of(first).filter((name) => known.every((one) => of(one).includes(name)));
    return { ...first, series, metrics: shared((one) => one.metrics), axes: shared((one) => one.axes) };
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [stamp, first]);
  return { data, error: all.find((one) => one.error)?.error, refetch: () => all.forEach((one) => void one.refetch()) };
}

export function useItems(id: string, params: Params, enabled = true) {
  const where = path("experiments", id, "items");
  return useAnswer<t.Items>(about(id, question(where, params)), where, { ...params, limit: 1000 }, enabled);
}

export function useRollouts(id: string, params: Params) {
  const where = path("experiments", id, "rollouts");
  return usePaged<t.Rollouts>(about(id, question(where, params)), where, params);
}

/** The samples of one task, for a look side by side. */
export function useGroup(id: string, params: Params, enabled = true) {
  const where = path("experiments", id, "rollouts");
  return useAnswer<t.Rollouts>(about(id, `group ${question("", params)}`), where, { ...params, limit: 200 }, enabled);
}

/** A rollout never changes once it is written, so it is asked for once. */
export const useRollout = (id: string, rollout: string | undefined) =>
  useQuery({
    queryKey: ["rollout", id, rollout ?? ""],
    queryFn: ({ signal }) => ask<t.RolloutDetail>(path("experiments", id, "rollouts", rollout ?? ""), {}, signal),
    placeholderData: keepPreviousData,
    enabled: Boolean(rollout),
    staleTime: Infinity,
  });

export const useSpend = (id: string) => useAnswer<t.SpendBreakdown>(about(id, "spend"), path("experiments", id, "spend"));

export const useLineage = (id: string) => useAnswer<t.ExperimentLineage>(about(id, "lineage"), path("experiments", id, "lineage"));

export const useJournal = (id: string) =>
  usePages<t.Events>(about(id, "journal"), path("experiments", id, "journal"), {}, 500);

/** Runs of any experiments, each as `experiment` or `experiment:run`. */
export const useComparison = (of: string[]) =>
  useAnswer<t.ComparedRuns>(["comparison", ...of], "/compare", { of }, of.length > 1);

export const useDataEntries = (kind: "dataset" | "benchmark") =>
  useAnswer<t.DataEntries>(["data", kind], `/${kind}s`, { limit: 1000 });

export const useDataRows = (kind: "dataset" | "benchmark", id: string) =>
  usePages<t.DataRows>(["data", kind, id], path(`${kind}s`, id, "rows"), {}, 100);

/** Loops are no experiments, so nothing says when they change: they are asked for again every few seconds. */
export const useCampaigns = () =>
  useQuery({
    queryKey: ["campaigns"],
    queryFn: ({ signal }) => ask<t.Campaigns>("/campaigns", {}, signal),
    placeholderData: keepPreviousData,
    refetchInterval: 5000,
  });

export const useLoops = () =>
  useQuery({
    queryKey: ["loops"],
    queryFn: ({ signal }) => ask<t.Loops>("/loops", {}, signal),
    placeholderData: keepPreviousData,
    refetchInterval: 5000,
  });
