"""Feature shift: the 19 corruptions of CIFAR-10-C for images of any size from 28 pixels, and the original."""

from hcfl.data.corruptions.table import CORRUPTIONS, SEVERITIES, corrupt

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt"]
