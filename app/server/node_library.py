"""The node types that the server knows: the built-in ones, loaded after the server listens, and the worker's own."""

from __future__ import annotations

import asyncio

from app.folders import Folders
from app.graph.registry import Registry


class NodeLibrary:
    """Loads the registry once, on a second thread, so that the first request need not wait for it."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._loading: asyncio.Future[Registry] | None = None

    async def registry(self) -> Registry:
        """Return the registry of all node types; the first call loads it."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        return await asyncio.shield(self._loading)

    def _load(self) -> Registry:
        from nodes import builtin_registry

        return builtin_registry(self._folders)
