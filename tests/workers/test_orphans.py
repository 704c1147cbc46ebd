"""A driver waits for the workers of the one that was killed before it, but not for ever."""

from flbench.workers import orphans


def test_each_place_is_waited_for_until_it_is_free(monkeypatch):
    busy = {"a": 2, "b": 0, "c": 1}  # looks after which a place is free
    monkeypatch.setattr(orphans, "INTERVAL", 0.0)

    def is_busy(place):
        busy[place] -= 1
        return busy[place] >= 0

    told = []
    orphans.wait_for_orphans(busy, is_busy, told.append)

    assert set(busy.values()) == {-1}
    assert not told


def test_the_limit_holds_for_all_places_together(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(orphans.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(orphans.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    told = []
    orphans.wait_for_orphans(range(5), lambda place: True, told.append)

    assert orphans.LIMIT <= now[0] < orphans.LIMIT + 1
    assert len(told) == 1
    assert "processes of an earlier call" in told[0]
