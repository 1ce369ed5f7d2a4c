"""One life of a vLLM engine, in a process of its own.

The parent keeps a fork server that has imported vLLM, so a restart costs seconds.
Each life is still a new process without state of the previous one. Parent and child
communicate over a pipe; the output of vLLM is written to a file.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PRELOAD = [
    "vllm",
    "vllm.entrypoints.llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.registry",
    "vllm.model_executor.models.llama",
    "transformers",
]
START_S_MAX = 600
"""Longest start of an engine."""
ASK_S_MAX = 600

ENVIRONMENT = {
    # Two threads would change the order of additions and so greedy tokens.
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # On a machine with one NUMA node two ranks cannot have one each.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Spec:
    """The options that start an engine.

    Attributes:
        model: folder of the model.
        log: file for all output of vLLM.
        context_tokens: longest prompt plus answer.
        local_cache: vLLM's own prefix cache.
        connector: options of the Millpond connector; None runs without it.
        options: further arguments of ``vllm.LLM``.
        packages: folder of further Python packages, for a foreign connector.
    """

    model: Path
    log: Path
    context_tokens: int
    local_cache: bool
    connector: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    packages: Path | None = None


@dataclass(frozen=True)
class Answer:
    """The result of one question.

    Attributes:
        tokens: generated token ids.
        ttft_s: seconds from the question to the first token.
        prompt_tokens: length of the prompt.
        cached_tokens: number of prompt tokens that were not computed.
    """

    tokens: tuple[int, ...]
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


class EngineError(RuntimeError):
    """The engine died, hung or returned an error; the text names its log."""


def start_method(log: Path) -> mp.context.BaseContext:
    """Returns a fork server that has imported vLLM.

    Args:
        log: file for the output of the imports.
    """
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    context = mp.get_context("forkserver")
    # Packages of the environment only: the fork server does not know this
    # folder. They are only imported; a child inherits no threads or sockets.
    context.set_forkserver_preload(_PRELOAD)
    kept = [os.dup(stream) for stream in (1, 2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for stream in (1, 2):
            os.dup2(file, stream)
        forkserver.ensure_running()
    finally:
        for stream, was in zip((1, 2), kept):
            os.dup2(was, stream)
            os.close(was)
        os.close(file)
    return context


class Engine:
    """The parent's handle of one engine life."""

    def __init__(self, context: Any, spec: Spec, *, wait: bool = True) -> None:
        """See the class.

        Args:
            context: of `start_method`.
            spec: options of the engine.
            wait: return when it is up; else `until_up` waits, and other engines start in
                the meantime.
        """
        self._spec = spec
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec))
        self._process.start()
        theirs.close()
        if wait:
            self.until_up()

    def until_up(self) -> None:
        """Waits until the engine answers; once."""
        self._receive(START_S_MAX)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        pid: int = self._process.pid
        return pid

    def tokenize(self, text: str) -> list[int]:
        """Turns text into token ids."""
        ids: list[int] = self._call("tokenize", text)
        return ids

    def text(self, tokens: tuple[int, ...]) -> str:
        """Turns generated token ids into text."""
        text: str = self._call("text", tokens)
        return text

    def ask(self, prompt: list[int], tokens: int) -> Answer:
        """Generates ``tokens`` tokens greedily and times the first."""
        answer: Answer = self._call("ask", prompt, tokens)
        return answer

    def ask_many(self, prompts: list[list[int]], tokens: int) -> list[Answer]:
        """Asks several questions at once; times are from the common start."""
        answers: list[Answer] = self._call("ask_many", prompts, tokens)
        return answers

    def abort_after(self, prompt: list[int], steps: int) -> None:
        """Starts a question and aborts it after some engine steps."""
        self._call("abort_after", prompt, steps)

    def settle(self) -> None:
        """Waits until all saves have ended."""
        self._call("settle")

    def forget(self) -> None:
        """Empties vLLM's own prefix cache."""
        self._call("forget")

    def reset(self, connector: bool = True) -> bool:
        """Empties vLLM's own prefix cache without waiting; returns the result of vLLM.

        Args:
            connector: begin a new generation in the store too.
        """
        emptied: bool = self._call("reset", connector)
        return emptied

    def pause(self) -> None:
        """Pauses generation, empties the caches and resumes; raises a failure of vLLM."""
        self._call("pause")

    def saving(self) -> bool:
        """Returns whether saves hold blocks."""
        held: bool = self._call("saving")
        return held

    def recomputes(self) -> bool:
        """Returns whether the engine recomputes blocks that do not load."""
        recomputed: bool = self._call("recomputes")
        return recomputed

    def store_zeros(self) -> None:
        """Starts a new cache generation with zeros for every value.

        This tests the comparison: an engine that reads zeros must answer differently
        from one that reads its own values.
        """
        self._call("store_zeros")

    def counters(self) -> dict[str, float]:
        """Returns the connector's counters since the engine started, and
        ``num_preemptions`` of the engine."""
        counters: dict[str, float] = self._call("counters")
        return counters

    def stop(self) -> None:
        """Lets the engine finish its saves and end."""
        with contextlib.suppress(EngineError, OSError):
            self._call("stop")
        self._process.join(timeout=30)
        self.kill()

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.is_alive():
            # A clean end first: with several ranks the engine has children to end.
            self._process.terminate()
            self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _call(self, verb: str, *args: Any) -> Any:
        try:
            self._pipe.send((verb, args))
        except OSError as error:
            raise EngineError(self._failure("died")) from error
        return self._receive(ASK_S_MAX)

    def _receive(self, limit_s: float) -> Any:
        try:
            if not self._pipe.poll(limit_s):
                raise EngineError(self._failure(f"gave no answer in {limit_s} s"))
            ok, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise EngineError(self._failure("died")) from error
        if not ok:
            raise EngineError(self._failure(str(value)))
        return value

    def _failure(self, what: str) -> str:
        return f"vLLM {what}; its output is in {self._spec.log}"


