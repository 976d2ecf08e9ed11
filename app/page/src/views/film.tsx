/** How the study came about: the rung tree grows in ten seconds, with the slots below. The server draws it, frame by frame. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { about, address, isReport, useAnswer } from "../data.ts";
import { download } from "../download.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { studyLink } from "../route.ts";
import type { ViewProps } from "./props.ts";

const stillness = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");

export function Film({ study, at }: ViewProps) {
  const answer = useAnswer<string>(about(study.study, "/film", at));
  const name = encodeURIComponent(study.study);
  const aside = answer.data && (
    <>
      <button onClick={() => download(`${study.study}.svg`, answer.data!, "image/svg+xml")}>Save as SVG</button>
      {!isReport && (
        <a class="button" href={address(`studies/${name}/film?format=gif${at === null ? "" : `&at=${at}`}`)} download={`${study.study}.gif`}>
          Save as GIF
        </a>
      )}
      <a href={studyLink(study.study, ["rung-tree"])}>rung tree</a>
    </>
  );
  return (
    <Panel title="Film" aside={aside}>
      <Loaded answer={answer}>{(text) => <Player text={text} />}</Loaded>
    </Panel>
  );
}

/** The parts of a film: what appears at a frame, and what goes again; and what hides the slots until time has passed. */
interface Picture {
  svg: Element;
  groups: { element: Element; frame: number; until: number }[];
  cover: Element | null;
  frames: number;
  seconds: number;
}

function read(text: string): Picture {
  const plain = text.replace(/<style>[^]*?<\/style>/, ""); // the page has colours of its own, and allows no others
  const svg = new DOMParser().parseFromString(plain, "image/svg+xml").documentElement;
  const groups = [...svg.querySelectorAll("[data-frame]")].map((element) => ({
    element,
    frame: Number(element.getAttribute("data-frame")),
    until: Number(element.getAttribute("data-until") ?? Infinity),
  }));
  const attribute = (name: string) => Number(svg.getAttribute(name));
  return { svg, groups, cover: svg.querySelector(".cover"), frames: attribute("data-frames"), seconds: attribute("data-seconds") };
}

/** What is seen at a frame; at the last one, all of it. */
function show({ groups, cover, frames }: Picture, frame: number): void {
  for (const { element, frame: from, until } of groups) element.setAttribute("visibility", from <= frame && frame < until ? "visible" : "hidden");
  cover?.setAttribute("transform", `translate(${(Number(cover.getAttribute("data-slide")) * frame) / frames})`);
  cover?.setAttribute("visibility", frame < frames ? "visible" : "hidden");
}

function Player({ text }: { text: string }) {
  const [playing, setPlaying] = useState(false);
  const [frame, setFrame] = useState(Infinity);
  const held = useRef(text);
  if (!playing) held.current = text; // a study that goes on has a new film all the time
  const picture = useMemo(() => read(held.current), [held.current]);
  const place = useRef<HTMLDivElement>(null);
  const now = Math.min(frame, picture.frames);
  const moments = useMemo(() => [...new Set(picture.groups.map((each) => each.frame))].sort((a, b) => a - b), [picture]);
  useEffect(() => place.current?.replaceChildren(picture.svg), [picture]);
  useEffect(() => show(picture, now), [picture, now]);
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
        {!stillness?.matches && (
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
      <div class="film" ref={place} />
      <p class="quiet key">
        The more trials share a line, the thicker it is. Ring: a promotion · ● the end of a trial · ✕ stopped or failed · ★ best. Below, what each slot trained, in colour
        where several trials share it; idle times are left out.
      </p>
    </>
  );
}
