# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of doc/many_gpus.md, which `annulus plan` predicts. Needs no GPU.

usage: many_gpus.py PROGRAM
"""

import json
import subprocess
import sys

GPUS_OF_A_HOST = 8
SHAPE = {"--heads": 16, "--head-dim": 128, "--dtype": "bfloat16", "--gpu": "H100"}
# By tokens: LongNet's branches up to the longest one that the sequence fills, and numbers of GPUs.
LONGNET = {10**7: (7, (8, 64, 512)), 10**8: (8, (128, 512)), 10**9: (10, (1024,))}
DOCUMENTS_OF_A_GPU, DOCUMENT, DOCUMENT_GPUS = 16, "128:16256", (8, 64, 512)
# Options of `annulus bench` on one and on two H100s, and milliseconds, forward and backward, of doc/performance.md. "weak":
# the tokens are those of each GPU.
MEASURED = (
    ("weak", 65536, "--preset longnet:2048,4,4,5", (2.49, 8.85), (2.74, 9.07)),
    ("weak", 65536, "--preset longnet:2048,4,4,5 --causal", (1.62, 5.99), (1.75, 6.18)),
    ("", 250001, "--preset longnet:2048,2,2,6", (11.6, 38.9), (6.45, 21.4)),
    ("", 262144, "--preset longnet:2048,4,4,5", (10.0, 35.0), (5.22, 18.2)),
    ("", 1000003, "--preset longnet:2048,2,2,6", (46.4, 160), (23.6, 82.8)),
    ("", 70000, "--head-dim 48 --preset gigapath", (3.37, 9.45), (2.21, 5.98)),
    ("weak", 16000000, "--heads 1 --head-dim 32 --preset longnet:2048,4,4,8", (28.2, 77.9), (28.8, 79.6)),
    ("weak", 4096, "--branch 0:1", (0.216, 0.68), (0.499, 1.69)),
    ("weak", 9001, "--branch 0:1", (0.929, 3.02), (1.99, 7.00)),
    ("weak", 16384, "--branch 0:1", (3.18, 9.79), (6.49, 20.9)),
    ("weak", 16384, "--branch 0:1 --causal --shards zigzag", (1.66, 5.17), (3.71, 11.8)),
    ("", 8192, "--heads 8 --head-dim 64 --branch 2048:1 --branch 4096:2 --branch 8192:4", (0.148, 0.43), (0.136, 0.40)),
)
HEAD = "| {} | forward, ms | backward, ms | efficiency | messages, ms | not hidden, ms | launches for messages, ms |"


def plan(program, gpus, *options):
    hosts = -(-gpus // GPUS_OF_A_HOST)
    shape = [part for option in SHAPE.items() if option[0] not in options for part in option]
    command = [program, "plan", *shape, "--ranks", gpus, "--hosts", hosts, "--format", "json", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"many_gpus.py: {' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def milliseconds(pair):
    return "/".join(f"{1e3 * seconds:.3g}" for seconds in pair)


def times_of(found):
    return {row["quantity"]: (row["forward"], row["backward"]) for row in found["time"]}


def print_measured(program):
    print("| options | one GPU, ms | predicted / measured | two, ms | predicted / measured |\n|---|---|---|---|---|")
    for weak, tokens, options, *measured in MEASURED:
        cells = []
        for gpus, times in zip((1, 2), measured):
            all_tokens = tokens * gpus if weak else tokens
            seconds = times_of(plan(program, gpus, "--tokens", all_tokens, *options.split()))["seconds"]
            cells.append("/".join(map(str, times)))
            cells.append("/".join(f"{1e3 * predicted / time:.2f}" for predicted, time in zip(seconds, times)))
        print(f"| `{'--weak ' if weak else ''}--tokens {tokens} {options}` | {' | '.join(cells)} |", flush=True)


def print_row(name, found):
    cost = {row["quantity"]: row for row in found["cost"]}
    time = times_of(found)
    if cost["backward_memory_bytes"]["largest_rank"] > found["gpu"]["memory_bytes"]:
        cells = [f"{found['gpu']['backward_least_ranks']} GPUs have the memory"] + 5 * [""]
    else:
        cells = [f"{1e3 * seconds:.3g}" for seconds in time["seconds"]]
        cells.append("/".join(f"{share:.2f}" for share in time["efficiency"]))
        cells += [milliseconds(time[key]) for key in ("message_seconds", "exposed_seconds", "launch_seconds")]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def print_table(title, rows):
    print(f"\n{HEAD.format(title)}\n|{'---|' * 7}", flush=True)
    for name, found in rows:
        print_row(name, found)


def longnet(program):
    for tokens, (branches, counts) in LONGNET.items():
        for gpus in counts:
            options = ["--tokens", tokens, "--preset", f"longnet:2048,4,4,{branches}"]
            found = plan(program, gpus, *options)
            chosen = found["problem"]["exchange"]
            other = "ring" if chosen == "gather" else "gather"
            yield f"{tokens:,}, {gpus}, {chosen} (`auto`)", found
            yield f"{tokens:,}, {gpus}, {other}", plan(program, gpus, *options, "--exchange", other)


def documents(program):
    for gpus in DOCUMENT_GPUS:
        count = DOCUMENTS_OF_A_GPU * gpus
        for shards in ("even", "balanced"):
            options = ["--sequences", f"{count}:{DOCUMENT}", "--causal", "--branch", "0:1", "--shards", shards]
            yield f"{count:,}, {gpus}, {shards}", plan(program, gpus, *options)


def main(program):
    print_measured(program)
    print_table("tokens, GPUs, exchange", longnet(program))
    print_table("documents, GPUs, shards", documents(program))


if __name__ == "__main__":
    main(*sys.argv[1:])
