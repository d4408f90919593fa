"""The table of cases to run with both versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compare.case import (
    COLOURS,
    FAKE,
    FEW,
    FORMS,
    JSON,
    KID,
    LESS,
    NETWORKS,
    REAL,
    SETS,
    SHUFFLENET,
    SMALL,
    Case,
    Facts,
    I,
    Table,
    fidtool,
    other,
)
from compare.failures import add_failures
from compare.runs import add_runs

OF_INCEPTION = ("is", "sfid")
"""Metrics that need the Inception network."""


def table_of(facts: Facts) -> dict[str, Case]:
    """Return all cases for a version."""
    table = Table()
    _add_usage(table, facts)
    _add_protocols(table, facts)
    _add_metrics(table, facts)
    _add_sources(table)
    _add_diagnosis(table)
    _add_networks(table)
    _add_settings(table)
    _add_newer_flags(table, facts)
    _add_published(table, facts)
    add_runs(table, facts)
    add_failures(table)
    return table.cases


def uncovered(cases: Mapping[str, Case], facts: Facts) -> Iterator[str]:
    """Yield the flags that no case uses, except to see them rejected."""
    used: dict[str, set[str]] = {}
    for case in cases.values():
        for step in case.steps if case.kind != "usage" else ():
            words = [word.partition("=")[0] for word in step.words]
            for command in facts.commands:
                if command in words:
                    used.setdefault(command, set()).update(words)
    for command, flags in facts.flags.items():
        yield from (f"{command} {flag}" for flag in flags if flag not in used.get(command, set()))


def _add_usage(table: Table, facts: Facts) -> None:
    for words in ("", "--help", "-h", "--version", "nonsense", "--nonsense"):
        status = 2 if words in ("", "nonsense", "--nonsense") else 0
        table.add(f"help/fidtool {words}".rstrip(), fidtool(words, fresh=True), statuses=(status,))
    if "guide" in facts.commands:
        table.add("help/the guide", "guide")
    for command in facts.commands:
        table.add(f"help/{command}", fidtool(f"{command} --help", fresh=True))
        table.add(
            f"usage/{command}",
            f"{command} --nonsense",
            f"{command} a b c --nonsense 3",
            f"{command} -h",
            statuses=(2, 2, 0),
        )
        for flag, valued in facts.flags[command].items():
            if flag != "--help":
                wrong = f"{command} a b {flag} 'no value!'", f"{command} {flag}"
                table.add(f"usage/{command} {flag}", *(wrong if valued else [f"{command} a b {flag}=3"]))


def _add_protocols(table: Table, facts: Facts) -> None:
    for name in facts.protocols:
        table.add(f"protocols/{name}", f"compute {FEW} {LESS} --protocol {name} {JSON}")
        table.add(f"protocols/{name}, small", f"compute {SETS} {SMALL} --protocol {name} {JSON}")
    tf32 = f"compute {FEW} {LESS} --dims 64 --precision tf32 --device cpu {JSON}"
    table.add("protocols/tf32", tf32, statuses=(2,))  # tf32 needs a GPU
    table.add_all(
        "protocols",
        {
            "default, text": f"compute {FEW} {LESS}",
            "clean, 64 dimensions": f"compute {FEW} {LESS} --protocol clean --dims 64 {JSON}",
            "192 dimensions": f"compute {FEW} {LESS} --dims 192",
            "768 dimensions": f"compute {FEW} {LESS} --dims 768 --metrics fid,sfid --json",
            "16 bits": f"compute {FEW} {LESS} --dims 768 --precision bf16 {JSON}",
            "half": f"compute {FEW} {LESS} --dims 192 --precision fp16 {JSON}",
            "inception named": f"compute {FEW} {LESS} --extractor inception --dims 64 {JSON}",
            "odd images": f"compute {I}/odd {LESS} --protocol tensorflow --dims 64 {JSON}",
        },
    )


def _add_metrics(table: Table, facts: Facts) -> None:
    classified = (other("copy", f"{I}/classifier", "cache"),)
    of_one = {"kid": KID, "is": "--is-splits 2", "cmmd": f"--cmmd-extractor {NETWORKS}:colours"}
    for name in facts.metrics:
        inception = name in OF_INCEPTION
        sets = f"{FEW} {LESS}" if inception else f"{REAL} {I}/thousands.npy" if "infinity" in name else SETS
        flags = f"--metrics {name} {of_one.get(name, '')} {'' if inception else SMALL}"
        lines = f"compute {sets} {flags} {JSON}", f"compute {sets} {flags} --quiet"
        table.add(f"metrics/{name}", *(classified if name == "is" else ()), *lines)
        table.add(f"metrics/{name}, stats", f"stats {sets.split()[0]} -o kept.npz {_for_stats(flags)}")
    ours = [name for name in facts.metrics if name not in (*OF_INCEPTION, "all") and "infinity" not in name]
    every = f"--metrics {','.join(ours)} {KID} --cmmd-extractor {NETWORKS}:colours"
    table.add("metrics/several", f"compute {SETS} {I}/step100 {SMALL} {every} {JSON}")
    table.add("metrics/several, text", f"compute {SETS} {I}/step100 {SMALL} {every}")
    table.add(
        "metrics/inception score", *classified, f"compute {FEW} {LESS} --metrics is,fid,sfid --is-splits 2 --json"
    )
    table.add("metrics/its bias", *classified, f"compute {FEW} {LESS} --metrics is --is-splits 3 --is-bias --json")
    table.add_all(
        "metrics",
        {
            "kid, another seed": f"compute {SETS} {SMALL} --metrics kid {KID} --kid-seed 5 {JSON}",
            "prdc, inclusive": f"compute {SETS} {SMALL} --metrics prdc --nearest-k 3 --ties inclusive {JSON}",
            "cmmd, a program": f"compute {SETS} {SMALL} --metrics cmmd --cmmd-extractor {I}/silent.pt2 "
            f"--cmmd-input-size 24 --cmmd-feature-step 20 {JSON}",
            "cmmd, weights": f"compute {FEW} {LESS} {SMALL} --metrics cmmd --cmmd-extractor "
            f"{SHUFFLENET} --cmmd-weights {I}/shufflenet.pth --cmmd-feature-step 15 {JSON}",
            "twice": f"compute {SETS} {SMALL} --metrics prdc --metrics fid,prdc {JSON}",
            "uncertainty": f"compute {I}/many {I}/much {I}/step100 {SMALL} --uncertainty {JSON}",
            "uncertainty, text": f"compute {I}/many {I}/much {I}/many/../much {SMALL} --uncertainty",
            "influence": f"compute {SETS} {I}/noise {SMALL} --influence {JSON}",
            "influence, text": f"compute {I}/many {I}/much {COLOURS} --influence --uncertainty",
        },
    )


def _for_stats(flags: str) -> str:
    """Remove the flags that `stats` does not have."""
    words = flags.split()
    own = {"--kid-subset-size", "--kid-subsets", "--is-splits"}
    return " ".join(word for word, before in zip(words, ["", *words], strict=False) if not {word, before} & own)


def _add_sources(table: Table) -> None:
    for form in FORMS:
        path = f"'{I}/{form}'"
        table.add(
            f"sources/{form}",
            f"compute {REAL} {path} {SMALL} --json",
            f"compute {path} {REAL} {SMALL} --num 9 --seed 2",
            f"check {path} --list --json",
            f"check {path} --list --num 5 --seed 1",
            f"check {path} --against {REAL}",
        )
    for form, values in (("floats.npy", "0,1"), ("beyond.npy", "0,1"), ("signed.npy", "-1,1")):
        path = f"{I}/{form} --value-range={values}"
        table.add(f"sources/{form}", f"compute {REAL} {path} {SMALL} {JSON}", f"check {path} --json")
    listed = "".join(f"{FAKE}/{number:03}.png\n" for number in range(9))
    table.add("sources/stdin", fidtool(f"compute {REAL} - {SMALL} --json", stdin=listed))
    table.add("sources/stdin, check", fidtool("check - --list", stdin=listed), fidtool("check -", stdin=listed))
    table.add("sources/not recursive", f"compute {REAL} {I}/deep --no-recursive {SMALL} {JSON}")
    table.add("sources/recursive", f"stats {I}/deep -o a.npz --recursive {SMALL}", f"check {I}/deep --no-recursive")


def _add_diagnosis(table: Table) -> None:
    for name in ("real", "copies", "dark", "swapped", "noise", "leaked", "odd", "broken", "deep"):
        against = "" if name == "real" else f" --against {REAL}"
        table.add(
            f"diagnosis/{name}",
            f"check {I}/{name}{against}",
            f"check {I}/{name}{against} --json --quiet",
            f"check {I}/{name} --strict",
            statuses=(0, 0, 0 if name in ("real", "swapped", "leaked") else 3),
        )
    for name in ("copies", "dark", "swapped", "noise", "leaked", "odd"):
        table.add(f"diagnosis/{name}, computed", f"compute {REAL} {I}/{name} {SMALL} {JSON}")
    table.add("diagnosis/none", f"compute {REAL} {I}/copies {SMALL} {JSON} --no-diagnosis")
    table.add("diagnosis/against statistics", f"stats {REAL} -o r.npz {SMALL}", f"check {FAKE} --against r.npz --json")
    table.add("diagnosis/settings", f"check {I}/odd --num-images 9 --seed 3 --num-workers 1 --max-pixels 2500")
    table.add("diagnosis/waiting", f"check {REAL} --timeout 60 --peer-timeout 9 --value-range 0,1 --recursive")


def _add_networks(table: Table) -> None:
    extractors = {
        "colours": f"{NETWORKS}:colours",
        "a module": "networks:other",
        "a script": f"{I}/script.pt",
        "a program": f"{I}/program.pt2",
        "a silent program": f"{I}/silent.pt2 --input-size 24 --feature-step 17",
        "torchvision": f"{SHUFFLENET} --weights {I}/shufflenet.pth --feature-step 15",
        "a node": f"{SHUFFLENET}:stage3 --weights {I}/shufflenet.pth --feature-step 15",
        "timm": f"timm:test_vit --weights {I}/vit.pth",
    }
    for name, extractor in extractors.items():
        line = f"compute {I}/odd {LESS} --extractor {extractor}"
        table.add(f"networks/{name}", f"{line} --json", f"{line} --metrics fid,kid --kid-subset-size 3")
    table.add("networks/a step", f"compute {SETS} {SMALL} --feature-step 17 {JSON}")
    compiled = f"compute {SETS} {SMALL} --compile {JSON}", f"stats {REAL} -o a.npz {SMALL} --compile"
    table.add("networks/compiled", *compiled, names=("(?<=cache/compiled/).*",))


def _add_newer_flags(table: Table, facts: Facts) -> None:
    """Add cases for flags that older versions do not have."""
    option = "--metric-option kid.subset_size=8 --metric-option kid.subsets=5"
    if "--metric-option" in facts.flags["compute"]:
        table.add("settings/a metric's option", f"compute {SETS} {SMALL} --metrics kid {option} {JSON}")
        table.add("settings/of stats, an option", f"stats {REAL} -o a.npz {SMALL} --metrics kid {option} --no-cache")
    if "--diagnosis" in facts.flags["compute"]:
        table.add("settings/by default", f"compute {SETS} {SMALL} --cache --diagnosis --json")
        table.add("settings/of stats, by default", f"stats {REAL} -o a.npz {SMALL} --cache --diagnosis")
    if "--float-to-byte" in facts.flags["compute"]:
        lines = f"compute {REAL} {I}/floats.npy {I}/beyond.npy", f"stats {I}/floats.npy -o a.npz"
        truncated = "--value-range 0,1 --float-to-byte floor"
        table.add("settings/truncated", *(f"{line} {SMALL} {truncated}" for line in lines))
        table.add("settings/of check, truncated", f"check {I}/beyond.npy {truncated} --json")
    if "--crop" in facts.flags["compute"]:
        for crop in ("adm:16", "edm:9", "center:33", "tensor-center:16", "resize:24"):
            table.add(
                f"settings/crop {crop}", f"compute {REAL} {I}/odd {SMALL} --crop {crop} --crop-fake {crop} {JSON}"
            )
        table.add(
            "settings/crop of statistics",
            f"stats {I}/odd -o r.npz {SMALL} --crop adm:16",
            f"compute r.npz {REAL} {SMALL} --format table",
            f"compute r.npz {REAL} {SMALL} --crop-fake center:16",
        )
    if "metrics" in facts.commands:
        table.add("settings/of metrics", "metrics", "metrics --json", "metrics kid", "metrics kid --json")
    if "--format" in facts.flags["compute"]:
        both = f"compute {SETS} {I}/step100 {SMALL} -q"
        table.add("settings/formats", f"{both} --format table", f"{both} --format lines", f"{both} -o out.json")
        table.add("settings/short flags", f"stats {REAL} -o a.npz {SMALL} -q", f"check {REAL} -q")


def _add_published(table: Table, facts: Facts) -> None:
    """Add cases for the comparison with published values."""
    if "--preset" in facts.flags["compute"]:
        preset = f"compute {FEW} {LESS} --preset edm -o fid.json"
        table.add("papers/a preset", preset, "verify fid.json", statuses=(0, 3))
        table.add("papers/another", f"{preset} -q", "verify fid.json --preset adm --json", statuses=(0, 3))
        table.add("papers/of stats", f"stats {FEW} -o a.npz --preset stylegan")
        table.add("papers/presets", "presets", "presets --json", "presets adm")
    if "--is-part-size" in facts.flags["compute"]:
        parts = f"compute {FEW} {LESS} --metrics is --is-part-size 3 --json"
        table.add("papers/parts", other("copy", f"{I}/classifier", "cache"), parts)
    if "refs" in facts.commands:
        table.add("papers/references", "refs", "refs --json", "refs edm:cifar10", "refs --forget edm:cifar10")
        nowhere = fidtool("refs --download edm:cifar10", FIDTOOL_REFERENCES_URL="file:///nowhere")
        table.add("papers/a download", nowhere, statuses=(1,))


def _add_settings(table: Table) -> None:
    lines = {
        "num and seed": "--num 9 --seed 4",
        "num images": "--num-images 7 --recursive",
        "batch size": "--batch-size 5",
        "no workers": "--num-workers 0",
        "two workers": "--num-workers 2 --batch-size 3 --backend gloo",
        "cpu": "--device cpu",
        "quiet": "--quiet --no-diagnosis",
        "max pixels": "--max-pixels 576",
        "deadlines": "--timeout 99 --peer-timeout 9",
    }
    for name, flags in lines.items():
        table.add(f"settings/{name}", f"compute {SETS} {SMALL} {flags} --json")
    table.add("settings/of stats", f"stats {REAL} {SMALL} -o a.npz --num 9 --seed 4 --batch-size 5 --no-cache --quiet")
    table.add(
        "settings/of stats, too",
        f"stats {REAL} -o a.npz {COLOURS} --device cpu --backend gloo --num-workers 1 --max-pixels 9999 "
        "--value-range 0,1 --timeout 99 --peer-timeout 9 --no-diagnosis --feature-step 16 --on-error skip "
        "--max-skip 0.1",
    )
    table.add(
        "settings/of stats, further",
        f"stats {FEW} -o a.npz --extractor {SHUFFLENET} --weights {I}/shufflenet.pth --feature-step 15 --num-images 5 "
        "--no-recursive",
        f"stats {FEW} -o a.npz --force {SMALL} --metrics cmmd --cmmd-extractor {SHUFFLENET} "
        f"--cmmd-weights {I}/shufflenet.pth --cmmd-feature-step 15",
        f"stats {FEW} -o b.npz {SMALL} --metrics cmmd --cmmd-extractor {I}/silent.pt2 --cmmd-input-size 24 "
        "--cmmd-feature-step 20",
    )
    table.add("settings/inception", f"stats {FEW} -o a.npz --protocol clean --dims 64 --precision fp32", "weights")
    table.add("settings/a silent program", f"stats {FEW} --output a.npz --extractor {I}/silent.pt2 --input-size 24")
