"""The ranking of results with several metrics, best first.

One feasible result dominates another if it is no worse in any metric and better in one. The non-dominated results are
the first front, those dominated only by the first front are the second, and so on: the non-dominated rank (Deb et al.
2002, NSGA-II, §III-A). Within a front the order is an epsilon net, as in MO-ASHA (Schmucker et al. 2021,
arXiv:2106.12639, §3): first the best by the first metric, then always the result furthest from all before it. So for
any k, the first k results are spread over the front. Distances are relative to the front's extent in each metric, which
makes them independent of units. Results that violate a constraint come after all fronts.
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
"""Results of equal rank, ordered by their losses."""
Point = Sequence[float]
"""Losses relative to a front's extent."""


def best_first(scored: Iterable[Scored]) -> Iterator[Scored]:
    """The results ranked by front and, within each, as an epsilon net; infeasible ones last, by violation."""
    return ParetoRanking(scored).best_first()


def pareto_front(scored: Iterable[Scored]) -> Front:
    """The non-dominated feasible results as an epsilon net; empty if none is feasible."""
    ranked = fronts(each for each in scored if each[0].is_feasible)
    return list(_spread(ranked[0])) if ranked else []


class ParetoRanking:
    """An incremental ranking: a new result changes only the fronts that it affects.

    fronts: the feasible results by non-dominated rank. infeasible: the others, by violation.
    """

    def __init__(self, scored: Iterable[Scored] = ()) -> None:
        results = list(scored)
        self.fronts = fronts(each for each in results if each[0].is_feasible)
        self.infeasible = sorted(each for each in results if not each[0].is_feasible)

    def add(self, each: Scored) -> None:
        """Add a result. The results that it dominates move one front down, and so on (Li et al. 2014)."""
        if not each[0].is_feasible:
            insort(self.infeasible, each)
            return
        moved, place = [each], _front_number(each, self.fronts)
        while moved:
            front = self.fronts[place] if place < len(self.fronts) else []
            sunk = [other for other in front if any(_dominates(one, other) for one in moved)]
            numbers = {number for _, number in sunk}
            left = [other for other in front if other[1] not in numbers]
            self.fronts[place : place + 1] = [list(merge(left, moved))]
            moved, place = sunk, place + 1

    def best_first(self) -> Iterator[Scored]:
        """The ranked results. The first k are cheap for a small k."""
        for front in self.fronts:
            yield from _spread(front)
        yield from self.infeasible


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one vector of losses dominates another."""
    return all(map(le, one, other)) and one != other


def _dominates(one: Scored, other: Scored) -> bool:
    return dominates(one[0].losses, other[0].losses)


def fronts(scored: Iterable[Scored]) -> list[Front]:
    """Feasible results by non-dominated rank, each front ordered by losses.

    Efficient non-dominated sort (Zhang et al. 2015, ENS-BS): in the order of losses, no result dominates an earlier
    one, so each joins the first front without a result that dominates it. Bit sets of places represent fronts.
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
"""The number of bit sets in memory at once. For 100,000 results they take 50 MB, and all sets would take 1 GB."""


def _dominating(ordered: Sequence[tuple[float, ...]]) -> Iterator[int]:
    """For each place in the ordered losses, the places that dominate it, as a bit set.

    A dominating place comes earlier and is no worse in any metric. The sets of the metrics are intersected; the order
    itself covers the first metric.
    """
    columns = list(zip(*ordered, strict=True))[1:]
    by_loss = [sorted(range(len(ordered)), key=column.__getitem__) for column in columns]
    for begin in range(0, len(ordered), BLOCK):
        end = min(begin + BLOCK, len(ordered))
        sets = [
            (1 << bisect_left(ordered, losses, hi=end)) - 1 for losses in ordered[begin:end]
        ]  # without equal losses
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


def _front_number(each: Scored, ranked: list[Front]) -> int:
    """The first front that does not dominate a result, by bisection: if a front dominates it, all earlier ones do."""
    return bisect_left(ranked, True, key=lambda front: not _is_dominated(each, front))


def _is_dominated(each: Scored, front: Front) -> bool:
    """Whether a result of the front dominates `each`. With two metrics, the last one before it decides."""
    before = bisect_left(front, each)
    if len(each[0].losses) <= 2:
        return before > 0 and _dominates(front[before - 1], each)
    return any(_dominates(front[place], each) for place in reversed(range(before)))


# ----------------------------------------------------------------------------------------------- spread over a front


