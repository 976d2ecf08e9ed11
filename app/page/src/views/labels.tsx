/** Tags and attributes of a study, and the form that changes them. */
import { send } from "../data.ts";
import { parseAttributes, splitWords } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import { formatRoute } from "../route.ts";
import type { Study } from "../types.ts";

/** Each tag links to the studies with that tag. */
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

export function StudyLabels({ study: { tags = [], attributes = {} } }: { study: Study }) {
  const names = Object.keys(attributes);
  if (tags.length + names.length === 0) return null;
  return (
    <p class="quiet">
      <Tags tags={tags} /> {names.map((name) => `${name} = ${attributeText(attributes[name])}`).join(" · ")}
    </p>
  );
}

function attributeText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The form replaces all tags. An attribute without a value, or whose line is removed, is deleted. */
export function LabelsForm({ study, path, close }: { study: Study; path: string; close: () => void }) {
  const [tags, attributes] = [study.tags ?? [], study.attributes ?? {}];
  const act = async (form: FormData) => {
    const newTags = splitWords(String(form.get("tags")));
    const changed = { ...Object.fromEntries(Object.keys(attributes).map((name) => [name, null])), ...parseAttributes(String(form.get("attributes"))) };
    await send<Study>("POST", `${path}:label`, { add: newTags, remove: tags.filter((tag) => !newTags.includes(tag)), attributes: changed });
    const before = { ...Object.fromEntries(Object.keys(changed).map((name) => [name, null])), ...attributes };
    const undo = async () => (await send<Study>("POST", `${path}:label`, { add: tags, remove: newTags.filter((tag) => !tags.includes(tag)), attributes: before }), "The tags and attributes are as before.");
    return { text: newTags.length ? `Tags: ${newTags.join(", ")}.` : "The study has no tags.", undo };
  };
  return (
    <Dialog title="Tags and attributes" verb="Save" close={close} act={act}>
      <label>
        Tags, separated by spaces
        <input name="tags" defaultValue={tags.join(" ")} />
      </label>
      <label>
        Attributes, one per line: name = value
        <textarea name="attributes" class="plain" rows={4} defaultValue={Object.entries(attributes).map(([name, value]) => `${name} = ${attributeText(value)}`).join("\n")} />
      </label>
    </Dialog>
  );
}
