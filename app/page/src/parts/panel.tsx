/** Panels, each with a heading and an error boundary. */
import { Component, type ComponentChildren } from "preact";
import { refreshAll, type Answer, type RequestError } from "../data.ts";

interface Props {
  title?: string;
  aside?: ComponentChildren;
  class?: string;
  /** Whether its heading is that of the whole page. */
  isPage?: boolean;
  children: ComponentChildren;
}

export function Panel({ title, aside, children, class: name = "", isPage = false }: Props) {
  return (
    <section class={`panel ${name}`} aria-label={title}>
      {title && (
        <header>
          {isPage ? <h1>{title}</h1> : <h2>{title}</h2>}
          {aside && <div class="aside">{aside}</div>}
        </header>
      )}
      <ErrorBoundary>{children}</ErrorBoundary>
    </section>
  );
}

interface ErrorState {
  error: Error | null;
  /** The children that failed. Different children are rendered again. */
  children: ComponentChildren;
}

/** Shows an error of its children, so that the rest of the page stays usable. */
export class ErrorBoundary extends Component<{ children: ComponentChildren }, ErrorState> {
  override state: ErrorState = { error: null, children: null };

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

/** Renders a response: a placeholder before the first one, and an error above the last data. */
export function Loaded<T>({ answer, children }: LoadedProps<T>) {
  const { data, error } = answer;
  return (
    <>
      {error && <ErrorNote error={error} hasData={data !== null} />}
      {data !== null ? <ErrorBoundary>{children(data)}</ErrorBoundary> : !error && <p class="quiet">Loading …</p>}
    </>
  );
}

export function ErrorNote({ error, hasData }: { error: RequestError; hasData: boolean }) {
  return (
    <p class="trouble" role="alert">
      {error.message} {hasData && "The last data are shown."}
    </p>
  );
}
