/** The sampler of a study: its state, its proposals with reasons, and the suggestions of users. */
import { useState, type Dispatch, type StateUpdater } from "preact/hooks";
import { studyPath, isReport, canWrite, send, useAnswer } from "../data.ts";
import { cellText, count, plural, timeText } from "../format.ts";
import { reasonText } from "../layout/sentences.ts";
import { parseAttributes } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Price, usePrice } from "../parts/price.tsx";
import { studyLink } from "../route.ts";
import { columnTitle, useTable, type Table } from "../table.ts";
import type { History, SamplerState, Suggestion, Suggestions } from "../types.ts";
import type { ViewProps } from "./props.ts";

const MAX_PROPOSALS = 12;

type Reason = Record<string, unknown>;

export function Sampler({ study, at }: ViewProps) {
  const state = useAnswer<SamplerState>(studyPath(study.study, "/sampler", at));
  return (
    <div class="overview">
      <Panel title="Sampler" aside={state.data?.sampler && <b>{state.data.sampler}</b>}>
        <Loaded answer={state}>{({ text }) => <ul>{text.map((each) => <li key={each}>{capitalize(each)}.</li>)}</ul>}</Loaded>
      </Panel>
      <Panel title="Next proposal">
        <Loaded answer={state}>{({ next }) => (next ? <Proposal hp={next.hp} why={next.reason} /> : <p class="quiet">None.</p>)}</Loaded>
      </Panel>
      <SuggestionsPanel study={study} at={at} refuses={state.data?.refuses ?? null} names={parameterNames(state.data)} />
      <Proposals study={study} at={at} />
    </div>
  );
}

/** The names of hyper-parameters, from the next proposal. */
function parameterNames(state: SamplerState | null): string[] {
  return Object.keys((state?.next?.reason["sample"] as Reason | undefined) ?? state?.next?.hp ?? {});
}

function Proposal({ hp, why }: { hp: Reason; why: Reason }) {
  const reason = proposalReason(why);
  return (
    <>
      <Values values={hp} />
      {reason && <p class="quiet">{capitalize(reason)}.</p>}
    </>
  );
}

/** Why a configuration was proposed. All trials begin at the same rung, so the text omits it. */
function proposalReason(why: Reason): string {
  const price = typeof why["price"] === "number" ? `priced at ${plural(why["price"], "new step")}` : "";
  return [reasonText({ ...why, rung: undefined }), price].filter(Boolean).join(", ");
}

