/** Where new configurations come from: what the sampler knows, what it proposes and why, and what people suggest to it. */
import { useState, type Dispatch, type StateUpdater } from "preact/hooks";
import { about, isReport, mayChange, tell, useAnswer } from "../data.ts";
import { cell, count, plural, time } from "../format.ts";
import { reason } from "../layout/sentences.ts";
import { attributesIn } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { studyLink } from "../route.ts";
import { titleOf, useTable, type Table } from "../table.ts";
import type { History, SamplerState, Suggestion, Suggestions } from "../types.ts";
import type { ViewProps } from "./props.ts";

const MOST_PROPOSALS = 12;

type Reason = Record<string, unknown>;

export function Sampler({ study, at }: ViewProps) {
  const state = useAnswer<SamplerState>(about(study.study, "/sampler", at));
  return (
    <div class="overview">
      <Panel title="Sampler" aside={state.data?.sampler && <b>{state.data.sampler}</b>}>
        <Loaded answer={state}>{({ text }) => <ul>{text.map((each) => <li key={each}>{capital(each)}.</li>)}</ul>}</Loaded>
      </Panel>
      <Panel title="Next proposal">
        <Loaded answer={state}>{({ next }) => (next ? <Proposed hp={next.hp} why={next.reason} /> : <p class="quiet">None.</p>)}</Loaded>
      </Panel>
      <Suggested study={study} at={at} refuses={state.data?.refuses ?? null} names={namesOf(state.data)} />
      <Proposals study={study} at={at} />
    </div>
  );
}

/** How values of the space are named, as far as the next proposal tells. */
function namesOf(state: SamplerState | null): string[] {
  return Object.keys((state?.next?.reason["sample"] as Reason | undefined) ?? state?.next?.hp ?? {});
}

/** A configuration as the sampler chose it, and why. */
function Proposed({ hp, why }: { hp: Reason; why: Reason }) {
  const told = told_of(why);
  return (
    <>
      <Values values={hp} />
      {told && <p class="quiet">{capital(told)}.</p>}
    </>
  );
}

/** The rung where a trial begins is that of all others: it says nothing of why. */
function told_of(why: Reason): string {
  const price = typeof why["price"] === "number" ? `priced at ${plural(why["price"], "new step")}` : "";
  return [reason({ ...why, rung: undefined }), price].filter(Boolean).join(", ");
}

