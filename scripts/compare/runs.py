"""Cases of several commands or processes: cache, statistics, checkpoints, gates, reports, ranks, Python API."""

from __future__ import annotations

from compare.case import (
    FAKE,
    FAULTY,
    FEW,
    FORMS,
    JSON,
    KID,
    LESS,
    NETWORKS,
    REAL,
    SETS,
    SMALL,
    Facts,
    I,
    Table,
    fidtool,
    other,
    program,
    torchrun,
)
from compare.masks import KEYS
from compare.sides import Step

REFUSED = ("broken", "usage", "missing")
"""Cases that several ranks reject."""
FAULTS = {"raise": (1, 1), "kill": (-9, 1), "interrupt": (130, 130), "terminate": (143, 143)}
"""For each fault of a rank: its exit status, and that of the other ranks."""
OLD = f"{I}/old"
"""Files that the frozen version wrote and the other version must be able to read."""
RESUMED = ("run.images_resumed", "run.images_computed", "run.forward_passes")
"""JSON values that depend on how far a run was when it was killed."""


def add_runs(table: Table, facts: Facts) -> None:
    """Add the cases."""
    _add_cache(table)
    _add_statistics(table)
    _add_checkpoints(table)
    _add_gates(table)
    _add_pages(table)
    _add_ranks(table)
    _add_everything_on_ranks(table, facts)
    _add_faults(table)
    _add_launchers(table)
    _add_weights(table)
    _add_python(table)
    _add_web(table)


def _add_cache(table: Table) -> None:
    fill = f"compute {SETS} {SMALL} --json"
    table.add("cache/used", fill, fill, f"compute {REAL} {I}/step100 {SMALL} --metrics fid,kid {KID} --json", fill)
    table.add("cache/list", fill, f"stats {FEW} -o f.npz --dims 64 --num 4", "cache", "cache --json", "cache")
    table.add("cache/empty", "cache", "cache --json", "cache --clear", "cache --older-than 3d")
    table.add(
        "cache/remove",
        fill,
        f"cache --remove {FAKE}",
        f"cache --remove {FAKE}",
        "cache",
        "cache --clear",
        "cache",
        statuses=(0, 0, 2, 0, 0, 0),
    )
    table.add("cache/older", fill, "cache --older-than 1d", "cache --older-than 2200-01-01", "cache --json")
    table.add("cache/limit", fill, fidtool(f"{fill} --num 9", FIDTOOL_CACHE_BYTES="1000"), "cache --json")
    table.add("cache/of the frozen version", other("copy", f"{OLD}/cache", "cache"), "cache", fill, "cache --json")
    table.add("cache/not for the diagnosis", f"{fill} --no-diagnosis", fill, f"{fill} --batch-size 3", "cache --json")
    damage = other("copy", f"{I}/notes.txt", "cache/statistics/" + "0" * 64 + ".npz")
    table.add("cache/damaged", fill, damage, "cache", "cache --json", f"cache --remove {'0' * 12}", "cache")


def _add_statistics(table: Table) -> None:
    stats = f"stats {REAL} -o r.npz {SMALL}"
    table.add(
        "statistics/made and read",
        stats,
        f"compute r.npz {FAKE} --json",
        f"compute r.npz {FAKE} {SMALL}",
        statuses=(0, 2, 0),
    )
    table.add("statistics/force", stats, stats, f"{stats} --force", f"{stats} --force --num 5", statuses=(0, 2, 0, 0))
    table.add(
        "statistics/features",
        f"{stats} --metrics kid,prdc",
        f"stats {FAKE} -o f.npz {SMALL} --metrics kid --metrics prdc",
        f"compute r.npz f.npz {SMALL} --metrics fid,kid,prdc {KID} --json",
        f"compute r.npz f.npz {SMALL} --metrics fid --influence",
    )
    table.add("statistics/two of them", stats, f"stats {FAKE} -o f.npz {SMALL}", "compute r.npz f.npz --json")
    table.add(
        "statistics/of the frozen version", f"compute {OLD}/real.npz {FAKE} {SMALL} --metrics fid,kid {KID} --json"
    )
    table.add("statistics/checked", f"check {OLD}/real.npz", f"check {FAKE} --against {OLD}/real.npz")
    table.add(
        "statistics/taken settings",
        f"stats {FEW} -o r.npz --dims 64 --protocol clean",
        f"compute r.npz {LESS} --json",
        f"compute r.npz {LESS} --dims 192",
        f"compute r.npz {LESS} --protocol tensorflow",
        f"compute r.npz {LESS} --protocol tensorflow --allow-mismatch --json",
        statuses=(0, 0, 2, 2, 0),
    )
    for name in ("foreign", "foreign64", "foreign100", "adm"):
        table.add(
            f"statistics/{name}",
            f"compute {I}/{name}.npz {I}/{name}.npz --json",
            f"compute {I}/foreign.npz {I}/{name}.npz",
            statuses=(0, 2 if name in ("foreign64", "foreign100") else 0),
        )
    table.add("statistics/with images", f"compute {I}/foreign.npz {FAKE} {SMALL} {JSON}")
    mismatched = f"compute r.npz {FAKE} --extractor {NETWORKS}:other"
    table.add("statistics/mismatch", stats, mismatched, statuses=(0, 2))
    table.add("statistics/allowed", stats, f"{mismatched} --allow-mismatch --json")


