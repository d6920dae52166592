"""The scheduler of one policy's requests. `InProcessEngine` calls it: it gives sessions blocks, and draws tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from palaestra.engines.attention import Batch, DecodePlan, Row
from palaestra.engines.blocks import BLOCK, BlockStore, Prompt, chain_of, key_of
from palaestra.engines.forward import forward_of, shape_of
from palaestra.engines.graphs import DecodeGraphs, can_record
from palaestra.engines.heap import give_back
from palaestra.engines.pictures import Pictures
from palaestra.engines.sampling import sample, token_temperatures, uniform
from palaestra.engines.session import SessionState, Statistics
from palaestra.errors import EpisodeFailure
from palaestra.models.attention import context_of
from palaestra.models.pictures import reads_pictures
from palaestra.models.products import is_large

# Graphs read one arena, so it is larger where they are used: this share of the limit.
FIRST_SHARE = 0.25
PATIENCE = 64  # steps; a session that was idle for so long gives way to any other
Answers = tuple[Sequence[SessionState], Tensor]  # logits (sessions, vocabulary) after each session's last id


class PolicyServer:
    """Generates with the weights of one policy.

    Args:
        name: of the policy, for messages.
        model: the causal language model. The trainer uses the same object.
        statistics: counters, shared with the engine.
        version: of the weights.
        memory: the most bytes of keys and values.
        max_sessions: most sessions whose keys and values are kept; None: any number.
        max_length: most ids of a session; None: the context length of the model.
        chunk_tokens: most new ids in one forward pass, at least 64. A longer prompt is read in several passes, one in
            each step. While a session decodes, a step reads at most so many ids of the prompts of all others.
        share: take keys and values of equal ids from other sessions, instead of computing them.
        graphs: on a GPU, replay steps in which all sessions decode.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        *,
        statistics: Statistics,
        version: int,
        memory: int,
        max_sessions: int | None,
        max_length: int | None,
        chunk_tokens: int,
        share: bool,
        graphs: bool,
    ) -> None:
        self.name, self.version, self.statistics, self.chunk_tokens = name, version, statistics, chunk_tokens
        self.share = share
        self.length = length_of(model, max_length)
        self.reads_pictures = reads_pictures(model)
        self._large = is_large(model)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self.max_sessions = max_sessions
        self._steps = self._births = 0
        self._plan: DecodePlan | None = None
        self._placed: dict[SessionState, None] = {}
        weight = next(model.parameters())
        self._forward = forward_of(model, length=self.length)
        self._pictures = Pictures(model)
        replays = graphs and can_record(weight.device)
        self.store = BlockStore(
            shape=shape_of(model),
            limit=memory,
            device=weight.device,
            dtype=weight.dtype,
            statistics=statistics,
            first_share=FIRST_SHARE if replays else 0.0,
        )
        self._graphs = DecodeGraphs(self._forward, self.store) if replays else None

    # ---- sessions -----------------------------------------------------------------------------------------
    def weights_changed(self, version: int) -> None:
        """Make all caches invalid, since they belong to older weights. A session is computed anew at its next use."""
        self.version = version
        self.read_weights()
        self.sleep()

    def read_weights(self) -> None:
        """Compute with the present weights from now on, but keep what is cached."""
        self._forward.weights_changed()
        if self._graphs is not None:
            self._graphs.forget()

    def sleep(self) -> None:
        """Drop all keys and values and copies of weights, and free their memory."""
        for session in self._placed:
            session.blocks, session.cached, session.whole = [], 0, 0
        self._placed.clear()
        self._plan = None
        self._pictures.forget()
        if self._graphs is not None:
            self._graphs.forget()
        self.store.clear()
        self._forward.rest()
        if self._large:
            give_back()

    def release(self, session: SessionState) -> None:
        """Give a session's blocks back."""
        if session in self._placed:
            del self._placed[session]
            self.store.give(session.blocks)
        session.blocks, session.cached, session.whole = [], 0, 0

    def fork(self, session: SessionState) -> SessionState:
        """A new session with the same ids, which shares the keys and values.

        If both sessions read the same ids next, such as the answer of a tool, these are computed only once.
        """
        copied = SessionState(ids=list(session.ids), pictures=session.pictures, forked=True)
        session.forked = True
        if session.cached and self._place(copied):
            self._adopt(copied, session.blocks, session.cached, session.whole)
            copied.seen = session.cached
        return copied

    def _place(self, session: SessionState) -> bool:
        """Let a session have blocks. Returns False, if `max_sessions` other ones have some."""
        if session not in self._placed:
            if self.max_sessions is not None and len(self._placed) >= self.max_sessions:
                return False
            self._placed[session] = None
        session.used = self._steps
        return True

    def _adopt(self, session: SessionState, blocks: Sequence[int], cached: int, whole: int) -> None:
        """Let a session hold blocks whose first `cached` ids are its own."""
        self.store.hold(blocks)
        self.store.give(session.blocks)
        session.blocks, session.cached, session.whole = list(blocks), cached, whole

    def _yield_to(self, session: SessionState) -> bool:
        """Release another session. Returns False, if this one has to wait instead.

        Sessions that have been idle for long give way first, then younger ones, the youngest first. An older one that
        has just got its response stays, since its next request comes soon. Otherwise, where memory is short, every
        session would be computed anew in every turn. It gives way if no older one is at work, so there is progress.
        """
        others = [one for one in self._placed if one is not session and (one.blocks or self.max_sessions is not None)]
        victim = min((one for one in others if one.request is None), key=lambda one: one.used, default=None)
        if victim is None or self._steps - victim.used < PATIENCE:
            youngest = max(others, key=lambda one: one.born, default=session)
            if youngest.born > session.born:
                victim = youngest
            elif any(one.request is not None for one in others):
                return False
        if victim is None:
            return False
        self.release(victim)
        self.statistics.evictions += 1
        return True

    def _reserve(self, session: SessionState) -> bool:
        """Give a session the blocks of its next pass. Returns False, if it has to wait."""
        while not self._extend(session):
            if not self._yield_to(session):
                return False
        return True

    def _extend(self, session: SessionState) -> bool:
        """Take blocks for all ids of a session; what it writes to is then its own. False: the store is full."""
        store, blocks = self.store, session.blocks
        kept = -(-session.cached // BLOCK)
        store.give(blocks[kept:])
        del blocks[kept:]
        if session.cached % BLOCK:
            if store.is_shared(blocks[-1]):
                block = store.take()
                if block is None:
                    return False
                store.copy(blocks[-1], block)
                store.give(blocks[-1:])
                blocks[-1] = block
            else:
                store.forget(blocks[-1], beyond=session.cached)
        while len(blocks) * BLOCK < len(session.ids):
            block = store.take()
            if block is None:
                return False
            blocks.append(block)
        return True

    # ---- one step -----------------------------------------------------------------------------------------
    @torch.inference_mode()
    def advance(self, sessions: Sequence[SessionState]) -> None:
        """Draw one more token for every session that has memory or can get it. A failed session stops no other.

        If a step raises, each session has a step of its own, so that only the faulty one fails. What a session computes
        and draws does not depend on the others, so their numbers are the same.

        Args:
            sessions: with requests in progress, in order of arrival. An older session never waits for a younger one.
        """
        try:
            self._step(sessions)
        except Exception as error:
            left = [session for session in sessions if not session.done]
            for session in left:
                self._discard(session)  # half a step may lie in its blocks
            if len(sessions) > 1:
                for session in left:
                    self.advance([session])
            elif left:
                left[0].fail(self._failure(f"a step failed: {type(error).__name__}: {error}"))

    def _step(self, sessions: Sequence[SessionState]) -> None:
        self._steps += 1
        for session in sessions:
            if not session.born:
                self._births += 1
                session.born = self._births
        answers: list[Answers] = []
        by_age = sorted(sessions, key=lambda session: session.born)
        placed = [one for one in by_age if self._place(one) or (self._yield_to(one) and self._place(one))]
        waiting = [session for session in placed if session in self._placed]
        share = _Share(self.chunk_tokens if any(session.decodes for session in waiting) else None)
        leading: set[bytes] = set()
        while waiting:
            leaders, waiting = self._split(waiting, answers, leading)
            if not leaders:
                break  # what the others wait for comes in a later step
            # An older session may take the blocks of a younger one that has just got them.
            ready = [one for one in leaders if share.takes(one) and one in self._placed and self._reserve(one)]
            for chunk in _chunks([session for session in ready if session in self._placed], self.chunk_tokens):
                answers += self._compute(chunk)
            waiting = [session for session in waiting if session in self._placed]
        self.store.forget_old_prompts()
        alone = [answer for answer in answers if len(answer[0]) == 1]
        if len(alone) > 1:
            together = [answer[0][0] for answer in alone], torch.cat([logits for _, logits in alone])
            answers = [*(answer for answer in answers if len(answer[0]) > 1), together]
        for answered, logits in answers:
            self._sample(answered, logits)

    def _split(
        self, sessions: Sequence[SessionState], answers: list[Answers], fresh: set[bytes]
    ) -> tuple[list[SessionState], list[SessionState]]:
        """Split sessions into those to compute now, and those that can share what these compute.

        A session whose ids are all computed already gets its answer at once. Others take over the leading blocks that
        are known.

        Args:
            fresh: what the sessions to compute in this step are about to compute. It gets what is added to that.
        """
        leaders, later = [], []
        for session in sessions:
            if not self._may_share(session):
                leaders.append(session)
                continue
            contents = session.contents
            key = key_of(contents)
            prompt = self.store.find(key)
            if prompt is not None:
                self.statistics.shared_tokens += prompt.length - session.cached
                self._adopt(session, prompt.blocks, prompt.length, prompt.whole)
                session.forked, session.seen = False, max(session.seen, prompt.length)
                answers.append(([session], prompt.logits[None]))
                continue
            # The last id is always computed: its logits are needed.
            chain = chain_of(contents[:-1])
            if session.cached == BLOCK * session.whole:
                known = self.store.leading(chain)
                if len(known) > session.whole:
                    self.statistics.shared_tokens += BLOCK * len(known) - session.cached
                    self._adopt(session, known, BLOCK * len(known), len(known))
                    session.seen = max(session.seen, session.cached)
            new = {key, *chain[session.whole :]} if session.cached == BLOCK * session.whole else {key}
            if key in fresh or (session.whole < len(chain) and chain[session.whole] in fresh and len(new) > 1):
                later.append(session)
            else:
                fresh |= new
                leaders.append(session)
        return leaders, later

    def _may_share(self, session: SessionState) -> bool:
        """Whether another session may have the same ids: before the first response, and after a fork."""
        begins = session.cached == BLOCK * session.whole and not session.tokens
        return self.share and (session.cached == 0 or session.forked or begins)

    def _compute(self, sessions: Sequence[SessionState]) -> list[Answers]:
        """Compute the new ids of these sessions, or of one long prompt the next piece, which has no answer."""
        try:
            if len(sessions) == 1 and self._read_ahead(sessions[0]):
                return []
            logits = self._forward_batch(sessions)
        except Exception as error:
            if len(sessions) == 1:
                sessions[0].fail(self._failure(f"the forward pass failed: {type(error).__name__}: {error}"))
                return []
            # Compute the sessions one by one, so that only the faulty one fails.
            return [answer for session in sessions for answer in self._compute([session])]
        for session, row in zip(sessions, logits, strict=True):
            self._note(session, row)
        return [(sessions, logits)]

    def _read_ahead(self, session: SessionState) -> bool:
        """Compute a piece of a prompt that has more than `chunk_tokens` new ids. Returns False for any other prompt.

        A piece ends with a block, so the numbers are those of one pass. Between two pieces, other sessions decode.
        """
        end = (session.cached // BLOCK + max(1, self.chunk_tokens // BLOCK)) * BLOCK
        if len(session.ids) - session.cached <= self.chunk_tokens or end >= len(session.ids):
            return False
        new = session.ids[session.cached : end]
        inserted = self._pictures.inserted(session)
        self._forward_rows([Row(session.blocks[: end // BLOCK], session.cached, new, inserted)])
        self.statistics.prefill_tokens += end - session.cached
        self.statistics.recomputed_tokens += max(0, min(session.seen, end) - session.cached)
        if self.share and session.cached == BLOCK * session.whole:
            session.whole = self._note_blocks(session, end // BLOCK)
        session.cached, session.seen = end, max(session.seen, end)
        return True

    def _note_blocks(self, session: SessionState, stop: int) -> int:
        """Let others share the blocks up to `stop`, which were computed in whole pieces. Returns `stop`."""
        chain = chain_of(session.contents[: stop * BLOCK])
        for place in range(session.whole, stop):
            self.store.note(session.blocks[place], chain[place])
        return stop

    def _forward_batch(self, sessions: Sequence[SessionState]) -> Tensor:
        rows = [
            Row(session.blocks, session.cached, session.ids[session.cached :], self._pictures.inserted(session))
            for session in sessions
        ]
        return self._forward_rows(rows)

    def _forward_rows(self, rows: Sequence[Row]) -> Tensor:
        """Logits (rows, vocabulary) after the last id of each row."""
        self.statistics.forward_calls += 1
        replayed = None if self._graphs is None else self._graphs.compute(rows)
        if replayed is not None:
            self.statistics.replayed_calls += 1
            return replayed
        batch = Batch(rows, self.store, self._plan)
        self._plan = batch.plan
        logits = self._forward(batch)
        self.statistics.padded_tokens += len(batch.ids) - batch.real
        return logits

    def _note(self, session: SessionState, logits: Tensor) -> None:
        statistics = self.statistics
        new = len(session.ids) - session.cached
        if session.tokens and new == 1:
            statistics.decode_tokens += 1
        else:
            statistics.prefill_tokens += new
        statistics.recomputed_tokens += max(0, session.seen - session.cached)
        share, full = self._may_share(session), len(session.ids) // BLOCK
        if self.share and session.cached == BLOCK * session.whole and full > session.whole:
            session.whole = self._note_blocks(session, full)
        if share:
            prompt = Prompt(tuple(session.blocks), session.whole, len(session.ids), logits)
            self.store.remember(key_of(session.contents), prompt)
        session.cached, session.forked = len(session.ids), False
        session.seen = max(session.seen, session.cached)

    def _discard(self, session: SessionState) -> None:
        """Give blocks back that may hold numbers that are not finite. Nobody may share them."""
        for block in session.blocks:
            self.store.forget(block)
        self.release(session)

    def _sample(self, sessions: Sequence[SessionState], logits: Tensor) -> None:
        """Draw a token for each session. Those whose logits are not finite, or that cannot be drawn, fail."""
        try:
            rows = self._drawn(sessions, logits)
        except Exception as error:
            if len(sessions) == 1:
                sessions[0].fail(self._failure(f"the draw of a token failed: {type(error).__name__}: {error}"))
                return
            for place, session in enumerate(sessions):
                self._sample([session], logits[place : place + 1])
            return
        for session, (token, logprob, entropy) in zip(sessions, rows, strict=True):
            if not math.isfinite(logprob):
                self._discard(session)
                session.fail(self._failure("the model's logits are not finite", "The weights have diverged."))
                continue
            session.accept(token, logprob, entropy, version=self.version, length=self.length)
            self.statistics.sampled_tokens += 1

    def _drawn(self, sessions: Sequence[SessionState], logits: Tensor) -> list[tuple[int, float, float | None]]:
        """The next token of each session, its log-probability, and its entropy if one was asked for."""
        requests = [session.current for session in sessions]
        temperature, entropy = token_temperatures(
            logits,
            temperature=[request.temperature for request in requests],
            entropy_temperature=[request.entropy_temperature for request in requests],
        )
        drawn = sample(
            logits,
            uniform([request.seed for request in requests], [len(session.tokens) for session in sessions]),
            temperature=temperature,
            top_k=[request.top_k for request in requests],
            top_p=[request.top_p for request in requests],
            entropy=any(request.entropy for request in requests),
        )
        entropies = [None] * len(sessions) if drawn.entropy is None else drawn.entropy.tolist()
        known = [sampled if before is None else before for sampled, before in zip(entropies, entropy, strict=True)]
        return list(zip(drawn.tokens.tolist(), drawn.logprobs.tolist(), known, strict=True))

    def _failure(self, what: str, remedy: str = "") -> EpisodeFailure:
        where = f"in-process engine, policy `{self.name}`, version {self.version}"
        return EpisodeFailure(boundary="engine", where=where, what=f"{what}.", remedy=remedy)


def length_of(model: PreTrainedModel, max_length: int | None) -> int:
    """The most ids of a session: those of `context_of`, or `max_length`."""
    context, _ = context_of(model.config.get_text_config())
    return min(max_length or context, context)


class _Share:
    """The share of a step that the prompts have.

    Args:
        most: ids of all prompts together; None: any number, since no session decodes and would wait for them. The first
            prompt is read in any case.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self._used = most, 0

    def takes(self, session: SessionState) -> bool:
        """Whether the session is computed in this step. Call it for older sessions first."""
        if self._most is None or session.decodes:
            return True
        new = min(len(session.ids) - session.cached, self._most)
        if self._used and self._used + new > self._most:
            return False
        self._used += new
        return True


def _chunks(sessions: Sequence[SessionState], limit: int) -> Iterator[list[SessionState]]:
    """Put sessions into chunks of at most `limit` new ids. A session with more is a chunk of its own."""
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
