/** A part of the page: with a heading, and with what went wrong in it kept to itself. */
import { Component, type ComponentChildren } from "preact";
import { refreshAll, type Answer, type Trouble } from "../data.ts";

interface Props {
  title?: string;
  aside?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

export function Panel({ title, aside, children, class: name = "" }: Props) {
  return (
    <section class={`panel ${name}`} aria-label={title}>
      {title && (
        <header>
          <h2>{title}</h2>
          {aside && <div class="aside">{aside}</div>}
        </header>
      )}
      <Guarded>{children}</Guarded>
    </section>
  );
}

interface Failure {
  error: Error | null;
  /** What failed. What is given later is tried again, such as when another answer has come. */
  children: ComponentChildren;
}

/** What fails inside is said in its place; everything around it goes on. */
export class Guarded extends Component<{ children: ComponentChildren }, Failure> {
  override state: Failure = { error: null, children: null };

  override componentDidCatch(error: Error): void {
    this.setState({ error, children: this.props.children });
  }

  override render() {
    const { error, children } = this.state;
    if (!error || children !== this.props.children) return this.props.children;
    return (
      <div class="trouble" role="alert">
        <p>This part of the page cannot be shown: {error.message}</p>
        <button onClick={() => (this.setState({ error: null }), refreshAll())}>Try again</button>
      </div>
    );
  }
}

interface LoadedProps<T> {
  answer: Answer<T>;
  children: (data: T) => ComponentChildren;
}

/** What the server answered; until then that it is asked, and what went wrong above what it answered last. */
export function Loaded<T>({ answer, children }: LoadedProps<T>) {
  const { data, error } = answer;
  return (
    <>
      {error && <TroubleNote error={error} isOld={data !== null} />}
      {data !== null ? <Guarded>{children(data)}</Guarded> : !error && <p class="quiet">Loading …</p>}
    </>
  );
}

export function TroubleNote({ error, isOld }: { error: Trouble; isOld: boolean }) {
  return (
    <p class="trouble" role="alert">
      {error.message} {isOld && "You see its last answer."}
    </p>
  );
}
