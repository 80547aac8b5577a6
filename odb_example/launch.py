"""One process becomes N: a stage function is called once in each rank, through torch's own elastic launcher.

`run_stage(stage, settings)` joins the ranks it finds (torchrun, accelerate launch, srun) or starts them; with one rank
it simply calls the stage. A failing rank ends the others; what it said is printed once, and its exit status returned.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from odb_example.errors import CheckFailed, UserError, line_of
from odb_example.settings import Settings

_FAILURES = "ODB_EXAMPLE_FAILURES"  # folder in which a rank leaves its one-line error for the launcher to print


def launched(environ: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Whether another program started this process as one rank of a job."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def adopt_slurm(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Translate srun's variables into torch's, where srun started several tasks and nothing else did."""
    if launched(environ) or int(environ.get("SLURM_NTASKS", "1")) < 2 or "SLURM_PROCID" not in environ:
        return
    if "MASTER_ADDR" not in environ:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]
        listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
        environ["MASTER_ADDR"] = listed.stdout.split()[0]
    environ.setdefault("MASTER_PORT", str(29500 + int(environ.get("SLURM_JOB_ID", "0")) % 20000))
    environ.update(
        RANK=environ["SLURM_PROCID"], WORLD_SIZE=environ["SLURM_NTASKS"], LOCAL_RANK=environ.get("SLURM_LOCALID", "0")
    )


def run_stage(stage: str, settings: Settings) -> int:
    """Call ``module:function`` with the settings in every rank; the first failing rank's exit status, else 0.

    Raises:
        UserError: the port is taken, or more ranks than GPUs; with one rank, whatever the stage raises.
    """
    adopt_slurm()
    processes = _local_processes(settings)
    if launched():
        _load(stage)(settings)
        return 0
    if processes == 1 and settings.nnodes == 1:
        _leave_cores_to_loaders(settings)
        _load(stage)(settings)
        return 0
    return _start_ranks(stage, settings, processes)


def _load(stage: str):  # type: ignore[no-untyped-def]
    module, _, function = stage.partition(":")
    return getattr(importlib.import_module(module), function)


def _local_processes(settings: Settings) -> int:
    import torch

    visible = torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0
    if settings.num_processes and visible and settings.num_processes > visible:
        raise UserError(
            f"--num-processes {settings.num_processes} asks for more GPUs than the {visible} visible",
            "lower it, or give --device cpu",
        )
    if settings.device == "cuda" and not visible:
        raise UserError("--device cuda, but no GPU is visible", "give --device cpu, or check the driver with doctor")
    return settings.num_processes or visible or 1


def _leave_cores_to_loaders(settings: Settings) -> None:
    """On CPUs, give the model the cores that loader processes do not need, unless ``OMP_NUM_THREADS`` says otherwise.

    A thread of the model that waits for a core makes the others wait too: docs/experiments.md, "Threads".
    """
    import torch

    on_cpu = settings.device == "cpu" or not torch.cuda.is_available()
    if on_cpu and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores - settings.num_workers))


def _start_ranks(stage: str, settings: Settings, processes: int) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    port = settings.master_port or _free_port()
    if settings.node_rank == 0:
        _require_free(port)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its words are about its own agents
    with tempfile.TemporaryDirectory(prefix="odb-example-") as failures:
        arguments = [
            f"--nproc-per-node={processes}", f"--nnodes={settings.nnodes}", f"--node-rank={settings.node_rank}",
            f"--master-addr={settings.master_addr}", f"--master-port={port}", "--max-restarts=0",
            f"--log-dir={failures}",  # torch leaves a folder of its own behind otherwise
            stage,
        ]  # fmt: skip
        config, _, _ = config_from_args(parse_args(arguments))
        os.environ[_FAILURES] = failures
        try:
            elastic_launch(config, _rank)(stage, settings.model_dump_json())
        except SignalException as error:
            raise KeyboardInterrupt from error  # the launcher has ended the ranks; to a person it is an interrupt
        except ChildFailedError as error:
            _, first = error.get_first_failure()
            return _report(Path(failures), first.local_rank, first.exitcode)
        finally:
            del os.environ[_FAILURES]
    return 0


def _rank(stage: str, settings: str) -> None:
    """What one started rank does. Its failure is left in a file: N ranks with one error are one line to a person."""
    from odb_example import distributed

    try:
        _load(stage)(Settings.model_validate_json(settings))
    except CheckFailed as error:
        _leave(str(error), 1)
    except Exception as error:  # noqa: BLE001 - whatever it was, the rank must end at once
        if line := line_of(error):
            _leave(line, 2)
        traceback.print_exc()
        _leave("", 1)
    finally:
        distributed.stop()


def _leave(line: str, status: int) -> None:
    rank = os.environ["RANK"]
    Path(os.environ[_FAILURES], f"{rank}.json").write_text(
        json.dumps({"rank": int(rank), "line": line, "status": status})
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the other ranks may wait in a collective; a clean shutdown here would wait for them


def _report(failures: Path, local_rank: int, status: int) -> int:
    left = [json.loads(path.read_text()) for path in sorted(failures.glob("*.json"))]
    lines = {entry["line"]: entry["rank"] for entry in reversed(left) if entry["line"]}
    for line, rank in lines.items():
        print(f"odb-example: error: {line}" + (f" (rank {rank})" if rank else ""), file=sys.stderr, flush=True)
    if lines:
        return max(int(entry["status"]) for entry in left if entry["line"])
    how = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
    print(f"odb-example: error: rank {local_rank} {how}; its own words stand above", file=sys.stderr, flush=True)
    return 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(f"port {port} is in use", "give another --master-port, or none for a free one") from error
