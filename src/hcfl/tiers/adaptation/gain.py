"""HCFL++ (our own): split clusters where two heads serve both parts better, merge where one head does, move clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import log, log10
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.contradiction import SplitOnContradiction, members_of, without_company
from hcfl.tiers.adaptation.decision import (
    Block,
    Decision,
    MergeDecision,
    MoveDecision,
    SoftRule,
    SplitDecision,
    cluster_blocks,
    moves,
)
from hcfl.tiers.adaptation.split import smaller_part
from hcfl.tiers.conflict import Directions, contradictions, dissents
from hcfl.tiers.cuts import SOURCES
from hcfl.tiers.habits import HABITS, Habits
from hcfl.tiers.head_gain import (
    ClassMeans,
    Heads,
    Measured,
    better_cut,
    chance,
    cross_fitted,
    measured,
    serves_both,
)
from hcfl.tiers.participants import Participants, Statistic

ODDS = log(20)
"""How much more likely another cluster must make a client's samples before the client moves there."""


EVERY = 5
"""From this round on, gains are looked at every so many rounds: they cost more than the rest of the server's work."""

WORTH = 0.1
"""Which share of the loss two heads must take away: with less, it is not worth that each head has fewer
samples to learn from."""


AS_MANY = 0.5
"""The p-value at which as many clients lose by two heads as gain."""


