"""What a caller of a kernel did wrong."""


class KernelInputError(ValueError):
    """Tensors or numbers that a kernel cannot take. One line: argument, value, limit.

    Raised before anything is launched, so nothing has been written.
    """
