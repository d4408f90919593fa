"""A Trainer that starts its ranks itself, as is usual: ``python lightning_launcher.py REAL
FEATURE``.
"""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch
from common import fidtool, say
from lightning_training import QUIET, Model

from fidtool.training import FIDCallback


class Launched(Model):
    """Prints the FID at the end."""

    def on_fit_end(self) -> None:
        assert fidtool.rank_seed(0) == fidtool.rank_seed(0, self.global_rank)
        fid = float(self.trainer.callback_metrics["fid"])
        say(f"{self.global_rank} of {self.trainer.world_size}: {fid.hex()}")


if __name__ == "__main__":
    first = FIDCallback("generate", sys.argv[1], feature=sys.argv[2], num_samples=40, name="fid")
    second = FIDCallback("generate", sys.argv[1], feature=sys.argv[2], num_samples=20, name="fid20")
    trainer = pl.Trainer(
        max_epochs=1, devices=2, strategy="ddp", callbacks=[first, second], **QUIET
    )
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer.fit(Launched(), data)
    trainer.fit_loop.max_epochs = 2
    first.frechet_distance = None
    trainer.fit(Launched(), data)
    assert first.frechet_distance is not None, "the FID of a second training is computed as well"
