"""The one error that is the user's to fix."""


class UserError(Exception):
    """Bad input. `str(error)` is one line naming the place, the value, the limit and what to do.

    The command line prints that line and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        # Values quoted from a file may hold line breaks; the promise of one line is kept here.
        super().__init__(" ".join(message.splitlines()))
