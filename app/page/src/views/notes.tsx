/** What people wrote down about a study and its trials, and the form to write more. */
import { useState } from "preact/hooks";
import { isReport, mayChange, tell } from "../data.ts";
import { time } from "../format.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Panel } from "../parts/panel.tsx";
import { moment, studyLink } from "../route.ts";
import type { LoggedEvent, Note, Study } from "../types.ts";

const MOST_CHARACTERS = 2000;

/** Nothing where nobody wrote anything. */
export function Notes({ study, notes }: { study: string; notes: Note[] }) {
  const [wrong, setWrong] = useState<Note | null>(null);
  if (notes.length === 0) return null;
  const canCorrect = mayChange.value && !isReport && moment.value === null;
  return (
    <Panel title="Notes" class="wide">
      <ol class="notes">
        {notes.map((note) => (
          <li key={note.event}>
            <p class="text">{note.text}</p>
            <p class="quiet">
              {note.by && `${note.by}, `}
              {time(note.time)}, <a href={studyLink(study, ["events"], { event: String(note.event) })}>event {note.event}</a>
              {note.trial !== null && (
                <>
                  , about <a href={studyLink(study, ["trials", String(note.trial)])}>trial {note.trial}</a>
                </>
              )}
              {note.corrected_at && `, corrected ${time(note.corrected_at)}`}{" "}
              {canCorrect && (
                <button class="plain" onClick={() => setWrong(note)} aria-label={`Correct the note of event ${note.event}`}>
                  Correct
                </button>
              )}
            </p>
          </li>
        ))}
      </ol>
      {wrong && <CorrectNote study={study} note={wrong} close={() => setWrong(null)} />}
    </Panel>
  );
}

/** About a trial, or without one about the study. */
export function AddNote({ study, trial = null, close }: { study: Study; trial?: number | null; close: () => void }) {
  const subject = trial === null ? "the study" : `trial ${trial}`;
  const act = async (form: FormData) => {
    const event = await tell<LoggedEvent>("POST", `studies/${encodeURIComponent(study.study)}/notes`, { text: form.get("text"), trial });
    return `The note is saved as event ${event.position}.`;
  };
  return (
    <Dialog title={`A note about ${subject}`} verb="Save" close={close} act={act}>
      <NoteText />
      <p class="quiet">It is kept in the log with the time, and can be corrected later.</p>
    </Dialog>
  );
}

function CorrectNote({ study, note, close }: { study: string; note: Note; close: () => void }) {
  const act = async (form: FormData) => {
    await tell<Note>("POST", `studies/${encodeURIComponent(study)}/notes/${note.event}:correct`, { text: form.get("text") });
    return "The note is corrected.";
  };
  return (
    <Dialog title="Correct the note" verb="Correct it" close={close} act={act}>
      <NoteText text={note.text} />
      <p class="quiet">The earlier text stays among the events.</p>
    </Dialog>
  );
}

function NoteText({ text = "" }: { text?: string }) {
  return (
    <label>
      Text
      <textarea name="text" class="plain" rows={5} maxLength={MOST_CHARACTERS} required defaultValue={text} />
    </label>
  );
}
