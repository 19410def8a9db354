"""The authority that the settings describe."""

from __future__ import annotations

from agent_server.http.auth.authority import Authority
from agent_server.http.auth.keys_file import KeysFile, KeysFileError
from agent_server.http.auth.principal import OPERATE_AND_METRICS
from agent_server.http.auth.secret_keys import Keys
from agent_server.http.auth.token_issuer import Issuer
from agent_server.settings import Settings


def configured_authority(settings: Settings) -> Authority:
    """Raises ValueError with one sentence. A file of keys that cannot be read is no reason to admit everybody."""
    return Authority(
        Keys(key.get_secret_value() for key in settings.access.api_keys),
        Keys((key.get_secret_value() for key in settings.access.operator_keys), OPERATE_AND_METRICS),
        file=keys_file(settings),
        issuer=issuer(settings),
        user_header=settings.access.user_header,
    )


def keys_file(settings: Settings) -> KeysFile | None:
    if settings.access.keys_file is None:
        return None
    file = KeysFile(settings.access.keys_file)
    try:
        file.load()
    except KeysFileError as error:
        raise ValueError(
            f"The keys file {settings.access.keys_file} cannot be used: {error}. agent-server keys new makes one."
        ) from error
    return file


def issuer(settings: Settings) -> Issuer | None:
    if not settings.issuer.issuer:
        return None
    if fault := settings.issuer.fault():
        raise ValueError(fault)
    return Issuer(settings.issuer)
