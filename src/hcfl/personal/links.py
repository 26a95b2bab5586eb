"""Links: how a task's predictions are shifted, mixed and scored, the same questions for every task.

A personal part adds something to its group's prediction on the task's own scale, which the field calls the link: the
log-probabilities of classes, the mean of a number, the logit of each label. Everything else is the same for all tasks.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from hcfl.core.predictions import Predictions
from hcfl.models.tasks import MultiLabel, OwnLikelihood, Regression, Task
from hcfl.personal import heads
from hcfl.personal.clients import Clients
from hcfl.personal.task_links import Classes, Labels, Numbers, OwnNumbers
from hcfl.tiers.client_segments import Segments


class Scoring(Protocol):
    """How a task's predictions are mixed and scored.

    Predictions have the task's form, (samples, values), as `Task.mix` returns them.
    """

    @property
    def largest(self) -> float:
        """The largest possible difference of two scores of a sample."""
        ...

    def of_group(self, seen: Predictions) -> Tensor:
        """Return what groups predict, as candidates are compared."""
        ...

    def of_model(self, outputs: Tensor, answers: Tensor | None = None) -> Tensor:
        """Return what one model predicts, from outputs (samples, 1, values), as candidates are compared."""
        ...

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_m w_m·p_m, from predictions (samples, models, values) and weights (models,)."""
        ...

    def scores(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> Tensor:
        """Score predictions, of which the first are the groups': (samples, columns)."""
        ...

    def errors(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> tuple[Tensor, Tensor] | None:
        """Return by how much numbers are off, (samples, columns), and the variance that each client's group has learnt.

        None of other tasks, and where the variance is not ours to say.
        """
        ...


class Link(Scoring, heads.Loss, Protocol):
    """A task whose predictions have a scale on which something can be added to them.

    Values on it are (samples, values): one for each class or label, or one.
    """

    def scale(self, predicted: Tensor) -> Tensor:
        """Return predictions on the link's scale."""
        ...

    def predicted(self, values: Tensor, group: Tensor) -> Tensor:
        """Return predictions from values on the link's scale; what they do not say is as the group says."""
        ...

    def intercepts(self, clients: Clients, counted: Tensor) -> Tensor:
        """Return by how much each client is off its group's prediction, (clients, values), from some of its samples."""
        ...


def link_of(task: Task) -> Link | None:
    """Return a task's link; None where only the user's likelihood says what a network's outputs mean.

    Probabilities of classes and labels are such, whatever likelihood they are trained by.
    """
    base = task.base if isinstance(task, OwnLikelihood) else task
    if isinstance(base, Regression):
        return None if isinstance(task, OwnLikelihood) else Numbers(base)
    return Labels(len(base.labels)) if isinstance(base, MultiLabel) else Classes()


def scoring_of(task: Task) -> Scoring:
    """Return how a task's predictions are mixed and scored."""
    if isinstance(task, OwnLikelihood) and isinstance(task.base, Regression):
        return OwnNumbers(task, Numbers(task.base))
    link = link_of(task)
    assert link is not None
    return link


def shifted(link: Link, predicted: Tensor, offset: Tensor) -> Tensor:
    """Return predictions with an offset on the link's scale."""
    return link.predicted(link.scale(predicted) + offset, predicted)
