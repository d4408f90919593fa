"""Cases with errors: each prints one line that says what is wrong, where, and what to do."""

from __future__ import annotations

from compare.case import COLOURS, FAKE, FEW, JSON, KID, LESS, NETWORKS, REAL, SETS, SMALL, I, Table, fidtool

COMPUTE = {
    "no REAL": f"nowhere {FAKE}",
    "no FAKE": REAL,
    "FAKE nowhere": f"{REAL} nowhere",
    "a later FAKE nowhere": f"{SETS} nowhere",
    "statistics nowhere": f"{REAL} nowhere.npz",
    "an empty name": f"{REAL} ''",
    "a line break": f"{REAL} 'no\nwhere'",
    "an empty folder": f"{REAL} {I}/empty",
    "a folder of texts": f"{REAL} {I}/texts",
    "an image": f"{REAL}/000.png {FAKE}",
    "a text": f"{REAL} {I}/notes.txt",
    "no archive": f"{REAL} {I}/bad.zip",
    "a line twice": f"{REAL} {I}/twice.txt",
    "a pattern of nothing": f"{REAL} '{I}/none-*.tar'",
    "several images a sample": f"{REAL} {I}/samples.zip",
    "several arrays": f"{REAL} {I}/two.npz",
    "no such array": f"{REAL} {I}/two.npz:nothing",
    "Fortran order": f"{REAL} {I}/fortran.npy",
    "floats without a range": f"{REAL} {I}/floats.npy",
    "a range that falls": f"{REAL} {I}/floats.npy --value-range 1,0",
    "standard input twice": "- -",
    "one set twice": f"{REAL} {REAL}",
    "broken images": f"{REAL} {I}/broken",
    "too many broken images": f"{REAL} {I}/broken --on-error skip",
    "too large a num": f"{SETS} --num 25",
    "too small a set for KID": f"{SETS} --metrics kid",
    "too small a set for FID-infinity": f"{SETS} --metrics fid-infinity",
    "neighbours": f"{SETS} --metrics prdc --nearest-k 24",
    "an unknown metric": f"{SETS} --metrics fid,nonsense",
    "no metric": f"{SETS} --metrics ''",
    "a flag of another metric": f"{SETS} --nearest-k 3",
    "an unknown protocol": f"{SETS} --protocol inception",
    "an unknown device": f"{SETS} --device tpu9",
    "a GPU that is not there": f"{SETS} --device cuda:99",
    "a gate that is no number": f"{SETS} --fail-above nan",
    "copies without diagnosis": f"{SETS} --max-duplicates 0.1 --no-diagnosis",
    "error bars without diagnosis": f"{SETS} --uncertainty --no-diagnosis",
    "influence without FID": f"{SETS} --influence --metrics kid {KID}",
    "output into nowhere": f"{SETS} --output no/out.json",
    "output onto a folder": f"{SETS} --output {I}/empty",
    "output to an address": f"{SETS} --output s3://bucket/out.json",
    "a page into nowhere": f"{SETS} --report no/page.html",
    "a checkpoint's address": f"{SETS} --checkpoint s3://bucket/kept",
    "a checkpoint that is a file": f"{SETS} --checkpoint {I}/notes.txt",
    "damaged statistics": f"{I}/damaged.npz {FAKE}",
    "statistics of odd shapes": f"{I}/shapes.npz {FAKE}",
    "statistics of NaN": f"{I}/nan.npz {FAKE}",
    "no covariance": f"{I}/asymmetric.npz {FAKE}",
    "no statistics": f"{I}/nothing.npz {FAKE}",
    "other dimensions": f"{I}/foreign64.npz {FAKE}",
    "no count to expect": f"{REAL} {I}/foreign.npz --expect 20",
    "no features for KID": f"{REAL} {I}/foreign.npz --metrics kid {KID}",
    "weights for a custom network": f"{SETS} --weights {I}/wrong.pth",
    "dims for a custom network": f"{SETS} --dims 64",
    "Inception Score of a custom network": f"{SETS} --metrics is",
    "an unknown kind of address": f"{REAL} nonsense://host/a.zip",
}
"""Arguments of ``fidtool compute``, to which the small network is added."""