function Values({ values }: { values: Reason }) {
  return (
    <dl class="values">
      {Object.entries(values).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{valueText(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

interface SuggestionsPanelProps extends ViewProps {
  /** Why the study accepts no more suggestions; "" if it does; null before the response. */
  refuses: string | null;
  names: string[];
}

function SuggestionsPanel({ study, at, refuses, names }: SuggestionsPanelProps) {
  const answer = useAnswer<Suggestions>(studyPath(study.study, "/suggestions", at));
  const [openDialog, setOpenDialog] = useState<Suggestion | "new" | null>(null);
  const canChange = canWrite.value && !isReport && at === null;
  const close = () => setOpenDialog(null);
  const path = `studies/${encodeURIComponent(study.study)}/suggestions`;
  const aside = canChange && refuses === "" && <button onClick={() => setOpenDialog("new")}>Suggest</button>;
  return (
    <Panel title="Suggestions" class="wide" aside={aside}>
      <Loaded answer={answer}>
        {({ items }) => (items.length ? <SuggestionList study={study.study} items={items} ask={canChange ? setOpenDialog : null} /> : <p class="quiet">No suggestions.</p>)}
      </Loaded>
      {refuses && <p class="quiet">No more suggestions are accepted: {refuses}.</p>}
      {openDialog === "new" && <SuggestForm path={path} example={names.slice(0, 2).map((name) => `${name} = …`).join("\n")} close={close} />}
      {openDialog !== null && openDialog !== "new" && <WithdrawForm path={path} suggestion={openDialog} close={close} />}
    </Panel>
  );
}

interface SuggestionListProps {
  study: string;
  items: Suggestion[];
  ask: Dispatch<StateUpdater<Suggestion | "new" | null>> | null;
}

function SuggestionList({ study, items, ask }: SuggestionListProps) {
  return (
    <ol class="suggestions" start={0}>
      {items.map((each) => (
        <li key={each.suggestion}>
          <b>{each.suggestion}</b>
          <Values values={each.hp} />
          <span class="quiet">
            {each.by && `${each.by}, `}
            {timeText(each.at)}
          </span>
          <SuggestionState study={study} suggestion={each} />
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

function SuggestionState({ study, suggestion: { trial, withdrawn_at } }: { study: string; suggestion: Suggestion }) {
  if (typeof withdrawn_at === "number") return <span class="quiet">withdrawn {timeText(withdrawn_at)}</span>;
  if (trial === null) return <span>queued</span>;
  return (
    <span>
      became <a href={studyLink(study, ["trials", String(trial)])}>trial {trial}</a>
    </span>
  );
}

interface FormProps {
  path: string;
  close: () => void;
}

function SuggestForm({ path, example, close }: FormProps & { example: string }) {
  const [price, askPrice] = usePrice(`${path}:price`, suggestionBody);
  const act = async (form: FormData) => {
    const made = await send<Suggestions>("POST", path, suggestionBody(form));
    const number = made.items[0]!.suggestion;
    const undo = async () => (await send("DELETE", `${path}/${number}`), `Suggestion ${number} is withdrawn.`);
    return { text: `Saved as suggestion ${number}. It becomes one of the next trials of the tuner.`, undo };
  };
  return (
    <Dialog title="Suggest a configuration" verb="Suggest it" close={close} act={act} onInput={askPrice}>
      <label>
        Values, one per line: name = value
        <textarea name="values" rows={6} spellcheck={false} required placeholder={example} />
      </label>
      <p class="quiet">A name is a hyper-parameter, or a field of one, such as lr.init. The sampler chooses the other values.</p>
      <Price sentence={price} />
    </Dialog>
  );
}

function suggestionBody(form: FormData): unknown {
  return { suggestions: [parseAttributes(String(form.get("values")))] };
}

function WithdrawForm({ path, suggestion, close }: FormProps & { suggestion: Suggestion }) {
  const act = async () => {
    await send("DELETE", `${path}/${suggestion.suggestion}`);
    return `Suggestion ${suggestion.suggestion} is withdrawn and will not become a trial.`;
  };
  return (
    <Dialog title={`Withdraw suggestion ${suggestion.suggestion}?`} verb="Withdraw it" isDestructive close={close} act={act}>
      <Values values={suggestion.hp} />
      <p class="quiet">It will not become a trial. The sampler proposes another configuration instead.</p>
    </Dialog>
  );
}

/** The last trials that the tuner started, with their configurations and reasons. */
function Proposals({ study, at }: ViewProps) {
  const history = useAnswer<History>(studyPath(study.study, "/history", at));
  const table = useTable(study.study, at);
  return (
    <Panel title="Recent proposals" class="wide">
      <Loaded answer={history}>
        {({ decisions }) => {
          const starts = decisions.kind.map((kind, index) => (kind === "start" ? index : -1)).filter((index) => index >= 0);
          if (starts.length === 0) return <p class="quiet">No trial has started.</p>;
          const last = starts.slice(-MAX_PROPOSALS).reverse();
          const proposals = last.map((index) => ({ trial: decisions.trial[index]!, why: proposalReason(decisions.reason[index] as Reason) }));
          return (
            <>
              <Loaded answer={table}>{(data) => <ProposalsTable study={study.study} table={data} proposals={proposals} />}</Loaded>
              {starts.length > MAX_PROPOSALS && <p class="quiet">Showing the last {MAX_PROPOSALS} of {count(starts.length)}.</p>}
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

function ProposalsTable({ study, table, proposals }: RowsProps) {
  const hasReasons = proposals.some(({ why }) => why);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="The last proposals">
      <table class="list">
        <thead>
          <tr>
            {["trial", ...table.parameters.map(columnTitle), ...(hasReasons ? ["why"] : [])].map((name) => (
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
                <td key={name}>{cellText(table.get(trial, name))}</td>
              ))}
              {hasReasons && <td class="words">{capitalize(why) || "–"}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value; a schedule as its family and fields. */
function valueText(value: unknown): string {
  if (typeof value !== "object" || value === null || !("family" in value)) return typeof value === "object" ? JSON.stringify(value) : cellText(value);
  const { family, ...fields } = value as Reason;
  if (family === "constant") return cellText(fields["value"]);
  return [family, ...Object.entries(fields).map(([name, field]) => `${name} ${valueText(field)}`)].join(" ");
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
