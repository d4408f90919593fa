"""The sets of a run, opened on rank 0: images, statistics, or both; in a file, a folder, a store
or in memory.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fidtool.errors import InputError, ResultWarning, Say, option, prefix_errors
from fidtool.features.choice import CMMD_EXTRACTOR, NetworkChoice, is_program, is_published
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    PROTOCOLS,
    Definition,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.metrics.metric import not_computable_error
from fidtool.names import format_count
from fidtool.result.explanations import NotComputed
from fidtool.run.captions import add_captions
from fidtool.run.groups import add_groups
from fidtool.run.sets import (
    FAKE,
    HELDOUT,
    REAL,
    STORED,
    Contents,
    RequestedSet,
    Role,
    SetContent,
    SetNeeds,
    SetPlan,
    order_by_partner,
    set_needs,
)
from fidtool.settings.record import describe_overrides
from fidtool.settings.settings import Settings
from fidtool.sources.array_files import read_arrays
from fidtool.sources.arrays import has_floats
from fidtool.sources.contents import Files
from fidtool.sources.image_set import Sampling, real_path
from fidtool.sources.kinds import file_suffix, is_pattern, is_reference
from fidtool.sources.listing import (
    STATISTICS_SUFFIXES,
    STDIN,
    local_paths,
    missing_error,
    open_images,
    split_key,
)
from fidtool.sources.memory import Images
from fidtool.statistics.file import read_statistics, statistics_from_array
from fidtool.statistics.foreign import NPZ, PICKLE, add_definitions, detect_layout, match_layout
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.console import Console
from fidtool.system.local_files import read_with_timeout
from fidtool.system.user_code import is_code_spec


@dataclass(frozen=True)
class OpenedInputs:
    """What is known before the networks are built, on rank 0.

    Attributes:
        sets: REAL and the FAKEs in the order of the arguments, or the only set of ``fidtool
            stats``. A set that occurs several times is one object.
        contents: what each set holds, the held-out one's last; empty for a stream.
        images: whether images go through the networks.
        settings: the run's settings, completed from its statistics files.
        notes: one sentence per setting that was completed, or that replaces one of the preset, and
            on what is used of a set.
        warnings: warnings about the sets.
        left_out: the metrics that cannot be computed.
    """

    sets: tuple[SetPlan, ...]
    contents: Contents
    images: bool
    settings: Settings
    notes: tuple[str, ...]
    warnings: tuple[ResultWarning, ...]
    left_out: tuple[NotComputed, ...] = ()

    @property
    def evaluates(self) -> bool:
        """Whether FAKEs are compared with REAL."""
        return REAL in self.sets[0].roles

    @property
    def files(self) -> dict[SetPlan, Statistics]:
        """The statistics of the sets that have them."""
        return {
            set_plan: content.file
            for set_plan, content in self.contents.items()
            if content.file is not None
        }


def open_sets(
    requests: Sequence[RequestedSet], settings: Settings, console: Console, alone: bool
) -> OpenedInputs:
    """Open REAL, the FAKEs and the held-out set, or the only set of ``fidtool stats``, which is
    ``alone``.

    Images are only read for their labels, see `add_groups`.

    Raises:
        RunError: if the storage does not respond within the timeout.
        InputError: if a set cannot be used.
    """
    work = partial(_open_sets, requests, settings, console, alone)
    if any(request.data is not None for request in requests):
        return work()  # in the thread of the program, as it may expect for its own objects
    paths = dict.fromkeys(request.path for request in requests)
    return read_with_timeout(" and ".join(paths), work, settings.timeout)


def _open_sets(
    requests: Sequence[RequestedSet], settings: Settings, console: Console, alone: bool
) -> OpenedInputs:
    roles = [STORED] if alone else [REAL, *[FAKE] * (len(requests) - 1)]
    if settings.heldout is not None:
        roles[-1] = HELDOUT
    paths = [request.path for request in requests if request.data is None]
    check_paths(paths, None if alone else requests[0].path, settings.heldout)
    requests, warnings = merge_spellings(requests)
    roles_of = defaultdict[RequestedSet, list[Role]](list)
    for request, role in zip(requests, roles, strict=True):
        roles_of[request].append(role)
    contents = {}
    # A bad statistics file is refused before a slow listing.
    for request in sorted(roles_of, key=lambda request: not is_statistics_path(request.path)):
        own = roles_of[request]
        content = open_set(request, settings, set_needs(settings, *own), console.say)
        _check_roles(request.name, content, own, settings)
        contents[request] = content
    files = {
        request.name: content.file
        for request, content in contents.items()
        if content.file is not None
    }
    has_images = any(content.holds != "statistics" for content in contents.values())
    images = has_images and bool(set_needs(settings, REAL, FAKE).layers)
    completed, taken = complete_settings(files, settings, images)
    if completed is not settings:
        for request, own in roles_of.items():
            # With the files' network, CMMD may share FID's layer; and floats may become bytes in
            # another way.
            if contents[request].file is not None or completed.floats != settings.floats:
                contents[request] = open_set(
                    request, completed, set_needs(completed, *own), console.say
                )
    drawn = _plan_sets(requests, roles, contents, completed, console.say)
    opened = dict(drawn)
    if not alone:
        opened, matched = add_groups(add_captions(opened, completed), completed)
        warnings += matched
    notes = describe_overrides(settings)
    notes += [f"{request.alias} is {request.path}" for request in requests if request.alias]
    if taken:
        notes.append(taken)
    warnings += [content.warning for content in contents.values() if content.warning is not None]
    sets = [set_plan for set_plan, _ in drawn]
    if settings.heldout is not None:
        sets.pop()
    return OpenedInputs(
        sets=tuple(sets),
        contents=opened,
        images=images,
        settings=completed,
        notes=_print_notes(opened, notes, console),
        warnings=tuple(warnings),
    )


def _print_notes(contents: Contents, notes: Sequence[str], console: Console) -> tuple[str, ...]:
    """Print notes on the settings and on what is used of each set, and return them."""
    said = dict.fromkeys(notes, False)  # whether a program, which prints none of them, is warned
    for set_plan, content in contents.items():
        if set_plan.holds == "both":
            use = "Fréchet distances use its mean and covariance, other metrics its images"
            said[f"{set_plan.path}: {use}"] = False
        if content.images is not None and content.images.passed_over.note:
            said[f"{set_plan.path}: {content.images.passed_over.note}"] = True
    for note, warns in said.items():
        console.say(note, warns=warns)
    return tuple(said)


def complete_settings(
    files: Mapping[str, Statistics], settings: Settings, images: bool
) -> tuple[Settings, str]:
    """Complete the settings of a run from its statistics files, and say what it takes. A custom
    network is never run.

    Without ``images``, which are processed as the settings say, the settings stay as they are.
    """
    definitions = {
        path: file.definition for path, file in files.items() if file.definition is not None
    }
    taken = _settings_from_files(files, definitions, settings, images)
    if images and settings.floats is not None and settings.float_to_byte is None:
        usual = replace(settings, protocol=taken.get("protocol", settings.protocol)).rounding
        ways = {*find_roundings(files).values()}
        if len(ways) == 1 and ways != {usual}:
            taken["float_to_byte"] = ways.pop()
    if not taken:
        return settings, ""
    sources = []
    for path in definitions or files:
        origin = files[path].origin
        sources.append(f"{path}, a file of {origin}" if origin else path)
    values = " and ".join(f"{name} {value}" for name, value in taken.items())
    line = f"settings taken from {' and '.join(sources)}: {values}"
    if not images:
        return settings, line
    try:
        return replace(settings, **taken), line
    except InputError as error:
        error.note += f" ({line})"
        raise


def find_roundings(files: Mapping[str, Statistics]) -> dict[str, str]:
    """How floats became bytes, by the paths of the files that say so."""
    return {
        path: str(file.config["float_to_byte"])
        for path, file in files.items()
        if file.config and "float_to_byte" in file.config
    }


def _settings_from_files(
    files: Mapping[str, Statistics],
    definitions: Mapping[str, Definition],
    settings: Settings,
    images: bool,
) -> dict[str, Any]:
    """The network of all files, or the dims and protocol of Inception, unless they are the defaults
    or set by the user.

    Files that do not name their network count as Inception's, as in `fidtool.result.values`.
    """
    network = settings.network
    extractors = {definition.extractor for definition in definitions.values()}
    if network.extractor == "inception" and extractors <= {INCEPTION}:
        taken: dict[str, Any] = {}
        dims = {file.dims for file in files.values()}
        protocols = {definition.protocol_name for definition in definitions.values()}
        smaller = {*INCEPTION_DIMS} - {max(INCEPTION_DIMS)}
        if network.dims is None and len(dims) == 1 and dims <= smaller:
            taken["dims"] = dims.pop()
        unusual = {*PROTOCOLS} - {DEFAULT_PROTOCOL}
        if network.protocol is None and len(protocols) == 1 and protocols <= unusual:
            taken["protocol"] = protocols.pop()
        return taken
    is_chosen = (settings.extractor, settings.dims, settings.protocol) != (None, None, None)
    if is_chosen or not images or len(extractors) > 1:
        return {}
    path, definition = next(iter(definitions.items()))
    if definition.extractor == CMMD_EXTRACTOR:
        # Under CMMD's default name for it, FID and CMMD share one network.
        return {"extractor": CMMD.extractor}
    if is_published(definition.extractor):
        return {"extractor": definition.extractor}
    if settings.allow_mismatch:
        return {}
    network_name = definition.network
    about = f"the custom network {definition.extractor}, whose code is only run if you name it"
    remedy = f"pass {option('extractor', network_name)}, with its path"
    if NetworkChoice(network_name).tuned:
        about = f"Inception with the weights of a file, {network_name}"
    elif not is_program(network_name) and not is_code_spec(network_name):
        about = f"a custom network with the name {network_name}"
        remedy = f"pass this network with {option('extractor')}"
    raise InputError(f"{path} has features of {about}:", remedy, setting="extractor")


def _plan_sets(
    requests: Sequence[RequestedSet],
    roles: Sequence[Role],
    contents: Mapping[RequestedSet, SetContent],
    settings: Settings,
    say: Say,
) -> list[tuple[SetPlan, SetContent]]:
    """The set of each argument: the same object for the same path, crop and number of images."""
    sets: dict[object, tuple[SetPlan, SetContent]] = {}
    keys = []
    pairs = set_needs(settings, FAKE).pairs
    for number, (request, role) in enumerate(zip(requests, roles, strict=True)):
        content = contents[request]
        crop = getattr(settings, role.crop)
        sampling = settings.sampling(role.num)
        if content.file is not None:  # its statistics are of its images as they are
            crop = None
            sampling = Sampling(None, settings.seed)
        key = (request, crop, sampling.num)
        keys.append(key)
        if key in sets:
            set_plan, content = sets[key]
            sets[key] = replace(set_plan, roles=(*set_plan.roles, role)), content
            continue
        if pairs and role != HELDOUT and content.holds != "images":
            raise InputError(
                f"{pairs[0].name} compares images in pairs, and {request.name} has none that can "
                "be read again:",
                "pass the images in files, an array or a list",
                setting="metrics",
            )
        if content.holds == "stream":
            _check_stream(request, settings, sampling, role)
        if content.images is not None:
            images = content.images.draw(_limit_advice(sampling, content, contents))
            if pairs and role == FAKE:
                real = sets[keys[0]][1].images
                images = order_by_partner(images, content.images, real, settings, say)
            images = replace(images, crop=crop, floats=settings.floats)
            if settings.on_error == "fail" and (missing := images.missing_lines()):
                raise missing_error(images.path, missing, f"pass {option('on_error', 'skip')}")
            content = content._replace(images=images)
        set_plan = SetPlan(
            request.name, number, content.holds, (role,), content.size, crop, sampling
        )
        sets[key] = set_plan, content
    return [sets[key] for key in keys]


def _limit_advice(
    sampling: Sampling, own: SetContent, contents: Mapping[RequestedSet, SetContent]
) -> Sampling:
    """The sampling, whose refusal advises the setting of the other sets only if they have enough
    images.
    """
    for content in contents.values():
        if content.images is None or content is own or sampling.num is None:
            continue
        if len(content.images) < sampling.num:
            return sampling._replace(other="")
    return sampling


def _check_stream(
    request: RequestedSet, settings: Settings, sampling: Sampling, role: Role
) -> None:
    if settings.checkpoint is not None:
        raise InputError(
            f"{option('checkpoint')} cannot resume in the middle of {request.path}, an iterable:",
            f"omit {option('checkpoint')}",
        )
    if isinstance(request.data, Images) and request.data.generates and sampling.num is None:
        raise InputError(
            f"{request.path} is a function, which can generate any number of images:",
            f"pass {option(role.num, ...)}",
            setting=role.num,
        )


def _check_roles(path: str, content: SetContent, roles: Sequence[Role], settings: Settings) -> None:
    """Refuse what ``fidtool stats`` cannot store, a held-out set that is REAL, and a FAKE that
    gates cannot judge.
    """
    file = content.file
    if STORED in roles:
        if file is not None:
            raise InputError(f"{path} has statistics already:", "pass the images instead")
        pairs = set_needs(settings, STORED).pairs
        if pairs:
            raise not_computable_error(
                pairs[0],
                f"{pairs[0].name} compares pairs of images, but there is only one set:",
            )
    if REAL in roles and HELDOUT in roles:
        raise InputError(
            f"{option('heldout', path)} is REAL, which is the training set:",
            "pass real images that are not in it",
        )
    if FAKE not in roles:
        return
    if content.images is not None:
        check_image_count(settings.expect, path, len(content.images.stored))
    elif file is not None:
        check_image_count(settings.expect, path, file.count)
        if settings.max_duplicates is not None and file.pictures is None:
            raise InputError(
                f"{option('max_duplicates')} needs records of the images, and {path} has none:",
                "pass the images instead",
                "create the file again with `fidtool stats`",
            )


def check_image_count(expect: int | None, path: str, count: int | None) -> None:
    """Refuse a FAKE whose number of images is not the expected one."""
    if expect is not None and count != expect:
        actual = "an unknown number of images" if count is None else count
        raise InputError(f"{option('expect')} requires {expect} images but {path} has {actual}")


def merge_spellings(
    requests: Sequence[RequestedSet],
) -> tuple[list[RequestedSet], list[ResultWarning]]:
    """Return the sets, with the first for every spelling of its path, and a warning per set with
    several spellings or names.
    """
    spellings: dict[object, dict[str, RequestedSet]] = {}
    once = []
    for request in requests:
        identity: object = request
        if request.data is None:
            identity = real_path(request.path.removeprefix("file://")).rstrip("/")
        known = spellings.setdefault(identity, {})
        known.setdefault(request.name, request)
        once.append(request if request.alias else next(iter(known.values())))
    warnings = []
    for *others, last in spellings.values():
        if others:
            warnings.append(ResultWarning("", f"{', '.join(others)} and {last} are the same set"))
    return once, warnings


def open_set(request: RequestedSet, settings: Settings, needs: SetNeeds, say: Say) -> SetContent:
    """Open a set of images or statistics, without reading any image. A stream is not opened."""
    with prefix_errors(request.alias):
        content = _open_request(request, settings, needs, say)
    if request.alias and content.images is not None:
        return content._replace(
            images=replace(content.images, path=request.alias, place=request.path)
        )
    return content


def _open_request(
    request: RequestedSet, settings: Settings, needs: SetNeeds, say: Say
) -> SetContent:
    path = request.path
    given = request.data
    if isinstance(given, Statistics):
        if not given.layers:
            raise InputError(
                f"{path} is None, which only ranks other than rank 0 may pass in place of "
                "statistics"
            )
        return SetContent(
            file=replace(given.whole(path), layers=given.layers_of(settings.networks))
        )
    if given is not None:
        if given.is_stream:
            return SetContent()
        rows = given.features() if settings.features else None
        if rows is not None:
            return SetContent(
                file=statistics_from_array(path, rows, path, FEATURES in needs.collected)
            )
        content = SetContent(given.image_set(settings.floats))
    elif is_reference(path):
        content = _open_reference(path, settings, needs, say)
    else:
        files = _open_single_file(path, settings.features, say)
        stored = None if files is None else _open_statistics(path, files, settings, needs)
        content = stored or SetContent(open_images(path, settings.recursive, settings.floats, say))
    if content.images is None or settings.frames == "first":
        return content
    from fidtool.reading.frames import expand_frames

    return content._replace(images=expand_frames(content.images, settings.max_pixels))


def _open_reference(path: str, settings: Settings, needs: SetNeeds, say: Say) -> SetContent:
    # Deferred: a run of folders needs none of it.
    from fidtool.references.catalogue import FEATURES as FEATURES_ARRAY
    from fidtool.references.catalogue import IMAGES, find_reference
    from fidtool.references.files import fetch

    reference, array = find_reference(path)
    alone = array in (IMAGES, FEATURES_ARRAY)
    if array and not alone and not reference.is_pickle:
        raise InputError(
            f"{array} alone is not a set that can be compared:", f"pass {reference.name}"
        )
    needs_features = bool(needs.features) and not alone
    wanted = [array] if alone else [*reference.statistics]
    if needs_features and IMAGES in reference.arrays:
        wanted.append(IMAGES)
    local, sha256 = fetch(reference, wanted, say)
    images = None
    file = None
    if IMAGES in wanted:
        images = replace(open_images(f"{local}:{IMAGES}"), prefix=f"{reference.name}:{IMAGES}")
    if wanted != [IMAGES]:
        entry = array if reference.is_pickle else ""
        file = read_statistics(local, needs.collected, key=entry, networks=settings.networks)
        if needs_features and FEATURES_ARRAY in reference.arrays:
            features, sha256_of_features = fetch(reference, [FEATURES_ARRAY], say)
            sha256 |= sha256_of_features
            rows = read_statistics(features)
            layer = replace(file.layers[FEATURES], features=rows.features)
            file = replace(
                file,
                layers={**file.layers, FEATURES: layer},
                count=rows.count,
                found=rows.found,
                order=rows.order,
            )
        file = add_definitions(file, reference.protocol)
    warning = None
    if reference.crop_fake not in ("", str(settings.crop_fake)):
        warning = ResultWarning("", f"{reference.name}: {reference.note}")
    return SetContent(images, file, warning, reference.name, sha256)


def _open_single_file(path: str, features: bool, say: Say) -> Files | None:
    """The file that ``path`` names, which may hold statistics; None if there is none, or
    several.
    """
    name, _ = split_key(path)
    if is_pattern(name):
        return None
    if "://" not in name:
        return Files([name]) if os.path.isfile(name) else None
    from fidtool.sources.remote import remote_files  # deferred: local sets need none of it

    if is_statistics_path(name):
        return remote_files(name, say)
    if (file_suffix(name) and not features) or name.endswith("/"):
        return None
    try:
        return remote_files(name, say)
    except InputError:  # it is a folder, or does not exist
        return None


def _open_statistics(
    path: str, files: Files, settings: Settings, needs: SetNeeds
) -> SetContent | None:
    """The statistics in a file; None if it has images instead, by its content or, if that says
    nothing, its name.
    """
    name, key = split_key(path)
    kind, has_statistics, images = detect_layout(files)
    may_be_features = kind == NPZ and not has_statistics and not images
    if settings.features:
        may_be_features |= bool(key) or not has_statistics
    if may_be_features:
        features = _open_features(path, files, key, settings.features, FEATURES in needs.collected)
        if features is not None:
            return SetContent(file=features)
    if key and kind != PICKLE:
        return None
    if not has_statistics:
        named = is_statistics_path(name) or (kind and not file_suffix(name))
        if images or not named:
            return None
    file = read_statistics(path, needs.collected, files, key, settings.networks).whole(path)
    if not images:
        return SetContent(file=file)
    if len(needs.select_usable(file.layers)) < len(needs.layers) or (
        needs.order and file.order is None
    ):
        return SetContent(
            open_images(f"{path}:{images}", settings.recursive, settings.floats), file
        )
    text = (
        f"{path} has both statistics (mu, sigma) and images ({images}), and the statistics are "
        f"used; pass {path}:{images} to use the images"
    )
    return SetContent(None, file, ResultWarning("", text))


def _open_features(
    path: str, files: Files, key: str, features: bool, wanted: bool
) -> Statistics | None:
    """The features, an array (N, D), that ``key`` names in a file, or its only ones; None if there
    are none.
    """
    stored = read_arrays(files)
    if len(match_layout(stored)) > 1 and not key:
        return None  # a mean and a covariance
    rows = {
        name: array for name, array in stored.items() if len(array.shape) == 2 and key in ("", name)
    }
    floats = {name: array for name, array in rows.items() if has_floats(array.dtype)}
    candidates = floats or rows
    if features and len(candidates) == 1:
        ((name, array),) = candidates.items()
        return statistics_from_array(path, array.read(files), name, wanted)
    if floats and not key:
        raise InputError(
            f"{path} has {format_count(len(floats), 'array')} that may be features of images, "
            f"which `compute` takes with {option('features', True)}:",
            *(f"pass {path}:{name}" for name in floats),
        )
    return None


def is_statistics_path(path: str) -> bool:
    """Whether a path names statistics by its suffix or as a reference. They are read before slow
    listings.
    """
    name, _ = split_key(path)
    if "://" in name:
        name, _, _ = name.partition("?")
    return is_reference(path) or name.lower().endswith(STATISTICS_SUFFIXES)


def check_paths(paths: Sequence[str], real: str | None = None, heldout: str | None = None) -> None:
    """Raise an InputError that names the first of ``paths`` that does not exist. URLs are not
    requested.

    With ``real``, the others but ``heldout`` are FAKEs: none may be a published reference, which is
    of real images, but REAL's own.
    """
    if paths.count(STDIN) > 1:
        raise InputError(f"{STDIN} is standard input, which can only be used for one of the sets")
    for path in paths:
        if path == STDIN:
            continue
        if not is_reference(path) and "://" not in split_key(path)[0]:
            _check_local(path)
        elif real is not None and path not in (real, heldout):
            _refuse_reference(path, real)


def _check_local(path: str) -> None:
    try:
        local_paths(path)
    except InputError as error:
        from fidtool.references.catalogue import suggest_references

        for name in suggest_references(path)[:2]:
            error.advise(f"the published reference is {name}")
        raise


def _refuse_reference(fake: str, real: str) -> None:
    from fidtool.references.catalogue import match_reference  # deferred: folders need none of it

    own = match_reference(real)
    if match_reference(fake) in (own, None):
        return
    remedy = f"pass it as {option('real')}, which comes first"
    if own:
        remedy = "pass generated images"
    raise InputError(
        f"{fake} is a published reference of real images, and cannot be {option('fake')}:", remedy
    )
