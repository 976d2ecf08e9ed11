"""The order of results of several metrics, the best first.

Of two feasible results one dominates if it is no worse in any metric and better in one. Results that none dominates are
the front, results that only the front dominates are the next one, and so on (Deb et al. 2002, NSGA-II, §III-A): that is
the non-dominated rank. Within a front the order is an epsilon net, as in MO-ASHA (Schmucker et al. 2021,
arXiv:2106.12639, §3): first the best by the first metric, and then always the one that is furthest from all before it,
so that the first k of a front are spread over it for any k. Distances are counted in parts of the front's own extent
in each metric, so that no unit weighs more than another. Behind all fronts are the results that break a constraint.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, groupby, product, repeat
from operator import le

from app.domain.objectives import Scored

Front = list[Scored]
"""Of equal rank, in the order of their losses."""
Point = Sequence[float]
"""Losses, in parts of a front's extent."""


def best_first(scored: Iterable[Scored]) -> Iterator[Scored]:
    """The results in the order of the best: front by front, each as an epsilon net, then by violation."""
    return ParetoRanking(scored).best_first()


def pareto_front(scored: Iterable[Scored]) -> Front:
    """The feasible results that none dominates, spread; none where none is feasible."""
    ranked = fronts(each for each in scored if each[0].is_feasible)
    return list(_spread(ranked[0])) if ranked else []


