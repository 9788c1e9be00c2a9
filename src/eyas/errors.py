"""Errors that a user can cause: a stable code, the cause, and the fix."""

from __future__ import annotations

# One line per code: what is wrong in general. Codes never change their meaning; docs/errors.md is generated from here.
CODES: dict[str, str] = {
    "flags.contradiction": "Two flags ask for different things",
    "flags.range": "A flag's value is outside what it can mean",
    "flags.unknown": "A setting is not known",
    "pull.unknown-source": "The name is no built-in, hub id, folder, GGUF file or prompt set",
    "pull.hash-mismatch": "A fetched file is not the file that was expected",
    "pull.no-network": "A source could not be reached",
    "pull.disk-full": "Too little free disk space",
    "pull.no-access": "A source asks for a login or for its licence to be accepted",
    "pull.no-pip": "pip, which fetches packages, is not installed in this environment",
    "pull.package-layout": "A package does not hold the file it should hold",
    "artifact.missing": "A file or folder that should be there is not",
    "artifact.not-writable": "A file or folder may not be written",
    "artifact.corrupt": "A file is cut off or not what its name says",
    "artifact.pickle": "A file is a pickle, which can run code when it is read",
    "gguf.unsupported": "A GGUF file of a kind that cannot be converted",
    "model.unknown-architecture": "No definition for this model architecture",
    "model.config": "A model's config lacks a key or contradicts itself",
    "model.tensor-missing": "A checkpoint lacks a tensor",
    "model.tensor-unknown": "A checkpoint holds a tensor that the model does not have",
    "model.tensor-shape": "A checkpoint's tensor has the wrong shape",
    "model.nonfinite": "A model gave NaN or infinity",
    "tokenizer.chat-template": "The tokenizer has no chat template",
    "request.too-long": "The prompt does not fit into the context",
    "request.empty": "The request has no tokens",
    "request.sampling": "A sampling parameter is outside its range",
    "engine.not-lossless": "Speculative output differs from plain decoding beyond a proven tie",
    "engine.cache-full": "The key/value cache is too small for the request",
    "taps.duplicate": "A tap is named twice",
    "taps.range": "A tap lies outside 0 … L",
    "taps.too-shallow": "The target has too few layers for the default taps",
    "taps.unrepresentable": "A tap cannot be named in this layer convention",
    "draft.config": "A draft's config lacks a key or contradicts itself",
    "draft.target-mismatch": "The draft belongs to another target",
    "draft.vocab-map": "The draft's vocabulary map is absent or wrong",
    "draft.dialect": "The draft cannot be written in, or read from, this engine's layout without changing its meaning",
    "contract.schema": "A contract has unknown, missing or ill-typed fields",
    "contract.mismatch": "The contract and what is about to run disagree",
    "witness.schema": "A witness has unknown, missing or ill-typed fields",
    "dialect.unknown-engine": "An engine, engine version or target architecture that Eyas has no rules for",
    "export.no-place": "A checkpoint holds something that has no place in the other layout",
    "export.no-target": "Which target a draft was made for is not known",
    "export.not-equal": "What was written does not read back as what was to be written",
    "witness.licence": "A witness would give away prompts that may not be given away",
    "witness.not-greedy": "An answer of a witness is not what its target says",
    "rendering.refused": "The chat template has no place for a conversation",
    "rendering.thinking": "The thinking mode that is asked for is not one that the chat template has",
    "rendering.system-prompt": "A conversation's system prompt contradicts the rendering",
    "rendering.rewritten": "The chat template writes something else than the target said",
    "rendering.answer-text": "An answer's tokens do not spell its text",
    "rendering.end-of-turn": "An answer does not end as its target ends answers",
    "features.samples": "Samples that cannot be captured: none, an empty one, one too long, or tokens the target lacks",
    "features.origin": "Samples were made for another target, tokenizer or chat template",
    "features.identity": "The captured states do not give the target's own log-probabilities",
    "features.taps": "A tap is not the stream of the layer that it is named after",
    "features.batch": "Features depend on what else was read, or on the call",
    "features.stale": "A folder of features was made otherwise than asked for",
    "features.damaged": "A folder of features is not whole: a shard is missing, cut off or changed",
    "features.disk": "Features would not fit on the disk",
    "train.no-data": "Too few conversations to train on, or to hold out",
    "train.diverged": "The gradient became NaN or infinite",
    "train.memory": "Training would need more memory than is free",
    "train.resume-mismatch": "A run's folder was begun with other settings, data or another start",
    "regen.settings": "Chats were begun with other settings or other prompts",
    "server.unreachable": "A server gives no answers",
    "server.refused": "A server refuses what no other request would change",
}


class EyasError(ValueError):
    """An error with a stable ``code`` (a key of :data:`CODES`), its ``cause``, and a ``fix`` to type or do."""

    def __init__(self, code: str, cause: str, fix: str) -> None:
        assert code in CODES, code
        super().__init__(f"[{code}] {cause}\n  fix: {fix}")
        self.code, self.cause, self.fix = code, cause, fix
