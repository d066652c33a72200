"""Typed keys of the services that hang on the application."""

from __future__ import annotations

from aiohttp import web

from app.server.node_library import NodeLibrary
from app.server.settings import ServerSettings

SETTINGS = web.AppKey("settings", ServerSettings)
NODES = web.AppKey("nodes", NodeLibrary)
