/** The navigation of a study: seven views, and a menu with the others. */
import { Menu } from "../parts/menu.tsx";
import { studyLink } from "../route.ts";

export const TABS: [string, string][] = [
  ["", "Overview"],
  ["trials", "Trials"],
  ["curves", "Curves"],
  ["tree", "Tree"],
  ["importance", "Importance"],
  ["timeline", "Timeline"],
  ["events", "Events"],
];

interface Props {
  study: string;
  view: string;
  hasSampler: boolean;
}

export function Tabs({ study, view, hasSampler }: Props) {
  const more: [string, string][] = [...(hasSampler ? ([["sampler", "Sampler"]] as [string, string][]) : []), ["film", "Film"]];
  const link = ([name, title]: [string, string]) => (
    <a key={name} href={studyLink(study, name ? [name] : [])} aria-current={name === view ? "page" : undefined}>
      {title}
    </a>
  );
  const isMore = more.some(([name]) => name === view);
  return (
    <nav class="views" aria-label="Views of the study">
      {TABS.map(link)}
      <Menu title="More" isCurrent={isMore}>
        {more.map((each) => (
          <li key={each[0]}>{link(each)}</li>
        ))}
      </Menu>
    </nav>
  );
}

/** Three views of the tree: by result, by rank at each rung, and by steps. */
const TREES: [string, string, string][] = [
  ["", "By result", "the learning curves; shared steps are one line"],
  ["rungs", "By rung", "the trials by rank at each rung"],
  ["stages", "By steps", "which steps are shared, trained and saved"],
];

export function TreeTabs({ study, view }: { study: string; view: string }) {
  return (
    <nav class="subviews" aria-label="Views of the tree">
      {TREES.map(([name, title, text]) => (
        <a key={name} href={studyLink(study, name ? ["tree", name] : ["tree"])} title={text} aria-current={name === view ? "page" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}