def _add_checkpoints(table: Table) -> None:
    run = f"compute {SETS} {SMALL} {JSON} --batch-size 2 --checkpoint kept"
    table.add("checkpoint/whole", run, run)
    table.add("checkpoint/a set is gone", run, other("remove", "kept/000-*.part.npz"), f"{run} --checkpoint-every 0")
    table.add("checkpoint/features", f"{run} --metrics fid,kid {KID}", f"{run} --metrics fid,kid {KID}")
    table.add("checkpoint/of stats", *[f"stats {REAL} -o a.npz --force {SMALL} --no-cache --checkpoint kept"] * 2)
    table.add("checkpoint/of stats, often", f"stats {REAL} -o a.npz {SMALL} --checkpoint kept --checkpoint-every 0")
    changed = (f"{run} {flags}" for flags in ("--batch-size 3", "--seed 1", "--protocol clean"))
    table.add("checkpoint/another run", run, *changed, statuses=(0, 2, 2, 2))
    table.add("checkpoint/of the frozen version", other("copy", f"{OLD}/kept", "kept"), run)
    table.add("checkpoint/other ranks", run, fidtool(run, ranks=2), fidtool(run, ranks=3), run)
    killed = f"compute {SETS} {FAULTY} {JSON} --checkpoint kept --checkpoint-every 0"
    for fault, status in (("kill", -9), ("raise", 1)):
        steps = fidtool(killed, FAULT=fault), fidtool(killed)
        table.add(f"checkpoint/after {fault}", *steps, keys=RESUMED, statuses=(status, 0))
    skipping = f"{run} --on-error skip --max-skip 0.2".replace(FAKE, f"{I}/broken")
    table.add("checkpoint/skipped", skipping, skipping, run, statuses=(0, 0, 2))


def _add_gates(table: Table) -> None:
    run = f"compute {SETS} {SMALL} --json"
    table.add("gates/passed", f"{run} --fail-above 1000 --output out.json", f"compute {SETS} {SMALL} --fail-above 1e9")
    missed = f"{run} --fail-above 0 --output out.json", f"compute {SETS} {SMALL} --fail-above 0"
    table.add("gates/missed", *missed, statuses=(3,))
    table.add("gates/of several", f"compute {SETS} {REAL}/../step100 {SMALL} --fail-above 0.5 --json")
    copies = f"compute {REAL} {I}/copies {SMALL}"
    table.add("gates/copies", f"{copies} --max-duplicates 0.01", f"{run} --max-duplicates 0", statuses=(3, 0))
    table.add("gates/both", f"{copies} --max-duplicates 0.5 --fail-above 0.001 --json", statuses=(3,))
    expected = (f"{run} --expect {flags}" for flags in ("24", "23", "24 --num 9"))
    table.add("gates/expect", *expected, statuses=(0, 2, 0))
    extrapolated = f"compute {REAL} {I}/thousands.npy {SMALL} --metrics kid,fid-infinity {KID} --fail-above 0"
    table.add("gates/infinity", extrapolated, statuses=(3,))
    table.add("gates/without a distance", f"{run} --metrics kid {KID} --fail-above 3", statuses=(2,))


