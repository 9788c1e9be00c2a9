"""The nouns of Eyas: taps, contract, witness, fingerprints. No torch.

``taps``: rules and conversions · ``schema``: the contract, version 1 · ``enforce``: contract against what
runs · ``witness``: what must come out · ``fingerprints``: the hashes that bind them.
"""

from eyas.contract.enforce import ContractFacts, enforce
from eyas.contract.fingerprints import (
    WeightEntry,
    file_sha256,
    project,
    projection_signs,
    sha256_hex,
    tokenizer_sha256,
    vocab_map_sha256,
    weights_sha256,
)
from eyas.contract.schema import (
    SCHEMA_VERSION,
    Contract,
    DataFacts,
    DataSource,
    ExpectedAcceptLength,
    FeatureFormat,
    NormOptions,
    Rendering,
    RopeOptions,
    TargetIdentity,
    TargetShape,
    TargetSizes,
)
from eyas.contract.taps import (
    Convention,
    default_taps,
    from_convention,
    proposed_taps,
    to_convention,
    validate_taps,
)
from eyas.contract.witness import WITNESS_VERSION, Witness, WitnessInfo

__all__ = [
    "SCHEMA_VERSION",
    "WITNESS_VERSION",
    "Contract",
    "ContractFacts",
    "Convention",
    "DataFacts",
    "DataSource",
    "ExpectedAcceptLength",
    "FeatureFormat",
    "NormOptions",
    "Rendering",
    "RopeOptions",
    "TargetIdentity",
    "TargetShape",
    "TargetSizes",
    "WeightEntry",
    "Witness",
    "WitnessInfo",
    "default_taps",
    "enforce",
    "file_sha256",
    "from_convention",
    "project",
    "projection_signs",
    "proposed_taps",
    "sha256_hex",
    "to_convention",
    "tokenizer_sha256",
    "validate_taps",
    "vocab_map_sha256",
    "weights_sha256",
]
