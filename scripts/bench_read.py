"""Reads and decodes one source, as a rank would, and says how long that took: ``python bench_read.py SOURCE WORKERS``.

A process of its own for each source: what one leaves in memory, or open, is not the next one's. No network is run.
"""

from __future__ import annotations

import json
import sys
import time

from fidtool.images.batches import PlannedBatch, plan_batches
from fidtool.images.loader import DecodeOptions, WorkerWatch, load
from fidtool.sources.opening import open_images

BATCH = 16


def read(source: str, workers: int) -> dict[str, float]:
    """Seconds that it takes to list a source, and to get all its images as pixels."""
    started = time.perf_counter()
    images = open_images(source).draw(None, 0)
    listed = time.perf_counter()
    batches = [PlannedBatch(number, indices) for number, indices in enumerate(plan_batches(images, BATCH))]
    reading = DecodeOptions(records=True)
    count = 0
    for batch in load(images, batches, reading, workers, False, 1, WorkerWatch(600.0), print):
        if batch.failure is not None:
            raise SystemExit(batch.failure.message)
        count += len(batch.sizes)
    return {"images": count, "list_seconds": listed - started, "seconds": time.perf_counter() - listed}


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]))))
