"""What a caller of a kernel did wrong."""

# In the clone, where the program was made; `make test` does the first.
INSTALL = "make .venv/.extras, or .venv/bin/pip install -e '.[gpu]'"


class KernelInputError(ValueError):
    """Tensors or numbers that a kernel cannot take. One line: argument, value, limit.

    Raised before anything is launched, so nothing has been written.
    """


class UnavailableError(RuntimeError):
    """What was asked for cannot run in this process. One line: what is in the way, what to do."""
