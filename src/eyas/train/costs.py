"""What training costs by part: parameters, memory, operations, disk. Formulas over sizes, nothing is run.

Shape legend: N rows of a piece, n_i slots of unrolled step i, H hidden, F feature, d draft vocabulary, V vocabulary.
"""

from __future__ import annotations

from math import ceil, prod

from eyas.corpus.features import BATCH_ROWS
from eyas.corpus.storage import Layout
from eyas.draft.config import DraftConfig
from eyas.draft.names import parameter_pieces
from eyas.models.size import TargetSize
from eyas.train.amounts import Amount, DataCounts, FeatureChoice, Machine
from eyas.train.batch import PARTITION_ROWS
from eyas.train.evaluate import MAX_STEPS
from eyas.train.losses import CHUNK
from eyas.train.settings import TrainSettings

FP32, BF16 = 4, 2
PROCESS_BYTES = 400_000_000
"""Python with PyTorch and its libraries, before anything is loaded."""
SHARD_BYTES = 256 << 20
"""Of a shard, where ``eyas capture`` is not told otherwise."""
SHARD_OVERHEAD, TOKEN_BYTES = 4096, 4
"""Header and record of a shard; a token's own id, which lies beside its features."""
_BACKWARD = 2.0
_ATTENTION_BACKWARD = 2.5
_LOSS_COPIES = 2


def trained_parameters(config: DraftConfig) -> int:
    """Parameters that the optimizer changes and a checkpoint stores."""
    return sum(prod(shape) for pieces in parameter_pieces(config).values() for _, shape in pieces)


def total_parameters(config: DraftConfig) -> int:
    """With the target's embedding, which the draft reads but does not own."""
    embedding = 0 if config.own_embedding else config.vocab_size * config.hidden_size
    return trained_parameters(config) + embedding


# Disk ---------------------------------------------------------------------------------------------------------------


def feature_bytes(config: DraftConfig, features: FeatureChoice, data: Amount) -> int:
    """Bytes of all features that ``eyas capture`` writes."""
    layout = Layout(len(config.taps), config.target_hidden_size, features.storage, features.top_k)
    shards = ceil(data.tokens * layout.bytes_per_token / SHARD_BYTES)
    return data.tokens * (layout.bytes_per_token + TOKEN_BYTES) + shards * SHARD_OVERHEAD


def checkpoint_bytes(config: DraftConfig, settings: TrainSettings) -> int:
    """The state to go on from while its successor is written beside it, the best weights, and the finished draft."""
    P = trained_parameters(config)
    state = P * FP32 * (4 if settings.ema_decay else 3)
    return 2 * state + P * FP32 + P * BF16


# Memory -------------------------------------------------------------------------------------------------------------


def piece_rows(settings: TrainSettings, data: DataCounts, processes: int) -> int:
    """N: the most rows of a micro batch."""
    window = ceil(settings.samples_per_step / processes) * data.trained.longest
    return max(min(settings.micro_batch_tokens, window), 1)


def piece_slots(settings: TrainSettings, data: DataCounts, rows: int) -> list[int]:
    """n_i, where the piece has the mean share of answers."""
    return [
        ceil(rows * _slots(settings, data.trained, i) / max(data.trained.tokens, 1)) for i in range(settings.ttt_steps)
    ]


def _slots(settings: TrainSettings, data: Amount, step: int) -> float:
    return data.slots(step) * (settings.later_share if step else 1.0)


def activation_bytes(config: DraftConfig, settings: TrainSettings, rows: int, slots: list[int]) -> int:
    """What the unrolling keeps for its backward pass, counted as fp32 also under autocast."""
    c, D, H = config.num_kv_heads, config.head_dim, config.hidden_size
    steps = [_step_elements(config, rows, n, i) for i, n in enumerate(slots)]
    head = sum(n * H for n in slots) + len(slots) * config.draft_vocab_size * H
    if settings.recompute:
        kept = sum(n * (H + 2 * i * c * D) for i, n in enumerate(slots))
        return FP32 * (kept + max(steps, default=0) + head)
    # The norms read copies of the taps, and fc what they give.
    norms = 2 * rows * config.feature_size if config.fc_norm else 0
    return FP32 * (sum(steps) + head + norms)


