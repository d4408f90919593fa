"""Images and features as JAX arrays, in a process of their own: a fork of one that uses JAX may
wait forever.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fidtool
from support.command_line import Run
from support.places import TINY
from support.source_forms import make_pair, pixels_in

pytest.importorskip("jax", reason="needs jax, from the extra 'test'")

COUNT = 22
SCRIPT = """
import json, sys, warnings
import jax, jax.numpy as jnp
import numpy as np
import fidtool
from fidtool.sources.memory import Images, _to_cpu

warnings.simplefilter("ignore", RuntimeWarning)  # of JAX, that a fork may wait: the workers have NumPy's arrays
real, file, extractor = sys.argv[1:]
pixels = np.load(file)
array = jnp.asarray(pixels)
floats = array / 255
halves = (floats * 2 - 1).astype(jnp.bfloat16)  # whose eight digits are enough for a byte
symmetric = {"value_range": (-1, 1)}
forms = {
    "uint8": (array, {}),
    "workers": (array, {"num_workers": 2}),
    "floats": (floats, {"value_range": (0, 1)}),
    "NCHW": (jnp.moveaxis(floats, -1, 1), {"value_range": (0, 1)}),
    "a list": ([*array], {}),
    "a list, workers": ([*array], {"num_workers": 2}),
    "dicts": ([{"image": each, "label": 1} for each in array], {"num_workers": 2}),
    "batches": ((floats[n : n + 4] for n in range(0, len(array), 4)), {"value_range": (0, 1)}),
    "a function": (lambda n: array[:n], {"num_fake": len(pixels)}),
    "bfloat16": (halves, symmetric),
    "bfloat16, a list": ([*halves], symmetric),
    "bfloat16, batches": (iter([halves[:7], halves[7:]]), symmetric),
    "bfloat16, workers": (halves, {**symmetric, "num_workers": 2}),
}
found = {}
for form, (given, further) in forms.items():
    settings = dict(extractor=extractor, cache=False, batch_size=len(pixels), diagnose=False, **further)
    found[form] = fidtool.compute(real, given, **settings).frechet_distance
rows = np.random.default_rng(0).normal(size=(2, 40, 6)).astype(np.float32)
found["features"] = [
    fidtool.compute(*map(kind, rows), features=True).frechet_distance for kind in (np.asarray, jnp.asarray)
]
half = jnp.asarray(rows[0]).astype(jnp.bfloat16)
found["bfloat16 features"] = bool((Images(half).features() == np.asarray(half).astype("f4")).all())
found["shared"] = _to_cpu(array).ctypes.data == array.unsafe_buffer_pointer()
print(json.dumps(found))
"""


def test_jax_arrays_give_the_folders_value(program: Run, tmp_path: Path) -> None:
    make_pair(tmp_path, COUNT)
    np.save(tmp_path / "pixels.npy", pixels_in(tmp_path / "images"))
    run = program(SCRIPT, "real", "pixels.npy", TINY)
    assert run.status == 0, run.stderr
    found = json.loads(run.stdout)
    assert found.pop("shared"), "NumPy must share the memory"
    assert found.pop("bfloat16 features")
    numpy, jax = found.pop("features")
    assert numpy == jax
    settings = {"extractor": TINY, "cache": False, "batch_size": COUNT, "diagnose": False}
    expected = fidtool.compute(tmp_path / "real", tmp_path / "images", **settings).frechet_distance
    assert found == dict.fromkeys(found, expected)
