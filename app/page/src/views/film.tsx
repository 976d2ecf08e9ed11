/** The film of the study: the rung tree grows in ten seconds, with the slots below. The server renders the frames as one SVG. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { studyPath, address, isReport, useAnswer } from "../data.ts";
import { download } from "../download.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { studyLink } from "../route.ts";
import type { ViewProps } from "./props.ts";

const reducedMotion = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");

export function Film({ study, at }: ViewProps) {
  const answer = useAnswer<string>(studyPath(study.study, "/film", at));
  const name = encodeURIComponent(study.study);
  const aside = answer.data && (
    <>
      <button onClick={() => download(`${study.study}.svg`, answer.data!, "image/svg+xml")}>Save as SVG</button>
      {!isReport && (
        <a class="button" href={address(`studies/${name}/film?format=gif${at === null ? "" : `&at=${at}`}`)} download={`${study.study}.gif`}>
          Save as GIF
        </a>
      )}
      <a href={studyLink(study.study, ["tree"])}>tree</a>
    </>
  );
  return (
    <Panel title="Film" aside={aside}>
      <Loaded answer={answer}>{(text) => <Player text={text} />}</Loaded>
    </Panel>
  );
}

/** A parsed film. Each group is visible from `frame` until `until`; the cover slides off the slots over time. */
interface Picture {
  svg: Element;
  groups: { element: Element; frame: number; until: number }[];
  cover: Element | null;
  frames: number;
  seconds: number;
}

function parseFilm(text: string): Picture {
  const plain = text.replace(/<style>[^]*?<\/style>/, ""); // the page has its own colours, and its content security policy blocks inline styles
  const svg = new DOMParser().parseFromString(plain, "image/svg+xml").documentElement;
  const groups = [...svg.querySelectorAll("[data-frame]")].map((element) => ({
    element,
    frame: Number(element.getAttribute("data-frame")),
    until: Number(element.getAttribute("data-until") ?? Infinity),
  }));
  const attribute = (name: string) => Number(svg.getAttribute(name));
  return { svg, groups, cover: svg.querySelector(".cover"), frames: attribute("data-frames"), seconds: attribute("data-seconds") };
}

function showFrame({ groups, cover, frames }: Picture, frame: number): void {
  for (const { element, frame: from, until } of groups) element.setAttribute("visibility", from <= frame && frame < until ? "visible" : "hidden");
  cover?.setAttribute("transform", `translate(${(Number(cover.getAttribute("data-slide")) * frame) / frames})`);
  cover?.setAttribute("visibility", frame < frames ? "visible" : "hidden");
}

function Player({ text }: { text: string }) {
  const [playing, setPlaying] = useState(false);
  const [frame, setFrame] = useState(Infinity);
  const held = useRef(text);
  if (!playing) held.current = text; // a running study has a new film after each refresh
  const picture = useMemo(() => parseFilm(held.current), [held.current]);
  const place = useRef<HTMLDivElement>(null);
  const now = Math.min(frame, picture.frames);
  const moments = useMemo(() => [...new Set(picture.groups.map((each) => each.frame))].sort((a, b) => a - b), [picture]);
  useEffect(() => place.current?.replaceChildren(picture.svg), [picture]);
  useEffect(() => showFrame(picture, now), [picture, now]);
  useEffect(() => {
    if (!playing) return undefined;
    const [begin, from] = [performance.now(), now];
    let next = requestAnimationFrame(function step(time) {
      const at = Math.min(picture.frames, from + Math.floor((Math.max(0, time - begin) / 1000 / picture.seconds) * picture.frames));
      setFrame(at);
      if (at < picture.frames) next = requestAnimationFrame(step);
      else setPlaying(false);
    });
    return () => cancelAnimationFrame(next);
  }, [playing, picture]);
  const go = (to: number | undefined) => (setPlaying(false), setFrame(to ?? picture.frames));
  const play = () => {
    if (!playing && now >= picture.frames) setFrame(0);
    setPlaying(!playing);
  };
  return (
    <>
      <div class="buttons film-keys">
        {!reducedMotion?.matches && (
          <button class="main" onClick={play}>
            {playing ? "Ⅱ Pause" : "▶ Play"}
          </button>
        )}
        <button onClick={() => go(moments.filter((each) => each < now).at(-1) ?? 0)} aria-label="Previous moment">
          ◂
        </button>
        <button onClick={() => go(moments.find((each) => each > now))} aria-label="Next moment">
          ▸
        </button>
        <input
          type="range"
          min={0}
          max={picture.frames}
          value={now}
          aria-label="Moment of the film"
          aria-valuetext={`${Math.round((now / picture.frames) * picture.seconds)} of ${picture.seconds} seconds`}
          onInput={(event) => go(Number(event.currentTarget.value))}
        />
      </div>
      <div class="film" ref={place} tabIndex={0} role="group" aria-label="The film" />
      <p class="quiet key">
        The more trials share a line, the thicker it is. Ring: a promotion · ● end of a trial · ✕ pruned or failed · ★ best. Below are the stages of each slot, in colour
        where several trials share them; idle times are left out.
      </p>
    </>
  );
}
