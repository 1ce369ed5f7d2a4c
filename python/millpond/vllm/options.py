"""Decisions about the options of vLLM: which of them decide the bytes of a KV block.

An option that decides them is part of a namespace's identity. Any other option is
left out, so that engines that differ in it share blocks. A test compares the tables
with vLLM's own classes and fails for an option that no table names. At run time an
unnamed option counts as one that decides.

The tables do not list the options of `VllmConfig` sections that are left out as a
whole: their classes do not describe a model.
"""

from __future__ import annotations

from typing import Literal

DECIDES: dict[str, str] = {
    "VllmConfig": """
        model_config cache_config parallel_config scheduler_config load_config attention_config
        mamba_config kernel_config lora_config speculative_config diffusion_config
        compilation_config additional_config
    """,
    "ModelConfig": """
        runner convert tokenizer_mode trust_remote_code dtype code_revision max_model_len
        quantization quantization_config disable_sliding_window model_class_overrides model_impl
        multimodal_config
    """,
    "QuantizationConfigArgs": """
        linear moe ignore targets
    """,
    "QuantSpec": """
        weight activation
    """,
    "QuantKey": """
        dtype scale scale2 symmetric
    """,
    "ScalarType": """
        exponent mantissa signed bias _finite_values_only nan_repr
    """,
    "ScaleDesc": """
        dtype static group_shape
    """,
    "MultiModalConfig": """
        language_model_only media_io_kwargs mm_processor_kwargs mm_device_do_normalize
        mm_hasher_algorithm mm_encoder_attn_backend mm_encoder_attn_dtype
        video_pruning_rate video_pruning_method allow_missing_mm_embeddings
    """,
    "CacheConfig": """
        cache_dtype sliding_window prefix_caching_hash_algo kv_cache_dtype_skip_layers
        mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode
        replayssm_buffer_len use_replayssm use_kda_recoverssm kv_sharing_fast_prefill
        swa_bounded_replay
    """,
    "ParallelConfig": """
        pipeline_parallel_size tensor_parallel_size prefill_context_parallel_size
        decode_context_parallel_size dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
        worker_cls
    """,
    "LoadConfig": """
        load_format ignore_patterns
    """,
    "AttentionConfig": """
        backend minimax_m3_msa_decode_backend backend_per_kind flash_attn_version
        use_trtllm_attention disable_flashinfer_q_quantization mla_prefill_backend
        use_prefill_query_quantization indexer_kv_dtype indexer_sparse_logits use_non_causal
        sparse_mla_force_mqa
    """,
    "MambaConfig": """
        backend enable_stochastic_rounding stochastic_rounding_philox_rounds ssu_algorithm
    """,
    "KernelConfig": """
        moe_backend sparse_indexer_topk_backend linear_backend linear_backend_per_quant
    """,
    "LoRAConfig": """
        max_lora_rank lora_dtype target_modules default_mm_loras enable_tower_connector_lora
    """,
    "SpeculativeConfig": """
        method draft_tensor_parallel_size quantization moe_backend attention_backend kv_cache_dtype
        max_model_len code_revision index_share_for_mtp_iteration disable_eagle_block_drop
        use_heterogeneous_vocab parallel_drafting draft_model_config draft_load_config
    """,
    "DiffusionConfig": """
        canvas_length
    """,
    "CompilationConfig": """
        inductor_passes
    """,
}
"""These enter the identity with their values; a section enters with its options."""

RESOLVED: dict[str, str] = {
    "VllmConfig": """
        quant_config
    """,
    "ModelConfig": """
        model model_weights tokenizer revision tokenizer_revision hf_config hf_text_config
        hf_config_path hf_overrides config_format seed is_submodel_config
        word_embeddings_untied_by_checkpoint
    """,
    "MultiModalConfig": """
        mm_encoder_fp8_scale_path
    """,
    "CacheConfig": """
        block_size kv_cache_layout hash_block_size prefix_match_unit effective_attention_block_size
        mamba_page_size_padded skip_page_size_padded
    """,
    "SchedulerConfig": """
        disable_hybrid_kv_cache_manager
    """,
    "LoadConfig": """
        model_loader_extra_config download_dir
    """,
    "SpeculativeConfig": """
        model revision
    """,
}
"""These enter in another form: weights and tokenizer by their bytes, `hf_overrides` as the
resulting configuration, block sizes and layouts as those of the cache's groups."""

