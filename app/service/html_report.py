"""A study as one HTML file that needs no server and no network: the page itself, and the answers that it asks for.

It holds the answers for the page's views of the study now. All trials are in its table and charts; only the best ones
have pages of their own.

The study's log is here as well: one event a line as JSON, and replays of its decisions, as they were or with changed
settings.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import islice
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from app.domain.events import Event
from app.domain.terms import StudyId, Unknown
from app.events import StoredEvent, StudyRecord
from app.events.codec import UnknownEvent, decode, encode
from app.service import chart_data, files, queries
from app.service.redaction import Redactor, local_names
from app.service.services import InvalidField, Services
from app.service.views.film_files import CARD
from app.service.views.trial_order import json_safe
from stagetree.models.pages import Imagined
from stagetree.models.service import Replay

Json = dict[str, Any]
PAGES = 200
"""The number of trials with a page of their own, the best ones."""

EVENTS = 20_000
"""The number of events in the file, the last ones."""

PAGE = 1000
"""Events that are read at once."""

DIGITS, TREE_POINTS, SCHEDULE_POINTS = 6, 60, 60
TITLE = re.compile("<title>[^<]*</title>")
LINK = re.compile(r'\s*<link rel="(?:icon|stylesheet|modulepreload)"[^>]*>')
SCRIPT = re.compile(r'<script type="module"[^>]*></script>')
META = '<meta http-equiv="Content-Security-Policy" content="{}">'


def report(use: Services, row: StudyRecord, *, public: bool = False, url: str = "") -> str:
    """The HTML. Raises `Unknown` if the page was not built.

    public: redact paths, hosts, addresses and names of people (`app.service.redaction`). url: the future address of the
    file; link previews then show the picture of `picture_beside`. Raises `InvalidField` for a wrong address.
    """
    picture = picture_beside(url, row.id)[0] if url else ""
    index = files.index()
    if index is None:
        raise Unknown(f"The report is made of the page, and that is missing here. {files.missing_page_reason()}")
    text = index.read_text(encoding="utf-8")
    script, style = _asset(text, "js"), _asset(text, "css")
    by_path = answers(use, row)
    if public:
        redactor = _redactor(use, row, by_path["events"]["items"], by_path[f"studies/{row.id}/timeline"]["spans"])
        by_path = {path: redactor.redact(answer) for path, answer in by_path.items()}
    documents = json.dumps(by_path, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    inside = f'<script type="application/json" id="answers">{documents}</script><script type="module">{script}</script>'
    text = SCRIPT.sub("", LINK.sub("", TITLE.sub("", text)))
    text = text.replace(
        "<head>", f"<head>{META.format(policy)}{_preview(by_path, row, url, picture)}<style>{style}</style>", 1
    )
    return text.replace("</body>", f"{inside}</body>", 1)


def picture_beside(url: str, study: str) -> tuple[str, str]:
    """The address and file name of the picture beside a report at `url`: the report's name with `.png`.

    A folder's address gets the study's id as the name. Raises `InvalidField` for an incomplete address.
    """
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise InvalidField(
            "url", f"must be the whole address of the report, as https://example.org/a.html, got {url!r}"
        )
    stem = "" if parts.path.endswith("/") else PurePosixPath(parts.path).stem
    name = f"{stem or study}.png"
    return urljoin(url, f"./{name}"), PurePosixPath(unquote(name)).name


def _preview(by_path: Mapping[str, Any], row: StudyRecord, url: str, picture: str) -> str:
    """The title and the metadata of link previews: title, story, and the picture if there is a `url`.

    Metadata need the picture's absolute address, and a file does not know its own.
    """
    shown = by_path[f"studies/{row.id}?trials=false"]
    title, description = shown["story"]["question"], " ".join(shown["story"]["lines"])
    metas = {
        "og:type": "article",
        "og:site_name": shown["name"],
        "og:title": title,
        "og:description": description,
        "og:url": url,
        "og:image": picture,
    }
    if picture:
        metas |= {"og:image:type": "image/png", "og:image:width": str(CARD[0]), "og:image:height": str(CARD[1])}
        metas["og:image:alt"] = f"The rung tree of {shown['name']}, with the work of its slots below"
    named = {"description": description, "twitter:card": "summary_large_image" if picture else "summary"}
    tags = [("property", *each) for each in metas.items()] + [("name", *each) for each in named.items()]
    written = (f'<meta {kind}="{name}" content="{escape(text, quote=True)}">' for kind, name, text in tags if text)
    return f"<title>{escape(title)}</title>{''.join(written)}"


def film(use: Services, row: StudyRecord, kind: str, at: int | None = None, *, public: bool = False) -> bytes:
    """The study as a film, or its last frame, by `chart_data.render_film`. public: redacted as in `report`."""
    word = None
    if public:
        word = _redactor(use, row, _events(use, row), chart_data.timeline(use, row).to_json()["spans"]).text
    return chart_data.render_film(use, row, kind, at, word)


def _redactor(use: Services, row: StudyRecord, events: Sequence[Json], spans: Json) -> Redactor:
    with use.records.read() as rows:
        slots = list(rows.slots.all())
    leading, lent = spans["slot"], [slot for each in spans["members"] for slot in each]
    people = [row.owner, row.project, *{event["by"] for event in events}]
    people += [*local_names(), *(slot.host for slot in slots)]
    return Redactor(people, [*leading, *lent, *(slot.name for slot in slots)], kept=[row.id])


def answers(use: Services, row: StudyRecord) -> dict[str, Any]:
    """The API's answers by path, for the paths that the page requests, and all `events`."""
    study, root = queries.study(use, row, with_trials=False)[0], f"studies/{row.id}"
    best = queries.trials(use, row, PAGES, sort="value").items
    by_path: dict[str, Any] = {
        f"{root}?trials=false": study.to_json(),
        f"{root}/history": chart_data.history(use, row).to_json(),
        f"{root}/tree": chart_data.tree(use, row, TREE_POINTS).to_json(),
        f"{root}/rungs": chart_data.rungs(use, row).to_json(),
        f"{root}/timeline": chart_data.timeline(use, row).to_json(),
        f"{root}/side-by-side": chart_data.sharing_comparison(use, row).to_json(),
        f"{root}/film": chart_data.render_film(use, row, "svg").decode(),
        f"{root}/trials:columns?digits={DIGITS}": queries.columns(use, row, digits=DIGITS).to_json(),
        f"{root}/importance": chart_data.importance(use, row, None).to_json(),
        "events": {"items": _events(use, row)},
    }
    for trial in best:
        number = trial.trial
        by_path[f"{root}/trials/{number}"] = queries.trial(use, row, number).to_json()
        by_path[f"{root}/trials/{number}/schedules"] = chart_data.schedules(use, row, number, SCHEDULE_POINTS).to_json()
    return by_path


