"""The one exception that is meant for people."""


class InputError(ValueError):
    """What the user gave cannot be used.

    Its message is one sentence that names the field, its value and what is allowed. The command line prints it
    without a traceback and exits with code 2.
    """