def _serve(pipe: Connection, spec: Spec) -> None:
    """Runs in the child: one engine, one command after another."""
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        if spec.packages is not None:
            sys.path.append(str(spec.packages))
        child = _Child(spec)
        pipe.send((True, None))
        while True:
            verb, args = pipe.recv()
            if verb == "stop":
                child.llm.llm_engine.engine_core.shutdown()
                pipe.send((True, None))
                return
            pipe.send((True, getattr(child, verb)(*args)))
    except (EOFError, KeyboardInterrupt):
        return
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            pipe.send((False, f"{type(error).__name__}: {error}"))


class _Child:
    """The engine in the child process."""

    def __init__(self, spec: Spec) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = None
        if spec.connector is not None:
            transfer = KVTransferConfig(
                kv_connector="MillpondConnector",
                kv_connector_module_path="millpond.vllm",
                kv_role="kv_both",
                kv_connector_extra_config=spec.connector,
            )
        self.llm = LLM(
            **{
                "model": str(spec.model),
                "kv_transfer_config": transfer,
                "enable_prefix_caching": spec.local_cache,
                "max_model_len": spec.context_tokens,
                "enforce_eager": True,
                "disable_log_stats": False,
                "seed": 0,
                **spec.options,
            }
        )
        self._requests = 0

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.llm.get_tokenizer().encode(text)
        return ids

    def text(self, tokens: tuple[int, ...]) -> str:
        text: str = self.llm.get_tokenizer().decode(tokens)
        return text

    def ask(self, prompt: list[int], tokens: int) -> Answer:
        return self.ask_many([prompt], tokens)[0]

    def ask_many(self, prompts: list[list[int]], tokens: int) -> list[Answer]:
        """Steps the engine directly, to get the time of the first token."""
        engine = self.llm.llm_engine
        started = time.monotonic()
        order = [self._add(prompt, tokens) for prompt in prompts]
        first: dict[str, float] = {}
        answers: dict[str, Answer] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens_now = tuple(output.outputs[0].token_ids)
                if tokens_now:
                    first.setdefault(output.request_id, time.monotonic() - started)
                if output.finished:
                    answers[output.request_id] = Answer(
                        tokens_now,
                        first.get(output.request_id, float("nan")),
                        len(output.prompt_token_ids or ()),
                        output.num_cached_tokens or 0,
                    )
        return [answers[name] for name in order]

    def _add(self, prompt: list[int], tokens: int) -> str:
        from vllm import SamplingParams

        self._requests += 1
        name = f"ask-{self._requests}"
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def abort_after(self, prompt: list[int], steps: int) -> None:
        engine = self.llm.llm_engine
        name = self._add(prompt, 8)
        for _ in range(steps):
            engine.step()
        engine.abort_request([name])
        while engine.has_unfinished_requests():
            engine.step()

    def settle(self) -> None:
        """Steps until the scheduler holds no requests and no saves."""
        end = time.monotonic() + 30
        while self.scheduler.has_requests():
            self.llm.llm_engine.step()
            if time.monotonic() > end:
                raise TimeoutError("saves did not end within 30 s")

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def forget(self) -> None:
        self.settle()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache")

    def reset(self, connector: bool) -> bool:
        emptied: bool = self.llm.reset_prefix_cache(reset_connector=connector)
        return emptied

    def pause(self) -> None:
        core = self.llm.llm_engine.engine_core.engine_core
        core.pause_scheduler("abort", clear_cache=True)
        core.resume_scheduler()

    def saving(self) -> bool:
        held: bool = self.scheduler.connector.has_pending_push_work()
        return held

    def recomputes(self) -> bool:
        recomputed: bool = self.scheduler.recompute_kv_load_failures
        return recomputed

    def store_zeros(self) -> None:
        from millpond.vllm.mover import HostMover

        def save(self: Any, namespace: Any, group: int, ids: Any, *rest: Any) -> Any:
            call = rest[1]
            return namespace.put(values=[bytes(self.block_bytes(group))] * len(ids), **call)

        HostMover.save = save  # type: ignore[method-assign]
        self.scheduler.reset_connector_cache()

    def counters(self) -> dict[str, float]:
        found = {}
        for metric in self.llm.get_metrics():
            name = metric.name.removeprefix("vllm:").removeprefix("millpond_")
            ours = metric.name.startswith("vllm:millpond_") or name == "num_preemptions"
            if ours and hasattr(metric, "value"):
                found[name] = metric.value
        return found
