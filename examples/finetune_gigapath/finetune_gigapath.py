# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes Prov-GigaPath's slide encoder with Prov-GigaPath's own script, whose attention annulus computes.

    git clone https://github.com/prov-gigapath/prov-gigapath
    python3 finetune_gigapath.py prov-gigapath

The script finetune/main.py, the encoder and everything between run as they are in the checkout, but for one line that
is added to finetune/training.py:

    import annulus.torch; print(annulus.torch.replace_longnet_attention(model, process_group=torch.distributed.group.WORLD))

The slides are made up: tiles of two kinds, more of one kind or of the other, which is what the model learns. First one
rank trains, then two ranks that share each slide. A rank is a GPU, or a process if there is no GPU. A table compares the
losses of all steps, of training, validation and test.

Needs PyTorch 2.0 or newer and what Prov-GigaPath's script imports: einops, fairscale, h5py, huggingface_hub, numpy,
pandas, scikit-learn, tensorboard, timm and wandb, and yaml. It needs neither flash-attn nor xformers. In Prov-GigaPath's
environment (Python 3.9, PyTorch 2.0, CUDA 11.8) NumPy must be older than 2; annulus is built with CUDA 12.1 or newer.
"""

import argparse
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time
import types

LINE = (
    "    import annulus.torch; "
    "print(annulus.torch.replace_longnet_attention(model, process_group=torch.distributed.group.WORLD))\n"
)
BEFORE_LINE = "    model = get_model(**vars(args))\n"
SPLITS = {"train": 4, "val": 2, "test": 2}  # slides of each, half of them of each label
DIMENSIONS = 1536  # of an embedding of a tile
TASK = """\
name: made_up
setting: binary
label_dict:
  0: 0
  1: 1
