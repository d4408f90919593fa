"""Every setting of a run, once: what `fidtool.compute` takes as keywords and the command line as options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Annotated, Any

from fidtool.errors import InputError, option
from fidtool.features.models.families import (
    FEATURE_STEPS,
    NAMED_EXTRACTORS,
    NetworkChoice,
    check_extractor,
    usual_spelling,
)
from fidtool.features.protocol import FEATURES, NAMED_PROTOCOLS, protocol_named
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.inception_score import InceptionScore
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import METRICS, Metric, keyword
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.registry import (
    BUILT_IN,
    by_name,
    by_place,
    check_together,
    in_order,
    metrics_named,
    with_options,
    with_settings,
)
from fidtool.validation import LONGEST_SECONDS, MAX_PIXELS, File, Setting, Validated, declared, text_of

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

MEASURE, DIAGNOSIS, IMAGES, MACHINE = "What to measure", "Diagnosis", "Images", "Machine"
RESUME, RANKS, OUTPUT, GATES = "Stop and resume", "Several processes", "Output", "Gates"
GROUPS = (MEASURE, METRICS, DIAGNOSIS, IMAGES, MACHINE, RESUME, RANKS, OUTPUT, GATES)
"""Headings of ``--help``, in their order."""


def _of(metric: type[Metric], name: str) -> Setting:
    """The declaration of a metric's setting, for a keyword that stands for it."""
    return declared(metric)[name].setting


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CheckSettings(Validated):
    """What `fidtool.check` takes: which images of a set are read, and how.

    Raises:
        InputError: a value of another type or beyond its limits.
    """

    # torchrun's parser takes --num, wherever it stands, for its own --numa-binding or --numa_binding and gives up.
    num: Annotated[
        int | None,
        Setting(
            help="Take a reproducible random N from every image set (under torchrun write --num-images).",
            group=IMAGES,
            flag="--num --num-images",
            metavar="N",
            least=1,
        ),
    ] = None
    seed: Annotated[int, Setting(help="Which random N, and the order of images.", group=IMAGES)] = 0
    recursive: Annotated[
        bool,
        Setting(
            help="Look into a folder's subfolders.",
            group=IMAGES,
            flag="--recursive/--no-recursive",
            shown_default="recursive",
        ),
    ] = True
    value_range: Annotated[
        tuple[float, float] | None,
        Setting(
            help="What black and white are in arrays of floats, such as 0,1 or -1,1; bytes need none.",
            group=IMAGES,
            metavar="LOW,HIGH",
        ),
    ] = None
    max_pixels: Annotated[
        int,
        Setting(
            help="An image of more pixels counts as a decompression bomb and is not read.",
            group=IMAGES,
            metavar="N",
            least=1,
        ),
    ] = MAX_PIXELS
    num_workers: Annotated[
        int | None,
        Setting(
            help="Decoding processes per rank; 0: none.",
            group=MACHINE,
            metavar="N",
            least=0,
            shown_default="its cores but one, at most 16; on the CPU one in 16",
            defines=False,
        ),
    ] = None
    peer_timeout: Annotated[
        float,
        Setting(
            help="A rank that gives no sign of life for so long is lost, and the run ends.",
            group=RANKS,
            metavar="SECONDS",
            least=3,
            most=LONGEST_SECONDS,
            defines=False,
        ),
    ] = 20.0
    timeout: Annotated[
        float,
        Setting(
            help="How long ranks that live wait for the slowest one, or for their decoding processes; for all to "
            "start: the same, at most 120.",
            group=RANKS,
            metavar="SECONDS",
            least=1,
            most=LONGEST_SECONDS,
            defines=False,
        ),
    ] = 1800.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "value_range", _two_numbers(self.value_range))

    @staticmethod
    def _called(name: str) -> str:
        return option(name)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StatisticsSettings(CheckSettings):
    """What `fidtool.compute_statistics` takes: how the features of a set of images are measured."""

    protocol: Annotated[
        str | None,
        Setting(
            help=f"{NAMED_PROTOCOLS}; see `fidtool protocols`.",
            group=MEASURE,
            metavar="NAME",
            shown_default="that of the statistics files, or pytorch-fid",
        ),
    ] = None
    extractor: Annotated[
        str | None,
        Setting(
            help=f"Network: {NAMED_EXTRACTORS}, FILE.pt2, a "
            "TorchScript FILE.pt, or path/to/file.py:factory or package.module:factory for your own, whose code is "
            "run.",
            group=MEASURE,
            metavar="SPEC",
            shown_default="that of the statistics files, or inception",
        ),
    ] = None
    dims: Annotated[
        int | None,
        Setting(
            help="Inception's layer.",
            group=MEASURE,
            choices=("64", "192", "768", "2048"),
            shown_default="that of the statistics files, or 2048",
        ),
    ] = None
    weights: Annotated[
        File,
        Setting(
            help="The network's weights, or the name of an entry of torchvision's or open_clip's.",
            group=MEASURE,
            metavar="FILE",
            shown_default="the published ones; Inception's: see `fidtool weights`",
        ),
    ] = None
    input_size: Annotated[
        int | None,
        Setting(
            help="Side of the input of a FILE.pt2 or FILE.pt that does not say.", group=MEASURE, metavar="N", least=1
        ),
    ] = None
    feature_step: Annotated[
        int | None,
        Setting(
            help="Round another network's features to multiples of 2^-S; they must stay below 2^(23-S).",
            group=MEASURE,
            metavar="S",
            least=FEATURE_STEPS[0],
            most=FEATURE_STEPS[1],
            shown_default="the network's own",
        ),
    ] = None
    metrics: Annotated[
        str | Sequence[str | Metric],
        Setting(
            help=f"What to compute, in one pass over the images: {', '.join(BUILT_IN)}, all (each of these that can be "
            "computed), or path/to/file.py:NAME for a custom metric, whose code is run. May be given several times; "
            "see `fidtool metrics`.",
            group=METRICS,
            metavar="NAME,NAME",
        ),
    ] = "fid"
    metric_options: Annotated[
        Mapping[str, Any] | None,
        Setting(
            help="A setting of a metric, which `fidtool metrics NAME` lists. May be given several times.",
            group=METRICS,
            flag="--metric-option",
            metavar="NAME.SETTING=VALUE",
        ),
    ] = None
    cmmd_extractor: Annotated[str, _of(CMMD, "extractor")] = CMMD.extractor
    cmmd_weights: Annotated[File, _of(CMMD, "weights")] = CMMD.weights
    cmmd_input_size: Annotated[int | None, _of(CMMD, "input_size")] = CMMD.input_size
    cmmd_feature_step: Annotated[int | None, _of(CMMD, "feature_step")] = CMMD.feature_step
    on_error: Annotated[
        str,
        Setting(
            help="What to do about a file that cannot be read: end, or leave it out and name it.",
            group=IMAGES,
            choices=("fail", "skip"),
        ),
    ] = "fail"
    max_skip: Annotated[
        float,
        Setting(
            help="The largest share of a set that --on-error skip may leave out.",
            group=IMAGES,
            metavar="FRACTION",
            least=0,
            most=1,
        ),
    ] = 0.01
    device: Annotated[
        str | None,
        Setting(
            help="cpu, cuda, cuda:0 or mps.", group=MACHINE, metavar="NAME", shown_default="cuda where there is one"
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Setting(
            help="Images in a forward pass.",
            group=MACHINE,
            metavar="N",
            least=1,
            shown_default="8 on the CPU, 64 on a GPU",
        ),
    ] = None
    precision: Annotated[
        str,
        Setting(
            help="The network's arithmetic: fp32 is the reference's; others are faster on some GPUs and move the "
            "numbers.",
            group=MACHINE,
            choices=PRECISIONS,
        ),
    ] = "fp32"
    compiled: Annotated[
        bool,
        Setting(
            help="Run the network through torch.compile: takes up to a minute to begin, the first time.",
            group=MACHINE,
            flag="--compile",
        ),
    ] = False
    cache: Annotated[
        bool,
        Setting(
            help="Use and fill the cache of statistics.",
            group=MACHINE,
            flag="--cache/--no-cache",
            shown_default="cache",
            defines=False,
        ),
    ] = True
    diagnose: Annotated[
        bool,
        Setting(
            help="Look for copies and faulty pictures, and keep what tells them with the statistics.",
            group=DIAGNOSIS,
            flag="--diagnosis/--no-diagnosis",
            shown_default="diagnosis",
        ),
    ] = True
    checkpoint: Annotated[
        File,
        Setting(
            help="Keep finished work in DIR: after a kill the same command, with any number of ranks, goes on from "
            "there.",
            group=RESUME,
            metavar="DIR",
            defines=False,
        ),
    ] = None
    checkpoint_every: Annotated[
        float,
        Setting(
            help="How often; so much work a kill can lose.",
            group=RESUME,
            metavar="SECONDS",
            least=0,
            most=LONGEST_SECONDS,
            defines=False,
        ),
    ] = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol is not None:
            object.__setattr__(self, "protocol", protocol_named(self.protocol).name)
        if self.extractor is not None:
            object.__setattr__(self, "extractor", usual_spelling(self.extractor))
        check_extractor(self.network)
        self._choose_metrics()
        if self.dims is not None and self.network.extractor != "inception":
            problem = f"{option('dims')} chooses a layer of Inception; your own network's output decides its dims"
            raise InputError(problem, setting="dims")
        if self.network.extractor == "inception" and not (self.input_size is None and self.feature_step is None):
            name = "feature_step" if self.input_size is None else "input_size"
            problem = f"{option(name)} is fixed for Inception, by which its numbers compare; it is for other extractors"
            raise InputError(problem, setting=name)
        if self.checkpoint == "":
            raise InputError(f"{option('checkpoint')} must be the path of a folder, not empty", setting="checkpoint")
        if self.checkpoint is not None and "://" in str(self.checkpoint):
            problem = f"{option('checkpoint')} takes a folder on this machine, and {self.checkpoint} is an address"
            raise InputError(problem, setting="checkpoint")

    @property
    def network(self) -> NetworkChoice:
        """The network of the features, as it is asked for."""
        return NetworkChoice(self.extractor or "inception", text_of(self.weights), self.input_size, self.feature_step)

    @property
    def metric_networks(self) -> dict[str, NetworkChoice]:
        """The metrics' own networks, by the layer of their features."""
        own = {self.layer_of(metric): metric.own_network for metric in in_order(self.chosen)}
        return {layer: network for layer, network in own.items() if network is not None and layer != FEATURES}

    def layer_of(self, metric: Metric) -> str:
        """The layer that a metric looks at: the run's own features where its network is the run's."""
        return FEATURES if metric.network() == self.network else metric.layer

    @property
    def chosen(self) -> tuple[Metric, ...]:
        """The metrics with their settings, in the order in which they were asked for."""
        return tuple(metric for metric in self.metrics if isinstance(metric, Metric))

    def metric(self, name: str) -> Metric | None:
        """The metric of this name; None where it is not asked for."""
        return next((metric for metric in self.chosen if metric.name == name), None)

    def most_skipped(self, count: int) -> int:
        """How many of ``count`` files ``on_error`` may leave out."""
        from fractions import Fraction  # the command line answers a wrong option without it

        # As it was typed: 0.29 of 100 is 29, whatever the nearest binary fraction.
        return floor(Fraction(repr(self.max_skip)) * count) if self.on_error == "skip" else 0

    def _choose_metrics(self) -> None:
        """Puts the metrics, with their settings, in the place of their names."""
        options: dict[str, dict[str, Any]] = {}
        for place, value in by_place(self.metric_options).items():
            name, _, setting = place.partition(".")
            options.setdefault(name, {})[setting] = value
        chosen = by_name(with_options(metric, options.get(metric.name, {})) for metric in self._asked_for())
        if not chosen:
            raise InputError(f"{option('metrics')} is empty; there are {', '.join(BUILT_IN)}", setting="metrics")
        for name in options:
            if name not in chosen:
                problem = f"{option('metric_options')} has a setting of {name}, which is not computed:"
                raise InputError(problem, f"add it to {option('metrics')}", setting="metric_options")
        check_together([*chosen.values()])
        for metric in chosen.values():
            if not metric.optional:
                metric.check_network(self.network.extractor, self.dims)
        object.__setattr__(self, "metrics", tuple(chosen.values()))

    def _asked_for(self) -> Iterator[Metric]:
        try:
            asked = list(self.metrics.split(",") if isinstance(self.metrics, str) else self.metrics)
        except TypeError:
            problem = f"{option('metrics')} must be names of metrics, not {self.metrics!r}"
            raise InputError(problem, setting="metrics") from None
        for each in asked:
            if isinstance(each, Metric):
                yield each
                continue
            if isinstance(each, type):
                raise InputError(f"{option('metrics')} has a class:", f"write {each.__name__}()", setting="metrics")
            for metric in metrics_named(str(each).strip()):
                fields = declared(type(metric)) if type(metric) in BUILT_IN.values() else {}
                keywords = {name: keyword(type(metric), field) for name, field in fields.items()}
                values = {name: getattr(self, each, fields[name].default) for name, each in keywords.items()}
                yield with_settings(metric, values) if values else metric


@dataclass(frozen=True, kw_only=True)
class Settings(StatisticsSettings):
    """What `fidtool.compute` takes; every run has these, and leaves at their defaults what it does not take."""

    allow_mismatch: Annotated[
        bool, Setting(help="Compare statistics of different protocols, with a warning.", group=MEASURE)
    ] = False
    expect: Annotated[
        int | None,
        Setting(
            help="Refuse a FAKE that has not exactly N images (before --num takes its share).",
            group=IMAGES,
            metavar="N",
            least=1,
        ),
    ] = None
    kid_subset_size: Annotated[int | None, _of(KID, "subset_size")] = KID.subset_size
    kid_subsets: Annotated[int, _of(KID, "subsets")] = KID.subsets
    kid_seed: Annotated[int, _of(KID, "seed")] = KID.seed
    is_splits: Annotated[int, _of(InceptionScore, "splits")] = InceptionScore.splits
    is_bias: Annotated[bool, _of(InceptionScore, "bias")] = InceptionScore.bias
    nearest_k: Annotated[int, _of(PRDC, "nearest_k")] = PRDC.nearest_k
    ties: Annotated[str, _of(PRDC, "ties")] = PRDC.ties
    uncertainty: Annotated[
        bool,
        Setting(
            help="Error bars of the metric fid: its bias, the value without it, the 95 % interval, and which FAKE is "
            "better.",
            group=DIAGNOSIS,
        ),
    ] = False
    influence: Annotated[bool, Setting(help="Name the images that raise the metric fid most.", group=DIAGNOSIS)] = False
    report: Annotated[
        File,
        Setting(
            help="Write a page with the numbers, charts and pictures (needs fidtool[report]).",
            group=OUTPUT,
            metavar="FILE.html",
        ),
    ] = None
    plot: Annotated[
        File,
        Setting(
            help="Write the metric fid of the FAKEs as a curve (needs fidtool[report]).",
            group=OUTPUT,
            metavar="FILE.png",
        ),
    ] = None
    fail_above: Annotated[
        float | None,
        Setting(
            help="Exit with status 3 if the first Fréchet distance in --metrics "
            f"({', '.join(name for name, kind in BUILT_IN.items() if kind.frechet)}) is above X.",
            group=GATES,
            metavar="X",
            least=0,
        ),
    ] = None
    max_duplicates: Annotated[
        float | None,
        Setting(
            help="Exit with status 3 if more than this fraction of a FAKE are copies of others in it.",
            group=GATES,
            metavar="FRACTION",
            least=0,
            most=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fail_above is not None and not self.gated:
            names = " or ".join(name for name, kind in BUILT_IN.items() if kind.frechet)
            problem = f"{option('fail_above')} is a gate on a Fréchet distance:"
            raise InputError(problem, f"add {names} to the metrics", "leave it out", setting="fail_above")
        without = option("diagnose", False)
        if self.max_duplicates is not None and not self.diagnose:
            problem = f"{option('max_duplicates')} is a gate on copies, which {without} leaves out"
            raise InputError(problem, setting="max_duplicates")
        if self.uncertainty and not self.diagnose:
            problem = f"{option('uncertainty')} needs the diagnosis, which {without} leaves out:"
            raise InputError(f"{problem} copies would narrow the interval", setting="uncertainty")
        for name, does in (("uncertainty", "is about"), ("influence", "is about"), ("plot", "draws")):
            if getattr(self, name) and self.metric("fid") is None:
                problem = f"{option(name)} {does} the metric fid, which is not among those asked for"
                raise InputError(problem, setting=name)

    @property
    def gated(self) -> Metric | None:
        """The metric that ``fail_above`` is about, the first Fréchet distance asked for; None if there is none."""
        return next((metric for metric in self.chosen if metric.frechet), None)

    @property
    def exhibits(self) -> bool:
        """Whether a report shows more than the numbers."""
        return self.report is not None


def _two_numbers(value: object) -> tuple[float, float] | None:
    """Black and white of a value range, as a string or as numbers."""
    if value is None:
        return None
    try:
        black, white = (float(part) for part in (value.split(",") if isinstance(value, str) else value))  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        problem = f"{option('value_range')} is black and white, two numbers such as 0,1 or -1,1, not {value!r}"
        raise InputError(problem, setting="value_range") from None
    if not -inf < black < white < inf:
        problem = f"{option('value_range')} must rise from black to white, as 0,1 or -1,1 do, not {value!r}"
        raise InputError(problem, setting="value_range")
    return black, white
