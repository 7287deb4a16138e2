"""Plans where the function of an application is split, from measurements of its statements, and which splits a history shows to save nothing.

Pure: it neither runs nor reads anything. Sizes are in bytes, times in seconds, memory-time in byte-seconds.
"""

from typing import NamedTuple

# Bytes that are copied into memory components in a second: what a split hands on is copied once.
COPIED_PER_SECOND = 1e9


class Sample(NamedTuple):
    """Measurements of a statement of the function's own body."""

    #: Line of the file at which the statement begins.
    line: int
    #: Time that the statement took, in all calls.
    seconds: float
    #: Memory that was allocated when the statement began, and the maximum while it was executed.
    base: int
    peak: int
    #: Size of each variable that a split before this statement would hand on.
    handed: dict
    #: Reason for which there cannot be a split before this statement; None if there can.
    refused: str | None = None
    #: Whether a component begins here already.
    is_split: bool = False

    @property
    def live(self):
        """Bytes that a split before this statement would hand on."""
        return sum(self.handed.values())


class Section(NamedTuple):
    """Consecutive statements that are one component, and what is predicted for that."""

    first: int
    last: int
    seconds: float
    #: Bytes that the component gets from the ones before it, or as the arguments.
    handed_bytes: int
    #: Maximum of the memory that it allocates itself.
    own_bytes: int
    #: Memory-time: all its bytes for all its time.
    byte_seconds: float


class Plan(NamedTuple):
    """Components as they are, as they are proposed, and the statements before which splits are proposed."""

    before: list
    after: list
    splits: list

    @property
    def byte_seconds_before(self):
        return sum(section.byte_seconds for section in self.before)

    @property
    def byte_seconds_after(self):
        return sum(section.byte_seconds for section in self.after)


def plan(samples, least=0.05, start=0.01):
    """Proposes the splits of least memory-time.

    A component holds what it gets and what it allocates, from its beginning to its end. It does not hold what earlier components have
    allocated and none reads again: that is what a split saves. It costs the start of a component and the copies of what is handed on.

    Args:
        samples: Measurements of the function's statements, in their order.
        least: Part of the memory-time that each proposed split has to save.
        start: Time that the start of a component takes, in seconds.
    """
    count = len(samples)
    fixed = [number for number in range(1, count) if samples[number].is_split]
    before = _sections(samples, fixed, start)
    penalty = least * sum(section.byte_seconds for section in before)
    # The least cost of the first statements, by their number, and where the last component of them begins.
    costs, begins = [0.0], [0]
    for end in range(1, count + 1):
        best, seconds, peak = None, 0.0, 0
        for begin in range(end - 1, -1, -1):
            one = samples[begin]
            seconds, peak = seconds + one.seconds, max(peak, one.peak)
            if begin == 0 or one.is_split or one.refused is None:
                cost = costs[begin] + _bytes(one, peak) * (seconds + (_delay(one, start) if begin else 0))
                cost += 0 if begin == 0 or one.is_split else penalty
                if best is None or cost < best[0]:
                    best = cost, begin
            if one.is_split:
                break
        costs.append(best[0])
        begins.append(best[1])
    found, end = [], count
    while end > 0:
        end = begins[end]
        found.append(end)
    found = [number for number in reversed(found) if number > 0]
    return Plan(before, _sections(samples, found, start), [number for number in found if not samples[number].is_split])


def _bytes(first, peak):
    return first.live + max(0, peak - first.base)


def _delay(first, start):
    """Time until a component begins that gets what is live before this statement."""
    return start + first.live / COPIED_PER_SECOND


def _sections(samples, splits, start):
    """The components between splits, which are numbers of statements in their order."""
    if not samples:
        return []
    sections = []
    for begin, end in zip([0, *splits], [*splits, len(samples)]):
        first, part = samples[begin], samples[begin:end]
        seconds = sum(one.seconds for one in part) + (_delay(first, start) if begin else 0)
        own = max(0, max(one.peak for one in part) - first.base)
        sections.append(Section(begin, end - 1, seconds, first.live, own, (first.live + own) * seconds))
    return sections


class Merge(NamedTuple):
    """Two components of a graph whose split saves less memory-time than it costs, or hardly more."""

    first: str
    second: str
    #: Memory-time that the split saves on average of the runs; negative if it costs more.
    saved_byte_seconds: float
    #: Part of the run's memory-time.
    share: float


def merges(runs, least=0.05):
    """Proposes to merge components that were executed one after the other, from the records of `sublet graph history`.

    Returns the proposals, and the names of components whose memory was not measured.

    A split saves the difference between the larger component's memory and the smaller one's, for the smaller one's time. It costs what
    memory components hold between the two. A pair is judged if each run executed both, with one instance each and nothing at the same time.
    """
    judged, unmeasured, total = {}, set(), 0.0
    for run in runs:
        total += sum(used["used_byte_us"] for used in run["components"]) / 1e6
        executed = [used for used in run["components"] if used["instances"] and used["end_us"]]
        executed.sort(key=lambda used: used["begin_us"])
        unmeasured |= {used["component"] for used in executed if not used["used_bytes"]}
        memory = [used for used in run["components"] if not used["instances"]]
        for first, second in zip(executed, executed[1:]):
            if _is_alone(executed, first) and _is_alone(executed, second):
                judged.setdefault((first["component"], second["component"]), []).append(_saved(first, second, memory))
    found = []
    for (first, second), saved in judged.items():
        if len(saved) == len(runs) and not {first, second} & unmeasured and sum(saved) <= least * total:
            found.append(Merge(first, second, sum(saved) / len(runs), sum(saved) / total if total else 0.0))
    return found, sorted(unmeasured)


def _is_alone(executed, one):
    others = [used for used in executed if used is not one]
    return one["instances"] == 1 and all(used["end_us"] <= one["begin_us"] or one["end_us"] <= used["begin_us"] for used in others)


def _saved(first, second, memory):
    """Memory-time that the split between two components saves."""
    taken = [(used["end_us"] - used["begin_us"]) / 1e6 for used in (first, second)]
    largest = max(first["used_bytes"], second["used_bytes"])
    apart = first["used_bytes"] * taken[0] + second["used_bytes"] * taken[1]
    between = first["end_us"], second["begin_us"]
    held = sum(used["used_bytes"] for used in memory if used["begin_us"] <= between[0] and used["end_us"] >= between[1])
    return largest * sum(taken) - apart - held * (between[1] - between[0]) / 1e6
