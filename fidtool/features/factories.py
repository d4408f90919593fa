"""People's own networks: ``path/to/file.py:factory`` and ``package.module:factory``."""

from __future__ import annotations

from fidtool.errors import InputError
from fidtool.features.network import Network
from fidtool.features.torch_state import repeatable
from fidtool.user_code import NoSourceError, load


def from_factory(spec: str) -> tuple[Network, str]:
    """Runs the factory that ``spec`` names.

    This runs the file's code with the caller's rights.

    Args:
        spec: see `fidtool.user_code.load`; the factory takes no arguments and returns a `Network`.

    Returns:
        The network, in evaluation mode, and its name for the fingerprint: file or module, factory, and the start of
        the source file's SHA-256.

    Raises:
        InputError: no such file, module or factory, or a factory that returns something else or fails.
    """
    try:
        with repeatable():
            factory, name = load(spec)
            network = factory()
    except NoSourceError as error:
        raise InputError(f"{error} (from --extractor {spec})") from None
    except (Exception, SystemExit) as error:
        raise InputError(
            f"--extractor {spec} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(network, Network):
        raise InputError(f"--extractor {spec} returned {type(network).__name__}; it must return a fidtool.Network")
    network.module.eval()
    return network, name
