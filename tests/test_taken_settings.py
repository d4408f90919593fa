"""What statistics files say about their network need not be repeated, and what is asked for counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

import fidtool as package
from fidtool.agreement import with_settings_of
from fidtool.config import Config
from fidtool.errors import InputError
from fidtool.features.catalogue import is_published
from fidtool.features.extractors import inception_definition
from fidtool.features.protocol import CMMD_EXTRACTOR, protocol_named
from fidtool.report.as_html import _run_rows
from fidtool.statistics.store import Statistics
from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.published_networks import make_sets, randomised
from support.report_samples import bare

TENSORFLOW = inception_definition(protocol_named("tensorflow"), 64, "0" * 64)
RESNET = ("--extractor", "torchvision:resnet18")


def file_of(**changes: object) -> Statistics:
    """A statistics file that says it is of 64 dims and ``tensorflow``, with these changes."""
    definition = replace(TENSORFLOW, **changes)  # type: ignore[arg-type]
    return Statistics(np.zeros(definition.dims), np.eye(definition.dims), 100, definition)


@pytest.fixture
def real(here: Run, tmp_path: Path) -> Path:
    """``real64.npz``, of 64 dims and ``tensorflow``, and the folders ``real`` and ``fake``."""
    real, _ = (make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate(("real", "fake")))
    arguments = ("--dims", 64, "--protocol", "tensorflow", "--quiet")
    assert here("stats", "real", "-o", "real64.npz", *arguments).status == 0
    return real


def test_dims_and_protocol_are_those_of_the_file(here: Run, real: Path) -> None:
    said = here("compute", "real", "fake", "--dims", 64, "--protocol", "tensorflow", "--json")
    unsaid = here("compute", "real64.npz", "fake", "--json")
    assert unsaid.metrics == said.metrics
    assert unsaid.json["protocol"] == said.json["protocol"]
    assert "taken from real64.npz: dims 64 and protocol tensorflow" in unsaid.stderr.splitlines()
    half = here("compute", "real64.npz", "fake", "--protocol", "tensorflow", "--extractor", "inception", "--json")
    assert half.metrics == said.metrics
    assert "taken from real64.npz: dims 64" in half.stderr.splitlines()
    evaluation = package.compute("real64.npz", "fake")
    assert dict(evaluation.results[0].metrics) == said.metrics
    assert evaluation.run.notes == ("taken from real64.npz: dims 64 and protocol tensorflow",)
    quiet = here("compute", "real64.npz", "fake", "--quiet", "--json").json
    assert quiet["run"]["notes"] == list(evaluation.run.notes)
    assert said.json["run"]["notes"] == []


def test_the_page_says_where_settings_came_from() -> None:
    pytest.importorskip("jinja2", reason="needs fidtool[report]")
    run = replace(bare("fake").run, config={"dims": 64}, notes=("taken from real64.npz: dims 64",))
    assert ("Settings", "dims=64; taken from real64.npz: dims 64") in _run_rows(run)


def test_every_rank_takes_them(here: Run, fidtool: Run, real: Path) -> None:
    alone = here("compute", "real64.npz", "fake", "--json")
    together = fidtool("compute", "real64.npz", "fake", "--json", ranks=2)
    assert together.metrics == alone.metrics
    assert together.stderr.count("taken from real64.npz: dims 64 and protocol tensorflow") == 1


def test_two_files_need_nothing_repeated(here: Run, real: Path) -> None:
    again = here("compute", "real64.npz", "real64.npz", "--json")
    assert again.status == 0, again.stderr
    assert "taken from real64.npz: dims 64 and protocol tensorflow" in again.stderr.splitlines()


def test_what_is_asked_for_counts(here: Run, real: Path) -> None:
    dims = here("compute", "real64.npz", "fake", "--dims", 192)
    assert (dims.status, "64 dimensions" in dims.error, "of 192" in dims.error) == (2, True, True)
    protocol = here("compute", "real64.npz", "fake", "--protocol", "clean")
    assert protocol.status == 2
    assert "bicubic-antialias against bilinear-tf1): choose --protocol tensorflow" in protocol.error
    assert here("stats", "fake", "--dims", 64, "--protocol", "clean", "-o", "clean64.npz").status == 0
    both = here("compute", "real64.npz", "fake", "clean64.npz")
    assert (both.status, "follow different protocols" in both.error) == (2, True)
    assert "choose" not in both.error, "the other file has another protocol than this one"
    layer = here("compute", "real64.npz", "fake", "--metrics", "sfid")
    assert layer.status == 2
    assert "not 64 (taken from real64.npz: dims 64 and protocol tensorflow)" in layer.error


def test_a_published_network_is_that_of_the_file(here: Run, tmp_path: Path) -> None:
    """Also where it is CMMD's network at the same time, whose features then are the extractor's."""
    make_sets(tmp_path, 4)
    torch.save(randomised(torchvision.models.resnet18(weights=None)).state_dict(), tmp_path / "resnet18.pth")
    weights = ("--weights", "resnet18.pth")
    cmmd = ("--metrics", "fid,cmmd", "--cmmd-extractor", RESNET[1], "--cmmd-weights", "resnet18.pth")
    assert here("stats", "real", "-o", "real.npz", *RESNET, *weights, *cmmd).status == 0
    for more in ((), cmmd):
        said = here("compute", "real.npz", "fake", *RESNET, *weights, *more, "--json")
        unsaid = here("compute", "real.npz", "fake", *weights, *more, "--json")
        assert unsaid.metrics == said.metrics
        assert (unsaid.json["protocol"], unsaid.json["layers"]) == (said.json["protocol"], said.json["layers"])
        assert "taken from real.npz: extractor torchvision:resnet18" in unsaid.stderr.splitlines()
    inception = here("compute", "real.npz", "fake", "--extractor", "inception")
    assert inception.status == 2
    assert "512 dimensions (of torchvision:resnet18)" in inception.error
    with pytest.raises(InputError, match="512 dimensions"):
        package.compute("real.npz", "fake", extractor="inception")


def test_no_code_is_run_because_a_file_names_it(here: Run, tmp_path: Path) -> None:
    copy = tmp_path / "mine.py"
    copy.write_text(Path(TINY.rpartition(":")[0]).read_text())
    make_pictures(tmp_path / "real", 4)
    assert here("stats", "real", "-o", "own.npz", "--extractor", "mine.py:network").status == 0
    copy.write_text("raise SystemExit('it ran')")
    refused = here("compute", "own.npz", "real")
    assert refused.status == 2
    assert "own.npz has features of mine.py:network@" in refused.error
    assert "pass --extractor mine.py:network, with the path to it" in refused.error


# --- what is taken of what files say ---------------------------------------------------------------------------------


def test_all_files_must_say_the_same() -> None:
    one = file_of()
    config, line = with_settings_of({"a.npz": one, "b.npz": one}, Config())
    assert (config.dims, config.protocol) == (64, "tensorflow")
    assert line == "taken from a.npz and b.npz: dims 64 and protocol tensorflow"
    unknown = replace(one, definition=None)
    line = with_settings_of({"a.npz": one, "u.npz": unknown, "b.npz": one, "c.npz": one}, Config())[1]
    assert line.startswith("taken from a.npz and 2 other files: ")


def test_the_defaults_are_nothing_to_speak_of() -> None:
    usual = inception_definition(protocol_named("pytorch-fid"), 2048, "0" * 64)
    assert with_settings_of({"a.npz": file_of(**vars(usual))}, Config()) == (Config(), "")
    assert with_settings_of({}, Config()) == (Config(), "")


def test_cmmds_network_keeps_the_name_under_which_it_is_one() -> None:
    config, line = with_settings_of({"a.npz": file_of(extractor=CMMD_EXTRACTOR)}, Config())
    assert (config.extractor, line) == ("clip", "taken from a.npz: extractor clip")
    assert with_settings_of({"a.npz": file_of(extractor="dinov2:vits14")}, Config(dims=64))[1] == ""


@pytest.mark.parametrize(
    ("name", "published"),
    [
        *((name, True) for name in ("torchvision:resnet18:layer2.1", "dinov2:vitl14", "clip:ViT-L-14-336-quickgelu")),
        *(
            (name, False)
            for name in ("timm:hf_hub:some/one", "clip:hf-hub:some/one", "clip:local-dir:/tmp", "os:system")
        ),
        *((name, False) for name in ("mine.py:network@0123", "colours.pt2@0123", "inception-2015-12-05", "timm:")),
    ],
)
def test_names_of_published_networks(name: str, published: bool) -> None:
    assert is_published(name) == published


def bare_file(dims: int) -> Statistics:
    """Another tool's statistics file."""
    return Statistics(np.zeros(dims), np.eye(dims))


