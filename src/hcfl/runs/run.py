"""`Run`: the result of a run, with its models; predicts, assigns new clients, exports and plots."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcfl.config import Config
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.record import Row
from hcfl.core.state import RunState
from hcfl.data import Federation
from hcfl.data.answers import Answers
from hcfl.data.sources import check_more
from hcfl.data.tables import read_table
from hcfl.data.tables.samples import series_of
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Network

if TYPE_CHECKING:
    from pandas import DataFrame

    from hcfl.report.plots import Picture
    from hcfl.serving.export import Format
    from hcfl.serving.newcomers import Assignment
    from hcfl.serving.predict import Blend, WeightsLike

    Inputs = ArrayLike | DataFrame | str | Path


@dataclass(frozen=True)
class Run:
    """The result of a run. `hcfl.run` returns one, `hcfl.load` opens one from its folder.

    >>> run = hcfl.load("runs/digits")  # doctest: +SKIP
    >>> run.predict(x, client=3)  # doctest: +SKIP
    """

    path: Path
    """The run folder."""
    config: Config = field(repr=False)
    """All settings, defaults filled in."""
    federation: Federation = field(repr=False)
    """The data. A run that was opened from its folder has only names and sizes, no samples."""
    summary: Row
    """The result, as it is in `summary.json`."""
    rows: list[Row] = field(repr=False)
    """The metrics of each round, as they are in `metrics.jsonl`."""
    state: RunState = field(repr=False)
    """Models, weights and tables after the last round."""
    method: Method = field(repr=False)
    network: Network = field(repr=False)
    profiles: Profiles | None = field(default=None, repr=False)
    """Statistics of each cluster's inputs, to assign new clients without labels; None where data stay with clients."""
    best: RunState | None = field(default=None, repr=False)
    """What is served, where it is not the last round: models and weights after the round with the best likelihood."""

    @property
    def served(self) -> RunState:
        """The models and weights that predict, assign new clients, and are exported."""
        return self.state if self.best is None else self.best

    @cached_property
    def metrics(self) -> "DataFrame":
        """The metrics of each round as a table, rounds as its index."""
        from pandas import DataFrame  # takes half a second, so not at the top

        return DataFrame(self.rows).set_index("round")

    @property
    def clusters(self) -> tuple[int, ...]:
        """The ids of the clusters that are served."""
        return self.served.server.clusters

    def assign(self, x: "Inputs", y: ArrayLike | None = None, *, unlabelled: bool = False) -> "Assignment":
        """Find the clusters of a new client, one that never trained.

        `x` are its inputs, (samples, …) in the shape and scale of the run's own, `y` their labels, (samples,). Without
        `y`, prototypes or confidence decide; with `unlabelled`, too, and `y` then only measures the accuracy. Where the
        run's data are a table, `x` is a data frame with the same columns, or a file; its label column stands for `y`.
        """
        from hcfl.serving import newcomers

        inputs, answers = self._checked(x, y)
        return newcomers.assign(self, inputs, answers, unlabelled)

    def assign_each(
        self, x: ArrayLike, client: ArrayLike, y: ArrayLike | None = None, *, unlabelled: bool = False
    ) -> "dict[Any, Assignment]":
        """Find the clusters of several new clients; `client`, (samples,), says which of them holds each sample."""
        owner = np.asarray(client)
        inputs, labels = np.asarray(x), None if y is None else np.asarray(y)
        if owner.shape != inputs.shape[:1]:
            raise InputError(f"client: has shape {owner.shape}, but there are {len(inputs)} samples")
        return {
            name: self.assign(
                inputs[owner == name], None if labels is None else labels[owner == name], unlabelled=unlabelled
            )
            for name in np.unique(owner).tolist()
        }

    def predict(
        self, x: "Inputs", *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None
    ) -> NDArray[Any]:
        """Predict labels, (samples,), for inputs `x`, (samples, …), or the rows of a table.

        Of a regression these are numbers, of several labels zeros and ones, (samples, labels).

        The models are those of a client of the run, of a cluster, or of `weights`: an `Assignment`, a mapping from
        cluster ids, or one number for each cluster. Exactly one of the three is given.
        """
        found = self._shown(x, client, cluster, weights)
        task, names = self.federation.task, self.federation.class_names
        if task.name == "regression":
            return found[:, 0]
        if task.name == "multi-label":
            return (found > 0.5).astype(np.int64)
        numbered = names == tuple(str(number) for number in range(len(names)))
        best: NDArray[Any] = found.argmax(axis=1)
        return best if numbered else np.array(names)[best]

    def predict_proba(
        self, x: "Inputs", *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None
    ) -> NDArray[np.float32]:
        """Return class probabilities, (samples, classes): Σ_k ω̃_k softmax(head_k(φ(x))), or a client's own model's.

        Of a regression, mean and standard deviation, (samples, 2); of several labels, each one's probability.
        """
        return self._shown(x, client, cluster, weights)

    def _shown(self, x: "Inputs", client: Any, cluster: Any, weights: "WeightsLike | None") -> NDArray[np.float32]:
        from hcfl.serving import predict

        inputs, _ = self._checked(x, None)
        blend = self.blend(client=client, cluster=cluster, weights=weights)
        return predict.probabilities(self.network, blend, inputs).numpy()

    def blend(self, *, client: Any = None, cluster: Any = None, weights: "WeightsLike | None" = None) -> "Blend":
        """Return the models, and their weights, with which a client, a cluster, or given weights predict."""
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
        """Write a model file for other programs, which maps raw inputs to class probabilities; return its path.

        The format is onnx, torchscript or safetensors; by default the one of the file's suffix. The file is read again
        and its predictions are compared with this run's own.
        """
        from hcfl.serving import export

        blend = self.blend(client=client, cluster=cluster, weights=weights)
        return export.write(self, blend, Path(path), format)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run as one HTML page, by default into its folder; return the page's path."""
        from hcfl.report import page  # it reads what runs write

        return page.write([self.path], None if out is None else Path(out))

    def _repr_html_(self) -> str | None:
        """Show the run in a notebook: the figure that it showed while it trained."""
        from hcfl.report import live_figure

        data = live_figure.data_of(self.path, ended=True)
        return None if data is None else live_figure.frame(f"hcfl-{uuid4().hex}", data)

    def plot_accuracy(self) -> "Picture":
        """Plot Val and Test over rounds."""
        from hcfl.report import plots

        return plots.plot_accuracy([self])

    def plot_clusters(self) -> "Picture":
        """Plot the number of clusters over rounds."""
        from hcfl.report import plots

        return plots.plot_clusters([self])

    def plot_weights(self) -> "Picture":
        """Plot each client's cluster weights, beside the true concepts where they are known."""
        from hcfl.report import plots

        return plots.plot_weights(self)

    def _checked(self, x: "Inputs", y: ArrayLike | None) -> tuple[Tensor, Answers | None]:
        """Check that samples have the shape, type and answers of the run's own; encode the rows of a table."""
        federation = self.federation
        stored = str(federation.x.dtype).removeprefix("torch.")
        given, found = None if y is None else np.asarray(y), None
        if isinstance(x, str | Path) or hasattr(x, "columns"):
            x, found = self._encoded(x)
        inputs, answers = check_more(
            "newcomer", np.asarray(x), given, federation.shape, stored, federation.class_names, federation.task
        )
        return torch.from_numpy(np.ascontiguousarray(inputs)), found if answers is None else answers

    def _encoded(self, table: Any) -> tuple[NDArray[Any], Answers | None]:
        """Return the rows of a table as the run's schema has them, and their answers where it has all of them."""
        schema = self.federation.schema
        if schema is None:
            raise InputError(f"x: is a table, but the run's inputs are arrays of shape {self.federation.shape}")
        frame = read_table(table, "data") if isinstance(table, str | Path) else table
        encode = schema.encode if schema.windows is None else partial(series_of, schema=schema)
        encoded = encode(frame, where="newcomer")
        for note in encoded.notes:
            warnings.warn(note, stacklevel=5)
        complete = encoded.answers is not None and bool((encoded.answers.bins >= 0).all())
        return encoded.x, encoded.answers if complete else None
