"""The sets of a run, opened on rank zero: images, statistics, or both; in a file, a folder, a store
or in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fidtool.errors import InputError, ResultWarning, option
from fidtool.features.models.families import CMMD_EXTRACTOR, is_published
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    PROTOCOLS,
    Definition,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.names import counted
from fidtool.result.explanations import NotComputed
from fidtool.run.captions import with_captions
from fidtool.run.groups import with_groups
from fidtool.run.sets import (
    FAKE,
    HELDOUT,
    REAL,
    STORED,
    Content,
    RequestedSet,
    Role,
    SetNeeds,
    SetPlan,
    pair_up,
    set_needs,
)
from fidtool.settings.record import overrides
from fidtool.settings.settings import Settings
from fidtool.sources.array_files import arrays_in
from fidtool.sources.arrays import has_floats
from fidtool.sources.contents import Files
from fidtool.sources.image_set import Sampling, real_path
from fidtool.sources.kinds import is_pattern, is_reference, suffix_of
from fidtool.sources.listing import (
    STATISTICS_SUFFIXES,
    STDIN,
    local_paths,
    missing_error,
    open_images,
    split_key,
)
from fidtool.sources.memory import Images
from fidtool.statistics.file import features_alone, read_statistics
from fidtool.statistics.foreign import NPZ, PICKLE, known_layout, layout_of, with_protocol
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.console import Console
from fidtool.system.local_files import in_time


@dataclass(frozen=True)
class Opening:
    """What is known before the networks are built, on rank zero.

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
    contents: Mapping[SetPlan, Content]
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
            planned: content.file
            for planned, content in self.contents.items()
            if content.file is not None
        }


def open_sets(
    requests: Sequence[RequestedSet], settings: Settings, console: Console, alone: bool
) -> Opening:
    """Opens REAL, the FAKEs and the held-out set, or the only set of ``fidtool stats``, which is
    ``alone``.

    No image is decoded.

    Raises:
        RunError: if the storage does not respond within the timeout.
        InputError: if a set cannot be used.
    """
    work = partial(_open_sets, requests, settings, console, alone)
    if any(each.given is not None for each in requests):
        return work()  # in the thread of the program, as it may expect for its own objects
    return in_time(" and ".join({each.path: None for each in requests}), work, settings.timeout)


def _open_sets(
    requests: Sequence[RequestedSet], settings: Settings, console: Console, alone: bool
) -> Opening:
    roles = [STORED] if alone else [REAL, *[FAKE] * (len(requests) - 1)]
    if settings.heldout is not None:
        roles[-1] = HELDOUT
    paths = [request.path for request in requests if request.given is None]
    check_paths(paths, *([] if alone else [requests[0].path, settings.heldout]))
    requests, warnings = spelled_once(requests)
    arguments = [*zip(requests, roles, strict=True)]
    all_roles: dict[RequestedSet, list[Role]] = {}
    for request, role in arguments:
        all_roles.setdefault(request, []).append(role)
    contents: dict[RequestedSet, Content] = {}
    # A bad statistics file is refused before a slow listing.
    for request in sorted(all_roles, key=lambda request: not names_statistics(request.path)):
        needs = set_needs(settings, *all_roles[request])
        contents[request] = open_set(request, settings, needs, console.say)
        _check_roles(request.path, contents[request], all_roles[request], settings)
    files = {
        request.path: content.file
        for request, content in contents.items()
        if content.file is not None
    }
    needed = bool(set_needs(settings, REAL, FAKE).layers)
    images = needed and any(content.holds != "statistics" for content in contents.values())
    completed, line = complete_settings(files, settings, images)
    for request, own in all_roles.items() if completed is not settings else ():
        # With the files' network, CMMD may share FID's layer; and floats may become bytes in
        # another way.
        if contents[request].file is not None or completed.floats != settings.floats:
            contents[request] = open_set(
                request, completed, set_needs(completed, *own), console.say
            )
    drawn = _draw_sets(arguments, contents, completed, console.say)
    opened = dict(drawn)
    if not alone:
        opened = with_groups(with_captions(opened, completed), completed)
    notes = _say_notes(opened, [*overrides(settings), *([line] if line else [])], console)
    warnings += [content.warning for content in contents.values() if content.warning is not None]
    sets = tuple(
        planned for (planned, _), role in zip(drawn, roles, strict=True) if role is not HELDOUT
    )
    return Opening(sets, opened, images, completed, notes, tuple(warnings))


