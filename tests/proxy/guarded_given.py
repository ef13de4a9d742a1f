"""A connection whose requests are authorized."""

from typing import Any

from proxy.acl.topic_ids import KnownTopics
from proxy.connection.authorization import RequestAuthorization
from proxy.connection.connection import Connection
from proxy.scheduling.memory_budget import MemoryBudget
from tests.proxy.acl.guards.given import Rights
from tests.proxy.playbook import Play, everything, logged_in


class Judge:
    """Who may do what; everybody may do the same."""

    def __init__(self, *allowed: Any, known: KnownTopics | None = None) -> None:
        self.rights = Rights(frozenset().union(*allowed))
        self.topics: KnownTopics = {} if known is None else known

    def admit(self, connection: Connection, _principal: str) -> RequestAuthorization:
        return RequestAuthorization(self.rights, self.topics, forget=connection.pipe.forget)

    def is_super_user(self, _principal: str) -> bool:
        return False


class Guarded(Judge):
    """A logged-in connection, and the rights it is judged by."""

    def __init__(
        self, *allowed: Any, known: KnownTopics | None = None, room: MemoryBudget | None = None
    ) -> None:
        super().__init__(*allowed, known=known)
        offer = everything(rewritten=frozenset())
        self.play = logged_in(Play(rights=self, offer=offer, room=room))

    def change(self, *allowed: Any) -> None:
        """Other ACLs apply from now on."""
        self.rights = Rights(frozenset().union(*allowed))
        admission = self.play.connection.requests.admission
        assert admission is not None
        admission.rights_changed(self.rights)
        self.play.connection.requests.guard(admission)
