/** Notes about a study and its trials, and the forms to add and correct them. */
import { useState } from "preact/hooks";
import { isReport, canWrite, send } from "../data.ts";
import { timeText } from "../format.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Panel } from "../parts/panel.tsx";
import { moment, studyLink } from "../route.ts";
import type { LoggedEvent, Note, Study } from "../types.ts";

const MAX_CHARACTERS = 2000;

export function Notes({ study, notes }: { study: string; notes: Note[] }) {
  const [wrong, setWrong] = useState<Note | null>(null);
  if (notes.length === 0) return null;
  const canCorrect = canWrite.value && !isReport && moment.value === null;
  return (
    <Panel title="Notes" class="wide">
      <ol class="notes">
        {notes.map((note) => (
          <li key={note.event}>
            <p class="text">{note.text}</p>
            <p class="quiet">
              {note.by && `${note.by}, `}
              {timeText(note.time)}, <a href={studyLink(study, ["events"], { event: String(note.event) })}>event {note.event}</a>
              {note.trial !== null && (
                <>
                  , about <a href={studyLink(study, ["trials", String(note.trial)])}>trial {note.trial}</a>
                </>
              )}
              {note.corrected_at && `, corrected ${timeText(note.corrected_at)}`}{" "}
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

/** A note about a trial, or about the study if `trial` is null. */
export function AddNote({ study, trial = null, close }: { study: Study; trial?: number | null; close: () => void }) {
  const subject = trial === null ? "the study" : `trial ${trial}`;
  const act = async (form: FormData) => {
    const event = await send<LoggedEvent>("POST", `studies/${encodeURIComponent(study.study)}/notes`, { text: form.get("text"), trial });
    return `The note is saved as event ${event.position}.`;
  };
  return (
    <Dialog title={`A note about ${subject}`} verb="Save" close={close} act={act}>
      <NoteText />
      <p class="quiet">The note is recorded in the log with its time, and can be corrected later.</p>
    </Dialog>
  );
}

function CorrectNote({ study, note, close }: { study: string; note: Note; close: () => void }) {
  const act = async (form: FormData) => {
    await send<Note>("POST", `studies/${encodeURIComponent(study)}/notes/${note.event}:correct`, { text: form.get("text") });
    return "The note is corrected.";
  };
  return (
    <Dialog title="Correct the note" verb="Correct it" close={close} act={act}>
      <NoteText text={note.text} />
      <p class="quiet">The earlier text stays in the events.</p>
    </Dialog>
  );
}

function NoteText({ text = "" }: { text?: string }) {
  return (
    <label>
      Text
      <textarea name="text" class="plain" rows={5} maxLength={MAX_CHARACTERS} required defaultValue={text} />
    </label>
  );
}
