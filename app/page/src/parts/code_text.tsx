/** A text in which names between backticks become code elements. */
export function CodeText({ text }: { text: string }) {
  return (
    <>
      {text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part))}
    </>
  );
}