function Values({ values }: { values: Reason }) {
  return (
    <dl class="values">
      {Object.entries(values).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{shown(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

interface SuggestedProps extends ViewProps {
  /** Why no more are taken; null while that is not known. */
  refuses: string | null;
  names: string[];
}

function Suggested({ study, at, refuses, names }: SuggestedProps) {
  const answer = useAnswer<Suggestions>(about(study.study, "/suggestions", at));
  const [asked, setAsked] = useState<Suggestion | "new" | null>(null);
  const canChange = mayChange.value && !isReport && at === null;
  const close = () => setAsked(null);
  const path = `studies/${encodeURIComponent(study.study)}/suggestions`;
  const aside = canChange && refuses === "" && <button onClick={() => setAsked("new")}>Suggest</button>;
  return (
    <Panel title="Suggestions" class="wide" aside={aside}>
      <Loaded answer={answer}>
        {({ items }) => (items.length ? <Listed study={study.study} items={items} ask={canChange ? setAsked : null} /> : <p class="quiet">Nothing was suggested.</p>)}
      </Loaded>
      {refuses && <p class="quiet">No more are taken: {refuses}.</p>}
      {asked === "new" && <Suggest path={path} example={names.slice(0, 2).map((name) => `${name} = …`).join("\n")} close={close} />}
      {asked !== null && asked !== "new" && <Withdraw path={path} suggestion={asked} close={close} />}
    </Panel>
  );
}

interface ListedProps {
  study: string;
  items: Suggestion[];
  ask: Dispatch<StateUpdater<Suggestion | "new" | null>> | null;
}

function Listed({ study, items, ask }: ListedProps) {
  return (
    <ol class="suggestions" start={0}>
      {items.map((each) => (
        <li key={each.suggestion}>
          <b>{each.suggestion}</b>
          <Values values={each.hp} />
          <span class="quiet">
            {each.by && `${each.by}, `}
            {time(each.at)}
          </span>
          <Standing study={study} suggestion={each} />
          {ask && isWaiting(each) && (
            <button class="small" onClick={() => ask(each)} aria-label={`Withdraw suggestion ${each.suggestion}`}>
              Withdraw
            </button>
          )}
        </li>
      ))}
    </ol>
  );
}

function isWaiting({ trial, withdrawn_at }: Suggestion): boolean {
  return trial === null && typeof withdrawn_at !== "number";
}

function Standing({ study, suggestion: { trial, withdrawn_at } }: { study: string; suggestion: Suggestion }) {
  if (typeof withdrawn_at === "number") return <span class="quiet">withdrawn {time(withdrawn_at)}</span>;
  if (trial === null) return <span>waits for the next place</span>;
  return (
    <span>
      is <a href={studyLink(study, ["trials", String(trial)])}>trial {trial}</a>
    </span>
  );
}

interface AskedProps {
  path: string;
  close: () => void;
}

function Suggest({ path, example, close }: AskedProps & { example: string }) {
  const act = async (form: FormData) => {
    const made = await tell<Suggestions>("POST", path, { suggestions: [attributesIn(String(form.get("values")))] });
    return `It is suggestion ${made.items[0]!.suggestion}, and becomes one of the next trials of the tuner.`;
  };
  return (
    <Dialog title="Suggest a configuration" verb="Suggest it" close={close} act={act}>
      <label>
        Values, one per line: name = value
        <textarea name="values" rows={6} spellcheck={false} required placeholder={example} />
      </label>
      <p class="quiet">A name is a hyper-parameter, or a field of one, such as lr.init. The sampler chooses what is left out.</p>
    </Dialog>
  );
}

function Withdraw({ path, suggestion, close }: AskedProps & { suggestion: Suggestion }) {
  const act = async () => {
    await tell("DELETE", `${path}/${suggestion.suggestion}`);
    return `Suggestion ${suggestion.suggestion} is withdrawn: it does not become a trial.`;
  };
  return (
    <Dialog title={`Withdraw suggestion ${suggestion.suggestion}?`} verb="Withdraw it" isGrave close={close} act={act}>
      <Values values={suggestion.hp} />
      <p class="quiet">It does not become a trial, and another configuration takes its place.</p>
    </Dialog>
  );
}

/** The last trials that the tuner began, each with what was chosen for it and why. */
function Proposals({ study, at }: ViewProps) {
  const history = useAnswer<History>(about(study.study, "/history", at));
  const table = useTable(study.study, at);
  return (
    <Panel title="Proposed so far" class="wide">
      <Loaded answer={history}>
        {({ decisions }) => {
          const starts = decisions.kind.map((kind, index) => (kind === "start" ? index : -1)).filter((index) => index >= 0);
          if (starts.length === 0) return <p class="quiet">No trial has begun.</p>;
          const last = starts.slice(-MOST_PROPOSALS).reverse();
          const proposals = last.map((index) => ({ trial: decisions.trial[index]!, why: told_of(decisions.reason[index] as Reason) }));
          return (
            <>
              <Loaded answer={table}>{(data) => <Rows study={study.study} table={data} proposals={proposals} />}</Loaded>
              {starts.length > MOST_PROPOSALS && <p class="quiet">The last {MOST_PROPOSALS} of {count(starts.length)}.</p>}
            </>
          );
        }}
      </Loaded>
    </Panel>
  );
}

interface RowsProps {
  study: string;
  table: Table;
  proposals: { trial: number; why: string }[];
}

function Rows({ study, table, proposals }: RowsProps) {
  const isTold = proposals.some(({ why }) => why);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="The last proposals">
      <table class="list">
        <thead>
          <tr>
            {["trial", ...table.parameters.map(titleOf), ...(isTold ? ["why"] : [])].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {proposals.map(({ trial, why }) => (
            <tr key={trial}>
              <td>
                <a href={studyLink(study, ["trials", String(trial)])}>{trial}</a>
              </td>
              {table.parameters.map((name) => (
                <td key={name}>{cell(table.get(trial, name))}</td>
              ))}
              {isTold && <td class="words">{capital(why) || "–"}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value, or a sequence as its family with its fields. */
function shown(value: unknown): string {
  if (typeof value !== "object" || value === null || !("family" in value)) return typeof value === "object" ? JSON.stringify(value) : cell(value);
  const { family, ...fields } = value as Reason;
  if (family === "constant") return cell(fields["value"]);
  return [family, ...Object.entries(fields).map(([name, field]) => `${name} ${shown(field)}`)].join(" ");
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
