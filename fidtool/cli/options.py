"""Options that commands share, and help that shows them in groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from fidtool.cli.strict import StrictCommand
from fidtool.config import LONGEST_SECONDS, MAX_PIXELS, METRICS, PRECISIONS, Config
from fidtool.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])

MEASURE = "What to measure"
METRIC = "Metrics"
IMAGES = "Images"
MACHINE = "Machine"
KEEP = "Stop and resume"
RANKS = "Several processes"
OUTPUT = "Output"
GATES = "Gates"
DIAGNOSIS = "Diagnosis"
_GROUPS = (MEASURE, METRIC, DIAGNOSIS, IMAGES, MACHINE, KEEP, RANKS, OUTPUT, GATES)


class GroupedOption(click.Option):
    """An option that stands under a heading in ``--help``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(StrictCommand):
    """A command whose ``--help`` lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section a group; ``--help`` and whatever has no group come last."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in (*_GROUPS, "Help")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Recent versions of click list the arguments too; the text above the options explains them.
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "group", "Help")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """`click.option` under the heading ``group``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_SETTINGS = (
    option(
        "--protocol",
        group=MEASURE,
        metavar="NAME",
        help="pytorch-fid, tensorflow (also edm, adm), clean, torchmetrics or stylegan; see `fidtool protocols`. "
        "[default: that of the statistics files, or pytorch-fid]",
    ),
    option(
        "--extractor",
        group=MEASURE,
        metavar="SPEC",
        help="Network: inception, torchvision:NAME[:node], timm:NAME, dinov2[:ARCH], clip[:MODEL], FILE.pt2, a "
        "TorchScript FILE.pt, or path/to/file.py:factory or package.module:factory for your own, whose code is run. "
        "[default: that of the statistics files, or inception]",
    ),
    option(
        "--dims",
        group=MEASURE,
        type=click.Choice(["64", "192", "768", "2048"]),
        help="Inception's layer. [default: that of the statistics files, or 2048]",
    ),
    option(
        "--weights",
        group=MEASURE,
        metavar="FILE",
        help="The network's weights, or the name of an entry of torchvision's or open_clip's. [default: the published "
        "ones; Inception's: see `fidtool weights`]",
    ),
    option(
        "--input-size",
        group=MEASURE,
        type=click.IntRange(1),
        metavar="N",
        help="Side of the input of a FILE.pt2 or FILE.pt that does not say.",
    ),
    option(
        "--feature-step",
        group=MEASURE,
        type=click.IntRange(-100, 100),
        metavar="S",
        help="Round another network's features to multiples of 2^-S; they must stay below 2^(23-S). [default: the "
        "network's own]",
    ),
    option(
        "--metrics",
        group=METRIC,
        metavar="NAME,NAME",
        multiple=True,
        default=["fid"],
        show_default=True,
        callback=lambda context, parameter, names: ",".join(names),
        help=f"What to compute, all from one pass over the images: {', '.join(METRICS)}. May be given several times.",
    ),
    option("--cmmd-extractor", group=METRIC, metavar="NAME", default="clip", show_default=True, help="CMMD's network."),
    option("--cmmd-weights", group=METRIC, metavar="FILE", help="Its weights, where they cannot be downloaded."),
    option("--cmmd-input-size", group=METRIC, type=click.IntRange(1), metavar="N", help="As --input-size."),
    option("--cmmd-feature-step", group=METRIC, type=click.IntRange(-100, 100), metavar="S", help="As --feature-step."),
    # torchrun's parser takes --num, wherever it stands, for its own --numa-binding or --numa_binding and gives up.
    option(
        "--num",
        "--num-images",
        "num",
        group=IMAGES,
        type=click.IntRange(1),
        metavar="N",
        help="Take a reproducible random N from every image set (under torchrun write --num-images).",
    ),
    option(
        "--seed", group=IMAGES, type=int, default=0, show_default=True, help="Which random N, and the order of images."
    ),
    option(
        "--recursive/--no-recursive",
        group=IMAGES,
        default=True,
        help="Look into a folder's subfolders.  [default: recursive]",
    ),
    option(
        "--value-range",
        group=IMAGES,
        metavar="LOW,HIGH",
        help="What black and white are in arrays of floats, such as 0,1 or -1,1; bytes need none.",
    ),
    option(
        "--on-error",
        group=IMAGES,
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What to do about a file that cannot be read: end, or leave it out and name it.",
    ),
    option(
        "--max-skip",
        group=IMAGES,
        type=click.FloatRange(0, 1),
        metavar="FRACTION",
        default=0.01,
        show_default=True,
        help="The largest share of a set that --on-error skip may leave out.",
    ),
    option(
        "--max-pixels",
        group=IMAGES,
        type=click.IntRange(1),
        metavar="N",
        default=MAX_PIXELS,
        show_default=True,
        help="An image of more pixels counts as a decompression bomb and is not read.",
    ),
    option(
        "--device", group=MACHINE, metavar="NAME", help="cpu, cuda, cuda:0 or mps.  [default: cuda where there is one]"
    ),
    option(
        "--batch-size",
        group=MACHINE,
        type=click.IntRange(1),
        metavar="N",
        help="Images in a forward pass.  [default: 8 on the CPU, 64 on a GPU]",
    ),
    option(
        "--num-workers",
        group=MACHINE,
        type=click.IntRange(0),
        metavar="N",
        help="Decoding processes a rank; 0: none.  [default: its cores but one, at most 16; on the CPU one in 16]",
    ),
    option(
        "--precision",
        group=MACHINE,
        type=click.Choice(list(PRECISIONS)),
        default="fp32",
        show_default=True,
        help="The network's arithmetic: fp32 is the reference's; others are faster on some GPUs and move the numbers.",
    ),
    option(
        "--compile",
        "compiled",
        group=MACHINE,
        is_flag=True,
        help="Run the network through torch.compile: takes up to a minute to begin, the first time.",
    ),
    option(
        "--no-diagnosis",
        group=DIAGNOSIS,
        is_flag=True,
        help="Do not look for copies and faulty pictures, nor keep what would tell them.",
    ),
    option("--no-cache", group=MACHINE, is_flag=True, help="Neither use nor fill the cache of statistics."),
    option(
        "--checkpoint",
        group=KEEP,
        metavar="DIR",
        help="Keep finished work in DIR: after a kill the same command, with any number of ranks, goes on from there.",
    ),
    option(
        "--checkpoint-every",
        group=KEEP,
        type=click.FloatRange(0, LONGEST_SECONDS),
        metavar="SECONDS",
        default=15.0,
        show_default=True,
        help="How often; so much work a kill can lose.",
    ),
    option(
        "--peer-timeout",
        group=RANKS,
        type=click.FloatRange(3, LONGEST_SECONDS),
        metavar="SECONDS",
        default=20.0,
        show_default=True,
        help="A rank that gives no sign of life for so long is lost, and the run ends.",
    ),
    option(
        "--timeout",
        group=RANKS,
        type=click.FloatRange(1, LONGEST_SECONDS),
        metavar="SECONDS",
        default=1800.0,
        show_default=True,
        help="How long ranks that live wait for the slowest one, or for their decoding processes; for all to start: "
        "the same, at most 120.",
    ),
)
QUIET = option("--quiet", group=OUTPUT, is_flag=True, help="No progress and no timings on stderr; warnings stay.")


