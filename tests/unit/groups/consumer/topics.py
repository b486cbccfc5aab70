"""Topics in memory, to be made, grown and deleted by tests."""

from __future__ import annotations

from penstock.features.groups.consumer.topics import TopicShape, match_names


class MemoryTopics:
    """A topic's id is its name and how many of that name there were before: ``orders#0``."""

    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self._shapes: dict[str, TopicShape] = {}
        self._made: dict[str, int] = {}
        for name, count in partitions.items():
            self.put(name, count)

    def put(self, name: str, partitions: int) -> None:
        """Make a topic, or give it more partitions."""
        self.version += 1
        known = self._shapes.get(name)
        if known is None:
            topic_id = f"{name}#{self._made.get(name, 0)}"
            self._made[name] = self._made.get(name, 0) + 1
        else:
            topic_id = known.topic_id
        self._shapes[name] = TopicShape(topic_id, partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        self._shapes.pop(name, None)

    @property
    def names(self) -> list[str]:
        return sorted(self._shapes)

    def find(self, name: str) -> TopicShape | None:
        return self._shapes.get(name)

    def name_of(self, topic_id: str) -> str | None:
        name = topic_id.partition("#")[0]
        shape = self._shapes.get(name)
        return name if shape is not None and shape.topic_id == topic_id else None

    def matching(self, pattern: str) -> frozenset[str]:
        return match_names(pattern, self._shapes)
