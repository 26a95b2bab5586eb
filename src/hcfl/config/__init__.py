"""The experiment as one validated object; settings by name; scenarios. Imports no torch."""

from hcfl.config.base_section import Section
from hcfl.config.data_section import DataConfig
from hcfl.config.faults_section import AdmissionConfig, FaultsConfig
from hcfl.config.overrides import assign, field_at, from_flat
from hcfl.config.schema import SHORT_NAMES, Config, flat_fields, sentence
from hcfl.config.sections import (
    EvaluationConfig,
    MethodConfig,
    Mode,
    ModelConfig,
    Order,
    PersonalConfig,
    PersonalKind,
    Precision,
    PrivacyConfig,
    TrainingConfig,
)

__all__ = [
    "SHORT_NAMES",
    "AdmissionConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "FaultsConfig",
    "MethodConfig",
    "Mode",
    "ModelConfig",
    "Order",
    "PersonalConfig",
    "PersonalKind",
    "Precision",
    "PrivacyConfig",
    "Section",
    "TrainingConfig",
    "assign",
    "field_at",
    "flat_fields",
    "from_flat",
    "sentence",
]