@dataclass(frozen=True)
class SplitOnGain:
    """Split a cluster where two heads serve both parts better than one, or where the parts contradict each other.

    - **Gain**: held-out likelihood of two heads against one (`head_gain`), tested over clients in the first five rounds
      and then in every fifth. `level` is the probability that this test splits anything in a run although nothing
      differs: it is divided among these rounds, and in each among the cuts looked at.
    - **Contradiction**, by `rho`, as in `SplitOnContradiction`: it sees relabelled classes with few clients, too. With
      few samples, and for bins of numbers, whose prototypes lie on a line, noise looks like a contradiction. So it must
      also repeat: groups that one half of all samples proposes must make the other half likelier, 1/`level` to 1,
      divided among rounds, clusters and sources of cuts.
    - **Habits**: where two groups tell more of a label than the inputs ever did (`habits`), by the same test with a
      level of its own. As long as such groups are there, P_k(y) is not divided out (`HABITS` in the server's memory),
      and only E-steps move clients, since prototypes do not see how common a class is.

    What was split is merged only on evidence: where the prototypes do not contradict each other by ρ/2, and more of the
    same clients lose than gain by two heads. (While φ learns to see both parts alike, the gain shrinks, and one head is
    no better yet.) In rounds without split and merge, clients move that contradict their cluster, and clients both
    halves of whose samples another cluster makes more likely, so that E-steps cannot undo a split that still pays;
    so do clients that are left alone in their cluster.
    There is one split or merge per round; clusters without clients are removed. `rule` says what a split does to
    weights. Where clients send no halves, because of noise, `SplitOnContradiction` alone decides.
    """

    level: float = 0.05
    rho: float = 0.4
    rule: SoftRule = "lean"
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = "half prototypes"
    splits: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.level < 0.5:
            raise InputError(f"level = {self.level}: must be greater than 0 and less than 0.5")
        if not self.rho > 0:
            raise InputError(f"rho = {self.rho}: must be greater than 0")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Merge two clusters that nothing keeps apart, if there are any; else split one; else move clients."""
        assert distance is not None
        assert participants.prototypes is not None
        contradiction = SplitOnContradiction(self.rho, self.rule)
        if participants.halves is None:
            return contradiction.decide(participants, distance, occupied)
        empty = tuple(torch.nonzero(~occupied).flatten().tolist())
        known = measured(participants.prototypes, participants.halves)
        directions = Directions.of(participants.prototypes)
        look = looks(participants.round)
        habits, apart = None, HABITS in participants.memory
        if look:
            habits = Habits.of(participants.prototypes, participants.halves, participants.members, participants.memory)
            apart = self._apart(participants, habits, occupied)
            if merge := self._merge(participants, known, directions, habits):
                return Decision(remove=empty, merges=(merge,), memory=habits.remembered(apart))
        split = contradiction.split(participants, directions, distance, self._repeats(participants, known))
        if habits and not split:
            split = self._split(participants, known, distance, look)
        if habits and not split and (split := self._split_by_habits(participants, habits, distance, look)):
            apart = True
        memory = None if habits is None else habits.remembered(apart)
        if split or apart:
            return Decision((split,) if split else (), empty, memory=memory)
        dissenting = contradiction.moves(participants, directions)
        named = {move.client for move in dissenting}
        likelier = tuple(move for move in self._moves(participants, known, directions) if move.client not in named)
        return Decision(remove=empty, moves=dissenting + likelier, memory=memory)

    def threshold(self, look: int, looked_at: int) -> float:
        """Return the p-value below which a look splits one of the cuts looked at; `level` in all looks together."""
        return self.level / (look * (look + 1) * looked_at)

    def _repeats(self, participants: Participants, known: Measured) -> Callable[[Block], bool]:
        """Whether samples that did not propose two groups of a cluster bear them out."""
        looked_at = len(SOURCES) * len(set(participants.members.tolist()))
        needed = -log(self.threshold(max(participants.round, 1), looked_at))

        def repeats(block: Block) -> bool:
            inside = known.of(block.rows)
            return any(cross_fitted(inside, propose).repeated >= needed for propose in SOURCES.values())

        return repeats

    def _split(self, participants: Participants, known: Measured, distance: Tensor, look: int) -> SplitDecision | None:
        """Find the cut with the smallest p-value among all clusters and sources."""
        blocks = cluster_blocks(participants, distance).values()
        threshold = self.threshold(look, max(1, len(SOURCES) * len(blocks)))
        found, least = None, threshold
        for block in blocks:
            inside = known.of(block.rows)
            for propose in SOURCES.values():
                gain = cross_fitted(inside, propose)
                value = chance(gain.each)
                if value >= least or gain.share < WORTH:
                    continue
                second = better_cut(inside.all, propose(inside.all))
                if serves_both(gain.each, second):
                    parts = smaller_part(second.long().numpy())
                    found = block.split(
                        parts, self.rule, evidence(value), mean=gain.share, threshold=evidence(threshold)
                    )
                    least = value
        return found

    def _split_by_habits(
        self, participants: Participants, habits: Habits, distance: Tensor, look: int
    ) -> SplitDecision | None:
        """Find the cluster with the smallest p-value, of those whose two groups tell more of a label than inputs do."""
        blocks = cluster_blocks(participants, distance).values()
        threshold = self.threshold(look, max(1, len(blocks)))
        found, least = None, threshold
        for block in blocks:
            gain = habits.gain(block.rows)
            value = chance(gain.each)
            if value >= least or gain.share < WORTH or not habits.tell_more(gain):
                continue
            second = habits.cut(block.rows)
            if serves_both(gain.each, second):
                parts = smaller_part(second.long().numpy())
                found = block.split(parts, self.rule, evidence(value), mean=gain.share, threshold=evidence(threshold))
                least = value
        return found

    def _apart(self, participants: Participants, habits: Habits, occupied: Tensor) -> bool:
        """Whether habits keep two clusters apart; as before, where a cluster has no two participants to tell it by."""
        _, inside = members_of(participants)
        several = inside[inside.sum(dim=1) > 1]
        if any(self._two_apart(habits, one, other) for one, other in combinations(several, 2)):
            return True
        return habits.known and len(several) < int(occupied.sum())

    def _two_apart(self, habits: Habits, one: Tensor, other: Tensor) -> bool:
        """Whether habits keep two clusters apart, from their members (participants,).

        Where habits are known, half of what splits is enough, so that clusters do not split and merge in turn.
        """
        rows = torch.nonzero(one | other).flatten()
        second = other[rows]
        gain = habits.gain(rows, lambda _: second)
        if habits.known:
            return 2 * float(gain.each.mean()) > habits.inputs and chance(gain.each) < AS_MANY
        return habits.tell_more(gain) and chance(gain.each) < self.level

    def _merge(
        self, participants: Participants, known: Measured, directions: Directions, habits: Habits
    ) -> MergeDecision | None:
        """Find the two clusters whose clients gain least surely by two heads, of those that can be compared."""
        clusters, inside = members_of(participants)
        scores = contradictions(directions, inside).cpu()
        agree = scores.isfinite() & (scores < self.rho / 2)
        found, most = None, AS_MANY
        for one, other in combinations(range(len(clusters)), 2):
            rows = torch.nonzero(inside[one] | inside[other]).flatten()
            second = inside[other][rows]
            value = chance(cross_fitted(known.of(rows), partial(_same, second)).each) if agree[one, other] else 0.0
            if value > most and not self._two_apart(habits, inside[one], inside[other]):
                into, gone = (one, other) if inside[one].sum() >= inside[other].sum() else (other, one)
                numbers = evidence(value), evidence(AS_MANY)
                found, most = MergeDecision(int(clusters[into]), int(clusters[gone]), *numbers), value
        return found

    def _moves(self, participants: Participants, known: Measured, directions: Directions) -> tuple[MoveDecision, ...]:
        """Find the clients whose samples another cluster makes more likely than their own: both halves must say so.

        None moves to a cluster that it contradicts more than its own, or it would be moved back and forth. A client
        without company has no cluster to lose: its samples need not be 20 times as likely elsewhere, ρ/2 takes the
        place of what it contradicts, and only clusters of several clients are asked.
        """
        clusters, inside = members_of(participants)
        alone = without_company(participants)
        heads, own = Heads.of(known.all, inside), inside.long().argmax(dim=0)
        scores = torch.stack(
            [heads.log_likelihood(half) * half.counts.sum(dim=1, keepdim=True) for half in known.halves]
        )
        scores = scores.masked_fill(alone.unsqueeze(1) & inside[:, alone].any(dim=1) & ~inside.T, -torch.inf)
        best = scores.sum(dim=0).argmax(dim=1)
        here, there = (scores.gather(2, at.expand(2, -1).unsqueeze(2)).squeeze(2) for at in (own, best))
        likelier = (there > here).all(dim=0) & (alone | ((there - here).sum(dim=0) > ODDS))
        dissent = dissents(directions, inside).cpu().masked_fill(alone.unsqueeze(1) & inside.T, self.rho / 2)
        agrees = dissent.gather(1, best.unsqueeze(1)) <= dissent.gather(1, own.unsqueeze(1))
        return moves(participants, clusters[best], likelier & agrees.squeeze(1))


def looks(round_: int) -> int:
    """Return how many rounds have looked at gains, this one included; 0: this one does not.

    >>> [looks(round_) for round_ in (1, 2, 5, 6, 9, 10, 15)]
    [1, 2, 5, 0, 0, 6, 7]
    """
    if round_ <= EVERY:
        return max(round_, 1)
    return 0 if round_ % EVERY else EVERY + round_ // EVERY - 1


def evidence(probability: float) -> float:
    """Return −log10 of a p-value: so many zeros after the point."""
    return -log10(max(probability, 1e-300))


def _same(cut: Tensor, _: ClassMeans) -> Tensor:
    """Propose a cut that is known already."""
    return cut
