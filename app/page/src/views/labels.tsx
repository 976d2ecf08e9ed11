/** Words that people list a study under, and attributes that they set; and the form to change both. */
import { tell } from "../data.ts";
import { attributesIn, wordsIn } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import { formatRoute } from "../route.ts";
import type { Study } from "../types.ts";

/** Each tag leads to the studies that have it. */
export function Tags({ tags }: { tags: string[] | undefined }) {
  return (
    <>
      {(tags ?? []).map((tag) => (
        <a key={tag} class="tag" href={formatRoute([], { q: `tag:${tag}` })}>
          {tag}
        </a>
      ))}
    </>
  );
}

/** Both, in a line of the head; nothing where there is neither. */
export function Labels({ study: { tags = [], attributes = {} } }: { study: Study }) {
  const names = Object.keys(attributes);
  if (tags.length + names.length === 0) return null;
  return (
    <p class="quiet">
      <Tags tags={tags} /> {names.map((name) => `${name} = ${shown(attributes[name])}`).join(" · ")}
    </p>
  );
}

function shown(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What is written of tags is all of them; of attributes, an emptied or missing line takes one away. */
export function ChangeLabels({ study, path, close }: { study: Study; path: string; close: () => void }) {
  const [tags, attributes] = [study.tags ?? [], study.attributes ?? {}];
  const act = async (form: FormData) => {
    const wanted = wordsIn(String(form.get("tags")));
    const changed = { ...Object.fromEntries(Object.keys(attributes).map((name) => [name, null])), ...attributesIn(String(form.get("attributes"))) };
    await tell<Study>("POST", `${path}:label`, { add: wanted, remove: tags.filter((tag) => !wanted.includes(tag)), attributes: changed });
    return wanted.length ? `It is tagged ${wanted.join(", ")}.` : "It has no tags.";
  };
  return (
    <Dialog title="Tags and attributes" verb="Save" close={close} act={act}>
      <label>
        Tags, separated by spaces
        <input name="tags" defaultValue={tags.join(" ")} />
      </label>
      <label>
        Attributes, one per line: name = value
        <textarea name="attributes" class="plain" rows={4} defaultValue={Object.entries(attributes).map(([name, value]) => `${name} = ${shown(value)}`).join("\n")} />
      </label>
    </Dialog>
  );
}
