"""The exceptions that are meant for people."""


class InputError(ValueError):
    """What the user gave cannot be used.

    Its message is one sentence that names the field, its value and what is allowed. The command line prints it
    without a traceback and exits with code 2.
    """


class SavingError(InputError):
    """A run cannot be saved, because the disk is full or gone; what was saved before is whole.

    The command line exits with the code that the system has for such errors.
    """
