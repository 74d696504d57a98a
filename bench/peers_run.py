"""How bench/peers.py times two sides, and what it was asked for."""
import argparse
import importlib
import os
import pathlib
import statistics
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["attend", "scan", "content"])
parser.add_argument("lengths", nargs="*", type=int)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--only", default="")
parser.add_argument("--flex", action="store_true", help="flex_attention too, which compiles for a minute")
parser.add_argument("--seconds", type=float, default=6, help="CPU time of a row, roughly")
parser.add_argument("--library", default=os.environ.get("KINFOLK_LIBRARY", ROOT / "build/clang/libkinfolk.so"))
options = parser.parse_args()
os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS=str(options.threads), MKL_NUM_THREADS=str(options.threads))
warnings.filterwarnings("ignore")

import torch  # noqa: E402 (the threads are set before)
import torch.nn.functional as F  # noqa: E402

torch.ops.load_library(str(options.library))
kinfolk = torch.ops.kinfolk
missing, pending = set(), []


def peer(module):
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # some raise other errors where there is no GPU
        name = module.split(".")[0]
        if name not in missing:
            print(f"  {name}: left out ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
            missing.add(name)
        return None


def wanted(name, length):
    return options.only in name and (not options.lengths or length in options.lengths)


def timed(run):
    begin = time.process_time()
    run()
    return time.process_time() - begin


def mm_rate():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    torch.mm(a, b)
    return 2.147483648 / statistics.median(timed(lambda: torch.mm(a, b)) for _ in range(7))


def compare(name, length, ours, theirs, leaves=(), flops=0, gigabytes=0, equal=True):
    """ours() and theirs() give the same output (not equal: do other sums). With leaves both ways: their gradients too,
    of the sum of the output. The peer may take so many gigabytes."""
    name = f"{name}, {length}, " + ("both" if leaves else "forward")
    print_heading()
    available = int(next(x for x in open("/proc/meminfo") if x.startswith("MemAvailable")).split()[1]) / 2**20
    if gigabytes > available:
        print(f"  {name}: left out (it wants {gigabytes:.0f} GB; {available:.0f} are free)")
        return

    def step(run):
        if not leaves:
            with torch.no_grad():
                run()
            return
        out = run()
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    try:
        off = "-"
        if equal:
            with torch.no_grad():
                a, b = ours(), theirs()
                off = f"{((a - b).abs().max() / b.abs().max()).item():.0e}"
            del a, b
        rate = mm_rate()
        step(ours)
        times = [(timed(lambda: step(ours)), timed(lambda: step(theirs)))]  # kept where there is time for no other
        spent = sum(times[0])
        if spent < options.seconds:
            times.clear()
        while not times or (spent < 2 * options.seconds and len(times) < 15):
            times.append((timed(lambda: step(ours)), timed(lambda: step(theirs))))
            spent += sum(times[-1])
    except Exception as error:
        print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
        return
    ours_s, theirs_s = (statistics.median(t[i] for t in times) for i in (0, 1))
    ratios = sorted(t[1] / t[0] for t in times)
    spread = f"({ratios[0]:.2f}-{ratios[-1]:.2f}, {len(times)})"
    own = f"{flops / ours_s / 1e9:5.0f}" if flops else "    -"
    print(f"  {name:<60} {1e3 * ours_s:8.1f} {1e3 * theirs_s:8.1f} {statistics.median(ratios):8.2f} {spread:<20}"
          f"{own} {rate:5.0f}  {off}", flush=True)


def heading(text):
    """Printed above the next row, if there is one."""
    pending[:] = [text]


def print_heading():
    while pending:
        print(f"{pending.pop()}\n  {'':<60} {'ours ms':>8} {'peer ms':>8} {'ratio':>8} {'(range, rounds)':<20}"
              f" GF/s    mm  off", flush=True)