def _say_notes(
    contents: Mapping[SetPlan, Content], notes: Sequence[str], console: Console
) -> tuple[str, ...]:
    """Prints notes on the settings and on what is used of each set, and returns them."""
    said = dict.fromkeys(notes, False)
    for planned, content in contents.items():
        if planned.holds == "both":
            said[
                f"{planned.path}: Fréchet distances use its mean and covariance, other metrics "
                "its images"
            ] = False
        if content.images is not None and (note := content.images.passed_over.note):
            said[f"{planned.path}: {note}"] = True  # a program that prints no information is warned
    for note, warns in said.items():
        console.say(note, warns=warns)
    return tuple(said)


def complete_settings(
    files: Mapping[str, Statistics], settings: Settings, images: bool
) -> tuple[Settings, str]:
    """Completes the settings of a run from its statistics files, and says what it takes. A custom
    network is never run.

    Without ``images``, which are processed as the settings say, the settings stay as they are.
    """
    definitions = {
        path: each.definition for path, each in files.items() if each.definition is not None
    }
    taken = _taken(files, definitions, settings, images)
    if images:
        usual = replace(settings, protocol=taken.get("protocol", settings.protocol)).rounding
        match [*{*roundings(files).values()}]:
            case [how] if (
                how != usual and settings.float_to_byte is None and settings.floats is not None
            ):
                taken |= {"float_to_byte": how}
    if not taken:
        return settings, ""
    origins = {path: files[path].origin for path in definitions or files}
    sources = [
        f"{path}, a file of {origin}" if origin else path for path, origin in origins.items()
    ]
    line = (
        f"taken from {' and '.join(sources)}: "
        f"{' and '.join(f'{name} {value}' for name, value in taken.items())}"
    )
    if not images:
        return settings, line
    try:
        return replace(settings, **taken), line
    except InputError as error:
        error.append(f" ({line})")
        raise


def roundings(files: Mapping[str, Statistics]) -> dict[str, str]:
    """How floats became bytes, by the paths of the files that say so."""
    configs = {path: file.config or {} for path, file in files.items()}
    return {
        path: str(config["float_to_byte"])
        for path, config in configs.items()
        if "float_to_byte" in config
    }


def _taken(
    files: Mapping[str, Statistics],
    definitions: Mapping[str, Definition],
    settings: Settings,
    images: bool,
) -> dict[str, Any]:
    """The network of all files, or the dims and protocol of Inception, unless they are the defaults
    or set by the user.

    Files that do not name their network count as Inception's, as in `fidtool.result.values`.
    """
    taken: dict[str, Any] = {}
    extractors = {each.extractor for each in definitions.values()}
    if settings.network.extractor == "inception" and extractors <= {INCEPTION}:
        dims, protocols = (
            {each.dims for each in files.values()},
            {each.protocol_name for each in definitions.values()},
        )
        if (
            settings.network.dims is None
            and len(dims) == 1
            and dims <= {*INCEPTION_DIMS} - {max(INCEPTION_DIMS)}
        ):
            taken["dims"] = dims.pop()
        if (
            settings.network.protocol is None
            and len(protocols) == 1
            and protocols <= {*PROTOCOLS} - {DEFAULT_PROTOCOL}
        ):
            taken["protocol"] = protocols.pop()
        return taken
    asked = (
        settings.extractor is not None or settings.dims is not None or settings.protocol is not None
    )
    if asked or not images or len(extractors) > 1:
        return {}
    path, definition = next(iter(definitions.items()))
    if is_published(definition.extractor):
        # Under CMMD's default name for it, FID and CMMD share one network.
        usual = definition.extractor == CMMD_EXTRACTOR
        return {"extractor": CMMD.extractor if usual else definition.extractor}
    if settings.allow_mismatch:
        return {}
    raise InputError(
        f"{path} has features of the custom network {definition.extractor}, whose code is only "
        "run if you name it:",
        f"pass {option('extractor', definition.network)}, with its path",
        setting="extractor",
    )


