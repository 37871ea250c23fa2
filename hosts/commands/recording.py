"""Have every host keep a history, and tell people by itself: asked for before anything is started there."""

from __future__ import annotations

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.shared.messages.history import NotifySettings, RecordRequest, RecordResult

DEADLINE_SECONDS = 60.0


def record(fleet: Fleet, *, notify: bool, run: str = "") -> list[Outcome[RecordResult]]:
    """Start each host's recorder, or give the one that runs these settings; with `notify`, people are told of `run`."""

    def request(host: Host) -> RecordRequest:
        return RecordRequest(
            host=host.name,
            notify=_settings(host) if notify else None,
            run=run,
            min_free_bytes=int(host.min_free),
            stall_seconds=host.notify.stalled_after,
            idle_stop_seconds=host.idle_stop,
        )

    return fleet.call("record", request, RecordResult, deadline=DEADLINE_SECONDS)


def _settings(host: Host) -> NotifySettings | None:
    if host.notify.webhook is None or host.notify.sent_by == "laptop":
        return None
    return NotifySettings(webhook=host.notify.webhook, form=host.notify.posts_as)
