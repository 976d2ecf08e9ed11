/** The root component: the top bar, and the view that the address names. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { isReport, isTokenNeeded, canWrite, savedStudyId } from "./data.ts";
import { ConnectionAlert } from "./parts/badge.tsx";
import { ErrorBoundary } from "./parts/panel.tsx";
import { Toasts } from "./parts/toasts.tsx";
import { formatRoute, route } from "./route.ts";
import { themeChoice, setTheme, type ThemeChoice } from "./theme.ts";
import { AllSlots } from "./views/all_slots.tsx";
import { SignIn } from "./views/sign_in.tsx";
import { Studies } from "./views/studies.tsx";
import { ComparedStudies } from "./views/studies_compared.tsx";
import { StudyPage } from "./views/study.tsx";
import { Submit } from "./views/submit.tsx";

export function App() {
  useEffect(() => setTheme(themeChoice.value), []);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to content
      </a>
      <Top />
      <ConnectionAlert />
      <main id="content" tabIndex={-1}>
        <ErrorBoundary key={route.value.path.slice(0, 2).join("/")}>{view(route.value.path)}</ErrorBoundary>
      </main>
      <Toasts />
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function view([room, study, ...rest]: string[]): ComponentChildren {
  if (isTokenNeeded.value) return <SignIn />;
  if (isReport && !study) return <StudyPage study={savedStudyId()} view={[]} />;
  if (room === "studies" && study) return <StudyPage key={study} study={study} view={rest} />;
  if (room === "slots") return <AllSlots />;
  if (room === "submit") return <Submit />;
  if (room === "compare") return <ComparedStudies />;
  return <Studies />;
}

function Top() {
  const [room = "studies"] = route.value.path;
  const currentPage = (name: string) => (room === name ? { "aria-current": "page" as const } : {});
  return (
    <nav class="top" aria-label="Main">
      <a class="name" href={formatRoute([])}>
        <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true">
          <path d="M3 16h10" stroke-width="5" />
          <path d="M13 16c5 0 4-9 9-9h7M13 16h12M13 16c5 0 4 9 9 9h4" stroke-width="2.5" />
        </svg>
        stagetree
      </a>
      {!isReport && (
        <>
          <a href={formatRoute([])} {...currentPage("studies")}>
            Studies
          </a>
          <a href={formatRoute(["slots"])} {...currentPage("slots")}>
            Slots
          </a>
          {canWrite.value && (
            <a href={formatRoute(["submit"])} {...currentPage("submit")}>
              New study
            </a>
          )}
        </>
      )}
      <span class="space" />
      {!isReport && !canWrite.value && (
        <span class="quiet" title="You can view everything here but change nothing">
          read only
        </span>
      )}
      <Theme />
      {!isReport && <a href="docs">API</a>}
    </nav>
  );
}

function Theme() {
  return (
    <span class="theme">
      <span aria-hidden="true">◐</span>
      <label>
        <span class="hidden">Colours</span>
        <select value={themeChoice.value} onChange={(event) => setTheme(event.currentTarget.value as ThemeChoice)}>
          <option value="auto">auto</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
    </span>
  );
}
