/** What people wrote down about a study and its trials, and the form to write more. */
import { tell } from "../data.ts";
import { time } from "../format.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Panel } from "../parts/panel.tsx";
import { studyLink } from "../route.ts";
import type { LoggedEvent, Note, Study } from "../types.ts";

const MOST_CHARACTERS = 2000;

/** Nothing where nobody wrote anything. */
export function Notes({ study, notes }: { study: string; notes: Note[] }) {
  if (notes.length === 0) return null;
  return (
    <Panel title="Notes" class="wide">
      <ol class="notes">
        {notes.map((note) => (
          <li key={note.event}>
            <p class="text">{note.text}</p>
            <p class="quiet">
              {time(note.time)}, <a href={studyLink(study, ["events"], { event: String(note.event) })}>event {note.event}</a>
              {note.trial !== null && (
                <>
                  , about <a href={studyLink(study, ["trials", String(note.trial)])}>trial {note.trial}</a>
                </>
              )}
            </p>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

/** About a trial, or without one about the study. */
export function AddNote({ study, trial = null, close }: { study: Study; trial?: number | null; close: () => void }) {
  const subject = trial === null ? "the study" : `trial ${trial}`;
  const act = async (form: FormData) => {
    const event = await tell<LoggedEvent>("POST", `studies/${encodeURIComponent(study.study)}/notes`, { text: form.get("text"), trial });
    return `It is written down, as event ${event.position}.`;
  };
  return (
    <Dialog title={`A note about ${subject}`} verb="Write it down" close={close} act={act}>
      <label>
        Text
        <textarea name="text" class="plain" rows={5} maxLength={MOST_CHARACTERS} required />
      </label>
      <p class="quiet">It is kept in the log, with the time. To correct it, write another note.</p>
    </Dialog>
  );
}