IGNORED: dict[str, str] = {
    "VllmConfig": """
        device_config offload_config aux_output_config engram_config watermark_config
        structured_outputs_config observability_config logging_config profiler_config
        kv_transfer_config kv_events_config ec_transfer_config ec_manager_config reasoning_config
        instance_id optimization_level performance_mode weight_transfer_config shutdown_timeout
    """,
    "ModelConfig": """
        allowed_local_media_path allowed_media_domains spec_target_max_model_len
        allow_deprecated_quantization enforce_eager return_sampling_mask max_logprobs logprobs_mode
        use_fp64_gumbel enable_trace_replay disable_cascade_attn skip_tokenizer_init
        enable_prompt_embeds served_model_name hf_token generation_config override_generation_config
        enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend
        sleep_mode_offload_cudagraph enable_nccl_comm_suspend enable_cumem_allocator
        logits_processors io_processor_plugin renderer_num_workers pooler_config
    """,
    "MultiModalConfig": """
        limit_per_prompt enable_mm_embeds mm_processor_cache_gb mm_processor_cache_type
        mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode
        mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin interleave_mm_strings
        skip_mm_profiling mm_tensor_ipc mm_ipc_gpu_memory_gb
    """,
    "CacheConfig": """
        user_specified_block_size gpu_memory_utilization is_attention_free num_gpu_blocks_override
        enable_prefix_caching prefix_cache_retention_interval enable_mamba_shared_prefix_checkpoint
        num_gpu_blocks num_cpu_blocks kv_cache_size_tokens kv_cache_max_concurrency
        cache_hit_alignment_tokens kv_cache_memory_bytes kv_offloading_size kv_offloading_backend
        _block_size_resolved
    """,
    "ParallelConfig": """
        data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_rank_local
        data_parallel_master_ip data_parallel_rpc_port dp_sync_interval data_parallel_master_port
        data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb is_moe_model
        enable_hc_sp enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter
        enable_eplb eplb_config expert_placement_strategy all2all_backend
        max_parallel_loading_workers disable_custom_all_reduce enable_shm_tensor_arena
        enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size dbo_decode_token_threshold
        dbo_prefill_token_threshold disable_nccl_for_dp_synchronization ray_workers_use_nsight
        ray_runtime_env placement_group distributed_executor_backend worker_extension_cls
        master_addr master_port node_rank nnodes numa_bind numa_bind_nodes numa_bind_cpus
        assigned_physical_gpu_ids distributed_timeout_seconds cpu_distributed_timeout_seconds
        world_size rank _data_parallel_master_port_list _coord_store_port dcp_comm_backend
        dcp_q_replicate _allow_auto_resolve_cp_interleave_size data_parallel_index
        _api_process_count _api_process_rank enable_fault_tolerance fault_tolerance_config
    """,
    "SchedulerConfig": """
        runner_type max_num_batched_tokens max_num_scheduled_tokens max_num_seqs max_num_active_seqs
        long_prefill_token_threshold long_prefill_token_threshold_adaptive max_num_queued_reqs
        max_num_queued_tokens enable_chunked_prefill is_multimodal_model
        max_num_encoder_input_tokens encoder_cache_size policy disable_chunked_mm_input
        scheduler_cls scheduler_reserve_full_isl watermark prefill_schedule_interval
        async_scheduling stream_interval
    """,
    "LoadConfig": """
        safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size
        device use_tqdm_on_load pt_load_map_location
    """,
    "AttentionConfig": """
        flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv
        tq_max_kv_splits_for_cuda_graph hisparse_config sparse_mla_prefill_workspace_factor
        flex_attn_block_m flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size
    """,
    "KernelConfig": """
        ir_op_priority enable_flashinfer_autotune enable_rocm_segmented_attn_autotune
        enable_cutedsl_warmup enable_jit_warmup
    """,
    "LoRAConfig": """
        max_loras fully_sharded_loras max_cpu_loras specialize_active_lora
        enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels
    """,
    "SpeculativeConfig": """
        enforce_eager num_speculative_tokens tensor_parallel_size disable_padded_drafter_batch
        use_local_argmax_reduction prompt_lookup_max prompt_lookup_min target_model_config
        target_parallel_config num_speculative_tokens_per_batch_size draft_parallel_config
        suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
        suffix_decoding_max_spec_factor suffix_decoding_min_token_prob rejection_sample_method
        synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification
        draft_sample_method dspark_draft_topk
    """,
    "DiffusionConfig": """
        max_denoising_steps
    """,
    "CompilationConfig": """
        mode debug_dump_path cache_dir compile_cache_save_format backend custom_ops
        ir_enable_torch_wrap splitting_ops compile_mm_encoder cudagraph_mm_encoder
        encoder_cudagraph_token_budgets encoder_cudagraph_max_vision_items_per_batch
        encoder_cudagraph_max_frames_per_batch cudagraph_decoder_replay
        decoder_replay_cudagraph_capture_sizes decoder_replay_trim_threshold compile_sizes
        compile_ranges_endpoints inductor_compile_config cudagraph_mode cudagraph_num_of_warmups
        cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_specialize_lora
        use_inductor_graph_partition pass_config max_cudagraph_capture_size dynamic_shapes_config
        local_cache_dir fast_moe_cold_start enabled_custom_ops disabled_custom_ops traced_files
        compilation_time encoder_compilation_time static_forward_context static_all_moe_layers
    """,
}
"""These change at most the order of additions in a block, or only work done after the block."""

