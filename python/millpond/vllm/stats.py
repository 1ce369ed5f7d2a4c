"""Counters of the connector, in vLLM's own statistics.

Each side of the connector fills one `MillpondStats` per engine step. vLLM adds
them up over ranks, logs them and exports them to Prometheus as
``vllm:millpond_*``.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

COUNTERS = {
    "lookups": "Prefix lookups sent to the store.",
    "lookup_failures": "Prefix lookups without an answer in time.",
    "lookup_blocks": "Prompt blocks looked up.",
    "hit_blocks": "Prompt blocks that came from the store, counted once for all ranks.",
    "load_blocks": "Blocks loaded from the store.",
    "load_bytes": "Bytes loaded from the store.",
    "load_failed_blocks": "Blocks that were found but did not load; recomputed.",
    "save_blocks": "Blocks newly stored.",
    "save_present_blocks": "Blocks that the store already had.",
    "save_bytes": "Bytes newly stored.",
    "save_dropped_blocks": "Blocks not stored: queue full, too late, rejected or store down.",
    "outages": "Times the store stopped answering.",
}
TIMES = {
    "lookup_seconds": "Time of a prefix lookup.",
    "load_seconds": "Time from a load's start to its last byte, per request.",
    "save_seconds": "Time of a save job, from the end of the step to its last byte.",
}
_SAMPLES_MAX = 4096
"""Most durations kept per interval and kind; more would only refine a histogram."""
_BUCKETS = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 3.0, 10.0),
)


class MillpondStats(KVConnectorStats):  # type: ignore[misc]
    """Counts and durations since the last report."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        """See the class."""
        super().__init__(data=dict(data or {}))

    def add(self, counter: str, amount: int = 1) -> None:
        """Adds to a counter of `COUNTERS`."""
        if amount:
            self.data[counter] = self.data.get(counter, 0) + amount

    def observe(self, name: str, seconds: float) -> None:
        """Records a duration of `TIMES`."""
        samples = self.data.setdefault(name, [])
        if len(samples) < _SAMPLES_MAX:
            samples.append(seconds)

    def reset(self) -> None:
        """Forgets everything."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Returns whether all counters are empty."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> MillpondStats:
        """Adds another report to this one and returns this one."""
        for name, value in other.data.items():
            if isinstance(value, list):
                samples = self.data.setdefault(name, [])
                samples.extend(value[: _SAMPLES_MAX - len(samples)])
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Summarises the interval for vLLM's log line."""
        line: dict[str, int | float] = {
            name: self.data[name] for name in COUNTERS if name in self.data
        }
        for name in TIMES:
            samples = sorted(self.data.get(name, ()))
            if samples:
                stem = name[: -len("_seconds")]
                line[f"{stem}_p50_ms"] = round(samples[len(samples) // 2] * 1e3, 3)
                line[f"{stem}_max_ms"] = round(samples[-1] * 1e3, 3)
        return line


class MillpondPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Exports `MillpondStats` as ``vllm:millpond_*``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """See the class."""
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(
                name=f"vllm:millpond_{name}", documentation=text, labelnames=labelnames
            )
            for name, text in COUNTERS.items()
        }
        self._times = {
            name: self._histogram_cls(
                name=f"vllm:millpond_{name}",
                documentation=text,
                buckets=list(_BUCKETS),
                labelnames=labelnames,
            )
            for name, text in TIMES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds one interval's statistics to the exported metrics."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, counter in self._counters.items():
            if amount := transfer_stats_data.get(name, 0):
                counter.labels(*labels).inc(amount)
        for name, histogram in self._times.items():
            for seconds in transfer_stats_data.get(name, ()):
                histogram.labels(*labels).observe(seconds)
