"""The secondary tier against a real server.

vLLM's tiered offload does not run on CPU, so these tests drive the tier as its
manager does: they retry lookups and poll for jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import server as servers
from millpond.vllm.config import ConfigError
from test_identity import make_model, vllm_config
from vllm.config import set_current_vllm_config
from vllm.v1.kv_offload.base import (
    LookupResult,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

CHUNKS = 16
CHUNK_BYTES = 64 * 1024
KEYS = [make_offload_key(bytes([i]) * 32, 0) for i in range(CHUNKS)]


def offloading_spec(
    dtype: str = "bfloat16", *, model: str = "org/model", events: bool = False
) -> Any:
    """The fields of vLLM's specification that a tier reads."""
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
        worker_kv_bytes_per_block=CHUNK_BYTES,
        enable_kv_cache_events=events,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig(model, dtype),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )
    return SimpleNamespace(
        config=config, kv_events_config=SimpleNamespace(enable_kv_cache_events=events)
    )


class Primary:
    """A tier over host memory, driven as vLLM's manager does."""

    def __init__(
        self,
        server: servers.Server,
        *,
        dtype: str = "bfloat16",
        model: str = "org/model",
        **options: Any,
    ) -> None:
        self.memory = np.zeros((CHUNKS, CHUNK_BYTES), dtype=np.uint8)
        events = bool(options.get("enable_kv_events"))
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {
                "type": "MillpondSecondaryTier",
                "module_path": "millpond.vllm",
                "address": server.address,
                "model_id": "a model",
                "retry_ms": 50,
                **options,
            },
            memoryview(self.memory),
            offloading_spec(dtype, model=model, events=events),
        )
        self.jobs = 0

    def lookup(self, key: Any, request: str = "r") -> LookupResult:
        context = ReqContext(request)
        end = time.monotonic() + 10
        while (found := self.tier.lookup(key, context)) is LookupResult.RETRY:
            self.tier.on_schedule_end(ScheduleEndContext((), ()))
            assert time.monotonic() < end
            time.sleep(0.001)
        return found

    def job(self, keys: Any, chunks: list[int], *, load: bool, request: str = "r") -> int:
        self.jobs += 1
        job = TransferJob(self.jobs, keys, np.array(chunks), load, ReqContext(request))
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return self.jobs

    def wait(self, job_id: int) -> JobResult:
        end = time.monotonic() + 10
        while True:
            for result in self.tier.get_finished_jobs():
                assert result.job_id == job_id
                return result
            assert time.monotonic() < end
            time.sleep(0.001)


Make = Callable[..., Primary]


@pytest.fixture
def make(server: servers.Server) -> Iterator[Make]:
    made: list[Primary] = []

    def begin(**options: Any) -> Primary:
        made.append(Primary(server, **options))
        return made[-1]

    yield begin
    for primary in made:
        primary.tier.shutdown()


def test_chunks_come_back_in_other_places(make: Make) -> None:
    one, two = make(), make()
    one.memory[:] = np.arange(CHUNKS, dtype=np.uint8)[:, None] + 1
    assert one.lookup(KEYS[0]) is LookupResult.MISS
    stored = one.wait(one.job(KEYS[:4], [3, 4, 5, 6], load=False))
    assert stored.success
    assert stored.transfer_bytes == 4 * CHUNK_BYTES
    assert [two.lookup(key) for key in KEYS[:5]] == [LookupResult.HIT] * 4 + [LookupResult.MISS]
    assert two.wait(two.job(KEYS[:4], [10, 9, 8, 7], load=True)).success
    for chunk, was in zip([10, 9, 8, 7], [3, 4, 5, 6]):
        assert (two.memory[chunk] == was + 1).all()
    assert not two.memory[:7].any()
    assert not two.memory[11:].any()


def test_a_partly_failed_load_tells_what_came(make: Make) -> None:
    primary = make()
    primary.wait(primary.job(KEYS[:2], [0, 1], load=False))
    result = primary.wait(primary.job(KEYS[:4], [4, 5, 6, 7], load=True))
    assert not result.success
    assert result.successful_keys == tuple(KEYS[:2])
    assert result.transfer_bytes == 2 * CHUNK_BYTES