max_tiles: 1000000
shuffle_tiles: true
"""


def main():
    arguments = parse()
    if arguments.work is not None:
        work(arguments)
        return
    import torch

    on_gpu = torch.cuda.is_available()
    if arguments.tiles is None:
        arguments.tiles = [5000, 70000] if on_gpu else [300, 700]
    ranks = [1, 2] if not on_gpu or torch.cuda.device_count() > 1 else [1]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        make_slides(directory, arguments.tiles)
        results = [run_ranks(arguments, directory, count, on_gpu) for count in ranks]
    print(table(results, ranks))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path, help="a checkout of prov-gigapath/prov-gigapath")
    parser.add_argument(
        "--tiles",
        type=int,
        nargs="+",
        help="tiles of a slide, one number after the other for the slides; 5000 70000 on a GPU, else 300 700",
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pretrained", default="", help="a file of weights; without it they are random")
    parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)  # a rank's folder
    arguments = parser.parse_args()
    if not (arguments.checkout / "finetune/main.py").is_file():
        needed = "it must be a checkout of prov-gigapath/prov-gigapath"
        parser.error(f"argument checkout: {arguments.checkout} has no finetune/main.py; {needed}")
    if arguments.tiles is not None and min(arguments.tiles) < 1:
        parser.error(f"argument --tiles: {min(arguments.tiles)}; it must be at least 1")
    return arguments


# --- Slides


def make_slides(directory, tiles):
    """Writes slides and their labels as the script reads them: HDF5 files, and lists in CSV files."""
    import h5py
    import numpy as np

    numbers = np.random.default_rng(1)
    kinds = numbers.normal(size=(2, DIMENSIONS))
    (directory / "h5_files").mkdir()
    rows = []
    for split, count in SPLITS.items():
        names = [f"{split}{number}" for number in range(count)]
        (directory / f"{split}_0.csv").write_text("slide_id\n" + "\n".join(names) + "\n", encoding="utf-8")
        for number, name in enumerate(names):
            label, length = number % 2, tiles[number // 2 % len(tiles)]
            kind = (numbers.random(length) < (0.3, 0.7)[label]).astype(int)
            features = kinds[kind] + numbers.normal(size=(length, DIMENSIONS), scale=0.5)
            width = int(np.ceil(length**0.5))
            coordinates = np.stack(np.divmod(np.arange(length), width), 1) * 256
            with h5py.File(directory / "h5_files" / f"{name}.h5", "w") as file:
                file["features"] = features.astype(np.float16)
                file["coords"] = coordinates
            rows.append(f"{name},{label}")
    (directory / "slides.csv").write_text("slide_id,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (directory / "task.yaml").write_text(TASK, encoding="utf-8")


# --- Ranks


def run_ranks(arguments, directory, count, on_gpu):
    """Runs the script on `count` ranks. Returns the steps of each rank."""
    print(f"# {count} {'GPU' if on_gpu else 'process'}{'' if count == 1 else 's' if on_gpu else 'es'}", flush=True)
    given = [str(arguments.checkout), "--epochs", str(arguments.epochs), "--pretrained", arguments.pretrained]
    processes = []
    for rank in range(count):
        folder = directory / f"{count}_{rank}"
        folder.mkdir()
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}
        command = [sys.executable, __file__, *given, "--work", str(folder)]
        output = None if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=environment, stdout=output))
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"a rank ended with status {max(codes, key=abs)}")
    return [json.loads((directory / f"{count}_{rank}" / "steps.json").read_text("utf-8")) for rank in range(count)]


def work(arguments):
    """Runs Prov-GigaPath's script as one rank, and writes the loss of each of its steps to a file."""
    import numpy as np
    import torch
    import torch.distributed as dist

    if int(np.__version__.split(".")[0]) >= 2:
        np.set_printoptions(legacy="1.25")  # the encoder reads its segment lengths from the text of NumPy's numbers
    directory, checkout = arguments.work.parent, arguments.checkout.resolve()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    if count > 1:
        meeting = f"file://{directory}/meeting_{count}"
        dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=count)

    # A model takes four times its memory while it is made (a table of a million positions in float64), so the ranks
    # make theirs in turn. A rank's model is made when it is first called.
    while rank > 0 and not (directory / f"made_{count}_{rank - 1}").exists():
        time.sleep(0.1)
    torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: (directory / f"made_{count}_{rank}").touch() if module.training else None
    )
    steps = []

    def keep_loss(module, inputs, loss):
        if isinstance(module, torch.nn.CrossEntropyLoss):
            steps.append(["training" if inputs[0].requires_grad else "evaluation", float(loss.detach())])

    torch.nn.modules.module.register_module_forward_hook(keep_loss)
    sys.path.insert(0, str(checkout / "finetune"))
    sys.modules["training"] = with_line(checkout / "finetune/training.py")
    sys.argv = [
        "finetune/main.py",
        *("--task_cfg_path", f"{directory}/task.yaml"),
        *("--dataset_csv", f"{directory}/slides.csv"),
        *("--pre_split_dir", str(directory)),
        *("--root_path", f"{directory}/h5_files"),
        *("--save_dir", str(arguments.work)),
        *("--model_arch", "gigapath_slide_enc12l768d"),
        *("--pretrained", arguments.pretrained),
        *("--epochs", str(arguments.epochs)),
        *("--folds", "1", "--gc", "1", "--blr", "0.02", "--num_workers", "0", "--report_to", "tensorboard"),
        # The ranks draw other numbers for dropout than one rank, so the losses would not be comparable.
        *("--dropout", "0", "--drop_path_rate", "0"),
    ]
    runpy.run_path(str(checkout / "finetune/main.py"), run_name="__main__")
    (arguments.work / "steps.json").write_text(json.dumps(steps), encoding="utf-8")
    if count > 1:
        dist.destroy_process_group()


def with_line(path):
    """Returns the module of a file, with the one line added."""
    source = path.read_text(encoding="utf-8")
    if source.count(BEFORE_LINE) != 1:
        sys.exit(f"{path} has {source.count(BEFORE_LINE)} lines {BEFORE_LINE.strip()!r}; it must have one")
    print(f"added to {path.name}, after {BEFORE_LINE.strip()}:\n{LINE}", flush=True)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source.replace(BEFORE_LINE, BEFORE_LINE + LINE), str(path), "exec"), module.__dict__)
    return module


def table(results, ranks):
    """Returns the losses of all steps, a column for each number of ranks. All ranks of a run must have the same ones."""
    for result in results:
        if any(steps != result[0] for steps in result):
            sys.exit("the ranks of a run have different losses")
    lines = ["step  part        " + "".join(f"loss, {count} rank{'s' if count > 1 else ' '}  " for count in ranks)]
    for number, steps in enumerate(zip(*(result[0] for result in results))):
        lines.append(f"{number:4}  {steps[0][0]:10}  " + "".join(f"{loss:13.6f}  " for _, loss in steps))
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    main()
