"""Typed keys of the services that hang on the application."""

from __future__ import annotations

from aiohttp import web

from app.server.comfy.feed import ComfyFeed
from app.server.live import LiveSessions
from app.server.metrics import Metrics
from app.server.node_library import NodeLibrary
from app.server.outgoing import OpenSockets
from app.server.run_ends import RunEnds
from app.server.run_feed import RunFeed
from app.server.run_queue import RunQueue
from app.server.settings import ServerSettings
from app.server.storage.runs import RunStore
from app.server.streams import Streams

SETTINGS = web.AppKey("settings", ServerSettings)
NODES = web.AppKey("nodes", NodeLibrary)
QUEUE = web.AppKey("queue", RunQueue)
RUNS = web.AppKey("runs", RunStore)
STREAMS = web.AppKey("streams", Streams)
COMFY = web.AppKey("comfy", ComfyFeed)
LIVE = web.AppKey("live", LiveSessions)
FEED = web.AppKey("feed", RunFeed)
ENDS = web.AppKey("ends", RunEnds)
METRICS = web.AppKey("metrics", Metrics)
SOCKETS = web.AppKey("sockets", OpenSockets)
