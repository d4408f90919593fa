"""Where the FID of a result lies among published values."""

from __future__ import annotations

from dataclasses import dataclass, field

from fidtool.names import format_count
from fidtool.references.published import PublishedValue, published_values
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.system.json_fields import NOT_IN_JSON


@dataclass(frozen=True)
class Standing:
    """Where the FID of a FAKE lies among the published values for its reference.

    Attributes:
        reference: name of the reference.
        fid: the FID of the FAKE.
        certain: whether it is known to be comparable.
        values: the published values, the lowest first.
    """

    reference: str
    fid: float
    certain: bool
    values: tuple[PublishedValue, ...] = field(metadata=NOT_IN_JSON)

    DERIVED = ("line",)

    @property
    def lower(self) -> list[PublishedValue]:
        """The values that are not above the FID."""
        return [value for value in self.values if value.fid <= self.fid]

    @property
    def higher(self) -> list[PublishedValue]:
        """The values above the FID."""
        return [value for value in self.values if value.fid > self.fid]

    @property
    def line(self) -> str:
        """Between which two published values it lies, or which it equals at two decimals, as a
        sentence.
        """
        doubt = "" if self.certain else "as far as is known, "
        return (
            f"{doubt}FID {self.fid:.4f} {self._place()}: see `fidtool published {self.reference}`"
        )

    def _place(self) -> str:
        equal = [value for value in self.values if round(value.fid, 2) == round(self.fid, 2)]
        if equal:
            return f"equals the published value of {' and '.join(map(_describe, equal))}"
        if self.lower and self.higher:
            return f"lies between {_describe(self.lower[-1])} and {_describe(self.higher[0])}"
        side, extreme = ("above", "highest") if self.lower else ("below", "lowest")
        end = _describe(self.values[-1] if self.lower else self.values[0])
        if len(self.values) == 1:
            return f"is {side} the only published value known to fidtool, {end}"
        known = f"{format_count(len(self.values), 'published value')} known to fidtool"
        return f"is {side} all {known}, the {extreme} of which is {end}"


def _describe(value: PublishedValue) -> str:
    return f"{value.label} ({value.fid:.2f})"


def find_standing(
    evaluation: Evaluation, result: Comparison, reference: str, comparable: bool | None
) -> Standing | None:
    """Return where the FID of a FAKE lies; None if it is not comparable, it has none, or nothing is
    published for its reference and protocol.

    Args:
        reference: name of REAL among published values.
        comparable: whether it is comparable with published values; None if that is not known.
    """
    fid = result.metrics.get("fid")
    definition = evaluation.definition
    if comparable is False or fid is None or definition is None:
        return None
    values = tuple(
        value
        for value in published_values()
        if (value.reference, value.protocol) == (reference, definition.protocol_name)
    )
    if not values:
        return None
    return Standing(reference, fid, comparable is True, values)
