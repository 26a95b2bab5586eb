"""hcfl: clustered federated learning on four independent tiers.

>>> import hcfl
>>> run = hcfl.run("hcfl+(fedrc)", data="digits", rounds=30)  # doctest: +SKIP
>>> run.summary["clusters_last"]  # doctest: +SKIP
3
"""

from importlib.metadata import version

__version__ = version("hcfl")

from hcfl.config import Config
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.experiment import Run, run
from hcfl.methods import METHODS, Method

__all__ = ["METHODS", "Config", "Federation", "InputError", "Method", "Run", "run"]