def test_a_found_chunk_that_does_not_load_is_a_miss_from_then_on(
    make: Make, server: servers.Server
) -> None:
    primary = make(load_deadline_ms=300)
    primary.wait(primary.job(KEYS[:1], [0], load=False))
    assert primary.lookup(KEYS[0]) is LookupResult.HIT
    server.kill()
    assert not primary.wait(primary.job(KEYS[:1], [4], load=True)).success
    assert primary.lookup(KEYS[0]) is LookupResult.MISS


def test_an_outage_is_misses_and_failed_jobs_then_ends(make: Make, server: servers.Server) -> None:
    primary = make(save_deadline_ms=300)
    server.kill()
    assert not primary.wait(primary.job(KEYS[:1], [0], load=False)).success
    started = time.monotonic()
    for i in range(100):
        assert primary.lookup(KEYS[1], f"r{i}") is LookupResult.MISS
    assert time.monotonic() - started < 1
    server.start()
    end = time.monotonic() + 20
    while not primary.wait(primary.job(KEYS[:1], [0], load=False)).success:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_draining_leaves_no_transfer_behind(make: Make) -> None:
    primary = make()
    jobs = [primary.job([key], [i], load=False) for i, key in enumerate(KEYS)]
    primary.tier.drain_jobs()
    assert not primary.tier.has_pending_work()
    assert sorted(result.job_id for result in primary.tier.get_finished_jobs()) == jobs


def test_a_reset_of_the_engine_leaves_nothing_of_the_old_weights(make: Make) -> None:
    primary = make()
    primary.tier.on_new_request(ReqContext("old"))
    assert primary.wait(primary.job(KEYS[:1], [0], load=False, request="old")).success
    # A remembered answer is of the old generation too.
    assert primary.lookup(KEYS[0], "waits") is LookupResult.HIT
    primary.tier.drain_jobs()
    assert primary.lookup(KEYS[0], "waits") is LookupResult.MISS
    assert not primary.wait(primary.job(KEYS[:1], [1], load=True)).success
    # vLLM offloads earlier blocks of a request again.
    assert not primary.wait(primary.job(KEYS[:1], [0], load=False, request="old")).success
    primary.tier.on_request_finished(ReqContext("waits"))
    assert primary.lookup(KEYS[0], "new") is LookupResult.MISS
    primary.tier.on_new_request(ReqContext("new"))
    assert primary.wait(primary.job(KEYS[:1], [0], load=False, request="new")).success
    primary.tier.on_request_finished(ReqContext("new"))
    assert primary.lookup(KEYS[0], "later") is LookupResult.HIT


def test_stored_chunks_become_events(make: Make) -> None:
    primary = make(enable_kv_events=True, locality="REMOTE")
    primary.wait(primary.job(KEYS[:2], [0, 1], load=False))
    (event,) = primary.tier.take_events()
    assert event.keys == list(KEYS[:2])
    assert not event.removed
    assert list(primary.tier.take_events()) == []


def test_finished_requests_are_forgotten(make: Make) -> None:
    primary = make()
    primary.lookup(KEYS[0], "one")
    primary.tier.on_request_finished(ReqContext("one"))
    # A new lookup, not a remembered one: the chunk may be stored since.
    primary.wait(primary.job(KEYS[:1], [0], load=False))
    assert primary.lookup(KEYS[0], "two") is LookupResult.HIT


def test_bad_configuration_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="unknown key 'adress'"):
        make(adress="x")
    make(namespace="shared")
    with pytest.raises(ConfigError, match="refuses namespace 'shared'"):
        make(namespace="shared", dtype="float16")


def test_the_model_is_told_by_vllm_or_by_the_user(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="model_id"):
        make(model_id="")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = make_model(tmp_path / "model")
    names = []
    for overrides in ({}, {"rope_theta": 20000.0}):
        with set_current_vllm_config(vllm_config(folder, hf_overrides=overrides)):
            primary = make(model_id="", model=str(folder))
        assert primary.lookup(KEYS[0]) is LookupResult.MISS
        names.append(primary.wait(primary.job(KEYS[:1], [0], load=False)).success)
    assert names == [True] * 2
