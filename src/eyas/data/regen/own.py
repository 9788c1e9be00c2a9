"""Answers from the own engine, in this process: a batch that is kept full, and token ids exactly as sampled."""

from __future__ import annotations

from collections import deque

from pydantic import JsonValue

from eyas.contract.schema import Rendering
from eyas.corpus.rendering import THINK_CLOSE, THINK_OPEN, Renderer
from eyas.data.regen.repetition import first_repeat
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import AnswerSource, Ask, Failure, Reply
from eyas.data.regen.turns import message_of
from eyas.engine.request import Request
from eyas.engine.session import Session
from eyas.errors import EyasError

DEFAULT_BATCH = 32
PROMPT_ROOM = 512
"""Cache slots of each request beyond its answer, on average, where no number is given."""


class OwnEngine(AnswerSource):
    """One :class:`~eyas.engine.engine.Engine` without a draft: at these batch sizes the target alone fills the machine.

    A conversation's next turn finds the rows of the last one in the engine's prefix cache.
    """

    def __init__(
        self,
        session: Session,
        facts: dict[str, JsonValue],
        settings: RegenSettings,
        batch: int = DEFAULT_BATCH,
        num_slots: int | None = None,
    ) -> None:
        """``facts``: what identifies the target, its tokenizer and its template. ``num_slots``: tokens in the cache,
        over the whole batch; each request holds its prompt's and ``max_new_tokens``.

        Raises ``flags.range``, ``tokenizer.chat-template``, ``rendering.thinking``.
        """
        rendering = Rendering(thinking=settings.thinking, system_prompt="per-conversation", system_prompt_text=None)
        self.session, self.settings, self.capacity = session, settings, batch
        self.renderer = Renderer(session.tokenizer, rendering, session.eos_ids)
        room = min(settings.max_new_tokens + PROMPT_ROOM, session.target.max_positions)
        self.engine = session.engine(None, num_slots or batch * room)
        self.engine.scheduler.max_running = batch
        self._thinks = THINK_CLOSE in session.tokenizer.get_added_vocab()
        self._facts = facts
        self._open: dict[Request, tuple[Ask, bool]] = {}
        self._failed: deque[Failure] = deque()
        self._ended_tokens = 0

    @property
    def tokens(self) -> int:
        return self._ended_tokens + sum(len(request.answer) for request in self._open)

    def identity(self) -> dict[str, JsonValue]:
        target = self.session.target
        names = [str(dtype).removeprefix("torch.") for dtype in (target.dtype, target.embedding().dtype)]
        weights = target.backend.quantisation or names[1]
        # Activations stay fp32 where weights are bf16 or int8.
        kept: dict[str, JsonValue] = {} if weights == names[0] else {"weights": weights}
        return {"kind": "engine", "dtype": names[0], **kept, **self._facts}

    def unfit(self, ask: Ask) -> Failure | None:
        try:
            self._check(self._prompt_ids(ask))
        except EyasError as error:
            return _failure(ask, error)
        return None

    def submit(self, ask: Ask) -> None:
        try:
            text = self.renderer.prompt_text(ask.messages, ask.tools, ask.thinking)
            ids = self.renderer.encode(text)
            self._check(ids)
        except EyasError as error:
            self._failed.append(_failure(ask, error))
            return
        request = self.engine.submit(ids, self.settings.sampling(ask.temperature, ask.seed))
        self._open[request] = ask, text.rstrip().endswith(THINK_OPEN)

    def wait(self) -> list[Reply | Failure]:
        failed = list(self._failed)
        self._failed.clear()
        if not self._open:
            return [*failed]
        ended = self.engine.step()
        replies = [self._reply(request, len(request.answer)) for request in ended]
        for request in list(self._open):
            cut = first_repeat(request.answer, max(len(request.answer) - 1, 0))
            if cut is not None:
                self.engine.abort(request)
                replies.append(self._reply(request, cut))
        return [*failed, *replies]

    def close(self) -> None:
        for request in self._open:
            self.engine.abort(request)
        self._open.clear()

    def _prompt_ids(self, ask: Ask) -> list[int]:
        return self.renderer.prompt_ids(ask.messages, ask.tools, ask.thinking)

    def _check(self, ids: list[int]) -> None:
        context, slots = self.session.target.max_positions, len(self.engine.pool.references)
        if len(ids) >= context:
            cause = f"the prompt has {len(ids)} tokens, and the context {context}"
            raise EyasError("request.too-long", cause, "shorten the prompt")
        needed = min(len(ids) + self.settings.max_new_tokens, context) + 1
        if needed > slots:
            cause = f"the prompt of {len(ids)} tokens and its answer need {needed} cache slots; there are {slots}"
            raise EyasError("request.too-long", cause, "give more --slots")

    def _reply(self, request: Request, length: int) -> Reply:
        ask, opened = self._open.pop(request)
        ids = tuple(request.answer[:length])
        self._ended_tokens += len(ids)
        stopped = request.finished == "stop"
        text = self.session.tokenizer.decode(
            list(ids[:-1] if stopped else ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        message = message_of(str(text), thinks=self._thinks, opened=opened, may_call=bool(ask.tools))
        finish = "tool_calls" if stopped and message.get("tool_calls") else request.finished
        assert finish is not None
        return Reply(ask, message, ids, "repetition" if finish == "abort" else finish)


def _failure(ask: Ask, error: EyasError) -> Failure:
    return Failure(ask, "too-long" if error.code == "request.too-long" else "refused", error.cause)
