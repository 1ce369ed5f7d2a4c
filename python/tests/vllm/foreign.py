"""A foreign connector with a handshake, beside ours below a `MultiConnector`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    SupportsHMA,
)


@dataclass
class ForeignHello(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """This connector's message at start."""

    port: int


class ForeignMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Its message of each step."""


class ForeignConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Stores nothing; it rejects foreign handshakes as strictly as NIXL's connector."""

    def get_handshake_metadata(self) -> ForeignHello:
        """A worker's port."""
        return ForeignHello(4711)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        """Accepts only its own handshakes."""
        assert metadata
        assert all(hello.port == 4711 for hello in metadata.values())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Waits for nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn: Any, **kwargs: Any) -> None:
        """Saves nothing."""

    def wait_for_save(self) -> None:
        """Waits for nothing."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        """Knows nothing."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        """Plans nothing."""

    def build_connector_meta(self, output: Any) -> ForeignMetadata:
        """Sends an empty message."""
        return ForeignMetadata()

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        """Holds nothing."""
        return False, None
