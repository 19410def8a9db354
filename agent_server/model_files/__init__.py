"""A model's tokenizer, chat templates and special tokens: from a folder, a name on the hub, or one GGUF file."""

from agent_server.model_files.checkpoint_files import (
    HUB_FILES,
    OWN_CODE,
    HubUnreachableError,
    encoder_of,
    folder_response_template,
    folder_templates,
    is_gguf,
    is_hub_name,
    load_model_files,
    local_source,
    missing_package,
    model_folder,
    require_hub,
    source_name,
)
from agent_server.model_files.served_tokenizer import control_tokens, without_control_tokens
from agent_server.model_files.usable_files import ModelFiles, UnusableFile, read_json, readable

__all__ = [
    "HUB_FILES",
    "OWN_CODE",
    "HubUnreachableError",
    "ModelFiles",
    "UnusableFile",
    "control_tokens",
    "encoder_of",
    "folder_response_template",
    "folder_templates",
    "is_gguf",
    "is_hub_name",
    "load_model_files",
    "local_source",
    "missing_package",
    "model_folder",
    "read_json",
    "readable",
    "require_hub",
    "source_name",
    "without_control_tokens",
]