class ParetoRanking:
    """Results that come one by one, without making any front anew.

    fronts: the feasible ones by non-dominated rank. infeasible: the others, by violation.
    """

    def __init__(self, scored: Iterable[Scored] = ()) -> None:
        results = list(scored)
        self.fronts = fronts(each for each in results if each[0].is_feasible)
        self.infeasible = sorted(each for each in results if not each[0].is_feasible)

    def add(self, each: Scored) -> None:
        """One more result. The results that it dominates go one front down, and push others (Li et al. 2014)."""
        if not each[0].is_feasible:
            insort(self.infeasible, each)
            return
        moved, place = [each], _place(each, self.fronts)
        while moved:
            front = self.fronts[place] if place < len(self.fronts) else []
            sunk = [other for other in front if any(_beats(one, other) for one in moved)]
            numbers = {number for _, number in sunk}
            left = [other for other in front if other[1] not in numbers]
            self.fronts[place : place + 1] = [list(merge(left, moved))]
            moved, place = sunk, place + 1

    def best_first(self) -> Iterator[Scored]:
        """The results in the order of the best; the first k of them cost little where k is small."""
        for front in self.fronts:
            yield from _spread(front)
        yield from self.infeasible


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether losses are no worse in any metric, and better in one."""
    return all(map(le, one, other)) and one != other


def _beats(one: Scored, other: Scored) -> bool:
    return dominates(one[0].losses, other[0].losses)


def fronts(scored: Iterable[Scored]) -> list[Front]:
    """Feasible results by non-dominated rank, each front in the order of its losses.

    By efficient non-dominated sort (Zhang et al. 2015, ENS-BS): in the order of the losses none dominates one before
    it, so that each goes to the first front of which none dominates it. Fronts are sets of places, as bits.
    """
    ordered = sorted(scored)
    ranked, members = list[Front](), list[int]()
    for place, dominating in enumerate(_dominating([score.losses for score, _ in ordered])):
        rank = bisect_left(members, True, key=lambda front: not front & dominating)
        if rank == len(members):
            ranked.append([])
            members.append(0)
        ranked[rank].append(ordered[place])
        members[rank] |= 1 << place
    return ranked


BLOCK = 4096
"""Sets of dominating places that are there at once: of 100,000 results they are 50 MB, where all were a gigabyte."""


def _dominating(ordered: Sequence[tuple[float, ...]]) -> Iterator[int]:
    """The places that dominate each place, as bits, of losses in their order.

    They are among the places before it, and are no worse in any metric: an intersection, in which the first metric is
    that of the order.
    """
    columns = list(zip(*ordered, strict=True))[1:]
    by_loss = [sorted(range(len(ordered)), key=column.__getitem__) for column in columns]
    for begin in range(0, len(ordered), BLOCK):
        end = min(begin + BLOCK, len(ordered))
        sets = [(1 << bisect_left(ordered, losses, hi=end)) - 1 for losses in ordered[begin:end]]  # none that is equal
        for column, places in zip(columns, by_loss, strict=True):
            no_worse = bytearray(end // 8 + 1)
            for _, equal in groupby((place for place in places if place < end), key=column.__getitem__):
                group = list(equal)
                for place in group:
                    no_worse[place >> 3] |= 1 << (place & 7)
                for place in group:
                    if place >= begin:
                        sets[place - begin] &= int.from_bytes(no_worse, "little")
        yield from sets


def _place(each: Scored, ranked: list[Front]) -> int:
    """The first front of which none dominates a result, by halving: where one front dominates it, all before it do."""
    return bisect_left(ranked, True, key=lambda front: not _is_dominated(each, front))


def _is_dominated(each: Scored, front: Front) -> bool:
    """Whether one of a front dominates a result. Of two metrics the last one before it says it alone."""
    before = bisect_left(front, each)
    if len(each[0].losses) <= 2:
        return before > 0 and _beats(front[before - 1], each)
    return any(_beats(front[place], each) for place in reversed(range(before)))


# ----------------------------------------------------------------------------------------------- spread over a front


def _spread(front: Front) -> Iterator[Scored]:
    """A front as an epsilon net, which begins with the best by the first metric."""
    columns = list(zip(*(score.losses for score, _ in front), strict=True))
    extents = [(max(column) - min(column)) or 1.0 for column in columns]
    points = [[loss / extent for loss, extent in zip(score.losses, extents, strict=True)] for score, _ in front]
    return (front[place] for place in (_spread_pair if len(extents) <= 2 else _spread_points)(points))


def _spread_pair(points: Sequence[Point]) -> Iterator[int]:
    """The places of points of two metrics, the furthest first.

    Along such a front one metric gets worse and the other better. So the chosen points nearest to another one are its
    two neighbours along the front, and between two of them the furthest is where it is as far to one as to the other:
    all is found by halving.
    """
    yield 0
    gaps = _largest_gap(points, 0, len(points))
    while gaps:
        _, place, left, right = heappop(gaps)
        yield place
        for gap in (*_largest_gap(points, left, place), *_largest_gap(points, place, right)):
            heappush(gaps, gap)


Gap = tuple[float, int, int, int]
"""(minus how far it is, the furthest place, the places on both sides that are chosen)."""


def _largest_gap(points: Sequence[Point], left: int, right: int) -> list[Gap]:
    """The furthest place between two, the first of equal ones; `right` may be behind the last. None for no place."""
    if right - left < 2:
        return []

    def distance_left(place: int) -> float:
        return math.dist(points[left], points[place])

    def distance_right(place: int) -> float:
        return math.dist(points[place], points[right]) if right < len(points) else math.inf

    inner = range(left + 1, right)
    turn = bisect_left(inner, True, key=lambda place: distance_left(place) >= distance_right(place))
    furthest = [(-distance_right(inner[turn]), inner[turn])] if turn < len(inner) else []
    if turn:
        far = distance_left(inner[turn - 1])
        furthest.append((-far, inner[bisect_left(inner, far, hi=turn, key=distance_left)]))
    return [(*min(furthest), left, right)]


def _spread_points(points: Sequence[Point]) -> Iterator[int]:
    """The places of points of any number of metrics, the furthest first, of equal ones the first place.

    How far a point is only gets less. So a distance from before is a bound, and is brought up to date where it is the
    largest one: points near a chosen one wait until all is near.
    """
    chosen: list[Point] = []
    waiting = [(-math.inf, place, 0) for place in range(len(points))]  # (minus the bound, place, chosen ones it knows)
    while waiting:
        bound, place, compared = waiting[0]
        if compared < len(chosen):
            heapreplace(waiting, (max(bound, -_nearest(points[place], chosen[compared:])), place, len(chosen)))
        elif -bound < NEAR and len(waiting) > MANY:
            distances = {place: min(-bound, _nearest(points[place], chosen[known:])) for bound, place, known in waiting}
            yield from _spread_by_cells(points, distances)
            return
        else:
            heappop(waiting)
            chosen.append(points[place])
            yield place


def _nearest(point: Point, others: Sequence[Point]) -> float:
    """How far the nearest of others is."""
    return min(map(math.dist, repeat(point), others), default=math.inf)


NEAR, MANY = 0.3, 256
"""Cells are worth their making where the next point is so near, in parts of an extent, and so many points are left."""


def _spread_by_cells(points: Sequence[Point], distances: dict[int, float]) -> Iterator[int]:
    """The same for the places that are left, by their distances from the chosen points.

    None is further than the next one. So that one, when it is chosen, is nearer only to points within its distance:
    they are looked for in cells of a grid, which is made anew when the distance has halved.
    """
    waiting = [(-distance, place) for place, distance in distances.items()]  # some of them from before
    heapify(waiting)
    size, cells = math.inf, dict[Cell, list[int]]()
    while waiting:
        far, place = heappop(waiting)
        if distances.get(place) != -far:
            continue
        del distances[place]
        yield place
        if -far < size / 2:
            size = max(-far * 1.01, LEAST_CELL)  # rounding takes no neighbour away
            cells = _cells(points, distances, size)
        for near in _near(_cell(points[place], size), cells):
            if near in distances and (distance := math.dist(points[near], points[place])) < distances[near]:
                distances[near] = distance
                heappush(waiting, (-distance, near))


LEAST_CELL = 1e-12
"""In parts of an extent: its number is a whole one in a float."""

AXES = 3
"""Of how many metrics cells are, at most: each has 3 ** AXES neighbours."""

Cell = tuple[float, ...]


def _cell(point: Point, size: float) -> Cell:
    return tuple(loss // size for loss in point[:AXES])


def _cells(points: Sequence[Point], places: Iterable[int], size: float) -> dict[Cell, list[int]]:
    cells = dict[Cell, list[int]]()
    for place in places:
        cells.setdefault(_cell(points[place], size), []).append(place)
    return cells


def _near(cell: Cell, cells: Mapping[Cell, Sequence[int]]) -> Iterator[int]:
    """The places in a cell and its neighbours."""
    around = product(*((index - 1, index, index + 1) for index in cell))
    return chain.from_iterable(cells.get(each, ()) for each in around)
