"""A run that ended: what it found, and what one can do with it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcfl.config import Config
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.record import Row
from hcfl.core.state import RunState
from hcfl.data import Federation
from hcfl.data.sources import check_more
from hcfl.methods import Method
from hcfl.models import Network

if TYPE_CHECKING:
    from pandas import DataFrame

    from hcfl.report.plots import Picture
    from hcfl.serving.export import Format
    from hcfl.serving.newcomers import Assignment
    from hcfl.serving.predict import Blend, WeightsLike


@dataclass(frozen=True)
class Run:
    """A run that ended. `hcfl.load` opens one from its folder."""

    path: Path
    """The run folder."""
    config: Config = field(repr=False)
    """All settings, defaults filled in."""
    federation: Federation = field(repr=False)
    """Of a run that was opened from its folder: names and sizes only, the samples are elsewhere."""
    summary: Row
    """The result, as it is in `summary.json`."""
    rows: list[Row] = field(repr=False)
    """The metrics of each round, as they are in `metrics.jsonl`."""
    state: RunState = field(repr=False)
    """Models, weights and tables after the last round."""
    method: Method = field(repr=False)
    network: Network = field(repr=False)
    profiles: Profiles | None = field(default=None, repr=False)
    """What clusters' inputs look like, for newcomers without labels; None where the data stayed with the clients."""

    @cached_property
    def metrics(self) -> "DataFrame":
        """The metrics of each round as a table, rounds as its index."""
        from pandas import DataFrame  # takes half a second: only for those who look

        return DataFrame(self.rows).set_index("round")

    @property
    def clusters(self) -> tuple[int, ...]:
        """The clusters' ids."""
        return self.state.server.clusters

    def assign(self, x: ArrayLike, y: ArrayLike | None = None, *, unlabelled: bool = False) -> "Assignment":
        """Find which clusters a client that never trained belongs to.

        `x` are its inputs as the run's own clients have them, `y` their labels. Without `y`, prototypes or confidence
        decide; `unlabelled` does the same where there are labels, which then only measure the accuracy.
        """
        from hcfl.serving import newcomers

        return newcomers.assign(self, *self._checked(x, y), unlabelled)

    def predict(
        self, x: ArrayLike, *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None
    ) -> NDArray[Any]:
        """Predict labels as a client of the run, with the model of a cluster, or with weights such as a newcomer's."""
        best = self.predict_proba(x, client=client, cluster=cluster, weights=weights).argmax(axis=1)
        names = self.federation.class_names
        numbered = names == tuple(str(number) for number in range(len(names)))
        labels: NDArray[Any] = best if numbered else np.array(names)[best]
        return labels

    def predict_proba(
        self, x: ArrayLike, *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None
    ) -> NDArray[np.float32]:
        """Return class probabilities, (samples, classes): Σ_k ω̃_k softmax(head_k(φ(x))), or of a client's own model."""
        from hcfl.serving import predict

        inputs, _ = self._checked(x, None)
        blend = self.blend(client=client, cluster=cluster, weights=weights)
        return predict.probabilities(self.network, blend, inputs).numpy()

    def blend(self, *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None) -> "Blend":
        """Return the models, and how much each counts, of one client, one cluster, or of some weights."""
        from hcfl.serving import predict

        return predict.chosen(self, client, cluster, weights)

    def export(
        self,
        path: str | Path,
        format: "Format | None" = None,
        *,
        client: Any = None,
        cluster: Any = None,
        weights: "WeightsLike | None" = None,
    ) -> Path:
        """Write a model for other programs: raw inputs in, class probabilities out.

        The format is onnx, torchscript or safetensors; by default what the file's name says. What was written is read
        again and compared with this run's own prediction.
        """
        from hcfl.serving import export

        blend = self.blend(client=client, cluster=cluster, weights=weights)
        return export.write(self, blend, Path(path), format)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run as one HTML page, into its folder unless told otherwise; return where it is."""
        from hcfl.report import page  # it reads what runs write

        return page.write([self.path], None if out is None else Path(out))

    def plot_accuracy(self) -> "Picture":
        """Show Val and Test over rounds."""
        from hcfl.report import plots

        return plots.plot_accuracy([self])

    def plot_clusters(self) -> "Picture":
        """Show the number of clusters over rounds."""
        from hcfl.report import plots

        return plots.plot_clusters([self])

    def plot_weights(self) -> "Picture":
        """Show who belongs to which cluster, beside the truth where it is known."""
        from hcfl.report import plots

        return plots.plot_weights(self)

    def _checked(self, x: ArrayLike, y: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        """Refuse what is not like the run's own samples."""
        federation = self.federation
        stored = str(federation.x.dtype).removeprefix("torch.")
        names = federation.class_names
        given = None if y is None else np.asarray(y)
        inputs, labels = check_more("newcomer", np.asarray(x), given, federation.shape, stored, names)
        return torch.from_numpy(np.ascontiguousarray(inputs)), None if labels is None else torch.from_numpy(labels)
