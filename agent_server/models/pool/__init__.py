"""Several models behind one server: each loaded when it is first used, and unloaded when it is idle or in the way."""

from agent_server.models.model import ChatModel
from agent_server.models.pool.adapted import AdaptedModel
from agent_server.models.pool.pool import ModelPool, ModelState
from agent_server.models.pool.pooled import PooledModel

AnyModel = ChatModel | PooledModel | AdaptedModel
"""A model as routes and agents know it."""

__all__ = ["AdaptedModel", "AnyModel", "ModelPool", "ModelState", "PooledModel"]