def _step_elements(config: DraftConfig, rows: int, n: int, i: int) -> int:
    """Of one step: every layer but the last keeps all of its rows, and step 0 has keys and values of all rows."""
    asked, total = (rows if i == 0 else n), 0
    for layer in range(config.num_layers):
        out = n if layer == config.num_layers - 1 else asked
        total += _layer_elements(config, asked, out, i, first=layer == 0)
    return total + n * (config.hidden_size + 2)


def _layer_elements(config: DraftConfig, asked: int, out: int, i: int, first: bool) -> int:
    """What autograd keeps: inputs of norms and products, rotated queries and keys, attention's output, the MLP's."""
    H, D, h, c = config.hidden_size, config.head_dim, config.num_heads, config.num_kv_heads
    reads = (5 * H if first else 2 * H) + 2 * D + (h + c) * D + 3
    values = (h + 2 * c) * D if i == 0 else 2 * i * c * D
    queries = h * D if i == 0 else 0
    return asked * (reads + values) + out * (queries + h * D + h + 4 * H + 4 * config.intermediate_size + 4)


def memory_parts(
    config: DraftConfig,
    target: TargetSize,
    settings: TrainSettings,
    data: DataCounts,
    features: FeatureChoice,
    machine: Machine,
) -> dict[str, int]:
    """Bytes of one process at its fullest moment, by part; their sum is the peak."""
    P, H, V, d = trained_parameters(config), config.hidden_size, config.vocab_size, config.draft_vocab_size
    parts = {"the process itself": PROCESS_BYTES}
    if features.target_in_process:
        parts["target weights"] = target.total * (BF16 if features.target_dtype == "bf16" else FP32)
    if features.mode == "online":
        parts["features kept"] = remembered_bytes(config, settings, data.trained)
    share = machine.processes if machine.sharded else 1
    buckets = FP32 * P if machine.processes > 1 and not machine.sharded else 0
    parts["draft: masters, gradients, moments"] = 16 * P // share + buckets
    if settings.ema_decay:
        parts["mean of the weights"] = FP32 * P // share
    if settings.precision == "bf16":
        parts["weights as bf16"] = BF16 * P
    frozen = 0 if config.own_embedding else FP32 * V * H
    rotary = 2 * FP32 * config.max_position_embeddings * config.head_dim
    parts["embedding, heads, rotary table"] = frozen + FP32 * (V + d) * config.target_hidden_size + rotary
    return parts | _largest_moment(config, target, settings, data, features, machine.processes)


def _largest_moment(
    config: DraftConfig,
    target: TargetSize,
    settings: TrainSettings,
    data: DataCounts,
    features: FeatureChoice,
    processes: int,
) -> dict[str, int]:
    """What comes and goes: the backward pass, the making of a batch, and the copy that is saved never coincide."""
    rows = piece_rows(settings, data, processes)
    slots = piece_slots(settings, data, rows)
    F, Ht, d = config.feature_size, config.target_hidden_size, config.draft_vocab_size
    batch, teacher = FP32 * rows * F, FP32 * slots[0] * d
    making = 2 * batch + FP32 * rows * Ht + 2 * FP32 * PARTITION_ROWS * config.vocab_size
    if features.mode == "online":
        making += FP32 * min(rows, BATCH_ROWS) * (target.num_layers * target.kv_width + 12 * target.hidden_size)
    wide = 10 * FP32 * rows * config.num_heads * config.head_dim
    passing = wide + FP32 * CHUNK * d * _LOSS_COPIES
    unrolled = activation_bytes(config, settings, rows, slots)
    saved = trained_parameters(config) * FP32 * (4 if settings.ema_decay else 3)
    moments = (
        {"activations": unrolled, "workspace": passing, "teacher": teacher, "features": batch},
        {"making a batch": making, "teacher": teacher, "features": batch},
        {"the state that is written": saved},
    )
    return max(moments, key=lambda parts: sum(parts.values()))


# Operations ---------------------------------------------------------------------------------------------------------