def _draw_sets(
    arguments: Iterable[tuple[RequestedSet, Role]],
    contents: Mapping[RequestedSet, Content],
    settings: Settings,
    say: Callable[[str], None],
) -> list[tuple[SetPlan, Content]]:
    """The set of each argument: the same object for the same path, crop and number of images."""
    sets: dict[object, tuple[SetPlan, Content]] = {}
    keys: list[object] = []
    pairs = set_needs(settings, FAKE).pairs
    for number, (request, role) in enumerate(arguments):
        content = contents[request]
        crop, sampling = getattr(settings, role.crop), settings.sampling(role.num)
        if content.file is not None:  # its statistics are of its images as they are
            crop, sampling = None, Sampling(None, settings.seed)
        key = (request, crop, sampling.num)
        keys.append(key)
        if key in sets:
            planned, content = sets[key]
            sets[key] = replace(planned, roles=(*planned.roles, role)), content
            continue
        if pairs and role is not HELDOUT and content.holds != "images":
            raise InputError(
                f"{pairs[0].name} compares images in pairs, and {request.path} has none that can "
                "be read again:",
                "pass the images in files, an array or a list",
                setting="metrics",
            )
        if content.holds == "stream":
            _check_stream(request, settings, sampling, role)
        if content.images is not None:
            images = content.images.draw(_advised(sampling, content, contents.values()))
            if pairs and role is FAKE:
                images = pair_up(images, content.images, sets[keys[0]][1].images, settings, say)
            images = replace(images, crop=crop, floats=settings.floats)
            if settings.on_error == "fail" and (missing := images.missing()):
                raise missing_error(images.path, missing, f"pass {option('on_error', 'skip')}")
            content = content._replace(images=images)
        sets[key] = (
            SetPlan(request.path, number, content.holds, (role,), content.size, crop, sampling),
            content,
        )
    return [sets[key] for key in keys]


def _advised(sampling: Sampling, own: Content, contents: Iterable[Content]) -> Sampling:
    """The sampling, whose refusal advises the setting of the other sets only if they have enough
    images.
    """
    sizes = [
        len(content.images)
        for content in contents
        if content.images is not None and content is not own
    ]
    return (
        sampling
        if all(size >= (sampling.num or 0) for size in sizes)
        else sampling._replace(other="")
    )


def _check_stream(
    request: RequestedSet, settings: Settings, sampling: Sampling, role: Role
) -> None:
    """Refuses an iterable that cannot be used."""
    if settings.checkpoint is not None:
        raise InputError(
            f"{option('checkpoint')} cannot resume in the middle of {request.path}, an iterable:",
            f"omit {option('checkpoint')}",
            setting="checkpoint",
        )
    if isinstance(request.given, Images) and request.given.generates and sampling.num is None:
        raise InputError(
            f"{request.path} is a function, which can generate any number of images:",
            f"pass {option(role.num, ...)}",
            setting=role.num,
        )


def _check_roles(path: str, content: Content, roles: Sequence[Role], settings: Settings) -> None:
    """Refuses what ``fidtool stats`` cannot store, a held-out set that is REAL, and a FAKE that
    gates cannot judge.
    """
    if STORED in roles and content.file is not None:
        raise InputError(f"{path} has statistics already:", "pass the images instead")
    if STORED in roles and (pairs := set_needs(settings, STORED).pairs):
        raise InputError(
            f"{pairs[0].name} compares pairs of images, but there is only one set:",
            f"omit it from {option('metrics')}",
            setting="metrics",
        )
    if REAL in roles and HELDOUT in roles:
        raise InputError(
            f"{option('heldout', path)} is REAL, which is the training set:",
            "pass real images that are not in it",
            setting="heldout",
        )
    if FAKE not in roles:
        return
    if content.images is not None:
        check_number(settings.expect, path, len(content.images.stored))
    elif content.file is not None:
        check_number(settings.expect, path, content.file.count)
        if settings.max_duplicates is not None and content.file.pictures is None:
            raise InputError(
                f"{option('max_duplicates')} needs records of the images, and {path} has none:",
                "pass the images instead",
                "create the file again with `fidtool stats`",
                setting="max_duplicates",
            )


