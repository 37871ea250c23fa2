"""The two names."""


def HTML(*_args, **_kwargs):
    return None


def display(*_args, **_kwargs):
    return None
