"""What the steps of one run share on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fidtool.clock import Clock
from fidtool.config import Config
from fidtool.console import Console
from fidtool.distributed.world import World
from fidtool.features.device import Device


@dataclass
class Session:
    """What the steps of one run share on one rank.

    Attributes:
        world: the ranks.
        device: this rank's device.
        config: settings of the run.
        console: rank zero's voice, mute on the others.
        clock: takes the phases' times.
        kept: what to tell the user of finished work, should the run fail.
    """

    world: World
    device: Device
    config: Config
    console: Console
    clock: Clock
    kept: Callable[[], str] = str