def check_number(expect: int | None, path: str, count: int | None) -> None:
    """Refuses a FAKE whose number of images is not the expected one."""
    if expect is not None and count != expect:
        found = "an unknown number of images" if count is None else count
        raise InputError(
            f"{option('expect')} requires {expect} images but {path} has {found}", setting="expect"
        )


def spelled_once(
    requests: Sequence[RequestedSet],
) -> tuple[list[RequestedSet], list[ResultWarning]]:
    """Returns the sets, with the first for every spelling of its path, and a warning per set with
    several spellings.
    """
    sets: dict[object, dict[str, RequestedSet]] = {}
    for request in requests:
        sets.setdefault(_identity_of(request), {}).setdefault(request.path, request)
    warnings = []
    for *others, last in sets.values():
        if others:
            warnings.append(ResultWarning("", f"{', '.join(others)} and {last} are the same set"))
    return [next(iter(sets[_identity_of(request)].values())) for request in requests], warnings


def _identity_of(request: RequestedSet) -> object:
    """Returns what all spellings of a set have in common."""
    if request.given is not None:
        return request
    return real_path(request.path.removeprefix("file://")).rstrip("/")


def open_set(
    request: RequestedSet, settings: Settings, needs: SetNeeds, say: Callable[[str], None]
) -> Content:
    """Opens a set of images or statistics, without reading any image. A stream is not opened."""
    path, given = request.path, request.given
    if isinstance(given, Statistics):
        if not given.layers:
            raise InputError(
                f"{path} is None, which only ranks above zero may pass, in place of statistics"
            )
        return Content(file=replace(given.whole(path), layers=given.layers_of(settings.networks)))
    if given is not None:
        if given.is_stream:
            return Content()
        if settings.features and (rows := given.features()) is not None:
            return Content(file=features_alone(path, rows, path, FEATURES in needs.collected))
        opened = Content(given.image_set(settings.floats))
    elif is_reference(path):
        opened = _open_reference(path, settings, needs, say)
    else:
        files = _single_file(path, settings.features, say)
        found = None if files is None else _open_statistics(path, files, settings, needs)
        opened = found or Content(open_images(path, settings.recursive, settings.floats, say))
    if opened.images is None or settings.frames == "first":
        return opened
    from fidtool.reading.batches import with_frames  # deferred, with torch

    return opened._replace(images=with_frames(opened.images, settings.max_pixels))


def _open_reference(
    path: str, settings: Settings, needs: SetNeeds, say: Callable[[str], None]
) -> Content:
    # Lazily: a run of folders needs none of it.
    from fidtool.references.catalogue import FEATURES as FEATURES_ARRAY
    from fidtool.references.catalogue import IMAGES, named_reference
    from fidtool.references.files import fetch

    reference, array = named_reference(path)
    alone = array in (IMAGES, FEATURES_ARRAY)
    if array and not alone and not reference.is_pickle:
        raise InputError(f"{array} alone is no set that can be compared:", f"pass {reference.name}")
    completed = bool(needs.features) and not alone
    wanted = [array] if alone else [*reference.statistics]
    if completed and IMAGES in reference.arrays:
        wanted.append(IMAGES)
    local, sha256 = fetch(reference, wanted, say)
    found = file = None
    if IMAGES in wanted:
        found = replace(open_images(f"{local}:{IMAGES}"), prefix=f"{reference.name}:{IMAGES}")
    if wanted != [IMAGES]:
        entry = array if reference.is_pickle else ""
        file = read_statistics(local, needs.collected, key=entry, networks=settings.networks)
        if completed and FEATURES_ARRAY in reference.arrays:
            features, further = fetch(reference, [FEATURES_ARRAY], say)
            sha256 |= further
            rows = read_statistics(features)
            layers = {
                **file.layers,
                FEATURES: replace(file.layers[FEATURES], features=rows.features),
            }
            file = replace(
                file, layers=layers, count=rows.count, found=rows.found, order=rows.order
            )
        file = with_protocol(file, reference.protocol)
    warning = (
        None if reference.protocol else ResultWarning("", f"{reference.name}: {reference.note}")
    )
    return Content(found, file, warning, reference.name, sha256)