def step_counts(settings: TrainSettings, data: DataCounts) -> tuple[int, int, float]:
    """(optimizer steps of an epoch, of the run, epochs that these are)."""
    per_epoch = max(ceil(data.trained.conversations / settings.samples_per_step), 1)
    total = min(per_epoch * settings.epochs, settings.max_steps or per_epoch * settings.epochs)
    return per_epoch, total, total / per_epoch


def operation_parts(
    config: DraftConfig, target: TargetSize, settings: TrainSettings, data: DataCounts, features: FeatureChoice
) -> dict[str, float]:
    """Floating-point operations of the whole run over all processes, by part."""
    _, total, epochs = step_counts(settings, data)
    trained, held, d, H = data.trained, data.held, config.draft_vocab_size, config.hidden_size
    passes = 1 + _BACKWARD + (1 if settings.recompute else 0)
    slots = sum(_slots(settings, trained, i) for i in range(settings.ttt_steps))
    first_epoch, asked = min(epochs, 1.0), trained.slots(0)
    online = features.mode == "online"
    evaluated = max(total // settings.evaluate_every, 1) * min(
        settings.evaluate_samples / max(held.conversations, 1), 1
    )
    parts = {
        "target forward": _target_passes(config, settings, trained, epochs) * _target_forward(target, trained)
        if online
        else 0.0,
        "target probabilities": 2.0
        * asked
        * H
        * (epochs * d + first_epoch * target.vocab_size * (features.top_k is None)),
        "draft layers": epochs * (passes * _unrolling(config, settings, trained)),
        "draft attention": epochs
        * _attention(config, trained, settings.ttt_steps)
        * (passes + _ATTENTION_BACKWARD - 2),
        "draft head": epochs * slots * 6.0 * d * H,
    }
    forward = _unrolling(config, settings.model_copy(update={"ttt_steps": MAX_STEPS, "later_share": 1.0}), held)
    proposals = 2.0 * sum(held.slots(i) for i in range(MAX_STEPS)) * d * H
    parts["evaluations"] = evaluated * (
        forward
        + proposals
        + _attention(config, held, MAX_STEPS)
        + 2.0 * held.slots(0) * H * (d + target.vocab_size)
        + (_target_forward(target, held) if online else 0.0)
    )
    return parts


def _target_passes(config: DraftConfig, settings: TrainSettings, trained: Amount, epochs: float) -> float:
    """How often the target reads the data online: once what stays in memory, every epoch the rest."""
    kept = remembered_bytes(config, settings, trained) / max(trained.tokens * _online_bytes(config), 1)
    return min(epochs, 1.0) * kept + epochs * (1 - kept)


def remembered_bytes(config: DraftConfig, settings: TrainSettings, trained: Amount) -> int:
    """Bytes of online features that are kept in memory."""
    return min(round(settings.feature_memory_gb * 1e9), trained.tokens * _online_bytes(config))


def _online_bytes(config: DraftConfig) -> int:
    """Of one token's taps and last state, in fp32."""
    return FP32 * (config.feature_size + config.target_hidden_size)


def _target_forward(target: TargetSize, data: Amount) -> float:
    return 2.0 * target.active * data.tokens + 2.0 * target.num_layers * target.attention_width * data.squares


def _unrolling(config: DraftConfig, settings: TrainSettings, data: Amount) -> float:
    """Forward products of fc and the layers: step 0 over all rows, what comes after attention over slots only."""
    H, D = config.hidden_size, config.head_dim
    read = (config.num_heads + 2 * config.num_kv_heads) * D
    after = config.num_heads * D * H + 3 * H * config.intermediate_size
    later = [_slots(settings, data, i) for i in range(settings.ttt_steps)]
    rows = [float(data.tokens), *later[1:]]
    products = float(data.tokens) * config.feature_size * H
    for layer in range(config.num_layers):
        width, last = (2 * H if layer == 0 else H), layer == config.num_layers - 1
        products += sum(rows) * width * read + sum(later if last else rows) * after
    return 2.0 * products


def _attention(config: DraftConfig, data: Amount, num_steps: int) -> float:
    """Forward of the triangles: each step runs over whole documents."""
    return 2.0 * num_steps * config.num_layers * config.num_heads * config.head_dim * data.squares
