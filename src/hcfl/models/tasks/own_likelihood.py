"""Any of the tasks that can be saved and sent, with a likelihood of the user's own instead of its likelihood."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hcfl.models.tasks.classification import Classification
from hcfl.models.tasks.multi_label import MultiLabel
from hcfl.models.tasks.regression import Regression
from hcfl.models.tasks.task import Part, TaskName

AnyTask = Classification | Regression | MultiLabel
"""The tasks that can be saved and sent."""

Likelihood = Callable[[Tensor, Tensor], Tensor]
"""A user's own: outputs (n, values) and answers (n, …) → log p(y|x), (n,)."""


@dataclass(frozen=True)
class OwnLikelihood:
    """A task with the user's own likelihood; everything else is the task's."""

    base: AnyTask
    function: Likelihood

    @property
    def name(self) -> TaskName:
        """The name of the task."""
        return self.base.name

    @property
    def lowest(self) -> float:
        """As the task does."""
        return self.base.lowest

    @property
    def constant(self) -> bool:
        """As the task does."""
        return self.base.constant

    def outputs(self, classes: int) -> int:
        """Return what the function says in its attribute `outputs`, or what the task says."""
        return int(getattr(self.function, "outputs", self.base.outputs(classes)))

    def head(self, head: nn.Module) -> nn.Module:
        """Nothing is added: the function says what outputs mean."""
        return head

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Call the function on all samples and clusters at once."""
        samples, clusters, values = outputs.shape
        each = answers.unsqueeze(1).expand(samples, clusters, *answers.shape[1:]).flatten(0, 1)
        return self.function(outputs.reshape(-1, values), each).view(samples, clusters)

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return the negative log-likelihood."""
        return -self.log_likelihood(outputs, answers)

    def distribution(self, outputs: Tensor) -> Tensor:
        """As the task does: of a number, the first output is the mean."""
        return self.base.distribution(outputs[..., :1] if isinstance(self.base, Regression) else outputs)

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """As the task does."""
        return self.base.mix(distribution, weights)

    def mix_parts(self, parts: Sequence[Part], weights: Tensor) -> Tensor:
        """As the task does."""
        return self.base.mix_parts(parts, weights)

    def shown(self, mixed: Tensor) -> Tensor:
        """As the task does."""
        return self.base.shown(mixed)

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """As the task does."""
        return self.base.score(mixed, answers)

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """As the task does."""
        return self.base.bin_log_probs(distribution)
