#!/usr/bin/env python3
"""Curves of a run with datastores: bits per byte by entries, k and lambda, on its own kind of text and on another.

usage: bench/datastores.py RUN --data PATH [--other PATH] --out DIR [--sizes 30k,100k,300k,1M] [--tokens 4096]

Builds a datastore of each size from the part of --data that train learns from, tunes it on the part that train holds out,
adds --other to the largest without training, and tunes again on both. Prints tables in Markdown and writes DIR/datastores.svg.
What lies in DIR already is not computed again. The program is $KINFOLK_PROGRAM or build/clang/kinfolk.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("KINFOLK_PROGRAM", str(ROOT / "build/clang/kinfolk"))
COLOURS = ["#1b6ca8", "#c8553d", "#588b3a", "#8e5ea2", "#c49a27", "#4d4d4d"]


def kinfolk(*words):
    return subprocess.run([PROGRAM, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def tuned(out, name, run, store, text, tokens):
    """The result of `datastore tune`, computed once."""
    path = out / f"{name}.json"
    if not path.exists():
        path.write_text(kinfolk("datastore", "tune", run, "--store", store, "--valid", text, "--tokens", tokens, "--leave", "--json"))
    return json.loads(path.read_text())


def best_by(result, place):
    """{value: lowest bits} over what was tried, by its column: 0 k, 1 temperature, 2 lambda."""
    out = {}
    for row in result["tried"]:
        out[row[place]] = min(row[3], out.get(row[place], math.inf))
    return dict(sorted(out.items()))


def panel(x0, title, x_name, series, log):
    """One chart of {name: {x: y}} as SVG."""
    width, height, left, top = 260, 200, 52, 30
    xs = [x for line in series.values() for x in line]
    ys = [y for line in series.values() for y in line.values()]
    scale = math.log2 if log else float
    a, b = min(map(scale, xs)), max(map(scale, xs))
    low, high = min(ys), max(ys)
    pad = (high - low) * 0.06 or 0.01
    low, high = low - pad, high + pad
    px = lambda x: x0 + left + (scale(x) - a) / ((b - a) or 1) * width
    py = lambda y: top + (high - y) / (high - low) * height
    text = lambda x, y, words, how="": f'<text x="{x:.1f}" y="{y:.1f}" {how}>{words}</text>'
    out = [f'<rect x="{x0 + left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>']
    out.append(text(x0 + left, top - 10, title, 'font-weight="bold"'))
    out.append(text(x0 + left + width / 2, top + height + 32, x_name, 'text-anchor="middle"'))
    for i in range(5):
        y = low + (high - low) * (i + 0.5) / 5
        out.append(text(x0 + left - 4, py(y) + 4, f"{y:.3f}", 'text-anchor="end"'))
    shown = sorted(set(xs))
    for x in shown[:: max(1, len(shown) // 6)]:
        label = f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x >= 1e4 else f"{x:g}"
        out.append(text(px(x), top + height + 15, label, 'text-anchor="middle"'))
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in sorted(line.items()))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        out.append(text(x0 + left, top + height + 50 + 14 * i, name, f'fill="{colour}"'))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    for name in ("data", "out"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--other", type=pathlib.Path)
    parser.add_argument("--sizes", default="30k,100k,300k,1M")
    parser.add_argument("--tokens", default="4096")
    given = parser.parse_args()
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for size in given.sizes.split(","):
        store = out / f"store_{size}"
        if not store.exists():
            kinfolk("datastore", "build", given.run, "--data", given.data, "--tokens", size, "--out", store)
        results[size] = tuned(out, f"size_{size}", given.run, store, given.data, given.tokens)

    print("| entries | k | temperature | lambda | without | with | gain |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for r in results.values():
        gain = r["bits_per_byte_without"] - r["bits_per_byte"]
        print(f"| {r['entries']:,} | {r['k']} | {r['temperature']:g} | {r['lambda']:g} | {r['bits_per_byte_without']:.4f} | "
              f"{r['bits_per_byte']:.4f} | {gain:.4f} ± {r['gain_error']:.4f} |")
    for place, name in ((0, "k"), (2, "lambda")):
        table = {size: best_by(r, place) for size, r in results.items()}
        columns = list(next(iter(table.values())))
        print(f"\n| entries \\ {name} | " + " | ".join(f"{x:g}" for x in columns) + " |\n" + "| ---: " * (len(columns) + 1) + "|")
        for size, line in table.items():
            print(f"| {size} | " + " | ".join(f"{line[x]:.4f}" if x in line else "" for x in columns) + " |")

    largest = list(results)[-1]
    if given.other:
        both = out / "store_both"
        if not both.exists():
            shutil.copytree(out / f"store_{largest}", out / "store_both.part")
            kinfolk("datastore", "add", out / "store_both.part", "--data", given.other)
            (out / "store_both.part").rename(both)
        print("\n| scored on | store | without | with | gain | lambda |\n| --- | --- | ---: | ---: | ---: | ---: |")
        for text, words in ((given.data, "own kind"), (given.other, "another kind")):
            for store, what in ((out / f"store_{largest}", "own kind"), (both, "both")):
                r = tuned(out, f"{text.name}_{store.name}", given.run, store, text, given.tokens)
                print(f"| {words} | {what}, {r['entries']:,} | {r['bits_per_byte_without']:.4f} | {r['bits_per_byte']:.4f} | "
                      f"{r['bits_per_byte_without'] - r['bits_per_byte']:.4f} ± {r['gain_error']:.4f} | {r['lambda']:g} |")

    sizes = {r["entries"]: r["bits_per_byte"] for r in results.values()}
    alone = results[largest]["bits_per_byte_without"]
    parts = panel(0, "bits/byte by entries", "entries", {"with the store": sizes, "without": {x: alone for x in sizes}}, True)
    parts += panel(340, "by k", "k, the others at their best", {n: best_by(r, 0) for n, r in results.items()}, True)
    parts += panel(680, "by lambda", "lambda, the others at their best", {n: best_by(r, 2) for n, r in results.items()}, False)
    height = 300 + 14 * max(2, len(results))
    (out / "datastores.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="1010" height="{height}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
