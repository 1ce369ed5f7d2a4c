"""A real vLLM against a real server.

The reference for "same tokens" is vLLM's own prefix cache: a cold prefill may
differ from any cached run in late tokens, because of the order of additions.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine as engines
import pytest
import server as servers

BLOCK = 128
TOKENS = 24
WITH_RANKS = bool(os.environ.get("MILLPOND_TEST_RANKS"))
RANKS_REASON = "takes minutes on two cores; MILLPOND_TEST_RANKS=1 runs it"


def cached_length(prompt: list[int]) -> int:
    """Tokens of a prompt that a full cache can serve."""
    return (len(prompt) - 1) // BLOCK * BLOCK


def prompt_of(engine: engines.Engine, text: str, tokens: int) -> list[int]:
    return engine.tokenize(text)[:tokens]


def check_external_equals_local(engine: engines.Engine, prompt: list[int]) -> None:
    """Runs a prompt cold, from vLLM's own cache, and from the store alone."""
    hits = engine.counters().get("hit_blocks", 0)
    cold = engine.ask(prompt, TOKENS)
    assert cold.cached_tokens == 0
    oracle = engine.ask(prompt, TOKENS)
    assert oracle.cached_tokens == cached_length(prompt)
    before = engine.counters()
    assert before.get("hit_blocks", 0) == hits, "a block of the engine's own cache is not a hit"
    engine.forget()
    external = engine.ask(prompt, TOKENS)
    after = engine.counters()
    assert after["hit_blocks"] - hits == cached_length(prompt) // BLOCK
    assert external.cached_tokens == cached_length(prompt)
    assert after["load_blocks"] > before.get("load_blocks", 0)
    assert external.tokens == oracle.tokens


@pytest.mark.parametrize(
    ("shape", "connector", "options"),
    [
        pytest.param("quick", {}, {}, id="asynchronous"),
        pytest.param("quick", {"load_async": False}, {}, id="synchronous"),
        pytest.param("quick", {}, {"max_num_batched_tokens": 256}, id="chunked prefill"),
        pytest.param("quick", {"transport": "tcp"}, {}, id="tcp"),
        pytest.param("hybrid", {}, {}, id="sliding window and full attention"),
    ],
)
def test_tokens_are_those_of_vllms_own_cache(
    start: Callable[..., engines.Engine],
    server: servers.Server,
    texts: list[str],
    *,
    shape: str,
    connector: dict[str, Any],
    options: dict[str, Any],
) -> None:
    engine = start(shape, connector={"address": server.address, **connector}, **options)
    prompts = [prompt_of(engine, text, 1500) for text in texts[:2]]
    for prompt in prompts:
        check_external_equals_local(engine, prompt)
    # Generated tokens are stored too: a follow-up turn finds them.
    engine.forget()
    turn = engine.ask(prompts[0], 2 * BLOCK)
    engine.forget()
    follow_up = prompts[0] + list(turn.tokens) + prompts[1][:50]
    assert engine.ask(follow_up, 1).cached_tokens >= 1500 + BLOCK
    # Zeros in place of the written bytes must show, or the checks above prove nothing.
    expected = engine.ask(prompts[1], TOKENS)
    engine.store_zeros()
    engine.forget()
    engine.ask(prompts[1], 1)
    engine.forget()
    zeros = engine.ask(prompts[1], TOKENS)
    assert zeros.cached_tokens == cached_length(prompts[1])
    assert zeros.tokens != expected.tokens