def _add_pages(table: Table) -> None:
    shown = "--report page.html --plot curve.png --output out.json"
    table.add("pages/one", f"compute {SETS} {SMALL} {shown} {JSON}")
    table.add("pages/several", f"compute {REAL} {I}/step100 {I}/step200 {I}/copies {SMALL} {shown} --influence")
    table.add("pages/error bars", f"compute {I}/many {I}/much {I}/step100 {SMALL} {shown} --uncertainty --influence")
    gated = f"compute {SETS} {I}/leaked {SMALL} {shown} --metrics fid,kid,prdc {KID} --fail-above 0"
    table.add("pages/more", gated, statuses=(3,))
    table.add("pages/cached", f"compute {SETS} {SMALL}", f"compute {SETS} {SMALL} {shown}")
    refused = {
        "no curve": [f"--metrics kid {KID} --plot curve.png --report page.html"],
        "names": ["--report page.png", "--plot curve.jpg"],
        "one file": ["--output a.html --report a.html"],
    }
    for name, flags in refused.items():
        table.add(f"pages/{name}", *(f"compute {SETS} {SMALL} {each}" for each in flags), statuses=(2,))


def _add_ranks(table: Table) -> None:
    lines = {
        "compute": f"compute {SETS} {SMALL} {JSON}",
        "text": f"compute {SETS} {I}/step100 {SMALL}",
        "metrics": f"compute {SETS} {SMALL} --metrics fid,kid,prdc {KID} {JSON}",
        "error bars": f"compute {I}/many {I}/much {SMALL} --uncertainty --influence {JSON}",
        "stats": f"stats {REAL} -o a.npz {SMALL} --metrics fid,kid",
        "check": f"check {I}/odd --against {I}/copies --json",
        "list": f"check {FAKE} --list",
        "archive": f"compute {REAL} {I}/images.tar.gz {SMALL} --num-images 20 {JSON}",
        "inception": f"compute {FEW} {LESS} --dims 64 {JSON}",
        "gate": f"compute {SETS} {SMALL} --fail-above 0 --json --output out.json",
        "page": f"compute {SETS} {SMALL} --report page.html --plot curve.png",
        "broken": f"compute {REAL} {I}/cracked {SMALL} --json --quiet",
        "skip": f"compute {REAL} {I}/broken {SMALL} --on-error skip --max-skip 0.2 {JSON}",
        "usage": f"compute {SETS} {SMALL} --nonsense",
        "missing": f"compute {REAL} nowhere {SMALL} --json",
        "cache": "cache --json",
    }
    for name, line in lines.items():
        for ranks in (2, 3) if name in ("compute", "metrics", "stats", "broken", "check") else (2,):
            status = {"gate": (3, *[0] * (ranks - 1))}.get(name, 2 if name in REFUSED else 0)
            table.add(f"ranks/{name}, {ranks}", fidtool(line, ranks=ranks), statuses=(status,))
    absent = fidtool(
        f"compute {SETS} {SMALL} {JSON} --timeout 2",
        RANK="0",
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="{port}",
    )
    table.add("ranks/absent", absent, statuses=(1,))
    wrong = {
        "no number": fidtool(f"compute {SETS} {SMALL}", RANK="one", WORLD_SIZE="2"),
        "no address": fidtool(f"compute {SETS} {SMALL} --json", RANK="0", WORLD_SIZE="2"),
        "too many": fidtool(f"stats {REAL} -o a.npz {SMALL}", RANK="5", WORLD_SIZE="2"),
        "unequal": fidtool(f"compute {SETS} {SMALL} --seed 0{{rank}}", ranks=2),
    }
    for name, step in wrong.items():
        table.add(f"ranks/{name}", step, statuses=(2,))


def _add_everything_on_ranks(table: Table, facts: Facts) -> None:
    """Add every image format, protocol and metric that no other case runs on several ranks."""
    forms = " ".join(f"'{I}/{form}'" for form in FORMS)
    listed = "".join(f"{FAKE}/{number:03}.png\n" for number in range(9))
    classified = other("copy", f"{I}/classifier", "cache")
    scores = f"--metrics is,sfid,cmmd --is-splits 2 --cmmd-extractor {NETWORKS}:colours"
    for ranks in (2, 3):
        step = fidtool(f"compute {REAL} {forms} - {SMALL} {JSON}", ranks, stdin=listed)
        table.add(f"ranks/all sources, {ranks}", step)
        step = fidtool(f"compute {FEW} {LESS} {scores} --json", ranks)
        table.add(f"ranks/scores, {ranks}", classified, step)
    floats = f"compute {REAL} {I}/floats.npy {I}/beyond.npy {SMALL} --value-range=0,1 {JSON}"
    table.add("ranks/float sources, 2", fidtool(floats, 2))
    for name in facts.protocols:
        step = fidtool(f"compute {FEW} {LESS} --protocol {name} --dims 64 --num 4 {JSON}", 2)
        table.add(f"ranks/protocol {name}, 2", step)