_ENVIRONMENT_DECIDES = """
    VLLM_TARGET_DEVICE VLLM_FLOAT32_MATMUL_PRECISION VLLM_BATCH_INVARIANT VLLM_CPU_INT4_W4A8
    VLLM_USE_TRITON_AWQ VLLM_DISABLED_KERNELS VLLM_USE_HW_AGNOSTIC
    VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD
    VLLM_ROCM_QUICK_REDUCE_QUANTIZATION VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16
    VLLM_ROCM_FP8_MFMA_PAGE_ATTN VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT VLLM_ROCM_USE_AITER
    VLLM_ROCM_USE_AITER_LINEAR VLLM_ROCM_USE_AITER_MOE VLLM_ROCM_USE_AITER_MHA
    VLLM_ROCM_USE_AITER_MLA VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4 VLLM_ROCM_USE_AITER_FP8BMM
    VLLM_ROCM_USE_AITER_FP4BMM VLLM_ROCM_USE_AITER_FP4_ASM_GEMM VLLM_MARLIN_INPUT_DTYPE
    VLLM_HUMMING_ONLINE_QUANT_CONFIG VLLM_HUMMING_INPUT_QUANT_CONFIG VLLM_HUMMING_USE_F16_ACCUM
    VLLM_DEEPEPLL_NVFP4_DISPATCH VLLM_USE_DEEP_GEMM VLLM_MOE_USE_DEEP_GEMM VLLM_USE_DEEP_GEMM_E8M0
    VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER VLLM_B12X_MOE_FP4_FORCE_A16 VLLM_USE_FLASHINFER_MOE_INT4
    VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE
    VLLM_MOE_ROUTING_SIMULATION_STRATEGY VLLM_KV_CACHE_LAYOUT VLLM_SSM_CONV_STATE_LAYOUT
    VLLM_MLA_DISABLE VLLM_PP_LAYER_PARTITION VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE
    VLLM_PLUGINS VLLM_USE_MODELSCOPE VLLM_TEST_FORCE_LOAD_FORMAT
    VLLM_XPU_INC_WNA16_BACKEND VLLM_VIDEO_LOADER_BACKEND VLLM_MEDIA_CONNECTOR VLLM_MAX_IMAGE_PIXELS
    VLLM_ENABLE_HPC_OPS VLLM_USE_OINK_OPS VLLM_USE_V2_MODEL_RUNNER VLLM_REPLICATE_EMBED
"""

