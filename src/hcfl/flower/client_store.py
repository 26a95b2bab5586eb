"""What a client keeps on its own disk between rounds: keyed by experiment, client name and round.

The server says after which round it last heard of a client; the client goes on from exactly that state. So a round
that is played again, because a reply was lost or the server came back from a checkpoint, starts where it started
before, and is never applied twice. Two states are enough for that: the one the server knows, and the newest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from hcfl.core.state import ClientState, PersonalPart
from hcfl.errors import InputError
from hcfl.flower.growing import Growth
from hcfl.models.ensemble import Ensemble
from hcfl.personal.inner_split import Gains
from hcfl.runs import state_file

FORMAT = 2
"""Version of the layout; another one is refused."""


class StateLostError(InputError):
    """A client no longer has the state that the server knows of; it can only start anew."""


@dataclass(frozen=True)
class Kept:
    """What a file holds: a state, and whose it is."""

    experiment: str
    client: str
    state: ClientState


@dataclass(frozen=True)
class Sent:
    """An upload with the client's own noise, and the round it was for."""

    round: int
    parts: Mapping[str, Tensor]


@dataclass(frozen=True)
class ClientStore:
    """The states of one client in one experiment."""

    root: Path
    experiment: str
    client: str

    @property
    def folder(self) -> Path:
        """Where its files are; names are quoted, so that none can lead elsewhere."""
        return self.root / f"experiment-{quote(self.experiment, safe='')}" / f"client-{quote(self.client, safe='')}"

    def load(self, round_: int) -> ClientState | None:
        """Return the state after a round; None after round 0, when it had not taken part yet."""
        if round_ == 0:
            return None
        what = f"state of client {self.client!r} after round {round_}"
        path = self._path(round_)
        if not path.exists():
            kept = ", ".join(str(number) for number in self.rounds()) or "none"
            raise StateLostError(f"{what}: is not in {self.folder} (rounds that are: {kept})")
        kept_state = state_file.read(Kept, path, FORMAT, f"{what} ({path})")
        owner = (kept_state.experiment, kept_state.client, kept_state.state.round)
        if owner != (self.experiment, self.client, round_):
            raise InputError(f"{what} ({path}): belongs to client {owner[1]!r} of {owner[0]!r} after round {owner[2]}")
        return kept_state.state

    def save(self, state: ClientState, since: int) -> None:
        """Write the state after a round that began with the state after round `since`; forget all others."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file.write(self._path(state.round), Kept(self.experiment, self.client, state), FORMAT)
        for number in self.rounds():
            if number not in (since, state.round):
                self._path(number).unlink()

    def load_anchor(self) -> Ensemble:
        """Return the initial model, which is sent only once."""
        what = f"initial model of client {self.client!r}"
        if not self._anchor.exists():
            raise StateLostError(f"{what}: is not in {self.folder}")
        return state_file.read(Ensemble, self._anchor, FORMAT, f"{what} ({self._anchor})")

    def save_anchor(self, anchor: Ensemble) -> None:
        """Keep the initial model."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file.write(self._anchor, anchor, FORMAT)

    def save_personal(self, part: PersonalPart) -> None:
        """Keep the personal part that was made at the end of a run; it is never sent."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file.write(self._personal, part, FORMAT)

    def load_personal(self) -> PersonalPart | None:
        """Return the personal part, if one was made."""
        if not self._personal.exists():
            return None
        what = f"personal part of client {self.client!r} ({self._personal})"
        return state_file.read(PersonalPart, self._personal, FORMAT, what)

    def save_gains(self, gains: Gains) -> None:
        """Keep what was found of the candidates for the personal part, until it is made."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file.write(self._gains, gains, FORMAT)

    def load_gains(self) -> Gains | None:
        """Return what was found of the candidates."""
        if not self._gains.exists():
            return None
        return state_file.read(Gains, self._gains, FORMAT, f"gains of client {self.client!r} ({self._gains})")

    def save_growth(self, growth: Growth) -> None:
        """Keep how many samples the client's file had at each step."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file.write(self._growth, growth, FORMAT)

    def load_growth(self) -> Growth | None:
        """Return how many samples the client's file had at each step so far; None before the first."""
        if not self._growth.exists():
            return None
        return state_file.read(Growth, self._growth, FORMAT, f"steps of client {self.client!r} ({self._growth})")

    def load_upload(self, round_: int) -> Mapping[str, Tensor] | None:
        """Return what was sent in a round, if it was; nothing is sent for rounds before that any more."""
        if not self._upload.exists():
            return None
        sent = state_file.read(Sent, self._upload, FORMAT, f"upload of client {self.client!r} ({self._upload})")
        if sent.round > round_:
            raise InputError(f"round = {round_}: is over, noise was drawn for round {sent.round} since")
        return sent.parts if sent.round == round_ else None

    def save_upload(self, round_: int, parts: Mapping[str, Tensor]) -> None:
        """Keep what is about to be sent."""
        state_file.write(self._upload, Sent(round_, parts), FORMAT)

    def rounds(self) -> list[int]:
        """Return the rounds of which a state is kept."""
        names = (path.name.removeprefix("round-").removesuffix(".safetensors") for path in self.folder.glob("round-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, round_: int) -> Path:
        return self.folder / f"round-{round_}.safetensors"

    @property
    def _upload(self) -> Path:
        return self.folder / "upload.safetensors"

    @property
    def _personal(self) -> Path:
        return self.folder / "personal.safetensors"

    @property
    def _gains(self) -> Path:
        return self.folder / "gains.safetensors"

    @property
    def _growth(self) -> Path:
        return self.folder / "growth.safetensors"

    @property
    def _anchor(self) -> Path:
        return self.folder / "anchor.safetensors"
