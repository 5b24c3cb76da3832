"""Asks the installed engine for its own KV plan, many models in one process. Run, not imported.

For each model the real configuration is built, the real model class is instantiated without
storage for weights, and the engine's own functions gather the layers' cache specs, align the
block size and plan the pool; only the server, the worker process and the allocation are left
out. Tensor parallelism is played by telling the process group that it has more ranks: rank 0
is built.

Reads a JSON list of ``{"name", "config", "flags", "memory"}`` on stdin, writes a JSON line each.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def start_process_groups(vllm_config) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment,
        initialize_model_parallel,
        parallel_state,
    )

    with tempfile.NamedTemporaryFile(delete=False) as rendezvous:
        address = f"file://{rendezvous.name}"
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, distributed_init_method=address, backend="gloo"
        )
        initialize_model_parallel()
    # Made for mixture-of-experts models only, but one process serves both kinds here.
    parallel_state._EP = parallel_state._EP or parallel_state.get_dp_group()


def pretend_ranks(tensor_parallel: int, stages: int, stage: int) -> None:
    from vllm.distributed import parallel_state

    parallel_state.get_tp_group().world_size = tensor_parallel
    group = parallel_state.get_pp_group()
    group.world_size, group.rank_in_group = stages, stage
    group.ranks = list(range(stages))


def specs_of_stage(vllm_config, tensor_parallel: int, stages: int, stage: int):
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    vllm_config.compilation_config.static_forward_context.clear()
    pretend_ranks(tensor_parallel, stages, stage)
    torch.set_default_dtype(vllm_config.model_config.dtype)
    with set_current_vllm_config(vllm_config), torch.device("meta"):
        initialize_model(vllm_config=vllm_config)
        drafting = vllm_config.speculative_config
        if drafting is not None and drafting.method == "mtp":
            initialize_model(vllm_config=vllm_config, model_config=drafting.draft_model_config)
    with set_current_vllm_config(vllm_config):
        current_platform.update_block_size_for_backend(vllm_config)
        return get_kv_cache_spec(vllm_config)


def plan(case: dict, folder: Path) -> dict:
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )
    from vllm.v1.core import kv_cache_utils as engine

    (folder / "config.json").write_text(json.dumps(case["config"]))
    flags = dict(case["flags"])
    ranks, stages = flags.pop("tensor_parallel_size", 1), flags.pop("pipeline_parallel_size", 1)
    dcp = flags.pop("decode_context_parallel_size", 1)
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        kv_cache_memory_bytes=case["memory"],
        **flags,
    )
    vllm_config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    if not START:
        start_process_groups(vllm_config)
        START.append(True)
    parallel = vllm_config.parallel_config
    parallel.tensor_parallel_size, parallel.pipeline_parallel_size = ranks, stages
    parallel.decode_context_parallel_size = dcp
    specs = [specs_of_stage(vllm_config, ranks, stages, stage) for stage in range(stages)]
    layouts = get_supported_kv_cache_layouts(get_current_attn_backends(vllm_config))
    resolve_kv_cache_layout(
        vllm_config,
        [[layout.name for layout in layouts]],
        [spec for stage in specs for spec in stage.values()],
    )
    configs = engine.get_kv_cache_configs(vllm_config, specs, [case["memory"]] * stages)
    scheduled = engine.generate_scheduler_kv_cache_config(configs)
    tokens, concurrency = engine.get_kv_cache_capacity(vllm_config, scheduled)
    return {
        "name": case["name"],
        "num_gpu_blocks": scheduled.num_blocks,
        "kv_cache_size_tokens": tokens,
        "kv_cache_max_concurrency": concurrency,
        "block_size": vllm_config.cache_config.block_size,
        "max_model_len": vllm_config.model_config.max_model_len,
        "groups": [
            [type(group.kv_cache_spec).__name__, len(group.layer_names)]
            for group in configs[0].kv_cache_groups
        ],
    }


START: list[bool] = []


def main() -> None:
    for case in json.load(sys.stdin):
        try:
            with tempfile.TemporaryDirectory() as folder:
                result = plan(case, Path(folder))
        except Exception as error:
            if os.environ.get("ENGINE_PLAN_TRACE"):
                traceback.print_exc()
            result = {"name": case["name"], "error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
