"""``fidtool refs``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import columns, print_lines, shown
from fidtool.download import megabytes
from fidtool.errors import InputError
from fidtool.names import counted, folded
from fidtool.redaction import redacted
from fidtool.sources.reference_files import PublishedFile, fetch, folder, mirrored, published_files
from fidtool.sources.references import FEATURES, REFERENCES, Reference, named_reference

_EXAMPLES = (
    ("List the references", "fidtool refs"),
    ("Show what one of them is, and where it is from", "fidtool refs adm:imagenet256"),
    ("Download before a run on a machine without internet access", "fidtool refs --download edm:cifar10"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--download",
    metavar="NAME",
    help="Download the statistics of a reference into the cache; with NAME:arr_0 its images as well.",
)
def refs(names: tuple[str, ...], as_json: bool, download: str | None) -> None:
    """List the references: published statistics to compare with, for example `fidtool compute edm:cifar10 fake/`.

    NAME is a reference, of which everything is shown, or one of the projects that publish them, such as adm. They are
    downloaded at the first use. FIDTOOL_REFERENCES_URL is a mirror.
    """
    if download is not None and (names or as_json):
        raise InputError(f"{names[0] if names else '--json'} and --download cannot be combined:", "pass one of them")
    if download is not None:
        reference, array = named_reference(download)
        arrays = {FEATURES} if array == FEATURES else {*reference.statistics, array} - {""}
        path, sha256 = fetch(reference, arrays, lambda line: click.echo(shown(line), err=True))
        hashes = columns([(f"  {array}", f"SHA-256 {digest}") for array, digest in sha256.items()])
        print_lines([str(path), *hashes], "the result")
        return
    known = REFERENCES.values()
    projects = {
        name: [each for each in known if folded(each.name.partition(":")[0]) == folded(name.rstrip(":"))]
        for name in names
    }
    chosen = [each for name in names for each in projects[name] or [named_reference(name)[0]]]
    chosen = list(dict.fromkeys(chosen)) if names else list(known)
    if as_json:
        print_lines([json.dumps({"schema": 1, "references": list(map(_as_dict, chosen))}, indent=2)], "the list")
    elif names and not any(projects.values()):
        print_lines([line for each in chosen for line in _details(each)], "the references")
    else:
        _print_table(chosen)


def _cached(reference: Reference) -> list[PublishedFile]:
    return [file for file in published_files(reference) if file.arrays]


def _as_dict(reference: Reference) -> dict[str, Any]:
    held = [{"path": str(each.path), "arrays": each.arrays, "bytes": each.size} for each in _cached(reference)]
    facts = asdict(reference) | {"protocol": reference.protocol or None, "features_url": reference.features_url or None}
    return {**facts, "cached": held}


def _print_table(references: Sequence[Reference]) -> None:
    files: list[PublishedFile] = []
    rows = [("name", "protocol", "real images", "fakes", "size", "in the cache")]
    for each in references:
        cached = _cached(each)
        files += cached
        counts = str(each.real_images or "?"), str(each.fakes)
        rows.append((each.name, each.protocol or "?", *counts, _size(each), "; ".join(map(str, cached))))
    total = megabytes(sum(each.size for each in files))
    lines = [f"{folder()}: {counted(len(files), 'file')}, {total}", *columns(rows)]
    print_lines([line.rstrip() for line in lines], "the list")


def _size(reference: Reference) -> str:
    return "?" if reference.shape is None else "{} x {}".format(*reference.shape)


def _details(reference: Reference) -> list[str]:
    """Return everything about a reference as lines."""
    rows = [
        ("protocol", reference.protocol or "none of fidtool's"),
        ("real images", str(reference.real_images or "?")),
        ("generated", f"{reference.fakes} images, as in papers"),
        ("size", _size(reference)),
        ("classes", str(reference.classes or "")),
        ("framing", {"adm": "ADM's centre crop", "edm": "EDM's centre crop"}.get(reference.framing, "")),
        ("arrays", ", ".join(reference.arrays)),
        ("address", redacted(mirrored(reference.url))),
        ("features", redacted(mirrored(reference.features_url)) if reference.features_url else ""),
        ("source", reference.source),
        ("note", reference.note),
        *(("in the cache", f"{file.path}: {file}") for file in _cached(reference)),
    ]
    return [reference.name, *columns([(f"  {label}", text) for label, text in rows if text])]
