/** The list of studies, newest first, with their best results and savings. */
import { useEffect, useState } from "preact/hooks";
import { studyPath, address, changeCount, canWrite, useAnswer } from "../data.ts";
import { count, dateText, duration, number, share, footnoteSigns, zoneText } from "../format.ts";
import { parseStudyIds, matchesWords } from "../layout/studies.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { State, Mark } from "../parts/states.tsx";
import { formatRoute, route, setQuery, studyLink } from "../route.ts";
import type { Listed, Study, StudyPage } from "../types.ts";
import { Tags } from "./labels.tsx";
import { MAX_COMPARED } from "./studies_compared.tsx";

const REFRESH_MILLISECONDS = 5000;
const PAGE_SIZE = 50;
/** How many of the newest studies a search covers. */
const MAX_SEARCHED = 1000;

export function Studies() {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const words = route.value.query["q"] ?? "";
  const answer = useAnswer<StudyPage>(`studies?limit=${words ? MAX_SEARCHED : limit}`);
  useEffect(() => {
    document.title = "stagetree";
    const timer = setInterval(() => !document.hidden && (changeCount.value += 1), REFRESH_MILLISECONDS);
    return () => clearInterval(timer);
  }, []);
  return (
    <Panel title="Studies" class="wide" isPage aside={<Search />}>
      <Loaded answer={answer}>
        {(page) => {
          const matching = page.items.filter((item) => matchesWords(item, words));
          const items = matching.slice(0, limit);
          const hasMore = matching.length > items.length || page.next_cursor !== null;
          if (page.items.length === 0) return <Empty />;
          return (
            <>
              <Selection />
              {items.length === 0 && <p class="quiet">None of the newest {page.items.length} studies matches “{words}”.</p>}
              <div class="scroll">
                <table class="list cards">
                  <thead>
                    <tr>
                      <th>
                        <span class="hidden">selected</span>
                      </th>
                      <th>Study</th>
                      <th>State</th>
                      <th>Tuner</th>
                      <th class="n">Best</th>
                      <th class="n">Trials</th>
                      <th class="n">Steps run</th>
                      <th class="n" title="of the steps of all trials, each counted alone">
                        Saved by sharing
                      </th>
                      <th class="n" title="of the steps of training every trial to its end">
                        by early stopping
                      </th>
                      <th class="n">Slot time</th>
                      <th>Who</th>
                      <th>Submitted ({zoneText()})</th>
                    </tr>
                  </thead>
                  <tbody>
                    {items.map((item) => (
                      <Row key={item.study} item={item} />
                    ))}
                  </tbody>
                </table>
              </div>
              <p class="quiet starred">* marks a result that is unverified or may be wrong; the study's page explains why.</p>
              {hasMore && <button onClick={() => setLimit(limit + PAGE_SIZE)}>Older studies</button>}
            </>
          );
        }}
      </Loaded>
    </Panel>
  );
}

function selectedIds(): string[] {
  return parseStudyIds(route.value.query["studies"], MAX_COMPARED);
}

function toggleStudy(study: string): void {
  const now = selectedIds();
  setQuery({ studies: (now.includes(study) ? now.filter((each) => each !== study) : [...now, study]).join(",") });
}

function Selection() {
  const now = selectedIds();
  if (now.length === 0) return null;
  return (
    <p class="buttons" role="status">
      <span>{now.length === MAX_COMPARED ? `${now.length} selected, the maximum` : `${now.length} selected`}</span>
      {now.length > 1 ? <a class="button main" href={formatRoute(["compare"], { studies: now.join(",") })}>Compare them</a> : <span class="quiet">select another study to compare</span>}
      <button onClick={() => setQuery({ studies: "" })}>Clear</button>
    </p>
  );
}

function Search() {
  return (
    <label>
      <span class="hidden">Find a study</span>
      <input
        type="search"
        class="filter"
        placeholder="Search names, tags and people"
        value={route.value.query["q"] ?? ""}
        onInput={(event) => setQuery({ q: event.currentTarget.value })}
      />
    </label>
  );
}

function Row({ item }: { item: Listed }) {
  const isOver = !["running", "paused"].includes(item.state);
  const { data } = useAnswer<Study>(studyPath(item.study, "", null, { trials: "false" }), isOver);
  return (
    <tr>
      <td>
        <input type="checkbox" checked={selectedIds().includes(item.study)} aria-label={`Choose ${item.study}`} onChange={() => toggleStudy(item.study)} />
      </td>
      <th scope="row">
        <a href={formatRoute(["studies", item.study])}>{item.study}</a>
        {!item.study.startsWith(item.name) && <p class="quiet begins">{item.name}</p>}
        {item.tags?.length ? (
          <p>
            <Tags tags={item.tags} />
          </p>
        ) : null}
        {item.begins && <p class="quiet begins">from {item.begins}</p>}
      </th>
      <td data-label="State">
        <State state={item.state} />
        {data?.exactness.mark && (
          <p class="quiet" title={data.exactness.mark}>
            {data.exactness.verdict}
          </p>
        )}
      </td>
      <td data-label="Tuner">{data?.tuner ?? "…"}</td>
      <td class="n" data-label="Best">
        {data?.best ? number(data.best.value) : "–"}
        {data?.best && <Mark text={data.best.exactness} signs={footnoteSigns([data.best.exactness])} />}
        {data && (
          <p class="quiet" title={data.mode === "min" ? "lower is better" : "higher is better"}>
            {data.metric} <span aria-hidden="true">{data.mode === "min" ? "↓" : "↑"}</span>
          </p>
        )}
      </td>
      <td class="n" data-label="Trials">
        {data ? trialsText(data) : "…"}
        {Boolean(data?.counts.failed) && (
          <p>
            <a class="bad" href={studyLink(item.study, ["trials"], { q: "state:failed" })}>
              ▲ {data!.counts.failed} failed
            </a>
          </p>
        )}
      </td>
      <td class="n" data-label="Steps run">{data ? number(data.cost.run) : "…"}</td>
      <td class={savedClass(data?.cost.saved_by_sharing)} data-label="Saved by sharing">{data ? share(data.cost.saved_by_sharing) : "…"}</td>
      <td class={savedClass(data?.cost.saved_by_stopping)} data-label="by early stopping">{data ? share(data.cost.saved_by_stopping) : "…"}</td>
      <td class="n" data-label="Slot time">{data ? duration(data.gpu_seconds) : "…"}</td>
      <td data-label="Who">{item.owner || "–"}</td>
      <td class="whole" data-label="Submitted">{dateText(item.submitted_at)}</td>
    </tr>
  );
}

/** "3 of 12", or "12" when all are done. */
function trialsText({ progress: { trials } }: Study): string {
  return trials.expected && trials.expected !== trials.done ? `${count(trials.done)} of ${count(trials.expected)}` : count(trials.done);
}

/** Nothing saved is nothing to be proud of. */
function savedClass(part: number | null | undefined): string {
  return part ? "n strong" : "n quiet";
}

function Empty() {
  const server = address("").replace(/\/api\/v1\/$/, "");
  if (!canWrite.value) return <p class="empty">There are no studies here.</p>;
  return (
    <div class="empty">
      <p>There are no studies yet. In a terminal, submit a study file to this server:</p>
      <pre>stagetree submit study.yaml --server {server}</pre>
      <p>
        or <a href={formatRoute(["submit"])}>write one here</a>.
      </p>
    </div>
  );
}
