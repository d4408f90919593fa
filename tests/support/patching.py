"""Replaces attributes of modules and classes in processes without pytest. A missing attribute is an
error.
"""


def replace(owner: object, name: str, value: object) -> None:
    """Set the attribute ``name``, which ``owner`` must have."""
    assert hasattr(owner, name), f"{owner} no longer has {name}"
    setattr(owner, name, value)