def _events(use: Services, row: StudyRecord) -> list[Json]:
    """The last ones."""
    after = max(0, chart_data.history(use, row).position - EVENTS)
    items: list[Json] = []
    cursor: str | None = str(after)
    while cursor is not None:
        page = queries.events(use, row, PAGE, cursor=cursor)
        items += [event.to_json() for event in page.items]
        cursor = page.next_cursor
    return items


def _asset(text: str, kind: str) -> str:
    """The page's script or style sheet. Raises `Unknown` if the build has none."""
    name = re.search(rf'"\./assets/([^"]+\.{kind})"', text)
    path = files.asset(name[1]) if name else None
    if path is None:
        raise Unknown(f"the page was built without a .{kind} file")
    content = path.read_text(encoding="utf-8")
    return content.replace("</script", "<\\/script").strip()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


class NotALog(ValueError):
    """A line that is not an event of a log; the message says which line and why."""


def lines(recorded: Iterable[StoredEvent]) -> Iterator[str]:
    """Each event on a line, with its end."""
    for each in recorded:
        name, schema, data = encode(each.event)
        place: dict[str, Any] = {"position": each.position, "version": each.version, "at": each.at}
        place |= {"by": each.by} if each.by else {}
        yield json.dumps({**place, "type": name, "schema": schema, "data": data}) + "\n"


def parse(text: Iterable[str]) -> Iterator[tuple[int, Event]]:
    """The position and the event of each line. Raises `NotALog`."""
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                record = json.loads(line)
                yield record["position"], decode(record["type"], record["schema"], record["data"])
            except (ValueError, KeyError, TypeError, UnknownEvent) as error:
                raise NotALog(f"line {number} is not an event of a log: {error}") from None


def replay(use: Services, row: StudyRecord, at: int | None) -> Replay:
    """Derive every decision again, up to position `at`. Raises `InvalidField` if there is no such event yet."""
    use.version(row, at)
    with use.open_study(row) as (_, study):
        before = study.submitted_version - 1
    struck = use.log.struck_studies(row.stream)
    log = ((recorded.version - before, recorded.event) for recorded in use.log.scan(row.stream))
    return Replay.model_validate(use.compute(_compute_replay, StudyId(row.id), at, struck, stream=log))


def replay_with_changes(use: Services, row: StudyRecord, changes: Json, at: int | None) -> Imagined:
    """Derive the decisions with a changed study file. Raises `stagetree.spec.SpecError`."""
    with use.open_study(row, at) as (plan, _):
        version = plan.version
    events = (recorded.event for recorded in islice(use.log.scan(row.stream), version))
    return Imagined.model_validate(use.compute(_compute_what_if, StudyId(row.id), changes, stream=events))


def _compute_replay(
    study: StudyId, at: int | None, struck: frozenset[StudyId], log: Iterable[tuple[int, Event]]
) -> Any:
    from app.search.replay import replay

    return json_safe(replay(log, study, at=at, struck=struck).to_json())


def _compute_what_if(study: StudyId, changes: Json, events: Iterable[Event]) -> Any:
    from app.simulation.what_if import what_if

    return json_safe(what_if(list(events), study, changes))


def log(use: Services, row: StudyRecord) -> Iterator[str]:
    """The whole log of the study's plan, one event a line."""
    return lines(use.log.scan(row.stream))