def test_what_files_agree_on_is_taken_and_no_more() -> None:
    files = {"a": file_of(), "b": file_of(resize=protocol_named("clean").resize)}
    config, line = with_settings_of(files, Config())
    assert (config.dims, config.protocol, line) == (64, None, "taken from a and b: dims 64")
    assert with_settings_of({"a": bare_file(64)}, Config())[0].dims == 64, "it counts as Inception's"
    for dims in (1000, 2048):
        assert with_settings_of({"a": bare_file(dims)}, Config()) == (Config(), "")
    with pytest.raises(InputError, match="a has features of 64 dimensions and b of 192; statistics of different"):
        with_settings_of({"a": file_of(), "b": file_of(dims=192)}, Config())


def test_files_alone_say_what_they_are_of(here: Run, real: Path) -> None:
    assert here("stats", "fake", "-o", "fake64.npz", "--dims", 64, "--protocol", "tensorflow", "--quiet").status == 0
    run = here("compute", "real64.npz", "fake64.npz", "--json")
    assert "taken from real64.npz and fake64.npz: dims 64 and protocol tensorflow" in run.stderr.splitlines()
    assert run.json["run"]["notes"] == ["taken from real64.npz and fake64.npz: dims 64 and protocol tensorflow"]
    assert here("stats", "fake", "-o", "clean64.npz", "--dims", 64, "--protocol", "clean", "--quiet").status == 0
    other = here("compute", "real64.npz", "clean64.npz")
    assert other.error.endswith("); pass --allow-mismatch to compare them all the same")
