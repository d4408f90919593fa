"""What can stand beside a number: how sure it is, and which images make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fidtool.distances.jackknife import Interval
from fidtool.labels import Labels


@dataclass(frozen=True)
class Uncertainty:
    """How sure a Fréchet distance is. REAL is taken as it is: the interval is about what was generated alone.

    Attributes:
        bias: how much the distance of so many images lies above that of infinitely many, estimated; None if withheld.
        corrected: the distance without it, an estimate for infinitely many images, with its standard error and its
            95 % interval; None if withheld.
        withheld: why there is no interval; empty where there is one.
        curve: the distance against the number of images: pairs, ascending, the last one of all images.
    """

    bias: float | None
    corrected: Interval | None
    withheld: str
    curve: tuple[tuple[int, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """The uncertainty as JSON has it."""
        return asdict(self) | {"real": "fixed", "level": 0.95}


@dataclass(frozen=True)
class Difference:
    """How much better one FAKE is than another.

    Attributes:
        first, second: paths of the two, as given.
        interval: the bias-corrected Fréchet distance of the first less that of the second, with its 95 % interval;
            negative where the first is better.
    """

    first: str
    second: str
    interval: Interval

    @property
    def verdict(self) -> str:
        """In words: whether one is better."""
        if self.interval.low <= 0.0 <= self.interval.high:
            return f"{self.first} and {self.second} cannot be told apart"
        better, worse = (self.first, self.second) if self.interval.high < 0.0 else (self.second, self.first)
        return f"{better} is better than {worse}"

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON has it."""
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True)
class HarmfulImage:
    """An image of FAKE and what it does.

    Attributes:
        file: its path.
        effect: how much the Fréchet distance would fall without it, to first order; negative where it would rise.
    """

    file: str
    effect: float


@dataclass(frozen=True)
class Removal:
    """What leaving out the most harmful images would do.

    Attributes:
        fraction: of FAKE.
        images: how many that are.
        predicted: the Fréchet distance of the others by the images' effects, to first order.
        distance: that of the others, computed.
    """

    fraction: float
    images: int
    predicted: float
    distance: float


@dataclass(frozen=True)
class Influence:
    """Which images of FAKE raise its Fréchet distance.

    Attributes:
        most_harmful: those that raise it most, the worst first: 2 % of FAKE, at least 20 and at most 1000.
        least_harmful: those without which it would rise most, the best first: as many as 20.
        removals: what leaving out the worst 0.5, 1 and 2 % would do.
        doubt: why the effects are rough; empty where they are not.
    """

    most_harmful: tuple[HarmfulImage, ...]
    least_harmful: tuple[HarmfulImage, ...]
    removals: tuple[Removal, ...]
    doubt: str = ""

    def to_dict(self, labels: Labels) -> dict[str, Any]:
        """The influence as JSON has it, with what its distances are called."""
        found = asdict(self)
        for removal in found["removals"]:
            removal[labels.key("fid")] = removal.pop("distance")
        return found


def uncertainty_warnings(name: str, uncertainty: Uncertainty, title: str) -> list[str]:
    """Why a distance has no error bars, and how it depends on the number of images instead.

    Args:
        name: path of the FAKE, as given.
        uncertainty: its uncertainty.
        title: what the distance is called.
    """
    if not uncertainty.withheld:
        return []
    points = ", ".join(f"{distance:.6g} of {images}" for images, distance in uncertainty.curve)
    return [f"{name}: no error bars: {uncertainty.withheld}; the {title} by the number of images: {points}"]


def verdicts(differences: Sequence[Difference], title: str) -> list[str]:
    """A line a pair of FAKEs: the difference of their distances, its interval, and what can be said."""
    return [
        f"{title} of {each.first} less that of {each.second}: {each.interval.value:+.4f} "
        f"(95 %: {each.interval.low:+.4f} to {each.interval.high:+.4f}): {each.verdict}"
        for each in differences
    ]
