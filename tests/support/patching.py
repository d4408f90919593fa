"""Sets what a module or class has, in processes that live without pytest; a name that has moved is an error."""


def replace(owner: object, name: str, value: object) -> None:
    """Sets the attribute ``name``, which ``owner`` must have."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)