_ENVIRONMENT_IGNORED = """
    VLLM_MAIN_CUDA_VERSION VLLM_TRITON_USE_TD VLLM_GPU_SYNC_CHECK MAX_JOBS NVCC_THREADS
    VLLM_USE_PRECOMPILED VLLM_USE_PRECOMPILED_RUST VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX
    VLLM_DOCKER_BUILD_CONTEXT VLLM_BUILD_COMMIT VLLM_BUILD_PIPELINE VLLM_BUILD_URL VLLM_IMAGE_TAG
    CMAKE_BUILD_TYPE VERBOSE VLLM_CONFIG_ROOT VLLM_CACHE_ROOT VLLM_HOST_IP VLLM_PORT
    VLLM_RPC_BASE_PATH VLLM_USE_FASTOKENS VLLM_RINGBUFFER_WARNING_INTERVAL CUDA_HOME
    VLLM_NCCL_SO_PATH LD_LIBRARY_PATH VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE VLLM_USE_STANDALONE_COMPILE
    VLLM_ENABLE_PREGRAD_PASSES VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_PATTERN_MATCH_DEBUG
    VLLM_DEBUG_DUMP_PATH VLLM_USE_AOT_COMPILE VLLM_USE_BYTECODE_HOOK VLLM_FORCE_AOT_LOAD
    VLLM_USE_MEGA_AOT_ARTIFACT LOCAL_RANK CUDA_VISIBLE_DEVICES VLLM_ENGINE_READY_TIMEOUT_S
    VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT VLLM_API_KEY VLLM_DEBUG_LOG_API_SERVER_RESPONSE
    S3_ACCESS_KEY_ID S3_SECRET_ACCESS_KEY S3_ENDPOINT_URL VLLM_USAGE_STATS_SERVER
    VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_SOURCE VLLM_CONFIGURE_LOGGING
    VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_LEVEL VLLM_LOGGING_STREAM VLLM_LOGGING_PREFIX
    VLLM_LOGGING_COLOR NO_COLOR FORCE_COLOR VLLM_LOG_STATS_INTERVAL VLLM_TRACE_FUNCTION
    VLLM_USE_FLASHINFER_SAMPLER VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND
    VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_CI_ENV VLLM_CPU_ATTN_SPLIT_KV VLLM_ZENTORCH_WEIGHT_PREPACK
    VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM
    VLLM_USE_RAY_WRAPPED_PP_COMM VLLM_XPU_PP_MICROBATCH VLLM_USE_RAY_V2_EXECUTOR_BACKEND
    VLLM_DISTRIBUTED_USE_SPLIT_GROUP VLLM_WORKER_MULTIPROC_METHOD VLLM_ASSETS_CACHE
    VLLM_ASSETS_CACHE_MODEL_CLEAN VLLM_IMAGE_FETCH_TIMEOUT VLLM_VIDEO_FETCH_TIMEOUT
    VLLM_AUDIO_FETCH_TIMEOUT VLLM_MEDIA_CACHE VLLM_MEDIA_CACHE_MAX_SIZE_MB
    VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_FETCH_MAX_RETRIES VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB
    VLLM_MEDIA_URL_ALLOW_REDIRECTS VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MAX_AUDIO_CLIP_FILESIZE_MB
    VLLM_MAX_AUDIO_DECODE_DURATION_S VLLM_MAX_AUDIO_DECODE_BYTES VLLM_MAX_EMBED_DECODE_BYTES
    VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_XLA_CACHE_PATH VLLM_XLA_CHECK_RECOMPILATION
    VLLM_XLA_USE_SPMD VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
    VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
    VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_FASTSAFETENSORS_QUEUE_SIZE VLLM_HTTP_TIMEOUT_KEEP_ALIVE
    VLLM_MAX_N_SEQUENCES VLLM_MAX_COMPLETION_PROMPTS VLLM_MAX_STOP_STRINGS VLLM_MAX_NUM_BAD_WORDS
    VLLM_MAX_BAD_WORDS_TOTAL_TOKENS VLLM_LORA_RESOLVER_CACHE_DIR VLLM_LORA_RESOLVER_HF_REPO_LIST
    VLLM_TRITON_FORCE_FIRST_CONFIG VLLM_TRITON_JIT_WARMUP_NUM_THREADS
    VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_SKIP_P2P_CHECK VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE
    VLLM_GDN_DECODE_KERNEL VLLM_DISABLE_PYNCCL VLLM_ROCM_USE_AITER_CUSTOM_AR
    VLLM_ROCM_USE_AITER_LINEAR_HIPBMM VLLM_ROCM_USE_AITER_MOE_SITUV2
    VLLM_ROCM_AITER_MOE_DISPATCH_POLICY VLLM_ROCM_USE_AITER_RMSNORM VLLM_ROCM_AITER_MLA_DCP_VERIFY
    VLLM_ROCM_AITER_MLA_ASM_PADDING VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA
    VLLM_ROCM_USE_AITER_TRITON_ROPE VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION
    VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS
    VLLM_ROCM_MONO_DECODE VLLM_ROCM_USE_AITER_TRITON_GEMM VLLM_ROCM_USE_SKINNY_GEMM
    VLLM_ROCM_FP8_PADDING VLLM_ROCM_MOE_PADDING VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB
    VLLM_ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB
    VLLM_ENABLE_V1_MULTIPROCESSING VLLM_LOG_BATCHSIZE_INTERVAL VLLM_DISABLE_COMPILE_CACHE
    VLLM_USE_LAYERNAME VLLM_USE_RUST_FRONTEND VLLM_USE_RUST_BENCH VLLM_RUST_FRONTEND_PATH
    VLLM_SERVER_DEV_MODE VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_RAY_PER_WORKER_GPUS
    VLLM_RAY_BUNDLE_INDICES VLLM_CUDART_SO_PATH VLLM_DP_RANK VLLM_DP_RANK_LOCAL VLLM_DP_SIZE
    VLLM_DP_MASTER_IP VLLM_DP_MASTER_PORT VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_RAY_DP_PACK_STRATEGY
    VLLM_RAY_DP_PLACEMENT_NODE_IPS VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY
    VLLM_RAY_EXTRA_ENV_VARS_TO_COPY VLLM_MARLIN_USE_ATOMIC_ADD VLLM_HUMMING_MOE_GEMM_TYPE
    VLLM_V1_USE_OUTLINES_CACHE VLLM_TPU_USING_PATHWAYS VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES
    VLLM_DCP_Q_REPLICATE VLLM_DEEP_GEMM_WARMUP VLLM_USE_FUSED_MOE_GROUPED_TOPK VLLM_MOE_SKIP_PADDING
    VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT VLLM_KIMI_K3_AUX_ATTN_RES_STREAM VLLM_KIMI_K3_GEMM_AR
    VLLM_ENABLE_GEMM_RS VLLM_XGRAMMAR_CACHE_MB VLLM_REGEX_COMPILATION_TIMEOUT_S
    VLLM_MSGPACK_ZERO_COPY_THRESHOLD VLLM_ALLOW_INSECURE_SERIALIZATION
    VLLM_DISABLE_REQUEST_ID_RANDOMIZATION VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT
    VLLM_P2P_SIDE_CHANNEL_HOST VLLM_P2P_SIDE_CHANNEL_PORT VLLM_P2P_MAX_PEERS
    VLLM_P2P_HANDSHAKE_TIMEOUT_S VLLM_P2P_IDLE_TIMEOUT_S VLLM_EC_SIDE_CHANNEL_HOST
    VLLM_EC_SIDE_CHANNEL_PORT VLLM_MOONCAKE_CONNECTOR_TIMEOUT VLLM_MOONCAKE_BOOTSTRAP_PORT
    VLLM_MOONCAKE_STORE_TIER_LOG VLLM_MOONCAKE_LOAD_RECV_THREADS
    VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO MOONCAKE_PREFERRED_SEGMENT
    MOONCAKE_REQUESTER_LOCAL_HOSTNAME VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR
    VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS VLLM_FLASHINFER_ALLREDUCE_BACKEND
    VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS
    VLLM_ENFORCE_STRICT_TOOL_CALLING VLLM_MQ_MAX_CHUNK_BYTES_MB VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
    VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS VLLM_COMPUTE_NANS_IN_LOGITS VLLM_RAISE_ON_LOGIT_NANS
    VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT VLLM_HAS_FLASHINFER_CUBIN VLLM_ENABLE_CUDAGRAPH_GC
    VLLM_LOOPBACK_IP VLLM_PROCESS_NAME_PREFIX VLLM_ENABLE_RESPONSES_API_STORE VLLM_ENABLE_COHERE_API
    VLLM_ALLREDUCE_USE_SYMM_MEM VLLM_ALLREDUCE_USE_FLASHINFER VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC
    VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT VLLM_TUNED_CONFIG_FOLDER VLLM_ENABLE_STARTUP_PLAN
    VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS
    VLLM_SYSTEM_START_DATE VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY VLLM_CUSTOM_SCOPES_FOR_PROFILING
    VLLM_NVTX_SCOPES_FOR_PROFILING VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
    VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME VLLM_DEEPEP_BUFFER_SIZE_MB
    VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL
    VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE VLLM_DEEPEP_V2_PREFER_OVERLAP
    VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION VLLM_DBO_COMM_SMS VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE
    VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING VLLM_USE_NCCL_SYMM_MEM VLLM_NCCL_INCLUDE_PATH
    VLLM_GC_DEBUG VLLM_DEBUG_WORKSPACE VLLM_DISABLE_SHARED_EXPERTS_STREAM
    VLLM_DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD
    VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD VLLM_COMPILE_CACHE_SAVE_FORMAT VLLM_LOG_MODEL_INSPECTION
    VLLM_DEBUG_MFU_METRICS VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY
    VLLM_WEIGHT_OFFLOADING_DISABLE_UVA VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS
    VLLM_WSL2_ENABLE_PIN_MEMORY VLLM_DISABLE_LOG_LOGO VLLM_LORA_DISABLE_PDL
    VLLM_ENABLE_CUDA_COMPATIBILITY VLLM_CUDA_COMPATIBILITY_PATH VLLM_SKIP_MODEL_NAME_VALIDATION
    VLLM_ELASTIC_EP_SCALE_UP_LAUNCH VLLM_ELASTIC_EP_DRAIN_REQUESTS
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_XPU_FORCE_N_CONTIG_WEIGHT
    VLLM_XPU_USE_SAMPLER_KERNEL VLLM_USE_SIMPLE_KV_OFFLOAD VLLM_USE_DIRECT_DCP_A2A
    VLLM_USE_DIRECT_DCP_Q_GATHER VLLM_USE_DIRECT_DCP_KV_GATHER VLLM_LORA_ENABLE_DUAL_STREAM
    VLLM_USE_SPINLOOP_EXT VLLM_GPU_NIC_PCIE_MAPPING VLLM_NIC_SELECTION_VARS VLLM_SKIP_VERSION_SUFFIX
    VLLM_MODEL_REDIRECT_PATH
"""

ENVIRONMENT_DECIDES = frozenset(_ENVIRONMENT_DECIDES.split())
ENVIRONMENT_IGNORED = frozenset(_ENVIRONMENT_IGNORED.split())

Decision = Literal["decides", "resolved", "ignored", "unknown"]

_TABLES: dict[str, dict[str, Decision]] = {}
for _table, _decision in ((DECIDES, "decides"), (RESOLVED, "resolved"), (IGNORED, "ignored")):
    for _name, _fields in _table.items():
        for _field in _fields.split():
            _TABLES.setdefault(_name, {})[_field] = _decision  # type: ignore[assignment]


def decision(section: str, option: str) -> Decision:
    """Returns the decision on an option of a configuration class of vLLM."""
    return _TABLES.get(section, {}).get(option, "unknown")


def options(section: str) -> dict[str, Decision]:
    """Returns every decision on one class."""
    return dict(_TABLES.get(section, {}))