def _single_file(path: str, features: bool, say: Callable[[str], None]) -> Files | None:
    """The file that ``path`` names, which may hold statistics; None if there is none, or
    several.
    """
    name, _ = split_key(path)
    if is_pattern(name):
        return None
    if "://" not in name:
        return Files([name]) if os.path.isfile(name) else None
    from fidtool.sources.remote import remote_files  # lazily: local sets need none of it

    if names_statistics(name):
        return remote_files(name, say)
    if (suffix_of(name) and not features) or name.endswith("/"):
        return None
    try:
        return remote_files(name, say)
    except InputError:  # it is a folder, or does not exist
        return None


def _open_statistics(
    path: str, files: Files, settings: Settings, needs: SetNeeds
) -> Content | None:
    """The statistics in a file; None if it has images instead, by its content or, if that says
    nothing, its name.
    """
    name, key = split_key(path)
    kind, has_statistics, images = layout_of(files)
    if (settings.features and (key or not has_statistics)) or (
        kind == NPZ and not has_statistics and not images
    ):
        found = _open_features(path, files, settings.features, FEATURES in needs.collected)
        if found is not None:
            return found
    expected = names_statistics(name) or (kind and not suffix_of(name))
    if not (has_statistics or (expected and not images)) or (key and kind != PICKLE):
        return None
    file = read_statistics(path, needs.collected, files, key, settings.networks).whole(path)
    if not images:
        return Content(file=file)
    if len(needs.usable(file.layers)) < len(needs.layers) or (needs.order and file.order is None):
        return Content(open_images(f"{path}:{images}", settings.recursive, settings.floats), file)
    text = (
        f"{path} has both statistics (mu, sigma) and images ({images}): using the statistics; pass "
        f"{path}:{images} to use the images"
    )
    return Content(None, file, ResultWarning("", text))


def _open_features(path: str, files: Files, features: bool, wanted: bool) -> Content | None:
    """The features, an array (N, D), that ``path`` names in a file, or its only ones; None if there
    are none.
    """
    _, key = split_key(path)
    stored = arrays_in(files)
    if len(known_layout(stored)) > 1 and not key:
        return None  # a mean and a covariance
    rows = {
        name: each for name, each in stored.items() if len(each.shape) == 2 and key in ("", name)
    }
    floats = {name: each for name, each in rows.items() if has_floats(each.dtype)}
    if features and len(floats or rows) == 1:
        ((name, each),) = (floats or rows).items()
        return Content(file=features_alone(path, each.read(files), name, wanted))
    if floats and not key:
        number = counted(len(floats), "array")
        raise InputError(
            f"{path} has {number} that may be features of images, for `compute` with "
            f"{option('features', True)}:",
            *(f"pass {path}:{name}" for name in floats),
        )
    return None


def names_statistics(path: str) -> bool:
    """Whether a path names statistics by its suffix or as a reference. They are read before slow
    listings.
    """
    name, _ = split_key(path)
    name = name.partition("?")[0] if "://" in name else name
    return is_reference(path) or name.lower().endswith(STATISTICS_SUFFIXES)


def check_paths(paths: Sequence[str], real: str | None = None, heldout: str | None = None) -> None:
    """Raises an InputError that names the first of ``paths`` that does not exist. URLs are not
    requested.

    With ``real``, the others but ``heldout`` are FAKEs: none may be a published reference, which is
    of real images, but REAL's own.
    """
    if list(paths).count(STDIN) > 1:
        raise InputError(f"{STDIN} is standard input, which can only be used for one of the sets")
    for path in paths:
        if path != STDIN and not is_reference(path) and "://" not in split_key(path)[0]:
            try:
                local_paths(path)
            except InputError as error:
                from fidtool.references.catalogue import suggested_references

                names = suggested_references(path)[:2]
                error.advise(*(f"the published reference is {name}" for name in names))
                raise
    for path in paths:
        if real is None or path in (real, heldout) or not ("://" in path or is_reference(path)):
            continue
        from fidtool.references.catalogue import (
            reference_at,  # lazily: a run of folders needs none of it
        )

        own = reference_at(real)
        if reference_at(path) not in (own, None):
            raise InputError(
                f"{path} is a published reference, of real images, and cannot be {option('fake')}:",
                "pass generated images"
                if own
                else f"pass it as {option('real')}, which comes first",
                setting="fake",
            )
