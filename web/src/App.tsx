/** The frame around every page, and which page an address names. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Route, Router, Switch, useLocation } from "wouter";

import { exported } from "./api/client";
import { follow, useConnection } from "./api/live";
import type { Session } from "./api/types";
import { HELP, useKeys } from "./keys";
import { href, useHashPath, useHashSearch } from "./location";
import { Bones, Empty } from "./parts/basics";
import { CampaignPage } from "./pages/Campaign";
import { ComparePage } from "./pages/Compare";
import { DataPage, DataRowsPage } from "./pages/Data";
import { ExperimentPage } from "./pages/Experiment";
import { ExperimentsPage } from "./pages/Experiments";
import { ArmPage } from "./pages/Arm";
import { SignIn, useSession } from "./session";
import { switchTheme, useTheme } from "./theme";

export function App() {
  const { session, problem, signIn } = useSession();
  return (
    <Router hook={useHashPath} searchHook={useHashSearch}>
      {session ? <Signed session={session} /> : problem ? <SignIn problem={problem} signIn={signIn} /> : <main><Bones lines={8} /></main>}
    </Router>
  );
}

function Signed({ session }: { session: Session }) {
  const queries = useQueryClient();
  useEffect(() => follow(queries), [queries]);
  useEffect(() => {
    document.title = `${session.project_name} · evsys`;
  }, [session.project_name]);
  return (
    <>
      <Top session={session} />
      <Switch>
        <Route path="/">{exported ? <ExperimentPage id={exported.experiment} session={session} /> : <ExperimentsPage />}</Route>
        <Route path="/e/:id">{({ id }) => <ExperimentPage key={id} id={decode(id)} session={session} />}</Route>
        <Route path="/e/:id/a/:arm">{({ id, arm }) => <ArmPage key={`${id}/${arm}`} id={decode(id)} arm={decode(arm)} />}</Route>
        <Route path="/compare">
          <ComparePage />
        </Route>
        <Route path="/campaign">
          <CampaignPage />
        </Route>
        <Route path="/data">
          <DataPage />
        </Route>
        <Route path="/data/:kind/:id">{({ kind, id }) => <DataRowsPage key={id} kind={kind === "benchmark" ? "benchmark" : "dataset"} id={decode(id)} />}</Route>
        <Route>
          <main id="main">
            <Empty title="There is no such page">
              <a href="#/">All experiments</a>
            </Empty>
          </main>
        </Route>
      </Switch>
    </>
  );
}

/** wouter decodes a parameter once; an id that holds a percent sign must not be decoded twice. */
const decode = (text: string): string => text;

const PLACES = [
  { path: "/", word: "Experiments", matches: (at: string) => at === "/" || at.startsWith("/e/") },
  { path: "/campaign", word: "Campaign", matches: (at: string) => at === "/campaign" },
  { path: "/compare", word: "Compare", matches: (at: string) => at === "/compare" },
  { path: "/data", word: "Data", matches: (at: string) => at.startsWith("/data") },
];

function Top({ session }: { session: Session }) {
  const [at] = useLocation();
  const theme = useTheme();
  const help = useRef<HTMLDialogElement>(null);
  useKeys({ "?": () => help.current?.showModal(), t: switchTheme });
  return (
    <header className="top">
      <a href="#/" className="brand clip" title={session.project_name}>
        {session.project_name}
      </a>
      {!exported && (
        <nav aria-label="pages">
          {PLACES.map((place) => (
            <a key={place.path} href={href(place.path.split("/").filter(Boolean))} aria-current={place.matches(at) ? "page" : undefined}>
              {place.word}
            </a>
          ))}
        </nav>
      )}
      <div className="end">
        {exported ? <span className="small quiet">exported</span> : <Signal />}
        <button type="button" onClick={switchTheme} aria-label={theme === "dark" ? "light colours" : "dark colours"} title="light or dark (t)">
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" onClick={() => help.current?.showModal()} aria-label="keyboard help" title="keyboard help (?)">
          ?
        </button>
      </div>
      <dialog ref={help} aria-label="keyboard help">
        <div className="stack">
          <h2>Keyboard</h2>
          <div className="keys">
            {HELP.map(([keys, what]) => (
              <div key={keys} style={{ display: "contents" }}>
                <span className="row tight">
                  {keys.split(/\s+/).map((key) => (
                    <kbd key={key}>{key}</kbd>
                  ))}
                </span>
                <span>{what}</span>
              </div>
            ))}
          </div>
          <p className="small quiet">evsys-sdk {session.version}</p>
          <button type="button" onClick={() => help.current?.close()} autoFocus>
            close
          </button>
        </div>
      </dialog>
    </header>
  );
}

function Signal() {
  const state = useConnection();
  const [shown, setShown] = useState(state);
  // A short interruption is nobody's business.
  useEffect(() => {
    const timer = window.setTimeout(() => setShown(state), state === "lost" ? 1500 : 0);
    return () => window.clearTimeout(timer);
  }, [state]);
  const words = { live: "live", connecting: "connecting", lost: "not connected: is `evsys dashboard` running?" };
  return (
    <span className="signal" data-state={shown} role="status" aria-label={words[shown]} title={words[shown]}>
      <i />
      <span>{shown === "lost" ? "not connected" : words[shown]}</span>
    </span>
  );
}
