"""The server of one policy in the in-process engine: it gives sessions a slot, runs batches and draws tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from palaestra.engines.attention import LENGTH_MULTIPLE, Batch, Row, round_up
from palaestra.engines.forward import forward_of, shape_of
from palaestra.engines.sampling import draw, log_distribution, token_temperatures, uniform
from palaestra.engines.session import SessionState, Statistics
from palaestra.engines.slots import SlotStore
from palaestra.errors import EpisodeFailure

Answer = tuple[SessionState, Tensor]  # logits (vocabulary,) after a session's last id


class PolicyServer:
    """Generates with the weights of one policy.

    Args:
        name: of the policy, for messages.
        model: the causal language model. The trainer uses the same object.
        statistics: counters, shared with the engine.
        version: of the weights.
        max_sessions: most slots.
        max_length: most ids of a session; None: the context length of the model.
        chunk_tokens: most new ids in one forward pass, unless one session has more.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        *,
        statistics: Statistics,
        version: int,
        max_sessions: int,
        max_length: int | None,
        chunk_tokens: int,
    ) -> None:
        self.name, self.version, self.statistics, self.chunk_tokens = name, version, statistics, chunk_tokens
        self.length = length_of(model, max_length)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self.epoch = 0
        self._clock = 0
        self._placed: dict[int, SessionState] = {}
        weight = next(model.parameters())
        self._forward = forward_of(model, length=self.length)
        self._store = SlotStore(
            shape=shape_of(model),
            length=round_up(self.length, LENGTH_MULTIPLE),
            limit=max_sessions,
            device=weight.device,
            dtype=weight.dtype,
        )

    # ---- sessions -----------------------------------------------------------------------------------------
    def weights_changed(self, version: int) -> None:
        """Make all caches invalid, since they belong to older weights. A session is computed anew at its next use."""
        self.version = version
        self.epoch += 1
        self._store.forget_all()

    def release(self, session: SessionState) -> None:
        """Free a session's slot."""
        if session.slot is not None:
            del self._placed[session.slot]
            self._store.give(session.slot)
            session.slot, session.cached = None, 0

    @torch.inference_mode()
    def fork(self, session: SessionState) -> SessionState:
        """A new session with the same ids, and with the same keys and values if a slot is free.

        If both sessions read the same ids next, such as the answer of a tool, these are computed only once.
        """
        copied = SessionState(ids=list(session.ids), epoch=session.epoch, forked=True)
        session.forked = True
        if session.slot is not None and session.cached and self._place(copied):
            self._store.copy(session.slot, [self._slot(copied)], session.cached)
            copied.cached, copied.seen = session.cached, session.cached
        return copied

    def _place(self, session: SessionState, *, evict: bool = False) -> bool:
        """Give a session a slot, and drop a cache of older weights. Returns False, if no slot is free.

        Args:
            evict: take the slot of the idle session that was not used for the longest time.
        """
        if session.epoch != self.epoch:
            session.cached, session.epoch = 0, self.epoch
        if session.slot is None:
            session.slot = self._store.take()
        if session.slot is None and evict and self._evict():
            session.slot = self._store.take()
        if session.slot is None:
            return False
        self._placed[session.slot] = session
        self._clock += 1
        session.used = self._clock
        return True

    def _evict(self) -> bool:
        idle = [session for session in self._placed.values() if session.request is None]
        if idle:
            self.release(min(idle, key=lambda session: session.used))
        return bool(idle)

    # ---- one step -----------------------------------------------------------------------------------------
    @torch.inference_mode()
    def advance(self, sessions: Sequence[SessionState]) -> None:
        """Draw one more token for every session that has a slot or can get one. A failed session stops no other."""
        ready = [session for session in sessions if self._place(session, evict=True)]
        leaders, followers = self._split(ready)
        answers = []
        for chunk in _chunks(leaders, self.chunk_tokens):
            answers += self._compute(chunk)
        answers += self._take_over(followers)
        self._sample(self._finite(answers))

    def _split(self, sessions: Sequence[SessionState]) -> tuple[list[SessionState], list[SessionState]]:
        """Split sessions into leaders, which are computed, and followers, which copy a result.

        A follower has the same ids as another session that is cached already or computed in this step.
        """
        leaders, followers = [], []
        fresh: set[tuple[int, ...]] = set()
        for session in sessions:
            if _may_share(session):
                prompt = tuple(session.ids)
                if prompt in fresh or self._store.find(prompt):
                    followers.append(session)
                    continue
                fresh.add(prompt)
            leaders.append(session)
        return leaders, followers

    def _compute(self, sessions: Sequence[SessionState]) -> list[Answer]:
        try:
            return self._forward_batch(sessions)
        except Exception as error:
            if len(sessions) == 1:
                sessions[0].fail(self._failure(f"the forward pass failed: {type(error).__name__}: {error}"))
                return []
        # Compute the sessions one by one, so that only the faulty one fails.
        return [answer for session in sessions for answer in self._compute([session])]

    def _forward_batch(self, sessions: Sequence[SessionState]) -> list[Answer]:
        rows = []
        for session in sessions:
            # The pass overwrites the slot from here on, even if it fails.
            self._store.forget(self._slot(session), beyond=session.cached)
            rows.append(Row(self._slot(session), session.cached, session.ids[session.cached :]))
        batch = Batch(rows, self._store)
        logits = self._forward(batch)
        self.statistics.forward_calls += 1
        self.statistics.padded_tokens += len(batch.ids) - batch.real
        answers = []
        for place, index in enumerate(batch.order):
            session = sessions[index]
            answers.append((session, logits[place]))
            self._note(session, logits[place])
        return answers

    def _note(self, session: SessionState, logits: Tensor) -> None:
        statistics = self.statistics
        new = len(session.ids) - session.cached
        if session.tokens and new == 1:
            statistics.decode_tokens += 1
        else:
            statistics.prefill_tokens += new
        statistics.recomputed_tokens += max(0, session.seen - session.cached)
        if _may_share(session):
            # A view, instead of a clone, would keep the logits of the whole batch in memory.
            self._store.remember(self._slot(session), tuple(session.ids), logits.clone())
        session.cached, session.forked = len(session.ids), False
        session.seen = max(session.seen, session.cached)

    def _take_over(self, sessions: Sequence[SessionState]) -> list[Answer]:
        """Copy keys, values and logits to followers. If its leader failed, a follower is a leader in the next step."""
        copies: dict[tuple[int, int], list[int]] = {}
        answers: list[Answer] = []
        for session in sessions:
            holder = self._store.find(tuple(session.ids))
            if holder is None:
                continue
            source, logits = holder
            self.statistics.shared_tokens += len(session.ids) - session.cached
            session.cached, session.forked = len(session.ids), False
            session.seen = max(session.seen, session.cached)
            self._store.forget(self._slot(session))
            copies.setdefault((source, session.cached), []).append(self._slot(session))
            answers.append((session, logits))
        for (source, length), slots in copies.items():
            self._store.copy(source, slots, length)
        for session, logits in answers:
            self._store.remember(self._slot(session), tuple(session.ids), logits)
        return answers

    @staticmethod
    def _slot(session: SessionState) -> int:
        assert session.slot is not None
        return session.slot

    def _finite(self, answers: Sequence[Answer]) -> list[Answer]:
        """The answers with finite logits. The sessions of the other answers fail."""
        if not answers:
            return []
        good = torch.stack([logits for _, logits in answers]).isfinite().all(-1).tolist()
        for (session, _), fine in zip(answers, good, strict=True):
            if not fine:
                self._store.wipe(self._slot(session))
                session.cached = 0
                session.fail(self._failure("the model's logits are not finite", "The weights have diverged."))
        return [answer for answer, fine in zip(answers, good, strict=True) if fine]

    def _sample(self, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        requests = [session.current for session, _ in answers]
        logits = torch.stack([logits for _, logits in answers])
        temperature, entropy = token_temperatures(
            logits,
            temperature=[request.temperature for request in requests],
            entropy_temperature=[request.entropy_temperature for request in requests],
        )
        logprobs = log_distribution(
            logits,
            temperature=temperature,
            top_k=[request.top_k for request in requests],
            top_p=[request.top_p for request in requests],
        )
        uniforms = uniform([request.seed for request in requests], [len(session.tokens) for session, _ in answers])
        drawn = draw(logprobs, uniforms, entropy=any(request.entropy for request in requests))
        entropies = [None] * len(answers) if drawn.entropy is None else drawn.entropy.tolist()
        rows = zip(answers, drawn.tokens.tolist(), drawn.logprobs.tolist(), entropies, entropy, strict=True)
        for (session, _), token, logprob, sampled, before in rows:
            known = sampled if before is None else before
            session.accept(token, logprob, known, version=self.version, length=self.length)
        self.statistics.sampled_tokens += len(answers)

    def _failure(self, what: str, remedy: str = "") -> EpisodeFailure:
        where = f"in-process engine, policy `{self.name}`, version {self.version}"
        return EpisodeFailure(boundary="engine", where=where, what=f"{what}.", remedy=remedy)


def length_of(model: PreTrainedModel, max_length: int | None) -> int:
    """The most ids of a session: the context length of the model (1024, if it declares none), or `max_length`."""
    context = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1024)
    return min(max_length or context, context)


def _may_share(session: SessionState) -> bool:
    """Whether another session may have the same ids: before the first response, and after a fork."""
    return session.cached == 0 or session.forked


def _chunks(sessions: Sequence[SessionState], limit: int) -> Iterator[list[SessionState]]:
    """Put sessions into chunks of at most `limit` new ids. A single session with more is a chunk of its own."""
    chunk: list[SessionState] = []
    count = 0
    for session in sessions:
        new = len(session.ids) - session.cached
        if chunk and count + new > limit:
            yield chunk
            chunk, count = [], 0
        chunk.append(session)
        count += new
    if chunk:
        yield chunk
