"""What is measured when a run ends: the last models by client and by class, and the models that are served."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hcfl.config import Config
from hcfl.core.evaluation import predict_held_out
from hcfl.core.held_out import ByClass, HeldOut, Tally
from hcfl.core.predictions import as_clients_know
from hcfl.core.record import Row
from hcfl.core.setting import Setting
from hcfl.core.state import ClientScores, RunState
from hcfl.personal.measuring import predictions_with


@dataclass(frozen=True)
class Measured:
    """Predictions of the held-out samples at the end of a run; None where clients measure by themselves."""

    last: HeldOut | None = None
    """By the models of the last round."""
    served: HeldOut | None = None
    """By the models that are served."""
    groups: HeldOut | None = None
    """By one model for each group as the user gave it, where they were trained to compare with."""
    tally: Tally | None = None
    """The predictions of the last models, counted."""
    personal: Tensor | None = None
    """The predictions with personal parts, in the form of the task, (samples, values)."""
    told: Row = field(default_factory=dict)
    """Fields of the last round as clients measured them on the last models; `metrics.jsonl` has those of the former."""

    @staticmethod
    def by_clients(scores: ClientScores, tally: Tally | None) -> "Measured":
        """Return what clients measured by themselves, on the last models."""
        accuracy = (scores.right.double() / scores.samples)[scores.samples > 0]
        told: Row = {"val": scores.val, "val_worst_client": float(accuracy.min())}
        if tally is not None:
            by_class = ByClass.of(tally.confusion())
            told |= {"balanced_accuracy": by_class.balanced_accuracy, "macro_f1": by_class.macro_f1}
        return Measured(tally=tally, told=told)


def measure(config: Config, setting: Setting, rows: Sequence[Row], state: RunState, served: RunState) -> Measured:
    """Predict all held-out samples with the last models and with those that are served.

    Nothing where no round did so: on Flower, what clients predict with is on their machines.
    """
    if all(row.get("val_worst_client") is None for row in rows):
        return Measured()
    last = held_out(config, setting, state)
    same = served.server.round == state.server.round
    tally = None if last is None else last.tally()
    personal = None
    if last is not None and state.personal:
        personal = predictions_with(setting, state.server, state.clients, state.personal).cpu()
    return Measured(last, last if same else held_out(config, setting, served), tally=tally, personal=personal)


def held_out(config: Config, setting: Setting, state: RunState) -> HeldOut | None:
    """Predict all held-out samples; where uploads are noisy or sealed, with the weights that clients know."""
    private = config.privacy.mode != "none"
    server = as_clients_know(state.server, state.clients) if private else state.server
    return predict_held_out(setting.federation, setting.network, setting.method, server, state.clients)