_BY_NAME = {
    parameter.name: decorate
    for decorate in _SETTINGS
    for parameter in decorate(lambda: None).__click_params__  # type: ignore[attr-defined]
}


def _with_settings(names: Collection[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options of these names: it gets them as ``settings``, a `Config` that takes what is left."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            own = {name: value for name, value in values.items() if name not in names}
            shared = {name: value for name, value in values.items() if name in names}
            for negative, name in (("no_cache", "cache"), ("no_diagnosis", "diagnose")):
                if negative in shared:
                    shared[name] = not shared.pop(negative)
            if "extractor" in shared:
                shared["inception_named"] = shared["extractor"] == Config.extractor
                if shared["extractor"] is None:
                    del shared["extractor"]
            if shared.get("dims") is not None:
                shared["dims"] = int(shared["dims"])
            return function(settings=functools.partial(Config, **shared), **own)

        for name in reversed(_BY_NAME):
            if name in names:
                command = _BY_NAME[name](command)
        return command

    return decorate


measuring = _with_settings(_BY_NAME.keys())
"""Gives a command the options that every measurement has, as ``settings``."""
looking = _with_settings(
    frozenset({"num", "seed", "recursive", "value_range", "max_pixels", "num_workers", "peer_timeout", "timeout"})
)
"""Those of a command that reads images and measures nothing."""


_FLAGS_OF = {
    "kid": ("kid_subset_size", "kid_subsets", "kid_seed"),
    "is": ("is_splits", "is_bias"),
    "prdc": ("nearest_k", "ties"),
    "cmmd": ("cmmd_extractor", "cmmd_weights", "cmmd_input_size", "cmmd_feature_step"),
}
"""Settings of one metric alone."""


def refuse_idle_flags(context: click.Context) -> None:
    """A flag of a metric that is not computed was meant for something.

    Raises:
        InputError: naming the flag and the metric.
    """
    wanted = {name.strip() for name in context.params["metrics"].split(",")}
    for metric, names in _FLAGS_OF.items():
        for name in names:
            # A command without the option has no source for it.
            given = context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
            if given and metric not in wanted:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is a setting of {metric}, which is not computed: add it to --metrics")