@pytest.mark.skipif(not WITH_RANKS, reason=RANKS_REASON)
def test_tensor_parallel_ranks_each_keep_their_part(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    engine = start(
        connector={"address": server.address},
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    prompt = prompt_of(engine, texts[0], 1500)
    check_external_equals_local(engine, prompt)
    counters = engine.counters()
    blocks = cached_length(prompt) // BLOCK
    assert counters["save_blocks"] >= 2 * blocks
    assert counters["load_blocks"] == 2 * blocks
    assert counters["hit_blocks"] == blocks  # of the third answer; the second had them locally
    engine.stop()


@pytest.mark.parametrize(
    "ranks", [1, pytest.param(2, marks=pytest.mark.skipif(not WITH_RANKS, reason=RANKS_REASON))]
)
def test_latents_are_stored_once_and_loaded_by_every_rank(
    start: Callable[..., engines.Engine],
    server: servers.Server,
    texts: list[str],
    tmp_path: Path,
    *,
    ranks: int,
) -> None:
    parallel = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    options = {"connector": {"address": server.address}, **(parallel if ranks > 1 else {})}
    first = start("latent", **options)
    # vLLM's MLA on CPUs has blocks of 16 tokens and no cache of its own to compare with. So the
    # prompt is continued after the answer's first token: one token is computed after the loaded
    # ones, as in the engine that had all of them.
    blocks = 64
    prompt = prompt_of(first, texts[0], blocks * 16)
    cold = first.ask(prompt, TOKENS)
    assert cold.cached_tokens == 0
    assert "CPU_MLA" in (tmp_path / "vllm.log").read_text()
    first.stop()
    stored = server.metric("millpond_namespace_stored_total")
    second = start("latent", **options)
    follow_up = [*prompt, cold.tokens[0]]
    answer = second.ask(follow_up, TOKENS - 1)
    assert answer.cached_tokens == blocks * 16
    assert answer.tokens == cold.tokens[1:]
    assert second.counters()["load_blocks"] == ranks * blocks
    assert stored == blocks + (TOKENS - 1) // 16, "one copy for any number of ranks"


def test_another_engine_finds_the_blocks_also_after_a_restart_of_the_server(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    options = {"connector": {"address": server.address}}
    first = start(**options)
    prompt = prompt_of(first, texts[0], 1500)
    first.ask(prompt, TOKENS)
    oracle = first.ask(prompt, TOKENS)
    first.stop()
    server.stop()
    server.start()
    second = start(**options, local_cache=False)
    answer = second.ask(prompt, TOKENS)
    assert answer.cached_tokens == cached_length(prompt)
    assert answer.tokens == oracle.tokens
    assert "save_blocks" not in second.counters() or second.counters()["save_blocks"] == 0


def test_local_and_external_hits_combine(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    engine = start(connector={"address": server.address})
    prompt = prompt_of(engine, texts[1], 1500)
    engine.ask(prompt, TOKENS)
    oracle = engine.ask(prompt, TOKENS)
    engine.forget()
    # The first five blocks become local, from the store; the rest follows later.
    engine.ask(prompt[: 5 * BLOCK + 7], 1)
    before = engine.counters()["load_blocks"]
    answer = engine.ask(prompt, TOKENS)
    assert engine.counters()["load_blocks"] - before == cached_length(prompt) // BLOCK - 5
    assert answer.cached_tokens == cached_length(prompt)
    assert answer.tokens == oracle.tokens


def test_a_killed_server_changes_no_token_and_is_used_again(
    start: Callable[..., engines.Engine],
    server: servers.Server,
    texts: list[str],
    tmp_path: Any,
) -> None:
    engine = start(connector={"address": server.address, "retry_ms": 100}, local_cache=False)
    prompt = prompt_of(engine, texts[2], 3000)
    other = prompt_of(engine, texts[3], 1500)
    engine.ask(prompt, 4)
    engine.settle()
    oracle = engine.ask(prompt, 150)
    engine.settle()
    # Mid-request: while the engine loads and generates.
    killer = threading.Timer(0.1, server.kill)
    killer.start()
    during = engine.ask(prompt, 150)
    killer.join()
    assert during.tokens == oracle.tokens
    recomputed = [engine.ask(other, TOKENS) for _ in range(5)]
    assert {answer.cached_tokens for answer in recomputed} == {0}
    assert len({answer.tokens for answer in recomputed}) == 1
    log = (tmp_path / "vllm.log").read_text()
    assert log.count("does not answer") == 1, "one line per outage, not per request"

    server.start()
    end = time.monotonic() + 20
    while "answers again" not in (tmp_path / "vllm.log").read_text():
        assert time.monotonic() < end, "the connector never noticed the server's return"
        time.sleep(0.05)
    engine.ask(other, 1)
    engine.settle()
    again = engine.ask(other, TOKENS)
    assert again.cached_tokens == cached_length(other)
    assert again.tokens == recomputed[0].tokens


def test_a_server_that_vanishes_during_loads_fails_no_request(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    engine = start(connector={"address": server.address, "retry_ms": 100}, local_cache=False)
    prompts = [prompt_of(engine, text, 2500) for text in texts]
    for prompt in prompts:
        engine.ask(prompt, 1)
    engine.settle()
    killer = threading.Timer(0.02, server.kill)
    killer.start()
    answers = engine.ask_many(prompts, TOKENS)
    killer.join()
    assert all(len(answer.tokens) == TOKENS for answer in answers)


def test_an_absent_server_only_costs_the_cache(
    start: Callable[..., engines.Engine], texts: list[str]
) -> None:
    address = f"127.0.0.1:{servers.free_port()}"
    engine = start(connector={"address": address}, local_cache=False)
    prompt = prompt_of(engine, texts[0], 1500)
    without = start(local_cache=False)
    assert engine.ask(prompt, TOKENS).tokens == without.ask(prompt, TOKENS).tokens
    with_s = min(engine.ask(prompt, 1).ttft_s for _ in range(5))
    without_s = min(without.ask(prompt, 1).ttft_s for _ in range(5))
    assert with_s < 1.5 * without_s + 0.05


def test_preemption_and_crowding_keep_their_tokens(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    # Room for about two prompts at a time: requests are preempted while they
    # generate, come back, and load their earlier blocks.
    engine = start(
        connector={"address": server.address, "save_pool_fraction": 0.5},
        local_cache=False,
        num_gpu_blocks_override=24,
        max_model_len=2048,
    )
    prompts = [prompt_of(engine, text, 1000) for text in texts]
    for _ in range(2):
        answers = engine.ask_many(prompts, 200)
        assert all(len(answer.tokens) == 200 for answer in answers)
        engine.settle()
    assert engine.counters()["num_preemptions"] > 0
    for prompt in prompts:
        alone = engine.ask(prompt, TOKENS)
        engine.settle()
        assert engine.ask(prompt, TOKENS).tokens == alone.tokens
    engine.forget()


def test_aborted_requests_leave_nothing_behind(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    engine = start(connector={"address": server.address})
    prompt = prompt_of(engine, texts[0], 2000)
    engine.ask(prompt, 1)
    oracle = engine.ask(prompt, TOKENS)
    engine.forget()
    for steps in (1, 2, 3):
        engine.abort_after(prompt, steps)
        # Emptying the cache fails while any block is still referenced.
        engine.forget()
    assert engine.ask(prompt, TOKENS).tokens == oracle.tokens


def test_an_idle_engine_resets_and_pauses_whether_the_store_works_or_hangs(
    start: Callable[..., engines.Engine], server: servers.Server, texts: list[str]
) -> None:
    engine = start(connector={"address": server.address})
    prompt = prompt_of(engine, texts[0], 2000)
    for _ in range(3):
        engine.ask(prompt, 1)
        # No wait for the saves: a trainer changes the weights at once.
        assert engine.reset()
        engine.ask(prompt, 1)
        engine.pause()
    # A working store has the blocks from before the engine emptied its own cache.
    engine.ask(prompt, 1)
    oracle = engine.ask(prompt, TOKENS)
    assert engine.reset(connector=False)
    answer = engine.ask(prompt, TOKENS)
    assert answer.cached_tokens == cached_length(prompt)
    assert answer.tokens == oracle.tokens
    os.kill(server.pid, signal.SIGSTOP)
    try:
        engine.ask(prompt_of(engine, texts[1], 2000), 1)
        assert engine.saving(), "no save is in flight, so the test proves nothing"
        assert engine.reset()
        engine.ask(prompt_of(engine, texts[2], 2000), 1)
        engine.pause()
        # The blocks of the lost saves are used again.
        assert engine.ask(prompt, TOKENS).tokens == oracle.tokens
    finally:
        os.kill(server.pid, signal.SIGCONT)
    engine.forget()
    assert engine.ask(prompt, TOKENS).tokens == oracle.tokens


def test_what_another_connector_loads_is_no_hit_of_ours(
    start: Callable[..., engines.Engine],
    server: servers.Server,
    texts: list[str],
    tmp_path: Any,
) -> None:
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "example")},
    }
    ours = {
        "kv_connector": "MillpondConnector",
        "kv_connector_module_path": "millpond.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"address": server.address},
    }
    engine = start(
        kv_transfer_config={
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [example, ours]},
        },
        local_cache=False,
        disable_hybrid_kv_cache_manager=True,
    )
    prompt = prompt_of(engine, texts[0], 1500)
    engine.ask(prompt, 1)
    engine.settle()
    assert engine.ask(prompt, 1).cached_tokens == cached_length(prompt)
    engine.settle()
    counters = engine.counters()
    assert counters["save_blocks"] == cached_length(prompt) // BLOCK
    assert counters.get("load_blocks", 0) == counters.get("hit_blocks", 0) == 0


@pytest.mark.parametrize("ours_first", [True, False])
def test_below_a_multi_connector_each_child_is_left_alone_by_the_others(
    start: Callable[..., engines.Engine],
    server: servers.Server,
    texts: list[str],
    tmp_path: Any,
    *,
    ours_first: bool,
) -> None:
    ours = {
        "kv_connector": "MillpondConnector",
        "kv_connector_module_path": "millpond.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"address": server.address, "retry_ms": 100},
    }
    strict = {
        "kv_connector": "ForeignConnector",
        "kv_connector_module_path": "foreign",
        "kv_role": "kv_both",
    }
    # A connector of vLLM that saves the same blocks as ours.
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "example")},
    }
    children = [ours, strict, example] if ours_first else [strict, ours, example]
    engine = start(
        kv_transfer_config={
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": children},
        },
        disable_hybrid_kv_cache_manager=True,
    )
    prompt = prompt_of(engine, texts[0], 1500)
    check_external_equals_local(engine, prompt)
    assert "kv_load_failure_policy of MultiConnector" in (tmp_path / "vllm.log").read_text()
    assert engine.recomputes()
    assert engine.reset()


def test_a_bad_option_stops_the_start_and_is_named(
    start: Callable[..., engines.Engine], server: servers.Server
) -> None:
    with pytest.raises(engines.EngineError, match="unknown key 'adress'"):
        start(connector={"adress": server.address})


def test_another_layout_in_the_same_namespace_is_refused(
    start: Callable[..., engines.Engine], server: servers.Server
) -> None:
    options = {"address": server.address, "namespace": "shared"}
    start(connector=options).stop()
    with pytest.raises(engines.EngineError, match="refuses namespace 'shared'"):
        start("hybrid", connector=options)
