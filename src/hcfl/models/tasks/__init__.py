"""Tasks: what a network's outputs say about an answer. The likelihood of a sample is one function of each.

Every tier goes by log p_k(y|x), the log-likelihood of an answer, and by *bins*: whole numbers that stand for answers
where samples are counted or averaged by answer (class shares, prototypes). A class is its own bin; a number belongs to
a quantile bin, several labels to their label set.
"""

from hcfl.models.tasks.classification import CLASSES, Classification, cross_entropy_per_cluster
from hcfl.models.tasks.multi_label import MultiLabel
from hcfl.models.tasks.own_likelihood import AnyTask, OwnLikelihood
from hcfl.models.tasks.regression import VARIANCE_FLOOR, GaussianHead, Regression
from hcfl.models.tasks.task import Task

__all__ = [
    "CLASSES",
    "VARIANCE_FLOOR",
    "AnyTask",
    "Classification",
    "GaussianHead",
    "MultiLabel",
    "OwnLikelihood",
    "Regression",
    "Task",
    "cross_entropy_per_cluster",
]
