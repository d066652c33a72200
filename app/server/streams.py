"""Event streams of our own API: one ordered stream per client, kept for a while after its connection is gone."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Any

from app.graph.errors import WorkflowError
from app.server.outgoing import Outgoing

KEEP_EVENTS = 20_000
KEEP_BYTES = 4 << 20
KEEP_S = 120.0
"""How long the stream of a client without connection goes on collecting."""
MAX_IDLE = 200
"""How many clients without connection are waited for; the ones gone longest are forgotten first."""
MAX_TOPICS = 1_000

EVERYONE = "*"


class Stream:
    """The events of one client, numbered from 1, the newest kept within bounds.

    id: new with every stream, so that a number from before a restart is not taken for one of this stream.
    """

    def __init__(self, client_id: str) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.client_id = client_id
        self.number = 0
        self.topics: set[str] = {EVERYONE, f"client:{client_id}"}
        self.connections: set[Outgoing] = set()
        # The numbers follow from the last one; payloads are shared by all streams that hear of the same run.
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    def add(self, payload: bytes) -> None:
        """Number an event, keep it, and pass it to every connection."""
        self.number += 1
        self._kept.append(payload)
        self._kept_bytes += len(payload)
        while len(self._kept) > KEEP_EVENTS or self._kept_bytes > KEEP_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        for connection in tuple(self.connections):
            connection.text(payload, self.number)

    def after(self, number: int) -> list[tuple[int, bytes]] | None:
        """Return the events after that number, or None when some of them are kept no more."""
        first = self.number - len(self._kept) + 1
        if number + 1 < first or number > self.number:
            return None
        return list(enumerate(islice(self._kept, number + 1 - first, None), number + 1))


class Streams:
    """All streams, by client id, and who wants to hear of what."""

    def __init__(self) -> None:
        self._by_client: dict[str, Stream] = {}
        self._by_topic: dict[str, set[Stream]] = {}
        self._idle: OrderedDict[Stream, asyncio.TimerHandle] = OrderedDict()

    def open(self, client_id: str) -> Stream:
        """Return the stream of a client, a new one if there is none."""
        stream = self._by_client.get(client_id)
        if stream is None:
            stream = self._by_client[client_id] = Stream(client_id)
            for topic in stream.topics:
                self._by_topic.setdefault(topic, set()).add(stream)
        return stream

    def attach(self, stream: Stream, connection: Outgoing) -> None:
        """A client has come, or come again."""
        stream.connections.add(connection)
        timer = self._idle.pop(stream, None)
        if timer is not None:
            timer.cancel()

    def subscribe(self, stream: Stream, topic: str) -> None:
        """Let a stream hear of a topic: `run:ID`, `live:ID` or `all`. Raises WorkflowError beyond MAX_TOPICS."""
        if len(stream.topics) >= MAX_TOPICS:
            message = f"found {MAX_TOPICS} subscriptions of one client, accepted no more; unsubscribe, or hear of all"
            raise WorkflowError.of(message, "too_many")
        stream.topics.add(topic)
        self._by_topic.setdefault(topic, set()).add(stream)

    def unsubscribe(self, stream: Stream, topic: str) -> None:
        """Let a stream hear of a topic no more."""
        stream.topics.discard(topic)
        self._drop(stream, topic)

    def is_connected(self, client_id: str) -> bool:
        """Return whether a client has a connection."""
        stream = self._by_client.get(client_id)
        return stream is not None and bool(stream.connections)

    def publish(self, topics: Iterable[str], event: dict[str, Any]) -> None:
        """Add an event to every stream that wants one of the topics; each gets it once."""
        listeners = self._listeners(topics)
        if listeners:
            payload = json.dumps(event, separators=(",", ":")).encode()
            for stream in listeners:
                stream.add(payload)

    def publish_preview(self, topics: Iterable[str], key: Hashable, header: dict[str, Any], picture: bytes) -> None:
        """Send a picture to whoever is connected now: 4 bytes of header length (big endian), JSON header, picture."""
        listeners = self._listeners(topics)
        if any(stream.connections for stream in listeners):
            text = json.dumps(header, separators=(",", ":")).encode()
            payload = len(text).to_bytes(4, "big") + text + picture
            for stream in listeners:
                for connection in stream.connections:
                    connection.preview(key, payload)

    def detach(self, stream: Stream, connection: Outgoing) -> None:
        """A connection has ended; its stream is forgotten if no other comes in time."""
        stream.connections.discard(connection)
        if stream.connections:
            return
        self._idle[stream] = asyncio.get_running_loop().call_later(KEEP_S, self._forget, stream)
        if len(self._idle) > MAX_IDLE:
            self._forget(next(iter(self._idle)))

    def _listeners(self, topics: Iterable[str]) -> set[Stream]:
        found: set[Stream] = set()
        for topic in topics:
            found |= self._by_topic.get(topic, set())
        return found

    def _forget(self, stream: Stream) -> None:
        self._idle.pop(stream).cancel()
        del self._by_client[stream.client_id]
        for topic in stream.topics:
            self._drop(stream, topic)

    def _drop(self, stream: Stream, topic: str) -> None:
        streams = self._by_topic.get(topic, set())
        streams.discard(stream)
        if not streams:
            self._by_topic.pop(topic, None)


def joined(entries: Sequence[tuple[int, bytes]]) -> bytes:
    """Return one frame of numbered events: {"seq": number of the last, "events": [...]}."""
    return b'{"seq":%d,"events":[%s]}' % (entries[-1][0], b",".join(payload for _, payload in entries))
