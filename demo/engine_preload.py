"""Imported once by the fork server: everything an engine life needs.

Only imports: threads, sockets and caches that they would leave behind must
not be inherited by the lives.
"""

import vllm  # noqa: F401
import vllm.v1.engine.llm_engine  # noqa: F401