def _add_faults(table: Table) -> None:
    """Add cases in which a rank fails, is killed or is stopped while images go through the network."""
    faulty = f"compute {SETS} {FAULTY} {JSON}"
    for fault, (own, others) in FAULTS.items():
        for rank in (0, 1):
            step = fidtool(faulty, 2, FAULT=fault, FAULT_RANK=str(rank))
            statuses = (own, others) if rank == 0 else (others, own)
            table.add(f"ranks/{fault} of rank {rank}", step, statuses=(statuses,))
        if fault in ("interrupt", "terminate"):
            table.add(f"ranks/{fault}, 1", fidtool(faulty, FAULT=fault), statuses=(own,))
    kept = f"{faulty} --checkpoint kept --checkpoint-every 0"
    steps = fidtool(kept, 2, FAULT="terminate"), fidtool(kept, 3)
    table.add("ranks/begun on 2, resumed on 3", *steps, keys=RESUMED, statuses=(143, 0))


def _add_launchers(table: Table) -> None:
    """Add cases that start new interpreters, as users do."""
    run = f"compute {SETS} {SMALL} {JSON}"
    table.add("launchers/plain", fidtool(run, fresh=True))
    script = "{site}/bin/fidtool"  # started by Python: the folder may be mounted noexec
    table.add("launchers/script", *(Step((script, *line.split()), fresh=True) for line in ("--version", run)))
    table.add("launchers/torchrun, 1", torchrun(1, run))
    table.add("launchers/torchrun, 2", torchrun(2, run), unordered=True)
    table.add("launchers/torchrun, 3", torchrun(3, f"{run} --metrics fid,prdc"), unordered=True)
    gated, broken = f"{run} --fail-above 0", f"compute {REAL} {I}/cracked {SMALL}"
    table.add("launchers/a gate under torchrun", torchrun(2, gated), unordered=True, statuses=(1,))
    table.add("launchers/an error under torchrun", torchrun(2, broken), unordered=True, statuses=(1,))
    table.add("launchers/slurm", fidtool(run, SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_JOB_ID="7"))


def _add_weights(table: Table) -> None:
    table.add("weights/found", "weights", "weights --verify", f"stats {FEW} -o a.npz --dims 64", "weights --verify")
    table.add(
        "weights/named",
        f"weights --weights {I}/wrong.pth",
        f"weights --weights {I}/wrong.pth --verify",
        statuses=(0, 2),
    )
    nowhere = "--weights nowhere.pth"
    table.add("weights/nowhere", f"weights {nowhere}", f"compute {FEW} {LESS} {nowhere}", statuses=(0, 2))
    table.add("weights/variable", fidtool("weights", FIDTOOL_WEIGHTS="x.pth"), fidtool("weights", FIDTOOL_CACHE="b/c"))
    downloaded = "weights --download", f"compute {FEW} {LESS} --metrics is --is-splits 2"
    table.add("weights/download", *downloaded, statuses=(2,))
    table.add(
        "weights/damaged", other("copy", f"{I}/damaged", "cache"), f"compute {FEW} {LESS} --dims 64", "weights --verify"
    )
    table.add("demo/made", "demo", "cache --remove fidtool-demo/real", timed=True, names=("(?<=statistics/).*",))
    table.add("demo/elsewhere", f"demo --folder {I}/real", "demo --folder /proc/none", timed=True, statuses=(2,))
    table.add("protocols/listed", "protocols")


def _add_python(table: Table) -> None:
    keys = tuple(f"*.{key}" for key in KEYS)  # each program prints a list of such documents
    for name in ("names", "sequences", "refusals", "looks", "lightning"):
        table.add(f"python/{name}", program(name), keys=keys)
    for name in ("iterables", "statistics", "metric", "losses"):
        for ranks in (1, 2, 3):
            table.add(f"python/{name}, {ranks}", program(name, ranks), keys=keys)


def _add_web(table: Table) -> None:
    """Add sources on a plain web server, which does not support range requests."""
    for name in ("images.tar.gz", "fake/", "images.txt", "images.zip", "nowhere.tar.gz"):
        lines = f"compute {REAL} {{web}}/{name} {SMALL} --json", f"check {{web}}/{name} --list"
        table.add(f"web/{name}", *lines, statuses=(2 if name in ("images.zip", "nowhere.tar.gz") else 0,))
    secret = "{web}/images.tar.gz?token=secret".replace("//", "//user:secret@")
    table.add("web/secrets", f"compute {REAL} '{secret}' {SMALL} --json", f"stats '{secret}' -o a.npz {SMALL}", "cache")