def _spread(front: Front) -> Iterator[Scored]:
    """A front in the order of an epsilon net."""
    columns = list(zip(*(score.losses for score, _ in front), strict=True))
    extents = [(max(column) - min(column)) or 1.0 for column in columns]
    points = [[loss / extent for loss, extent in zip(score.losses, extents, strict=True)] for score, _ in front]
    return (front[place] for place in (_spread_pair if len(extents) <= 2 else _spread_points)(points))


def _spread_pair(points: Sequence[Point]) -> Iterator[int]:
    """The places of points with two metrics, furthest first.

    Along such a front one metric gets worse while the other gets better. So the nearest chosen points are the two
    neighbours along the front, and the furthest point between them is equally far from both. Bisection finds it.
    """
    yield 0
    gaps = _largest_gap(points, 0, len(points))
    while gaps:
        _, place, left, right = heappop(gaps)
        yield place
        for gap in (*_largest_gap(points, left, place), *_largest_gap(points, place, right)):
            heappush(gaps, gap)


Gap = tuple[float, int, int, int]
"""(minus the distance, the furthest place, the chosen places on both sides)."""


def _largest_gap(points: Sequence[Point], left: int, right: int) -> list[Gap]:
    """The furthest place between two chosen ones, the first of ties; empty if they are adjacent.

    `right` is the number of points if there is no chosen place on that side.
    """
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
    """The places of points with any number of metrics, furthest first; ties go to the earlier place.

    Distances to the chosen points only shrink. So an old distance is an upper bound, and is updated only when it is the
    largest one.
    """
    chosen: list[Point] = []
    waiting = [(-math.inf, place, 0) for place in range(len(points))]  # (minus the bound, place, chosen points in it)
    while waiting:
        bound, place, compared = waiting[0]
        if compared < len(chosen):
            heapreplace(waiting, (max(bound, -_nearest(points[place], chosen[compared:])), place, len(chosen)))
        elif -bound < CELL_DISTANCE and len(waiting) > CELL_POINTS:
            distances = {place: min(-bound, _nearest(points[place], chosen[known:])) for bound, place, known in waiting}
            yield from _spread_by_cells(points, distances)
            return
        else:
            heappop(waiting)
            chosen.append(points[place])
            yield place


def _nearest(point: Point, others: Sequence[Point]) -> float:
    """The distance to the nearest of other points."""
    return min(map(math.dist, repeat(point), others), default=math.inf)


CELL_DISTANCE, CELL_POINTS = 0.3, 256
"""Cells pay off below this distance of the next point, relative to the extent, and above this number of points."""


def _spread_by_cells(points: Sequence[Point], distances: dict[int, float]) -> Iterator[int]:
    """The order of the remaining places. distances: to the nearest chosen point.

    The next point is the furthest. Choosing it changes only the distances of points within its own distance, which the
    cells of a grid find. The grid is rebuilt when the distance has halved.
    """
    waiting = [(-distance, place) for place, distance in distances.items()]  # outdated entries are skipped
    heapify(waiting)
    size, cells = math.inf, dict[Cell, list[int]]()
    while waiting:
        far, place = heappop(waiting)
        if distances.get(place) != -far:
            continue
        del distances[place]
        yield place
        if -far < size / 2:
            size = max(-far * 1.01, MIN_CELL)  # rounding takes no neighbour away
            cells = _cells(points, distances, size)
        for near in _neighbours(_cell(points[place], size), cells):
            if near in distances and (distance := math.dist(points[near], points[place])) < distances[near]:
                distances[near] = distance
                heappush(waiting, (-distance, near))


MIN_CELL = 1e-12
"""The smallest cell relative to the extent: a float holds the numbers of such cells exactly."""

CELL_METRICS = 3
"""Most metrics that define the cells. A cell has 3 ** CELL_METRICS neighbours, itself included."""

Cell = tuple[float, ...]


def _cell(point: Point, size: float) -> Cell:
    return tuple(loss // size for loss in point[:CELL_METRICS])


def _cells(points: Sequence[Point], places: Iterable[int], size: float) -> dict[Cell, list[int]]:
    cells = dict[Cell, list[int]]()
    for place in places:
        cells.setdefault(_cell(points[place], size), []).append(place)
    return cells


def _neighbours(cell: Cell, cells: Mapping[Cell, Sequence[int]]) -> Iterator[int]:
    """The places in a cell and its neighbours."""
    around = product(*((index - 1, index, index + 1) for index in cell))
    return chain.from_iterable(cells.get(each, ()) for each in around)