OTHERS = {
    "an unknown network": f"compute {SETS} --extractor nonsense",
    "no such factory": f"compute {SETS} --extractor {NETWORKS}:nothing",
    "no such file of code": f"compute {SETS} --extractor nowhere.py:network",
    "no such module": f"compute {SETS} --extractor nowhere.more:network",
    "a factory of no network": f"compute {SETS} --extractor {NETWORKS}:no_network",
    "a network of NaN": f"compute {SETS} --extractor {NETWORKS}:broken {JSON}",
    "too large features": f"compute {SETS} --extractor {NETWORKS}:large {JSON}",
    "a silent program": f"compute {SETS} --extractor {I}/silent.pt2",
    "no program": f"compute {SETS} --extractor {I}/images.pt",
    "no such model": f"compute {SETS} --extractor torchvision:nonsense",
    "no such node": f"compute {SETS} --extractor torchvision:shufflenet_v2_x0_5:none --weights {I}/shufflenet.pth",
    "another model's weights": f"compute {SETS} --extractor torchvision:resnet18 --weights {I}/shufflenet.pth",
    "a protocol for one of timm's": f"compute {SETS} --extractor timm:test_vit --weights {I}/vit.pth --protocol clean",
    "a protocol for a network's own preparation": f"compute {SETS} {COLOURS} --protocol clean",
    "wrong weights": f"compute {FEW} {LESS} --weights {I}/wrong.pth",
    "invalid dims": f"compute {FEW} {LESS} --dims 100",
    "a step for Inception": f"compute {FEW} {LESS} --feature-step 17",
    "a classifier for 64 dimensions": f"compute {FEW} {LESS} --dims 64 --metrics is",
    "stats of statistics": f"stats {I}/foreign.npz -o a.npz",
    "stats of nothing": f"stats {I}/empty -o a.npz",
    "stats into nowhere": f"stats {REAL} -o no/a.npz {SMALL}",
    "stats by another name": f"stats {REAL} -o a.npy {SMALL}",
    "stats without a name": f"stats {REAL}",
    "check of nothing": f"check {I}/empty",
    "check of one set against itself": f"check {REAL} --against {REAL}",
    "check of broken images alone": f"check {I}/bad.zip",
    "list with more": f"check {REAL} --list --strict",
    "list of statistics": f"check {I}/foreign.npz --list",
    "cache with two flags": "cache --clear --json",
    "cache of what is not there": "cache --remove nowhere",
    "cache of no date": "cache --older-than yesterday",
}

STATUSES = {"one set twice": 0, "a network of NaN": 1, "too large features": 1}
"""Exit statuses of the cases that are not bad input: they only cause a warning, or the run itself fails."""


def add_failures(table: Table) -> None:
    """Add the cases. The JSON of a failed run is compared as well."""
    for name, words in COMPUTE.items():
        line = f"compute {words} {SMALL}"
        steps = [line] if name == "no FAKE" else [line, f"{line} --json --output out.json --quiet"]
        table.add(f"failures/{name}", *(fidtool(step, stdin=f"{FAKE}/000.png\n") for step in steps), **_status(name))
    for name, line in OTHERS.items():
        table.add(f"failures/{name}", line, **_status(name))
    table.add(
        "skipped/some",
        f"compute {REAL} {I}/broken {SMALL} --on-error skip --max-skip 0.2 --json",
        f"stats {I}/broken -o a.npz {SMALL} --on-error skip --max-skip 0.125 --json",
        f"stats {I}/broken -o a.npz {SMALL} --on-error skip --max-skip 0.125",
        "cache",
        statuses=(0, 2, 0, 0),
    )


def _status(name: str) -> dict[str, tuple[int, ...]]:
    return {"statuses": (STATUSES[name],)} if name in STATUSES else {}
